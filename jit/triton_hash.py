"""Triton's hash of its own files, which every key of the disk cache starts with: taken in a thread, and kept.

Half a second and more, once a process: most of it is libtriton.so, 400 MB (3.6.0 to 3.9.0: `triton_key`). What it was
at the last boot stands in for it while the files are those of then, and until the thread has the true one.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..manifest.settings import LOGGER
from .internals import renew_in_children
from .lock import own_folder
from .place import write_whole

FOLDER, KEPT, MOST, MONTH = "triton", 64, 1024, 30 * 86400
"""Hosts that share a cache have notes of their own each: 64 are kept, and up to 1024 that were used this month."""
PATIENCE = 1.0
"""Seconds that a process which ends at once waits for the check."""


class TritonHash:
    """Takes the hash once. What the note holds that `find` gives stands in meanwhile; what is found is noted there."""

    def __init__(self, module: Any, find: Callable[[], Path] | None) -> None:
        self._module, self._find = module, find
        self._take: Any = module.triton_key
        self._true = ""
        cached = getattr(self._take, "cache_info", None)
        # One that was taken before may be of other files than lie there now; one that keeps nothing cannot be primed.
        self._note = find() if find is not None and cached is not None and not cached().currsize else None
        self._kept = read(self._note) if self._note is not None else ""
        if self._kept and self._note is not None:
            with suppress(OSError):
                os.utime(self._note)  # it is in use
        self._thread = threading.Thread(target=self._run, name="jitreplay-hash", daemon=True)

        @functools.wraps(self._take)
        def triton_key() -> str:
            return self._true or self._kept

        self._stand_in = triton_key

    def start(self, busy: bool) -> None:
        """Begin; where a hash is held and this process `busy`, `check` does the rest. What raises changes nothing."""
        if self._kept:
            self._module.triton_key = self._stand_in
        if not (self._kept and busy):
            self.check()

    def check(self) -> None:
        """Take the true one, if that was not begun."""
        if self._thread.ident is None:
            try:
                self._thread.start()
            except BaseException:
                self.restore()
                raise

    def restore(self) -> None:
        """Give Triton its own function back."""
        if self._module.triton_key is self._stand_in:
            self._module.triton_key = self._take

    def wait(self) -> None:
        """Return when `triton_key` is known: a compile that came sooner would take it a second time."""
        if not self._kept:
            self._thread.join()

    def settle(self, seconds: float | None = None) -> None:
        """Wait until the true one is known, at most so long."""
        self.check()
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._true = self._take()
        except Exception:
            return  # what asks for it next is told
        finally:
            self.restore()
        note = self._note
        if note is None or self._find is None:
            return
        with suppress(OSError):
            if self._kept and self._kept != self._true:
                LOGGER.error(
                    "%s holds the hash of another Triton than this one, though its files look the same: delete it if "
                    "it is still there, and start this process again, or kernels of the other one may be used",
                    note,
                )
                note.unlink(missing_ok=True)
            elif not self._kept and self._find() == note:  # else the files changed while they were read
                write(note, self._true)


class _Begun:
    """The hash of this process, taken once."""

    def __init__(self) -> None:
        self.found: TritonHash | None = None
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Be as new: in a forked child, the thread that takes it is not there."""
        self.lock = threading.Lock()
        found, self.found = self.found, None
        if found is not None:
            found.restore()


_begun = _Begun()


def begin(cache: str | None, busy: bool = False) -> None:
    """Begin to take the hash, where Triton is imported already.

    What it was is noted in a cache directory; without one, neither is a note read nor written. A process that is `busy`
    checks what was noted when it calls `check`: two threads at once are slower than one after the other.
    """
    with _begun.lock:
        module = sys.modules.get("triton.runtime.cache")
        if _begun.found is not None or module is None:
            return
        home = os.path.dirname(sys.modules["triton"].__file__ or "")
        with suppress(Exception):  # then it is taken when it is asked for
            found = TritonHash(module, functools.partial(note, Path(home), cache) if cache else None)
            found.start(busy)
            _begun.found = found


def check() -> None:
    """Have what stands in checked in a thread from now on, if it is not yet."""
    with _begun.lock, suppress(Exception):
        if (found := _begun.found) is not None:
            found.check()


def wait() -> None:
    """Wait for what was begun, if need be."""
    if (found := _begun.found) is not None:
        found.wait()


@atexit.register
def _end() -> None:
    with suppress(Exception):  # no thread can be started any more
        settle(PATIENCE)


def settle(seconds: float | None = None) -> None:
    """Wait until Triton itself has the hash, at most so long."""
    if (found := _begun.found) is not None:
        found.settle(seconds)


def note(home: Path, cache: str | os.PathLike[str]) -> Path:
    """Return where in a cache directory the hash is noted of a Triton whose files look like those in `home`.

    A file's time of change (ctime) is the kernel's own and cannot be set, and it is its host's: what is shipped to
    another fits nothing there.
    """
    facts = [str(home), *([str(path), *_looks(path)] for path in _files(home))]
    name = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
    return own_folder(cache) / FOLDER / name


def _files(home: Path) -> Iterator[Path]:
    """Give the files that Triton hashes, and more: all of its modules. An editable install has folders by link."""
    seen: set[str] = set()
    for folder, inner, names in os.walk(home, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
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
    """Note a hash, and drop old notes beside it; nothing where that cannot be."""
    with suppress(OSError):  # it is taken anew at the next boot
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{_mark(found)}\n{found}")
        used = {}
        for each in path.parent.iterdir():
            with suppress(OSError):
                used[each] = each.stat().st_mtime
        for place, each in enumerate(sorted(used, key=used.__getitem__, reverse=True)):
            if place >= MOST or (place >= KEPT and used[each] < time.time() - MONTH):
                each.unlink(missing_ok=True)


def _mark(found: str) -> str:
    return hashlib.sha256(found.encode()).hexdigest()
