"""A manifest's file: written atomically, read with limits.

| tag | body | content |
|---|---|---|
| `H` | msgpack | list of environments |
| `A` | zlib of msgpack | rows of the argument table: Argument, [value, spec, derivations] |
| `O` | zlib of msgpack | rows of the options table: each a list of [name, value] |
| `K` | zlib of msgpack | rows of the kernel table: Kernel |
| `R` | zlib of msgpack | rows of variants: VariantRow |
| `C` | zlib of msgpack | rows of autotuner choices: ChoiceRow |
| `E` | 32 bytes | sha256 of all bytes before this record; nothing may follow |

A record holds at most 4096 rows; those of one tag follow one another. Same content gives same bytes.
docs/format.md is the specification.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec

from . import record, table
from .errors import ManifestError, WriteError
from .model import Argument, Choice, Environment, Kernel, Manifest, Option, Phase, Variant
from .values import Value

BLOCK = 4096
_WHAT = "manifest"
_TABLES = (b"A", b"O", b"K", b"R", b"C")
Index = Annotated[int, msgspec.Meta(ge=0)]
Digest = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class VariantRow(msgspec.Struct, array_like=True, gc=False):
    """A variant. `kernel`, `args` and `options` are indices of the tables, `environments` of the header's list."""

    kernel: Index
    digest: Digest
    args: list[Index]
    options: Index
    grid: tuple[int, ...] | str | None
    phase: str
    flags: int
    ranks: tuple[str, ...]
    order: int
    compile_ms: int
    environments: tuple[Index, ...]
    keywords: tuple[str, ...] = ()


class ChoiceRow(msgspec.Struct, array_like=True):
    """An autotuner's choice. `kernel` is an index of the table, `environments` of the header's list."""

    kernel: Index
    key: tuple[Value, ...]
    kwargs: tuple[Option, ...]
    options: tuple[Option, ...]
    timings: tuple[tuple[str, float], ...]
    device: str
    ranks: tuple[str, ...]
    environments: tuple[Index, ...]


REAL, DISK, HARVESTED = 1, 2, 4
"""Bits of `flags`."""


def dumps(manifest: Manifest) -> bytes:
    """Return the manifest's file content. The manifest must be canonical, as `merge` returns it."""
    arguments, options, kernels = table.Interner(), table.Interner(), table.Interner()
    with table.collector_paused():
        index = {kernel.identity: kernels(kernel) for kernel in manifest.kernels}
        rows = [
            VariantRow(
                index[v.kernel.identity],
                bytes.fromhex(v.digest),
                arguments.all(v.args),
                options(v.options),
                v.grid,
                v.phase.value,
                v.real * REAL | v.disk_hit * DISK | v.harvested * HARVESTED,
                v.ranks,
                v.order,
                v.compile_ms,
                v.environments,
                v.keywords,
            )
            for v in manifest.variants
        ]
        choices = [
            ChoiceRow(
                index[c.kernel.identity], c.key, c.kwargs, c.options, c.timings, c.device, c.ranks, c.environments
            )
            for c in manifest.choices
        ]
        out = [record.preamble(record.MANIFEST_MAGIC), record.frame(b"H", record.pack(manifest.environments))]
        for tag, items in zip(_TABLES, (arguments.items, options.items, kernels.items, rows, choices), strict=True):
            for start in range(0, len(items), BLOCK):
                out.append(record.frame(tag, record.deflate(record.pack(items[start : start + BLOCK]))))
    content = b"".join(out)
    return content + record.frame(b"E", hashlib.sha256(content).digest())


def loads(data: bytes) -> Manifest:
    """Return the manifest in `data`; raise ManifestError when it is cut, foreign, damaged or too new."""
    record.check_preamble(data, record.MANIFEST_MAGIC, _WHAT)
    with table.collector_paused():
        return _assemble(*_blocks(data))


def _blocks(data: bytes) -> tuple[Any, dict[bytes, list[Any]]]:
    """Return the header, and the rows of each table."""
    blocks: dict[bytes, list[Any]] = {tag: [] for tag in _TABLES}
    header: Any = None
    start, ended, room = record.PREAMBLE_SIZE, False, record.MAX_INFLATED
    for tag, body, end in record.frames(data, _WHAT):
        if ended:
            raise ManifestError(f"{_WHAT} is damaged: {len(data) - start} bytes follow its end")
        if tag == b"E":
            if body != hashlib.sha256(memoryview(data)[:start]).digest():
                raise ManifestError(f"{_WHAT} is damaged: its content does not match its sha256")
            ended = True
        elif tag == b"H":
            if header is not None:
                raise ManifestError(f"{_WHAT} is damaged: it has two headers")
            header = record.unpack(body, _WHAT)
        elif tag in blocks:
            block = record.inflate(body, _WHAT, room)
            room -= len(block)
            rows = record.unpack(block, _WHAT)
            if not isinstance(rows, list):
                raise ManifestError(f"{_WHAT} is damaged: a block holds no list")
            blocks[tag].extend(rows)
        start = end
    if not ended:
        raise ManifestError(f"{_WHAT} is cut at byte {len(data)}: its end record is missing")
    return [] if header is None else header, blocks


