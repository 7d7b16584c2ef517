"""That a manifest was wholly warm in a cache: what a second boot checks instead of every key."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from ..jit.lock import own_folder
from ..jit.place import write_whole
from ..manifest import file
from ..manifest.model import Manifest


def content(manifest: Manifest) -> str:
    """Return the digest of a manifest's content."""
    return hashlib.sha256(file.dumps(manifest)).hexdigest()


class Stamp:
    """The stamp of a manifest (by its content's digest) for a toolchain and a rank in a cache directory."""

    def __init__(self, cache: str | os.PathLike[str], manifest: str, toolchain: str, rank: str = "") -> None:
        self._cache = Path(cache)
        name = hashlib.sha256(f"{manifest} {toolchain} {rank}".encode()).hexdigest()[:32]
        self.path: Path = own_folder(cache) / "stamps" / f"{name}.json"

    def whole(self) -> bool:
        """Whether there is a stamp, and every file that it lists has the content that it had."""
        files = self._files()
        return bool(files) and all(content_of(path) == mark for path, mark in files.items())

    def spoiled(self) -> set[str]:
        """Return the folders of entries with a file that has another content than it had when it was stamped."""
        files = self._files().items()
        return {os.path.dirname(path) for path, mark in files if content_of(path) not in (mark, None)}

    def _files(self) -> dict[str, list[int]]:
        """Return what each file that is stamped was, by its path."""
        try:
            files = json.loads(self.path.read_text())["files"]
            return {str(self._cache / name): mark for name, mark in files.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def write(self, paths: Iterable[str]) -> None:
        """Stamp these files; nothing where the stamp cannot be written. One in a cache beneath has its whole path."""
        try:
            root = self._cache.absolute()
            names = sorted({os.path.abspath(path).removeprefix(f"{root}{os.sep}") for path in paths})
            files = {name: content_of(str(root / name)) for name in names}
            if None in files.values():
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, json.dumps({"files": files}))
        except (OSError, ValueError):
            pass


def content_of(path: str) -> list[int] | None:
    """Return a file's length and checksum, None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    return [len(data), zlib.crc32(data)]
