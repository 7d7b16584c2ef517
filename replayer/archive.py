"""A prebuilt cache as one file, with the manifest that it was made from: a gzipped tar that is checked before use.

| member | content |
|---|---|
| `index.json` | format, the cache's note, sha256 of every other member |
| `kernels.jitreplay` | the manifest |
| `cache/ENTRY/FILE` | Triton's cache, without the group files, which hold paths |
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..jit import place
from ..manifest import file
from ..manifest.errors import JitreplayError
from ..manifest.model import Manifest

FORMAT = 1
INDEX, MANIFEST = "index.json", "kernels.jitreplay"
_MEMBER = re.compile(r"cache/([A-Z2-7]{20,80})/([^/\0]{1,200})")
MAX_FILE = 1 << 30
"""Bytes of one member."""


class ArchiveError(JitreplayError):
    """An archive that is cut, foreign or damaged; nothing of it was used."""


class Unpacked(msgspec.Struct):
    """What `unpack` did: entries written, entries that were whole already, and the manifest's path."""

    written: int
    kept: int
    manifest: Path


def pack(archive: Path, cache: Path, manifest: Manifest, leave: Container[str] = ()) -> int:
    """Write a cache and its manifest as an archive, whole or not at all; return how many entries it holds.

    `leave` names entries that are left out.
    """
    found = {MANIFEST: file.dumps(manifest)}
    for entry in sorted(cache.iterdir()):
        for path in sorted(entry.iterdir()) if entry.is_dir() and entry.name not in leave else ():
            name = f"cache/{entry.name}/{path.name}"
            if path.is_file() and _MEMBER.fullmatch(name) and not _is_passing(path.name):
                found[name] = path.read_bytes()
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}
    index = {"format": FORMAT, "builds": place.read(cache).get("builds", {}), "sha256": sums}
    scratch = archive.with_name(f"{archive.name}.tmp.{os.getpid()}")
    try:
        with tarfile.open(scratch, "w:gz", compresslevel=6) as tar:
            for name, data in [(INDEX, json.dumps(index, sort_keys=True).encode()), *found.items()]:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        os.replace(scratch, archive)
    finally:
        scratch.unlink(missing_ok=True)
    return len({name.split("/")[1] for name in found if "/" in name})


def _is_passing(name: str) -> bool:
    return name.startswith("__grp__") or name == "lock" or ".tmp." in name


def unpack(archive: Path, cache: Path) -> Unpacked:
    """Unpack an archive into a cache directory: files first, each checked, the group file that shows them last.

    No path of the archive is trusted. Raises ArchiveError before anything is written if it is damaged.
    """
    files = _read(archive)
    done = _write(files, cache)
    done.manifest.write_bytes(files[MANIFEST])
    return done


def merge(archive: Path, cache: Path) -> Unpacked:
    """Unpack the entries of an archive that holds a part of a cache; the cache gets no manifest. Raises as `unpack`."""
    return _write(_read(archive), cache)


def _write(files: dict[str, bytes], cache: Path) -> Unpacked:
    """Write the entries of an archive into a cache, and add to its note what they are good for."""
    entries: dict[str, dict[str, bytes]] = {}
    for name, data in files.items():
        if (match := _MEMBER.fullmatch(name)) is not None:
            entries.setdefault(match[1], {})[match[2]] = data
    done = Unpacked(0, 0, cache / MANIFEST)
    place.settle(cache)  # the note will say that the cache lies here, of its older entries too
    for entry, members in entries.items():
        if _write_entry(cache / entry, members):
            done.written += 1
        else:
            done.kept += 1
    place.add(cache, json.loads(files[INDEX]).get("builds", {}))
    return done


def _read(archive: Path) -> dict[str, bytes]:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = {m.name: _member(tar, m) for m in tar if m.isfile()}
        index: Any = json.loads(members[INDEX])
        sums: dict[str, str] = index["sha256"]
        if index["format"] != FORMAT:
            raise ArchiveError(f"{archive}: its format is {index['format']}, this jitreplay reads {FORMAT}: update it")
    except (OSError, EOFError, ValueError, KeyError, TypeError, tarfile.TarError) as error:
        raise ArchiveError(f"{archive} is no archive of jitreplay, or it is cut ({error}): make it again") from None
    if MANIFEST not in sums or set(sums) != set(members) - {INDEX}:
        raise ArchiveError(f"{archive} does not hold what its index lists: make it again")
    for name, wanted in sums.items():
        if name != MANIFEST and _MEMBER.fullmatch(name) is None:
            raise ArchiveError(f"{archive} holds {name!r}, which is no file of a cache")
        if hashlib.sha256(members[name]).hexdigest() != wanted:
            raise ArchiveError(f"{archive}: {name} is damaged: make it again")
    return members


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.size > MAX_FILE:
        raise ArchiveError(f"{member.name} claims {member.size} bytes")
    content = tar.extractfile(member)
    return content.read() if content is not None else b""


def _write_entry(folder: Path, members: dict[str, bytes]) -> bool:
    """Write an entry unless each of its files is there and equal; return whether it was written."""
    groups = _groups(members)
    if all(_same(folder / name, data) for name, data in members.items()) and all(
        (folder / group).exists() for group in groups
    ):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in members.items():
        scratch = folder / f"{name}.tmp.{os.getpid()}"
        scratch.write_bytes(data)
        os.replace(scratch, folder / name)
    for group in groups:
        place.write_group(folder, folder / group, list(members))
    return True


def _groups(names: Iterable[str]) -> list[str]:
    """Return the group files of an entry: one for its metadata, where it is a kernel's."""
    return [f"__grp__{name}" for name in names if name.endswith(".json")]


def _same(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False