def _assemble(header: Any, blocks: dict[bytes, list[Any]]) -> Manifest:
    environments = tuple(table.convert(header, list[Environment], _WHAT))
    kernels = table.convert(blocks[b"K"], list[Kernel], _WHAT)
    arguments = table.convert_rows(blocks[b"A"], Argument, _WHAT, table.soft_argument)
    options = table.convert_rows(blocks[b"O"], tuple[Option, ...], _WHAT, table.soft_options)
    choices = table.convert_rows(blocks[b"C"], ChoiceRow, _WHAT, _soft_choice)
    rows: list[VariantRow] = table.convert(blocks[b"R"], list[VariantRow], _WHAT)
    phases = {phase.value: phase for phase in Phase}
    try:
        variants = tuple(
            [
                Variant(
                    kernels[row.kernel],
                    row.digest.hex(),
                    _picked(arguments, row.args),
                    options[row.options],
                    row.grid,
                    phases.get(row.phase, Phase.NEVER),
                    row.flags & REAL != 0,
                    row.ranks,
                    row.order,
                    row.compile_ms,
                    row.flags & DISK != 0,
                    row.environments,
                    row.flags & HARVESTED != 0,
                    None,
                    row.keywords,
                )
                for row in rows
            ]
        )
        chosen = tuple(
            Choice(kernels[c.kernel], c.key, c.kwargs, c.options, c.timings, c.device, c.ranks, c.environments)
            for c in choices
        )
    except IndexError:
        raise ManifestError(f"{_WHAT} is damaged: a row names what its tables do not hold") from None
    _check(environments, kernels, rows, variants, chosen)
    return Manifest(environments, variants, chosen)


def _picked(items: list[Any], indices: list[int]) -> tuple[Any, ...]:
    """Return the items at these places, as quickly as Python can."""
    return itemgetter(*indices)(items) if len(indices) > 1 else tuple([items[i] for i in indices])


def _soft_choice(row: Any) -> Any:
    values: Callable[[Any], Any] = lambda rows: table.soft_each(rows, table.soft_value)  # noqa: E731
    return table.soft_fields(row, {1: values, 2: table.soft_options, 3: table.soft_options})


def _check(
    environments: tuple[Environment, ...],
    kernels: list[Kernel],
    rows: list[VariantRow],
    variants: tuple[Variant, ...],
    choices: tuple[Choice, ...],
) -> None:
    """Raise ManifestError for an index past the environments, and for two items of one identity."""
    for found in {item.environments for item in (*variants, *choices)}:
        if found and max(found) >= len(environments):
            raise ManifestError(f"{_WHAT} is damaged: it names environment {max(found)} of {len(environments)}")
    several = len({row.digest for row in rows}) != len(rows)  # kernels may share a digest; seldom, so look twice
    for what, count, distinct in (
        ("kernel", len(kernels), {kernel.identity for kernel in kernels}),
        ("variant", len(rows) if several else 0, {(row.kernel, row.digest) for row in rows} if several else ()),
        ("choice", len(choices), {choice.identity for choice in choices}),
    ):
        if len(distinct) != count:
            raise ManifestError(f"{_WHAT} is damaged: it holds the same {what} twice")


def load(path: str | os.PathLike[str]) -> Manifest:
    """Read a manifest from a file.

    Raises ManifestError (a JitreplayError) when the file is missing, unreadable, cut, damaged or too new.
    """
    try:
        return loads(record.read_file(path, record.MANIFEST_MAGIC))
    except ManifestError as error:
        raise ManifestError(f"{os.fspath(path)}: {error}") from None


def save(manifest: Manifest, path: str | os.PathLike[str]) -> int:
    """Write a manifest by a temporary file and a rename; return its size in bytes.

    Raises WriteError, and leaves what was there before, when the place has no room or may not be written.
    """
    data, target = dumps(manifest), Path(path)
    temporary = target.parent / f".jitreplay-{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise WriteError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return len(data)


__all__ = ["dumps", "load", "loads", "save"]
