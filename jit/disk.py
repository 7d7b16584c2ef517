"""Triton's disk cache: whether an entry is there and whole, told without compiling or loading anything."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .internals import internals

ABSENT = "not in the cache"


@dataclass(frozen=True)
class Entry:
    """One cache entry: its hash, its folder, and what is wrong with it ("" when a launch would find it whole).

    `name` is what its files are called, `binary` the ending of the one that is loaded.
    """

    hash: str
    folder: str
    fault: str = ""
    name: str = ""
    binary: str = ""


def warm_up() -> None:
    """Do once what every compile needs first: Triton's own hash, the version of the target's assembler, and Gluon,
    which Triton imports when it specializes its first argument (3.6.0 to 3.9.0: `native_specialize_impl`).
    """
    from triton.compiler import make_backend
    from triton.runtime.cache import triton_key

    triton_key()
    make_backend(internals().driver.active.get_current_target()).hash()
    import_module("triton.experimental.gluon")


def locate(fn: Any, signature: Any, constexprs: Any, options: Any, attrs: Any) -> Entry:
    """Return the entry that `triton.compile` would look for (3.6.0 to 3.9.0: `get_cache_key`, `FileCacheManager`)."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler import make_backend
    from triton.runtime.cache import _base32, get_cache_key

    names = internals()
    backend = make_backend(names.driver.active.get_current_target())
    source = fn.ASTSource(fn, signature, constexprs, attrs)
    parsed = backend.parse_options(dict(options.__dict__, **source.parse_options()))
    key = get_cache_key(source, backend, parsed, env_vars=get_cache_invalidating_env_vars())
    hook = getattr(names.knobs.runtime, "add_stages_inspection_hook", None)
    if hook is not None and [int(part) for part in names.version.split(".")[:2]] >= [3, 7]:
        key += hook()[0]
    digest = hashlib.sha256(key.encode()).hexdigest()
    folder = Path(names.knobs.cache.dir) / _base32(digest)
    name = source.name[:150]
    return Entry(digest, str(folder), fault(folder, name, backend.binary_ext, digest), name, backend.binary_ext)


def count(cache: str, most: int) -> int:
    """Return how many entries a cache directory may have, `most` at most; launchers count too."""
    try:
        with os.scandir(cache) as found:
            return sum(1 for _ in itertools.islice(found, most))
    except OSError:
        return 0


def recheck(entry: Entry) -> str:
    """Return what is wrong with an entry now."""
    return fault(Path(entry.folder), entry.name, entry.binary, entry.hash)


def fault(folder: Path, name: str, binary: str, digest: str) -> str:
    """Return what is wrong with an entry, or "" when its group, metadata and binary are there, whole and its own.

    Metadata tells the hash of the key that it was compiled for (3.6.0 to 3.9.0: `triton.compile`).
    """
    group = folder / f"__grp__{name}.json"
    try:
        children = dict(json.loads(group.read_text())["child_paths"])
    except FileNotFoundError:
        return ABSENT
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{group.name} cannot be read ({type(error).__name__})"
    for suffix in ("json", binary):
        path = children.get(f"{name}.{suffix}")
        if not isinstance(path, str) or not Path(path).exists():
            return f"its {suffix} is missing"
    try:
        metadata = json.loads(Path(children[f"{name}.json"]).read_text())
    except (OSError, ValueError):
        return "its metadata is cut"
    if not isinstance(metadata, dict) or not isinstance(metadata.get("target"), dict):
        return "its metadata is none of Triton's"
    if metadata.get("hash") != digest:
        return "its metadata is another kernel's"
    try:
        data = Path(children[f"{name}.{binary}"]).read_bytes()
    except OSError:
        data = b""
    if not whole_elf(data):
        return f"its {binary} is cut"
    return "" if has_symbol(data, str(metadata.get("name"))) else f"its {binary} is another kernel's"


def whole_elf(data: bytes) -> bool:
    """Whether a 64-bit ELF file (cubin, hsaco) is as long as its own headers say."""
    if len(data) < 64 or data[:5] != b"\x7fELF\x02":
        return False
    segments, sections = struct.unpack_from("<QQ", data, 32)
    segment_size, segment_count, size, count = struct.unpack_from("<HHHH", data, 54)
    # A cubin ends with its program headers.
    if max(segments + segment_size * segment_count, sections + size * count) > len(data):
        return False
    for index in range(count):
        kind = struct.unpack_from("<I", data, sections + index * size + 4)[0]
        offset, length = struct.unpack_from("<QQ", data, sections + index * size + 24)
        if kind != 8 and offset + length > len(data):  # 8: SHT_NOBITS takes no room in the file
            return False
    return True


def has_symbol(data: bytes, name: str) -> bool:
    """Whether an ELF file's string table has a symbol's name, by which the driver finds the kernel in it."""
    return name.encode() + b"\0" in data


def probe(fn: Any, signature: Any, device: Any, constexprs: Any, options: Any, attrs: Any, warmup: Any = True) -> Entry:
    """Return the entry of a key that is not in memory; for `jit.bind`, in place of a compile."""
    return locate(fn, signature, constexprs, options, attrs)


def drop(entry: Entry) -> bool:
    """Take a cut entry out of the cache, so that Triton compiles it anew; return whether there was one to take."""
    if not entry.fault or entry.fault == ABSENT:
        return False
    discard(entry.folder)
    return True


def discard(folder: str) -> None:
    """Take an entry out of the cache by its folder. Raises OSError."""
    if os.path.islink(folder):
        os.unlink(folder)  # into a cache beneath, which stays as it is
        return
    for group in Path(folder).glob("__grp__*.json"):
        group.unlink(missing_ok=True)


def sound(kernel: Any) -> bool:
    """Whether a CompiledKernel, as read from the cache, is its entry's own and its binary whole and this kernel's.

    An entry's folder is named by the hash, which its metadata tells too.
    """
    from triton.runtime.cache import _base32

    group = getattr(kernel, "metadata_group", None) or {}
    folders = {os.path.basename(os.path.dirname(path)) for name, path in group.items() if name.endswith(".json")}
    if folders - {_base32(kernel.metadata.hash)}:
        return False
    if kernel.metadata.target.backend not in ("cuda", "hip"):
        return True
    return whole_elf(kernel.kernel) and has_symbol(kernel.kernel, kernel.metadata.name)


def forget(fn: Any, key: str) -> None:
    """Take a kernel that must not be used out of Triton's in-process cache; the next launch makes it anew."""
    active = internals().driver.active
    fn.device_caches[active.get_current_device()][0].pop(key, None)


def needed(kernel: Any) -> list[str]:
    """Return the files of the disk cache that a later process needs for a hit on this CompiledKernel."""
    group = getattr(kernel, "metadata_group", None) or {}
    return [path for name, path in group.items() if name.rpartition(".")[2] in ("json", "cubin", "hsaco")]


def link(digest: str, cache: str) -> None:
    """Link the entry of this hash from another cache directory into the present one, which lacks it.

    A folder's name is the hash in base 32 (3.6.0 to 3.9.0: `get_cache_manager`). What cannot be linked is left.
    """
    from triton.runtime.cache import _base32

    here, name = internals().knobs.cache.dir, _base32(digest)
    if os.path.abspath(here) == os.path.abspath(cache) or os.path.exists(os.path.join(here, name)):
        return
    try:
        os.makedirs(here, exist_ok=True)
        os.symlink(os.path.join(cache, name), os.path.join(here, name), target_is_directory=True)
    except OSError:
        return
