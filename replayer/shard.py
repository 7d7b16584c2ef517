"""A shard of a manifest, compiled in a process of its own: `python -m jitreplay.replayer.shard FOLDER`.

FOLDER holds `request`, and `seed.tgz` where there is something to start from; it gets `answer` and `cache.tgz`, and
meanwhile `done`. The process ends with its stdin, so that it never outlives what started it.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from ..jit.place import write_whole
from ..manifest import file
from ..manifest.errors import JitreplayError
from ..manifest.model import Manifest
from .outcome import Report
from .quarantine import Held, here

REQUEST, SEED, ANSWER, ARCHIVE, CACHE = "request", "seed.tgz", "answer", "cache.tgz", "cache"
DONE = "done"
"""How far it is: `done kernel`, written anew when that changes."""


class Request(msgspec.Struct):
    """What to compile: a manifest's file content, targets, packages that may be imported.

    `builds` says by target what the entries must be good for (`jit.place.build`), `quarantine` what is not to be tried.
    """

    manifest: bytes
    targets: tuple[str, ...]
    allow: tuple[str, ...]
    builds: dict[str, dict[str, str]]
    quarantine: dict[str, list[Held]] = {}


class Answer(msgspec.Struct):
    """What became of it, and by target what is in quarantine now.

    `error` is not empty when nothing was compiled, and says why in one line.
    """

    report: Report
    error: str = ""
    quarantine: dict[str, list[Held]] = {}


def split(manifest: Manifest, parts: int) -> list[Manifest]:
    """Return the `parts` manifests that `--shard 1/parts` to `--shard parts/parts` compile; some may be empty."""
    shares: list[list[int]] = [[] for _ in range(parts)]
    for index, variant in enumerate(manifest.variants):
        shares[int(variant.digest[:8], 16) % parts].append(index)
    return [Manifest(manifest.environments, tuple(manifest.variants[i] for i in share), ()) for share in shares]


def join(report: Report, found: Report) -> None:
    """Add what was found for another target, or another shard, to a report."""
    report.results.extend(found.results)
    report.drift.extend(line for line in found.drift if line not in report.drift)
    report.notes.extend(line for line in found.notes if line not in report.notes)
    report.add_work(found)


def main(folder: Path) -> None:
    """Do the request of a folder. What Triton raises beside its outcomes ends the process with a traceback."""
    cache = folder / CACHE
    request = msgspec.msgpack.decode((folder / REQUEST).read_bytes(), type=Request)
    cache.mkdir()
    threading.Thread(target=_end_with_stdin, args=(folder,), daemon=True).start()
    os.environ["TRITON_CACHE_DIR"] = str(cache.absolute())
    try:
        answer = _compile(folder, request)
    except (JitreplayError, ValueError) as error:
        answer = Answer(Report(), str(error))
    (folder / ANSWER).write_bytes(msgspec.msgpack.encode(answer))


def _compile(folder: Path, request: Request) -> Answer:
    from ..jit.headless import install
    from . import archive
    from .replay import fill

    manifest, answer, cache = file.loads(request.manifest), Answer(Report()), folder / CACHE
    if (folder / SEED).exists():
        archive.merge(folder / SEED, cache)
    before = _entries(cache)
    before_this = 0

    def tell(done: int, _: int, kernel: str) -> None:
        with suppress(OSError):
            write_whole(folder / DONE, f"{before_this + done} {kernel}")

    for target in request.targets:
        install(target)
        _check(request.builds[target])
        here(cache).take(request.quarantine.get(target, ()))
        # One worker: the node's other cores are for other shards, and a crash costs one variant.
        join(answer.report, fill(manifest, allow=request.allow, jobs=1, progress=tell))
        answer.quarantine[target] = here(cache).held
        before_this += len(manifest.variants)
    after = _entries(cache)
    archive.pack(
        folder / ARCHIVE, cache, manifest, leave={name for name, files in after.items() if before.get(name) == files}
    )
    return answer


def _check(wanted: dict[str, str]) -> None:
    """Raise JitreplayError unless what is compiled here is good for the one who asked."""
    from ..jit import place

    here = place.build()
    if told := [f"{name}: {here.get(name)}, not {wanted[name]}" for name in wanted if here.get(name) != wanted[name]]:
        raise JitreplayError(
            f"it compiles otherwise than the command would ({'; '.join(told)}): install the same there"
        )


def _entries(cache: Path) -> dict[str, list[tuple[str, int]]]:
    """Return the files of each entry, with the time of their last change."""
    return {
        entry.name: sorted((path.name, path.stat().st_mtime_ns) for path in entry.iterdir())
        for entry in cache.iterdir()
        if entry.is_dir()
    }


def _end_with_stdin(folder: Path) -> None:
    """End the process when whoever started it is gone, and with it the folder, which nobody else would delete then."""
    while os.read(0, 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
