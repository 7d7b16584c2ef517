"""Writing the journal: one file a process, one `write` an event, in the launching thread."""

from __future__ import annotations

import fcntl
import os
import threading
import uuid
from pathlib import Path
from typing import Any

from ..manifest import journal as form
from ..manifest import record
from ..manifest.model import Environment, Kernel


class Writer:
    """Appends events to a file of this process's own in `folder`. The file is made with the first event.

    Raises OSError where the file system does; a record that went in only in part is cut off again, so that what
    stands in the file stays readable.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.path: Path | None = None
        # A signal's handler, or a finaliser, may launch while an event is being written in the same thread.
        self.lock = threading.RLock()
        self._handle = -1
        self._file: tuple[int, int] | None = None
        self._size = 0
        self._kernels: dict[Kernel, int] = {}

    def begin(self, environment: Environment) -> None:
        """Make the file and write its head, unless that is done."""
        if self._handle >= 0:
            return
        head = record.preamble(record.JOURNAL_MAGIC) + form.encode(b"H", environment)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{os.getpid()}-{uuid.uuid4().hex[:12]}{form.SUFFIX}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if handle < 3:
            # Standard streams may be closed; what others print there must not end up in the journal.
            self._handle = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3)
            os.close(handle)
        else:
            self._handle = handle
        status = os.fstat(self._handle)
        self._file, self._size = (status.st_dev, status.st_ino), 0
        try:
            self._append(head)
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            raise
        self.path = path

    def check(self) -> None:
        """Let go of a file that the program closed behind our back (a daemon does), so that the next event begins one.

        The number may be another file's by now, which must not be written to, cut or closed.
        """
        if self._handle >= 0 and not self._owned():
            self._handle, self.path, self._kernels = -1, None, {}

    def _owned(self) -> bool:
        try:
            status = os.fstat(self._handle)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def kernel(self, kernel: Kernel) -> int:
        """Return the id of a kernel in this journal; its first use writes it."""
        index = self._kernels.get(kernel)
        if index is None:
            index = len(self._kernels)
            self._append(form.encode(b"K", [index, kernel]))
            self._kernels[kernel] = index
        return index

    def write(self, tag: bytes, content: Any) -> None:
        """Append one event."""
        self._append(form.encode(tag, content))

    def _append(self, data: bytes) -> None:
        try:
            written = os.write(self._handle, data)
        except OSError:
            self._cut()
            raise
        if written != len(data):
            self._cut()
            raise OSError(28, f"only {written} of {len(data)} bytes of an event could be written")
        self._size += written

    def _cut(self) -> None:
        try:
            if self._owned():
                os.ftruncate(self._handle, self._size)
        except OSError:
            pass  # a cut tail is read as one

    def close(self) -> None:
        if self._handle >= 0 and self._owned():
            os.close(self._handle)
        self._handle = -1

    def forget(self) -> None:
        """In a forked child: leave the parent's file to it, and begin one of our own with the next event."""
        self.close()
        self.path, self._size = None, 0
        self._kernels = {}
        self.lock = threading.RLock()
