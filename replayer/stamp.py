"""That a manifest was wholly warm in a cache: what a second boot checks instead of every key."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from ..jit.lock import own_folder
from ..jit.place import write_whole
from ..jit.toolchain import sizes
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
        """Whether there is a stamp, and every file that it lists has the size that it had."""
        try:
            entries: dict[str, int] = json.loads(self.path.read_text())["files"]
            found = sizes(str(self._cache / name) for name in entries)
            return bool(entries) and found == list(entries.values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    def write(self, paths: Iterable[str]) -> None:
        """Stamp these files; nothing where the stamp cannot be written. One in a cache beneath has its whole path."""
        try:
            root = self._cache.absolute()
            names = sorted({os.path.abspath(path).removeprefix(f"{root}{os.sep}") for path in paths})
            found = sizes(str(root / name) for name in names)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, json.dumps({"files": dict(zip(names, found, strict=True))}))
        except (OSError, ValueError):
            pass
