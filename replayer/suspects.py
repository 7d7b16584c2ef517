"""Variants that a server was compiling by itself when it ended: the next boot has them compiled in another process."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..jit.lock import own_folder
from ..manifest.model import Kernel

FOLDER = "compiling"
OLD = 7 * 24 * 3600
"""Seconds after which a note that says nothing to anybody is removed."""


class Suspects:
    """Notes in a folder beside a cache, each of what one process compiles at the moment, which keeps it locked.

    A note that nobody has locked may be of a process that was ended by that compile: by a crash, or by whoever ended a
    hang. (A lock tells that among containers too, where a process's number says nothing.) A cache that cannot be
    written has no notes.
    """

    def __init__(self, cache: str | os.PathLike[str], toolchain: str) -> None:
        self._folder: Path = own_folder(cache) / FOLDER
        self._toolchain = toolchain
        self._left: dict[tuple[str, ...], list[Path]] = {}
        try:
            notes = sorted(self._folder.iterdir())
        except OSError:
            return
        for path in notes:
            with suppress(OSError, ValueError, KeyError, TypeError):  # a cut one, or it has ended since
                self._read(path)

    def _read(self, path: Path) -> None:
        if not _is_free(path):
            return
        if time.time() - path.stat().st_mtime > OLD:
            path.unlink(missing_ok=True)
            return
        note = json.loads(path.read_text())
        if note["toolchain"] == self._toolchain:
            self._left.setdefault((*note["kernel"], note["digest"]), []).append(path)

    def __contains__(self, key: tuple[Kernel, str]) -> bool:
        kernel, digest = key
        return (*kernel.identity, digest) in self._left

    def clear(self, kernel: Kernel, digest: str) -> None:
        """Another process has answered for this one: suspect it no longer."""
        for path in self._left.pop((*kernel.identity, digest), ()):
            with suppress(OSError):  # another user's
                path.unlink(missing_ok=True)

    @contextmanager
    def compiling(self, kernel: Kernel, digest: str) -> Iterator[None]:
        """Keep a note while this process compiles a key. One that ends by itself meanwhile leaves none."""
        path = self._folder / f"{uuid.uuid4().hex}.json"
        file, here = -1, os.getpid()

        def remove() -> None:
            if os.getpid() == here:
                with suppress(OSError):
                    path.unlink(missing_ok=True)

        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(file, fcntl.LOCK_EX)
            note = {"toolchain": self._toolchain, "kernel": kernel.identity, "digest": digest}
            os.write(file, json.dumps(note).encode())
        except OSError:
            pass
        atexit.register(remove)
        try:
            yield
        finally:
            remove()
            atexit.unregister(remove)
            if file >= 0:
                os.close(file)


def _is_free(path: Path) -> bool:
    """Whether no process has a note locked. Raises OSError where it cannot be opened."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(file)
