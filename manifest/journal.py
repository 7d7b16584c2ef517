"""The journal: the append-only file that one recording process writes, one `write` per event.

| tag | body (msgpack) | content |
|---|---|---|
| `H` | map | environment; a later one replaces it |
| `K` | [id, kernel row] | a kernel that later events name by id |
| `V` | VariantEvent | a variant was compiled, or its first real launch was seen |
| `C` | ChoiceEvent | an autotuner decided |
| `S` | map of counts | what was dropped or failed, written at the end |

A killed process leaves at most its last record cut, so a reader takes what stands before the first bad record.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from . import record, table
from .errors import ManifestError
from .model import Argument, Choice, Environment, Kernel, Option, Phase, Variant
from .values import Value

SUFFIX = ".journal"
_WHAT = "journal"


class VariantEvent(msgspec.Struct, array_like=True):
    """A variant as one process saw it. `kernel` is the id of a `K` record of the same journal."""

    kernel: int
    digest: str
    args: tuple[Argument, ...]
    options: tuple[Option, ...]
    grid: tuple[int, ...] | str | None
    phase: Phase
    real: bool
    rank: str = ""
    order: int = 0
    compile_ms: int = 0
    disk_hit: bool = False
    harvested: bool = False
    candidate: tuple[Option, ...] | None = None


class ChoiceEvent(msgspec.Struct, array_like=True):
    """An autotuner's decision as one process made it."""

    kernel: int
    key: tuple[Value, ...]
    kwargs: tuple[Option, ...]
    options: tuple[Option, ...]
    timings: tuple[tuple[str, float], ...]
    device: str
    rank: str = ""


class Journal(msgspec.Struct):
    """What a journal held. `damage` tells what stands after the last good record, or is empty."""

    path: str
    environment: Environment | None
    variants: list[Variant]
    choices: list[Choice]
    counts: dict[str, int]
    damage: str = ""


def encode(tag: bytes, content: Any) -> bytes:
    """Return one journal record, ready to be written by a single `write`."""
    return record.frame(tag, record.pack(table.builtins(content)))


def is_journal(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins as a journal does."""
    try:
        with open(path, "rb") as file:
            return file.read(len(record.JOURNAL_MAGIC)) == record.JOURNAL_MAGIC
    except OSError:
        return False


def read(path: str | os.PathLike[str]) -> Journal:
    """Read a journal. A cut or damaged tail is told in `damage`; what stands before it is returned.

    Raises ManifestError when the file is unreadable or is no journal.
    """
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ManifestError(f"{name}: cannot be read: {error.strerror or error}") from None
    journal = Journal(name, None, [], [], {})
    if len(data) < record.PREAMBLE_SIZE and record.preamble(record.JOURNAL_MAGIC).startswith(data):
        journal.damage = f"cut at byte {len(data)}, before its first record"
        return journal
    try:
        record.check_preamble(data, record.JOURNAL_MAGIC, _WHAT)
    except ManifestError as error:
        raise ManifestError(f"{name}: {error}") from None
    kernels: dict[int, Kernel] = {}
    try:
        for tag, body, _ in record.frames(data, _WHAT):
            _take(journal, kernels, tag, record.unpack(body, _WHAT))
    except ManifestError as error:
        journal.damage = str(error)
    return journal


def _take(journal: Journal, kernels: dict[int, Kernel], tag: bytes, content: Any) -> None:
    if tag == b"H":
        journal.environment = table.convert(content, Environment, _WHAT)
    elif tag == b"K":
        index, row = table.convert(content, tuple[int, Kernel], _WHAT)
        kernels[index] = row
    elif tag == b"V":
        event = table.convert(content, VariantEvent, _WHAT)
        journal.variants.append(
            Variant(
                _kernel(kernels, event.kernel),
                event.digest,
                event.args,
                event.options,
                event.grid,
                event.phase,
                event.real,
                (event.rank,) if event.rank else (),
                event.order,
                event.compile_ms,
                event.disk_hit,
                harvested=event.harvested,
                candidate=event.candidate,
            )
        )
    elif tag == b"C":
        choice = table.convert(content, ChoiceEvent, _WHAT)
        journal.choices.append(
            Choice(
                _kernel(kernels, choice.kernel),
                choice.key,
                choice.kwargs,
                choice.options,
                choice.timings,
                choice.device,
                (choice.rank,) if choice.rank else (),
            )
        )
    elif tag == b"S":
        journal.counts = table.convert(content, dict[str, int], _WHAT)


def _kernel(kernels: dict[int, Kernel], index: int) -> Kernel:
    if index not in kernels:
        raise ManifestError(f"{_WHAT} is damaged: an event names kernel {index}, which no record gave")
    return kernels[index]
