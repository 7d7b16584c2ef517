"""Variants that are two to the compiler and one to Triton's cache in memory, which compares as Python does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import words
from .diff import key_part
from .model import Variant


def look_alikes(variants: Iterable[Variant]) -> list[tuple[Variant, Variant]]:
    """Return pairs of one kernel's variants whose arguments differ only by constants that are equal to Python.

    1, True and 1.0 are, and 0.0 and -0.0 (Triton 3.6.0 to 3.9.0, `compute_cache_key`): the variant that a process
    launches first serves the other one too.
    """
    variants = list(variants)
    suspects = False
    for column in zip(*(v.args for v in variants), strict=False):
        constants = {arg.value for arg in column}
        suspects |= len({words.equal_as(value) for value in constants}) < len(constants)
    if not suspects:
        return []
    first: dict[Any, Variant] = {}
    found = []
    for variant in variants:
        parts = [key_part(arg) for arg in variant.args]
        row = tuple((part[0], words.equal_as(part[1])) if isinstance(part, tuple) else part for part in parts)
        before = first.setdefault((row, variant.options), variant)
        if before is not variant:
            found.append((before, variant))
    return found


def sentence(a: Variant, b: Variant) -> str:
    """Return a warning about two variants that look alike."""
    return (
        f"{a.kernel.name}: variants {a.digest[:8]} and {b.digest[:8]} differ only by constants that Triton's cache in "
        "memory takes for one (as 1 and True, or 0.0 and -0.0): the one launched first serves both"
    )


def warnings(variants: Iterable[Variant]) -> list[str]:
    """Return the warnings about look-alikes among a manifest's variants, which are in its order."""
    groups: dict[Any, list[Variant]] = {}
    for variant in variants:
        groups.setdefault(variant.kernel.identity, []).append(variant)
    return [sentence(*pair) for group in groups.values() for pair in look_alikes(group)]
