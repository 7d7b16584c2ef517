"""A manifest's file: written atomically, read with limits.

| tag | body | content |
|---|---|---|
| `H` | msgpack | list of environments |
| `V` | zlib of msgpack | rows of the value table |
| `A` | zlib of msgpack | rows of the argument table: [value, spec, derivations] |
| `K` | zlib of msgpack | rows of the kernel table |
| `R` | zlib of msgpack | rows of variants (VariantRow), at most 4096 in a record |
| `C` | zlib of msgpack | rows of autotuner choices (ChoiceRow) |
| `E` | 32 bytes | sha256 of all bytes before this record; nothing may follow |

docs/format.md is the specification. Same content gives same bytes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from . import record, table
from .errors import ManifestError, WriteError
from .model import Argument, Choice, Environment, Kernel, Manifest, Phase, Variant

BLOCK = 4096
_WHAT = "manifest"
Pairs = tuple[tuple[str, int], ...]


class ArgumentRow(msgspec.Struct, array_like=True, frozen=True):
    value: int
    spec: str
    derivations: tuple[str, ...] = ()


class VariantRow(msgspec.Struct, array_like=True):
    kernel: int
    digest: bytes
    args: list[int]
    options: list[tuple[str, int]]
    grid: list[int] | str | None
    phase: str
    flags: int
    ranks: tuple[str, ...]
    order: int
    compile_ms: int
    environments: tuple[int, ...]


class ChoiceRow(msgspec.Struct, array_like=True):
    kernel: int
    key: list[int]
    kwargs: list[tuple[str, int]]
    options: list[tuple[str, int]]
    timings: tuple[tuple[str, float], ...]
    device: str
    ranks: tuple[str, ...]
    environments: tuple[int, ...]


_REAL, _DISK, _HARVESTED = 1, 2, 4


def dumps(manifest: Manifest) -> bytes:
    """Return the manifest's file content. The manifest must be canonical, as `merge` returns it."""
    values, arguments, kernels = table.Interner(), table.Interner(), table.Interner()
    by_identity: dict[tuple[str, str, str], int] = {k.identity: kernels(k) for k in manifest.kernels}

    def options(pairs: Any) -> list[tuple[str, int]]:
        return [(name, values(value)) for name, value in pairs]

    rows = [
        VariantRow(
            by_identity[v.kernel.identity],
            bytes.fromhex(v.digest),
            [arguments(a) for a in v.args],
            options(v.options),
            list(v.grid) if isinstance(v.grid, tuple) else v.grid,
            v.phase.value,
            v.real * _REAL | v.disk_hit * _DISK | v.harvested * _HARVESTED,
            v.ranks,
            v.order,
            v.compile_ms,
            v.environments,
        )
        for v in manifest.variants
    ]
    choices = [
        ChoiceRow(
            by_identity[c.kernel.identity],
            [values(v) for v in c.key],
            options(c.kwargs),
            options(c.options),
            c.timings,
            c.device,
            c.ranks,
            c.environments,
        )
        for c in manifest.choices
    ]
    argument_rows = [ArgumentRow(values(a.value), a.spec, a.derivations) for a in arguments.items]
    out = [
        record.preamble(record.MANIFEST_MAGIC),
        record.frame(b"H", record.pack(table.builtins(list(manifest.environments)))),
    ]
    for tag, items in (
        (b"V", values.items),
        (b"A", argument_rows),
        (b"K", kernels.items),
        (b"R", rows),
        (b"C", choices),
    ):
        for start in range(0, len(items), BLOCK):
            body = record.pack(table.builtins(items[start : start + BLOCK]))
            out.append(record.frame(tag, record.deflate(body)))
    content = b"".join(out)
    return content + record.frame(b"E", hashlib.sha256(content).digest())


