"""What the tests share: programs in fresh processes, recordings read back, and headless Triton in this process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

from jitreplay.manifest import file
from jitreplay.manifest.merge import merge_files
from jitreplay.manifest.model import Manifest, Variant
from jitreplay.manifest.values import Integer

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
TARGET = "cuda:90"
SERVER = ("-m", "jitreplay.examples.serving", "--target", TARGET)
LIMIT = 280
"""Seconds after which a program is stopped: far more than any takes."""

if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))  # `kernels` is one package here and in every process that a test starts

PRELUDE = """
import json, os, sys
import torch
import triton
import triton.language as tl
import jitreplay
from jitreplay.examples import counter as counting
from jitreplay.jit.headless import install
counter = counting.Counter().install()
driver = install({target!r})

def happened(*kinds):
    events = counter.take()
    return [[event.kind, event.kernel] for event in events if not kinds or event.kind in kinds]

def keys():
    return {{f"{{module}}:{{name}}": found for (module, name), found in counting.keys().items()}}

def answer(value):
    with open({answer!r}, "w") as file:
        json.dump(value, file)
"""


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return the variables of a fresh process: a Triton cache in `folder`, our packages, no settings of ours."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JITREPLAY_")}
    paths = os.pathsep.join([str(folder), str(ROOT), str(TESTS)])
    return {**clean, "TRITON_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": paths, **variables}


def run(folder: Path, *words: Any, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with what it printed."""
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        list(map(str, words)),
        cwd=cwd or folder,
        env=environment(folder, **variables),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def jitreplay(folder: Path, *words: Any, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a jitreplay command."""
    return run(folder, sys.executable, "-m", "jitreplay.cli", *words, **variables)


def as_json(done: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    """Return what a command printed as JSON; it must have ended with this exit code."""
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def program(
    folder: Path,
    code: str,
    *,
    target: str = TARGET,
    record: Path | None = None,
    replay: Path | None = None,
    allow: Iterable[str] = ("kernels",),
    **variables: str,
) -> Any:
    """Run a program on the headless target and return what it gave to `answer`.

    The program starts with the counter installed, before it recording to `record` and with `report` of a replay of
    `replay`, where those are given. `happened(*kinds)` tells and forgets what the counter saw, `keys()` the keys held.
    """
    folder.mkdir(parents=True, exist_ok=True)
    out, script = folder / "answer.json", folder / "program.py"
    out.unlink(missing_ok=True)
    text = PRELUDE.format(target=target, answer=str(out))
    if record is not None:
        text += f"recorder = jitreplay.Recorder({str(record)!r}).start()\n"
    if replay is not None:
        text += f"report = jitreplay.replay({str(replay)!r}, allow={tuple(allow)!r})\n"
    script.write_text(text + dedent(code))
    done = run(folder, sys.executable, script, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


def merged(*sources: Path) -> Manifest:
    """Return the manifest of journals, or of folders of them."""
    return merge_files(sources).manifest


def save(manifest: Manifest, path: Path) -> Path:
    """Write a manifest; return its path."""
    file.save(manifest, path)
    return path


def goods(folder: Path, count: int) -> Manifest:
    """Record `kernels.faults.good` with so many constants; return the manifest. The folder gets the journals."""
    code = f"""
    from kernels import faults
    for n in range({count}):
        faults.good[(1,)](torch.zeros(16), N=n)
    answer(None)
    """
    program(folder, code, record=folder / "journals")
    return merged(folder / "journals")


def by_kernel(manifest: Manifest) -> dict[str, set[str]]:
    """Return the digests of each kernel's variants, by `module:qualified name`."""
    found: dict[str, set[str]] = {}
    for variant in manifest.variants:
        found.setdefault(f"{variant.kernel.module}:{variant.kernel.qualname}", set()).add(variant.digest)
    return found


def variants_of(manifest: Manifest, name: str) -> list[Variant]:
    """Return the variants of the kernels of this qualified name, in the order of their first sight."""
    return sorted((v for v in manifest.variants if v.kernel.qualname == name), key=lambda v: v.order)


def number(variant: Variant, index: int) -> int:
    """Return an argument of a variant that is an integer."""
    value = variant.args[index].value
    assert isinstance(value, Integer)
    return value.number


@contextmanager
def headless(folder: Path, target: str = TARGET) -> Iterator[Any]:
    """Give a headless driver in this process, with a Triton cache in `folder`; Triton is as before afterwards."""
    from jitreplay.jit.headless import install
    from jitreplay.replayer import filled

    before = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    try:
        with install(target) as driver:
            yield driver
    finally:
        filled.note("")
        if before is None:
            del os.environ["TRITON_CACHE_DIR"]
        else:
            os.environ["TRITON_CACHE_DIR"] = before
