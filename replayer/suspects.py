"""Variants that a server was compiling by itself when it ended: the next boot has them compiled in another process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..jit.lock import own_folder
from ..manifest.model import Kernel

FOLDER = "compiling"


class Suspects:
    """The notes of this host's processes, each of what it compiles at the moment, in a folder beside a cache.

    A process that is gone and left its note behind may have been ended by that compile: by a crash, or by whoever ended
    a hang. A cache that cannot be written has no notes.
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
            try:
                note = json.loads(path.read_text())
                if note["started"] != _started(int(note["process"])) and note["toolchain"] == toolchain:
                    self._left.setdefault((*note["kernel"], note["digest"]), []).append(path)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a cut one, or it has ended since

    def __contains__(self, key: tuple[Kernel, str]) -> bool:
        kernel, digest = key
        return (*kernel.identity, digest) in self._left

    def clear(self, kernel: Kernel, digest: str) -> None:
        """Another process has answered for this one: suspect it no longer."""
        for path in self._left.pop((*kernel.identity, digest), ()):
            path.unlink(missing_ok=True)

    @contextmanager
    def compiling(self, kernel: Kernel, digest: str) -> Iterator[None]:
        """Keep a note while this process compiles a key."""
        me = os.getpid()
        path = self._folder / f"{me}.json"
        note = {"process": me, "started": _started(me), "toolchain": self._toolchain}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({**note, "kernel": kernel.identity, "digest": digest}))
        except OSError:
            pass
        try:
            yield
        finally:
            try:
                path.unlink(missing_ok=True)
            except OSError:
                pass


def _started(process: int) -> str:
    """Return when a process started, in the kernel's ticks, "" where there is none (Linux: field 22 of stat)."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
