"""Where the processes of one host find the one compile helper that they share: a lock and a socket by name."""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import socket
from collections.abc import Callable
from pathlib import Path

from ..jit.lock import private_folder


class Meeting:
    """A place that is the same for all processes of this user that want the same done, told by `parts`.

    The lock is the helper's for as long as it lives, so a dead one leaves none; a socket that it left is replaced.
    Raises OSError where there is no folder that is this user's alone: whoever connects may have modules imported.
    """

    def __init__(self, *parts: str | bytes) -> None:
        name = hashlib.blake2b(digest_size=12)
        for part in parts:
            data = part if isinstance(part, bytes) else part.encode()
            name.update(len(data).to_bytes(8, "big") + data)
        self._base = private_folder() / name.hexdigest()

    @property
    def socket(self) -> str:
        """The path of the helper's socket."""
        return f"{self._base}.sock"

    def claim(self) -> int | None:
        """Return an open file that holds the lock, to be handed to the helper; None when there is one already."""
        file = os.open(f"{self._base}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        except OSError:
            os.close(file)
            raise
        return file


def listen(path: str) -> socket.socket:
    """Return a socket that listens at a path. Raises OSError."""
    Path(path).unlink(missing_ok=True)
    line = _open(path, socket.socket.bind)
    line.listen(64)
    return line


def is_waited_for(line: socket.socket | None) -> bool:
    """Whether somebody has connected to a listening socket and was not accepted yet."""
    return line is not None and bool(select.select([line], [], [], 0)[0])


def connect(path: str) -> socket.socket:
    """Return a socket that is connected to the one at a path. Raises OSError."""
    return _open(path, socket.socket.connect)


def _open(path: str, use: Callable[[socket.socket, str], None]) -> socket.socket:
    """Return a socket that was bound or connected by another name of a path.

    A socket's name may have 107 bytes, which a job's TMPDIR alone can fill; the folder's descriptor is short.
    """
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(line, f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    except OSError:
        line.close()
        raise
    finally:
        os.close(folder)
    return line
