"""That a manifest was wholly warm in a cache: what a second boot checks instead of every key."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
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
        """Whether there is a stamp, and every file that it lists has what it had, and a group that it is found by."""
        files = self._files()
        return bool(files) and all(content_of(path) == mark and _has_group(path) for path, mark in files.items())

    def mixed(self) -> set[str]:
        """Return the folders of entries with a file that has what another file had when it was stamped.

        A file that merely changed is none: compiled from another folder, the same entry holds other line information.
        """
        files = self._files()
        marks = [tuple(mark) for mark in files.values()]
        found = {path: content_of(path) for path in files}
        wrong = [path for path, now in found.items() if now not in (None, files[path]) and tuple(now or ()) in marks]
        return {str(self._cache / os.path.basename(os.path.dirname(path))) for path in wrong}

    def drop(self) -> None:
        """Forget it: a replay that is not warm in the end writes none."""
        with suppress(OSError):
            self.path.unlink()

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


def _has_group(path: str) -> bool:
    folder, name = os.path.split(path)
    return not name.endswith(".json") or os.path.exists(os.path.join(folder, f"__grp__{name}"))


def content_of(path: str) -> list[int] | None:
    """Return a file's length and checksum, None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    return [len(data), zlib.crc32(data)]
