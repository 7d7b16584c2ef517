"""Pairing rows of two sets one to one by fewest differing columns, ties in the order of the rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Any

MOST = 3
"""Two rows with more differing columns than this are no pair."""
ORDER = "option order"
"""The column that counts, as one, only where all others agree: another set of options has another order too."""
WORK = 4_000_000
"""Comparisons after which a pairing stops, at pairs of so many differing columns as were all compared."""

Row = Mapping[str, Any]


def distance(a: Row, b: Row) -> int:
    """Return how many columns differ between two rows, which need not have the same ones."""
    count = sum(1 for name in {**a, **b} if name != ORDER and a.get(name) != b.get(name))
    return count or int(a.get(ORDER) != b.get(ORDER))


def pair(left: Sequence[Row], right: Sequence[Row], work: int = WORK) -> list[tuple[int, int]]:
    """Return pairs (index in `left`, index in `right`): those of the least distance first, each row in one pair.

    Of equal distances, the pair with the first row of the left comes first, then that with the first of the right.
    Values of rows are hashable. The result is exact unless both ways to find it would take more than `work` steps.
    """
    codes = _Codes(left, right)
    every_pair = len(left) * len(right) * (MOST + 1)
    every_mask = sum(comb(len(codes.columns), size) for size in range(MOST + 1)) * (len(left) + len(right))
    find = _by_pairs if every_pair <= min(work, every_mask) else _by_masks
    return list(find(codes, work))


class _Codes:
    """Rows as integers: one bit a value of a column, so two bits differ for each column that does.

    `columns` are the masks of the columns that vary, `order` that of the options' order.
    """

    def __init__(self, left: Sequence[Row], right: Sequence[Row]) -> None:
        rows = [*left, *right]
        codes = [0] * len(rows)
        self.columns: list[int] = []
        self.order, shift = 0, 0
        for name in dict.fromkeys(name for row in rows for name in row):
            places: dict[Any, int] = {}
            found = [places.setdefault(row.get(name), len(places)) for row in rows]
            if len(places) == 1:
                continue
            codes = [code | 1 << (shift + place) for code, place in zip(codes, found, strict=True)]
            mask = ((1 << len(places)) - 1) << shift
            shift += len(places)
            if name == ORDER:
                self.order = mask
            else:
                self.columns.append(mask)
        self.left = dict(enumerate(codes[: len(left)]))
        self.right = dict(enumerate(codes[len(left) :]))

    def pop(self, i: int, j: int) -> tuple[int, int]:
        del self.left[i], self.right[j]
        return i, j


def _by_pairs(codes: _Codes, work: int) -> Iterator[tuple[int, int]]:
    """Compare every row with every other. What was nearer than `size` is paired already."""
    named = sum(codes.columns)
    for size in range(MOST + 1):
        keep = named if size else named | codes.order
        for i, code in list(codes.left.items()):
            for j, other in codes.right.items():
                if ((code ^ other) & keep).bit_count() <= 2 * size:
                    yield codes.pop(i, j)
                    break


def _by_masks(codes: _Codes, work: int) -> Iterator[tuple[int, int]]:
    """Look for rows that are equal once a few columns are masked: linear in the number of rows."""
    named = sum(codes.columns)
    for size in range(MOST + 1):
        masked_columns = min(size, len(codes.columns))
        work -= comb(len(codes.columns), masked_columns) * (len(codes.left) + len(codes.right))
        if work < 0:
            return
        waiting: dict[int, list[list[int]]] = defaultdict(list)
        for masked in combinations(codes.columns, masked_columns):
            keep = named - sum(masked) if size else named | codes.order
            equal: dict[int, list[int]] = defaultdict(list)
            for j, code in reversed(codes.right.items()):
                equal[code & keep].append(j)
            for i, code in codes.left.items():
                if found := equal.get(code & keep):
                    waiting[i].append(found)
        for i in sorted(waiting):
            first = [found[-1] for found in waiting[i] if _trim(found, codes.right)]
            if first:
                yield codes.pop(i, min(first))


def _trim(found: list[int], free: Mapping[int, int]) -> bool:
    """Drop what is paired already from the end of a list; return whether something is left."""
    while found and found[-1] not in free:
        found.pop()
    return bool(found)
