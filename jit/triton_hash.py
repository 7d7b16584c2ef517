"""Triton's hash of its own files, which every key of the disk cache starts with: taken in a thread, and kept.

Half a second and more, once a process: most of it is libtriton.so, 400 MB (3.6.0 to 3.9.0: `triton_key`). What it was
at the last boot stands in for it while the files are those of then, and until the thread has the true one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from .internals import internals
from .lock import own_folder

LOGGER = logging.getLogger("jitreplay")
FOLDER, KEPT = "triton", 8
"""Hosts that share a cache have files of their own each; the notes of so many are kept."""


class TritonHash:
    """Takes the hash once in this process. `keep` says whether it may be noted for the next one."""

    def __init__(self, keep: bool) -> None:
        self._module: Any = sys.modules["triton.runtime.cache"]
        self._take: Callable[[], str] = self._module.triton_key
        self._note = note(Path(sys.modules["triton"].__file__ or "").parent, internals().knobs.cache.dir)
        self._keep = keep
        self._kept = read(self._note)
        if self._kept:
            self._module.triton_key = self._stand_in
        self._thread = threading.Thread(target=self._run, name="jitreplay-hash", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when `triton_key` is known: a compile that came sooner would take it a second time."""
        if not self._kept:
            self._thread.join()

    def settle(self) -> None:
        """Return when the true one is known."""
        self._thread.join()

    def _stand_in(self) -> str:
        return self._kept

    def _run(self) -> None:
        found = ""
        with suppress(Exception):  # what asks for it next is told
            found = self._take()
        if self._module.triton_key == self._stand_in:
            self._module.triton_key = self._take
        if self._kept and found and found != self._kept:
            LOGGER.error(
                "%s holds the hash of another Triton than this one, though its files look the same: it is removed; "
                "start this process again, or kernels of the other one may be used",
                self._note,
            )
            self._note.unlink(missing_ok=True)
        elif found and self._keep and not self._kept:
            write(self._note, found)


_hash: TritonHash | None = None


def begin(keep: bool = True) -> None:
    """Begin to take the hash, where Triton is imported already; with `keep`, note it for the next boot."""
    global _hash
    if _hash is None and "triton.runtime.cache" in sys.modules:
        _hash = TritonHash(keep)


def wait() -> None:
    """Wait for what was begun, if need be."""
    if _hash is not None:
        _hash.wait()


def settle() -> None:
    """Wait until Triton itself has the hash."""
    if _hash is not None:
        _hash.settle()


def note(home: Path, cache: str | os.PathLike[str]) -> Path:
    """Return where in a cache directory the hash is noted of a Triton whose files look like those in `home`.

    A file's time of change (ctime) is the kernel's own and cannot be set, and it is its host's: what is shipped to
    another fits nothing there.
    """
    facts = [str(home), *([str(path), *_looks(path)] for path in _files(home))]
    name = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
    return own_folder(cache) / FOLDER / name


def _files(home: Path) -> Iterator[Path]:
    """Give the files that Triton hashes, and more: all of its modules."""
    for folder, inner, names in os.walk(home):
        inner[:] = sorted(name for name in inner if name not in ("include", "__pycache__"))
        yield from (Path(folder) / name for name in sorted(names) if name.endswith((".py", ".so", ".pyd")))


def _looks(path: Path) -> list[int]:
    try:
        found = path.stat()
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def read(path: Path) -> str:
    """Return the hash that a note holds, "" where there is none or it is not whole."""
    try:
        text = path.read_text()
    except (OSError, ValueError):
        return ""
    mark, _, found = text.partition("\n")
    return found if found and mark == _mark(found) else ""


def write(path: Path, found: str) -> None:
    """Note a hash, and drop the oldest notes beside it; nothing where that cannot be."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(f"{_mark(found)}\n{found}")
        os.replace(scratch, path)
        notes = sorted(path.parent.iterdir(), key=lambda each: each.stat().st_mtime_ns)
        for old in notes[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        pass  # it is taken anew at the next boot


def _mark(found: str) -> str:
    return hashlib.sha256(found.encode()).hexdigest()
