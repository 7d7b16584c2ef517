"""Locks between the processes of one host: one key of the disk cache is compiled once, by whoever comes first."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import tempfile
from pathlib import Path

FOLDER = ".jitreplay"
"""What jitreplay keeps beside Triton's entries lies in a folder of this name in the cache directory."""


def own_folder(cache: str | os.PathLike[str]) -> Path:
    """Return the folder of ours in a cache directory; it may not be there."""
    return Path(cache) / FOLDER


def private_folder() -> Path:
    """Return a folder for what does not outlive this host, that nobody else can write. Raises OSError without one.

    What lies in it is trusted: programs are loaded from it, and who connects may have modules imported.
    """
    folder = Path(tempfile.gettempdir()) / f"jitreplay-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


class KeyLocks:
    """A lock per key, held by this process until it is released or the process is gone.

    All keys share one file, each a byte of it (POSIX record locks), so thousands of keys leave one file behind and a
    dead owner none. Where the cache cannot be written there is nothing to lock, and every key is free.
    """

    def __init__(self, cache: str | os.PathLike[str]) -> None:
        self._file = -1
        try:
            folder = own_folder(cache)
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(folder / "locks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            pass

    def take(self, key: str) -> bool:
        """Take a key's lock; return False when another process has it."""
        if self._file < 0:
            return True
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(key))
        except OSError as error:
            # A file system without locks must not stop a boot: then a key may be compiled twice.
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def release(self, key: str) -> None:
        """Give a key's lock back."""
        if self._file >= 0:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _place(key))
            except OSError:
                pass

    def close(self) -> None:
        """Give every lock back."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _place(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 2
