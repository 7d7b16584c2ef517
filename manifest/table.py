"""Interning: each distinct string, value, argument and kernel is written once and named by its index."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import msgspec

from .errors import ManifestError
from .values import Opaque, Value

T = TypeVar("T", bound=Hashable)


class Interner(Generic[T]):
    """Gives each distinct item an index, in order of first sight."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._index: dict[T, int] = {}

    def __call__(self, item: T) -> int:
        index = self._index.get(item)
        if index is None:
            index = self._index[item] = len(self.items)
            self.items.append(item)
        return index


def builtins(value: Any) -> Any:
    """Return a struct as the builtins that msgpack holds."""
    return msgspec.to_builtins(value, builtin_types=(bytes,))


def convert(data: Any, kind: Any, what: str) -> Any:
    """Return `data` as `kind`; raise ManifestError that gives the path of what does not fit."""
    try:
        return msgspec.convert(data, kind, builtin_types=(bytes,))
    except (msgspec.ValidationError, RecursionError) as error:
        raise ManifestError(f"{what} is damaged: {error}") from None


def convert_values(rows: Any, what: str) -> list[Value]:
    """Return the values of a table. One of a kind that this version does not know becomes opaque."""
    try:
        return msgspec.convert(rows, list[Value], builtin_types=(bytes,))
    except msgspec.ValidationError:
        return [_value(row, what) for row in rows] if isinstance(rows, list) else convert(rows, list[Value], what)


_KNOWN = {kind.__struct_config__.tag for kind in Value.__args__}  # type: ignore[attr-defined]


def _value(row: Any, what: str) -> Value:
    if isinstance(row, list) and row and isinstance(row[0], str) and _unknown(row):
        return Opaque(row[0], "a newer jitreplay wrote this kind of value")
    return convert(row, Value, what)


def _unknown(row: list[Any]) -> bool:
    """Whether the value or a part of it has a tag that this version does not know."""
    try:
        msgspec.convert(row, Value, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        return "Invalid value" in str(error) and (row[0] not in _KNOWN or " - at `$[" in str(error))
    return False


def lookup(table: list[Any], what: str) -> Callable[[int], Any]:
    """Return a function that gives a table's row and raises ManifestError for an index out of range."""

    def row(index: int) -> Any:
        if not 0 <= index < len(table):
            raise ManifestError(f"{what} is damaged: index {index} in a table of {len(table)}")
        return table[index]

    return row
