"""Rows of a file's tables: interning when they are written, typed and lenient decoding when they are read."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import msgspec

from .errors import ManifestError
from .values import Value

T = TypeVar("T", bound=Hashable)


class Interner(Generic[T]):
    """Gives each distinct item an index, in order of first sight. The caller keeps the items alive meanwhile."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._index: dict[T, int] = {}
        self._by_id: dict[int, int] = {}

    def __call__(self, item: T) -> int:
        index = self._by_id.get(id(item))
        if index is None:
            index = self._index.get(item)
            if index is None:
                index = self._index[item] = len(self.items)
                self.items.append(item)
            self._by_id[id(item)] = index
        return index

    def all(self, items: Iterable[T]) -> list[int]:
        """Return the index of each item."""
        by_id = self._by_id
        try:
            return [by_id[id(item)] for item in items]
        except KeyError:
            return [self(item) for item in items]


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep Python's cycle collector from walking, again and again, what is built in here; it holds no cycles."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def convert(data: Any, kind: Any, what: str) -> Any:
    """Return `data` as `kind`; raise ManifestError that gives the path of what does not fit."""
    try:
        return _convert(data, kind)
    except (msgspec.ValidationError, RecursionError, UnicodeError) as error:
        raise ManifestError(f"{what} is damaged: {error}") from None


def convert_rows(rows: list[Any], kind: Any, what: str, soften: Callable[[Any], Any]) -> list[Any]:
    """Return rows that hold values as `kind`. Where they do not fit, `soften` each first: see `soft_value`."""
    try:
        return _convert(rows, list[kind])
    except (msgspec.ValidationError, RecursionError, UnicodeError):
        return convert([soften(row) for row in rows], list[kind], what)


def _convert(data: Any, kind: Any) -> Any:
    return msgspec.convert(data, kind, builtin_types=(bytes,))


def soft_value(row: Any) -> Any:
    """Return a value's row, as an opaque one where the value or a part of it is of a kind unknown to this version."""
    try:
        _convert(row, Value)
    except msgspec.ValidationError as error:
        if unknown := re.match(r"Invalid value '([^']*)'", str(error)):
            return ["opaque", unknown[1], "a newer jitreplay wrote this kind of value"]
    except (RecursionError, UnicodeError):
        pass  # told with its place by whoever converts the whole
    return row


def soft_argument(row: Any) -> Any:
    """Return an argument's row [value, ...] with its value softened."""
    return [soft_value(row[0]), *row[1:]] if isinstance(row, list) and row else row


def soft_options(rows: Any) -> Any:
    """Return rows [name, value] with their values softened."""
    return soft_each(rows, lambda row: [row[0], soft_value(row[1])] if isinstance(row, list) and len(row) == 2 else row)


def soft_each(rows: Any, soften: Callable[[Any], Any]) -> Any:
    """Return a list of rows, each softened; anything else as it is."""
    return [soften(row) for row in rows] if isinstance(rows, list) else rows


def soft_fields(row: Any, softeners: dict[int, Callable[[Any], Any]]) -> Any:
    """Return a row with the elements at the given places softened."""
    if not isinstance(row, list):
        return row
    return [softeners[at](item) if at in softeners else item for at, item in enumerate(row)]