def loads(data: bytes) -> Manifest:
    """Return the manifest in `data`; raise ManifestError when it is cut, foreign, damaged or too new."""
    record.check_preamble(data, record.MANIFEST_MAGIC, _WHAT)
    blocks: dict[bytes, list[Any]] = {tag: [] for tag in (b"V", b"A", b"K", b"R", b"C")}
    environments: Any = []
    start, ended = record.PREAMBLE_SIZE, False
    for tag, body, end in record.frames(data, _WHAT):
        if ended:
            raise ManifestError(f"{_WHAT} is damaged: {len(data) - start} bytes follow its end")
        if tag == b"E":
            if body != hashlib.sha256(memoryview(data)[:start]).digest():
                raise ManifestError(f"{_WHAT} is damaged: its content does not match its sha256")
            ended = True
        elif tag == b"H":
            environments = record.unpack(body, _WHAT)
        elif tag in blocks:
            rows = record.unpack(record.inflate(body, _WHAT), _WHAT)
            if not isinstance(rows, list):
                raise ManifestError(f"{_WHAT} is damaged: a block holds no list")
            blocks[tag].extend(rows)
        start = end
    if not ended:
        raise ManifestError(f"{_WHAT} is cut at byte {len(data)}: its end record is missing")
    return _assemble(environments, blocks)


def _assemble(environments: Any, blocks: dict[bytes, list[Any]]) -> Manifest:
    value = table.lookup(table.convert_values(blocks[b"V"], _WHAT), _WHAT)
    rows = table.convert(blocks[b"A"], list[ArgumentRow], _WHAT)
    arguments = [Argument(value(row.value), row.spec, row.derivations) for row in rows]
    kernels = table.convert(blocks[b"K"], list[Kernel], _WHAT)
    kernel, argument = table.lookup(kernels, _WHAT), table.lookup(arguments, _WHAT)

    def options(pairs: list[tuple[str, int]]) -> tuple[tuple[str, Any], ...]:
        return tuple((name, value(index)) for name, index in pairs)

    phases = {phase.value: phase for phase in Phase}
    variants = []
    for row in table.convert(blocks[b"R"], list[VariantRow], _WHAT):
        indices = row.args
        if indices and (min(indices) < 0 or max(indices) >= len(arguments)):
            argument(max(indices, key=abs))
        variants.append(
            Variant(
                kernel(row.kernel),
                row.digest.hex(),
                tuple([arguments[i] for i in indices]),
                options(row.options) if row.options else (),
                tuple(row.grid) if isinstance(row.grid, list) else row.grid,
                phases.get(row.phase, Phase.NEVER),
                bool(row.flags & _REAL),
                row.ranks,
                row.order,
                row.compile_ms,
                bool(row.flags & _DISK),
                row.environments,
                bool(row.flags & _HARVESTED),
            )
        )
    choices = tuple(
        Choice(
            kernel(row.kernel),
            tuple(value(i) for i in row.key),
            options(row.kwargs),
            options(row.options),
            row.timings,
            row.device,
            row.ranks,
            row.environments,
        )
        for row in table.convert(blocks[b"C"], list[ChoiceRow], _WHAT)
    )
    found = tuple(table.convert(environments, list[Environment], _WHAT))
    _check_environments(found, (*variants, *choices))
    return Manifest(found, tuple(variants), choices)


def _check_environments(environments: tuple[Environment, ...], items: tuple[Variant | Choice, ...]) -> None:
    sets = {item.environments for item in items}
    known = range(len(environments))
    if bad := [index for indices in sets for index in indices if index not in known]:
        raise ManifestError(f"{_WHAT} is damaged: it names environment {bad[0]} of {len(environments)}")


def load(path: str | os.PathLike[str]) -> Manifest:
    """Read a manifest from a file.

    Raises ManifestError (a JitreplayError) when the file is missing, unreadable, cut, damaged or too new.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ManifestError(f"{os.fspath(path)}: cannot be read: {error.strerror or error}") from None
    try:
        return loads(data)
    except ManifestError as error:
        raise ManifestError(f"{os.fspath(path)}: {error}") from None


def save(manifest: Manifest, path: str | os.PathLike[str]) -> int:
    """Write a manifest by a temporary file and a rename; return its size in bytes.

    Raises WriteError, and leaves what was there before, when the place has no room or may not be written.
    """
    data, target = dumps(manifest), Path(path)
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise WriteError(f"{target}: cannot be written: {error.strerror or error}") from None
    return len(data)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


__all__ = ["dumps", "load", "loads", "save"]
