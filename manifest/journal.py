"""The journal: the append-only file that one recording process writes, one `write` per event.

| tag | body (msgpack) | content |
|---|---|---|
| `H` | map | environment; a later one replaces it |
| `K` | [id, kernel row] | a kernel that later events name by id |
| `V` | VariantEvent | a variant was compiled, or its first real launch was seen |
| `C` | ChoiceEvent | an autotuner decided |
| `S` | map of counts | what was dropped or failed, written at the end |

A killed process leaves at most its last record cut, so a reader takes what stands before the first bad record. A
whole record whose content does not fit (another version's, or past a limit) is left out, and those after it are read.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated, Any

import msgspec

from . import record, table
from .errors import ManifestError
from .model import Argument, Choice, Environment, Kernel, Option, Phase, Variant
from .values import Value

SUFFIX = ".journal"
_WHAT = "journal"
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class VariantEvent(msgspec.Struct, array_like=True):
    """A variant as one process saw it. `kernel` is the id of a `K` record of the same journal."""

    kernel: int
    digest: Digest
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
    keywords: tuple[str, ...] = ()


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
    """What a journal held. `damage` tells what stands after the last good record, or is empty.

    `counts` are the recorder's own, by what they count; `skipped` says why each left-out record did not fit.
    """

    path: str
    environment: Environment | None
    variants: list[Variant]
    choices: list[Choice]
    counts: dict[str, int]
    damage: str = ""
    skipped: list[str] = []


def encode(tag: bytes, content: Any) -> bytes:
    """Return one journal record, ready to be written by a single `write`."""
    return record.frame(tag, record.pack(content))


def is_journal(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins as a journal does; one named as a journal may be cut within its first bytes."""
    try:
        with open(path, "rb") as file:
            data = file.read(len(record.JOURNAL_MAGIC))
    except (OSError, ValueError):
        return False
    return data == record.JOURNAL_MAGIC or (os.fspath(path).endswith(SUFFIX) and record.JOURNAL_MAGIC.startswith(data))


def read(path: str | os.PathLike[str]) -> Journal:
    """Read a journal. A cut or damaged tail is told in `damage`; what stands before it is returned.

    Raises ManifestError when the file is unreadable or is no journal.
    """
    name = os.fspath(path)
    journal = Journal(name, None, [], [], {})
    try:
        data = record.read_file(path, record.JOURNAL_MAGIC)
    except ManifestError as error:
        raise ManifestError(f"{name}: {error}") from None
    if len(data) < record.PREAMBLE_SIZE and record.preamble(record.JOURNAL_MAGIC).startswith(data):
        journal.damage = f"cut at byte {len(data)}, before its first record"
        return journal
    try:
        record.check_preamble(data, record.JOURNAL_MAGIC, _WHAT)
    except ManifestError as error:
        raise ManifestError(f"{name}: {error}") from None
    with table.collector_paused():
        _read(journal, data)
    return journal


def _read(journal: Journal, data: bytes) -> None:
    kernels: dict[int, Kernel] = {}
    try:
        for tag, body, _ in record.frames(data, _WHAT):
            try:
                _take(journal, kernels, tag, body)
            except ManifestError as error:
                journal.skipped.append(str(error))
    except ManifestError as error:
        journal.damage = str(error)


_TAGS = b"HKVCS"
_each_value = partial(table.soft_each, soften=table.soft_value)
_each_argument = partial(table.soft_each, soften=table.soft_argument)
_SOFT_VARIANT = {2: _each_argument, 3: table.soft_options, 12: table.soft_options}
_SOFT_CHOICE = {1: _each_value, 2: table.soft_options, 3: table.soft_options}


def _event(content: Any, kind: Any, softeners: dict[int, Any]) -> Any:
    return table.convert_rows([content], kind, _WHAT, lambda row: table.soft_fields(row, softeners))[0]


def _take(journal: Journal, kernels: dict[int, Kernel], tag: bytes, body: bytes) -> None:
    if tag not in _TAGS:
        return
    content = record.unpack(body, _WHAT)
    if tag == b"H":
        journal.environment = table.convert(content, Environment, _WHAT)
    elif tag == b"K":
        index, row = table.convert(content, tuple[int, Kernel], _WHAT)
        kernels[index] = row
    elif tag == b"V":
        event: VariantEvent = _event(content, VariantEvent, _SOFT_VARIANT)
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
                keywords=event.keywords,
            )
        )
    elif tag == b"C":
        choice: ChoiceEvent = _event(content, ChoiceEvent, _SOFT_CHOICE)
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
