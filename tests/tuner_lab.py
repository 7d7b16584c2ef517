"""What the tests of autotuners share: boots of a program in this process, and what they hold."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.manifest.model import Manifest
from jitreplay.manifest.values import Integer
from jitreplay.replayer.waiting import Waiting

from .helpers import headless, merged

NUMBERS = (5, 16)


class Lab:
    """Boots of a program in this process, each with its own Triton cache, without the compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.boots = folder, 0

    @contextmanager
    def boot(self, target: str = "cuda:90/H200") -> Iterator[Path]:
        self.boots += 1
        folder = self.folder / f"boot-{self.boots}"
        folder.mkdir()
        try:
            with headless(folder, target):
                yield folder
        finally:
            for thing in gc.get_objects():
                if type(thing) is Waiting:
                    thing.stop()  # as the end of a process would
            gc.collect()  # autotuners of an ended boot

    def record(self, make: Callable[[], Any], numbers: Any = NUMBERS, target: str = "cuda:90/H200") -> Manifest:
        """Return the manifest of a boot in which a tuner is launched."""
        with self.boot(target) as folder, jitreplay.Recorder(folder / "recording"):
            launch(make(), numbers)
        return merged(folder / "recording")


def launch(tuner: Any, numbers: Any = NUMBERS) -> None:
    import torch

    for n in numbers:
        tuner[(1,)](torch.zeros(16), n)


def held() -> list[tuple[Any, Any]]:
    """Return the (n, C) of the keys that Triton holds for the tuned kernel."""
    from kernels.tuned import kernel

    keys = [key for caches in kernel.device_caches.values() for key in caches[0]]
    parts = [key.partition("]")[0].split("'constexpr', ")[-1].rstrip(")") for key in keys]
    return sorted((key.count("('i32', 'D')"), int(part)) for key, part in zip(keys, parts, strict=True))


def blocks(manifest: Manifest) -> list[int]:
    """Return the winners' blocks, by the key's first number."""
    found = {}
    for choice in manifest.choices:
        number, block = choice.key[0], dict(choice.kwargs)["C"]
        assert isinstance(number, Integer) and isinstance(block, Integer)
        found[number.number] = block.number
    return [found[n] for n in sorted(found)]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    import triton.compiler
    from kernels import tuned, uncompiled

    from jitreplay.replayer import worth

    monkeypatch.setattr(triton.compiler, "compile", uncompiled.compile)
    monkeypatch.setattr(worth, "free_cores", lambda: 1)
    tuned.CALLS.clear()
    yield Lab(tmp_path)
