"""Kernels that a replay makes of cache entries: the same as Triton's own, attribute by attribute, in fewer steps."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.manifest.model import Manifest

from .helpers import headless, merged

COUNT = 12


def traffic() -> None:
    import torch
    from kernels.basic import copy, kept, scaled

    x = torch.zeros(64)
    for n in range(COUNT - 4):
        kept[(1,)](x, n)
    for block in (16, 32):
        copy[(1,)](x, x, 5, BLOCK=block)
        scaled[(1,)](x, block, num_warps=8)


@pytest.fixture(scope="module", params=["cuda:90", "hip:gfx942"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Manifest]:
    """A target, a folder with a full Triton cache for it, and the manifest of what is in it."""
    folder = tmp_path_factory.mktemp("full")
    with headless(folder, request.param), jitreplay.Recorder(folder / "recording"):
        traffic()
    return request.param, folder, merged(folder / "recording")


def held() -> list[Any]:
    """Return the kernels that Triton holds in memory."""
    from kernels.basic import copy, kept, scaled

    caches = [found[0] for fn in (copy, kept, scaled) for found in fn.device_caches.values()]
    return [kernel for cache in caches for kernel in cache.values()]


@contextmanager
def constructor(replaced: Any) -> Iterator[None]:
    """Let `replaced` be what makes kernels meanwhile."""
    from triton.compiler.compiler import CompiledKernel

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledKernel, "__init__", replaced)
        yield


def own() -> Any:
    from triton.compiler.compiler import CompiledKernel

    return CompiledKernel.__init__


def classes(kernels: list[Any]) -> int:
    """Return how many classes the metadata has: Triton makes one a kernel, and with this few fields we make one."""
    return len({type(kernel.metadata) for kernel in kernels})


def test_they_have_what_triton_would_give_them(full: tuple[str, Path, Manifest]) -> None:
    target, folder, manifest = full
    with headless(folder, target):
        before = own()
        assert jitreplay.replay(manifest, jobs=1).counts == {"cached": COUNT}
        kernels = held()
        assert len(kernels) == COUNT and classes(kernels) == 1 and own() is before
        for kernel in kernels:
            tritons = type(kernel)(kernel.src, kernel.metadata_group, kernel.hash)
            ours = dict(vars(kernel))
            for name in ("module", "function", "_run", "n_regs", "n_spills", "n_max_threads", "_module_pid"):
                if name in ours:  # what loading it set
                    ours[name] = vars(tritons).get(name)
            assert {name: value for name, value in ours.items() if name in vars(tritons)} == vars(tritons)
            assert {type(value) for value in ours.values()} >= {type(kernel.asm), bytes, str}
            assert kernel.metadata._fields == tritons.metadata._fields
            assert type(kernel.metadata).__qualname__ == type(tritons.metadata).__qualname__
            assert type(kernel.metadata).__module__ == type(tritons.metadata).__module__
            assert {stage: type(text) for stage, text in kernel.asm.items()} == {
                stage: type(text) for stage, text in tritons.asm.items()
            }


def test_a_launch_in_another_thread_gets_tritons_own(full: tuple[str, Path, Manifest]) -> None:
    from jitreplay.jit.entry import Entries

    target, folder, _ = full
    with headless(folder, target), Entries():
        traffic()
        assert len(held()) == classes(held()) == COUNT


@pytest.mark.parametrize("marked", [False, True], ids=["put in its place", "as functools.wraps does"])
def test_another_tools_constructor_makes_all(full: tuple[str, Path, Manifest], marked: bool) -> None:
    target, folder, manifest = full
    with headless(folder, target):
        original, made = own(), []

        def counting(kernel: Any, *args: Any) -> None:
            original(kernel, *args)
            made.append(kernel)

        with constructor(functools.wraps(original)(counting) if marked else counting):
            before = own()
            assert jitreplay.replay(manifest, jobs=1).counts == {"cached": COUNT}
            assert own() is before
        assert len(made) == classes(held()) == COUNT


def test_one_that_was_changed_in_place_makes_all(
    full: tuple[str, Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, folder, manifest = full

    def newer(self: Any, src: Any, metadata_group: Any, hash: Any) -> None:
        self.sizes = len(metadata_group)
        self.module = self._run = None
        raise RuntimeError("made by this one")

    with headless(folder, target):
        monkeypatch.setattr(own(), "__code__", newer.__code__)
        report = jitreplay.replay(manifest, jobs=1)
        assert [result.reason for result in report.results] == ["RuntimeError: made by this one"] * COUNT


def test_a_tool_that_came_meanwhile_and_left_does_not_end_it(full: tuple[str, Path, Manifest]) -> None:
    from triton.compiler.compiler import CompiledKernel

    from jitreplay.jit.entry import Entries

    target, folder, manifest = full
    with headless(folder, target), constructor(before := own()):
        with Entries():
            ours = own()
            type.__setattr__(CompiledKernel, "__init__", lambda *args: ours(*args))
        CompiledKernel.__init__ = ours  # inert now
        assert jitreplay.replay(manifest, jobs=1).counts == {"cached": COUNT}
        assert classes(held()) == 1 and own() is before


def test_other_makers_of_kernels_are_left_alone(full: tuple[str, Path, Manifest]) -> None:
    """One of another class, and one whose constructor takes more, while a replay is under way."""
    from triton.compiler.compiler import CompiledKernel

    from jitreplay.jit.entry import Entries
    from jitreplay.jit.miss import replaying

    class Watched(CompiledKernel):
        def __init__(self, *args: Any) -> None:
            self.module = "mine"
            super().__init__(*args)

    target, folder, manifest = full
    with headless(folder, target):
        jitreplay.replay(manifest, jobs=1)
        first = held()[0]
        with Entries(), replaying():
            made = [Watched(first.src, first.metadata_group, first.hash) for _ in range(2)]
            named = [CompiledKernel(src=first.src, metadata_group=first.metadata_group, hash="h") for _ in range(2)]
            bare = CompiledKernel.__new__(CompiledKernel)
            bare.module = None  # what its `__del__` asks for
            with pytest.raises(TypeError, match="more"):
                own()(bare, first.src, first.metadata_group, first.hash, more=1)
        assert classes(made) == 2
        assert classes(named) == 1 and {kernel.hash for kernel in named} == {"h"}


def test_one_that_is_cut_is_made_anew(full: tuple[str, Path, Manifest]) -> None:
    target, folder, manifest = full
    with headless(folder, target):
        assert jitreplay.replay(manifest, jobs=1).counts == {"cached": COUNT}
        paths = [Path(path) for kernel in held()[3:5] for path in kernel.metadata_group.values()]
        metadata = [path for path in paths if path.suffix == ".json" and not path.name.startswith("__grp__")]
        metadata[0].write_text(metadata[0].read_text()[:40])
        metadata[1].write_text("[]")
    with headless(folder, target):
        assert jitreplay.replay(manifest, jobs=1).counts == {"cached": COUNT - 2, "compiled": 2}
