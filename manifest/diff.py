"""What changed between two manifests: header, kernels, and variants paired by their arguments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations
from math import comb
from typing import Any

import msgspec

from . import words
from .model import Argument, Environment, Manifest, Variant
from .values import Opaque, Tensor, Text, Tuple

MOST = 3
"""Two variants with more differing arguments than this are not the same one changed."""
_PAIRS = 200_000
"""Up to so many pairs are compared one by one; beyond, by masking the arguments that vary."""
_MASKS = 4_000_000


class Change(msgspec.Struct):
    """One variant that became another: the differing arguments as (name, before, after)."""

    before: Variant
    after: Variant
    args: list[tuple[str, Argument, Argument]]


class Diff(msgspec.Struct):
    """Differences from one manifest to another; empty lists where there are none."""

    header: list[tuple[str, Any, Any]] = []
    kernels_added: list[str] = []
    kernels_removed: list[str] = []
    kernels_changed: list[str] = []
    added: list[Variant] = []
    removed: list[Variant] = []
    changed: list[Change] = []

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)


def diff(before: Manifest, after: Manifest) -> Diff:
    """Compare two manifests. Kernels are matched by name, variants by digest, then paired by arguments."""
    out = Diff(header=list(_header(before.environments, after.environments)))
    old_prints, new_prints = _fingerprints(before), _fingerprints(after)
    out.kernels_added = [name for name in new_prints if name not in old_prints]
    out.kernels_removed = [name for name in old_prints if name not in new_prints]
    out.kernels_changed = [name for name, found in new_prints.items() if old_prints.get(name, found) != found]
    old, new = _by_kernel(before), _by_kernel(after)
    for name in sorted({*old, *new}):
        was, now = old.get(name, {}), new.get(name, {})
        gone = [v for digest, v in was.items() if digest not in now]
        come = [v for digest, v in now.items() if digest not in was]
        pairs = _pair(gone, come)
        paired_old, paired_new = {id(a) for a, _ in pairs}, {id(b) for _, b in pairs}
        out.changed.extend(Change(a, b, _differing(a, b)) for a, b in pairs)
        out.removed.extend(v for v in gone if id(v) not in paired_old)
        out.added.extend(v for v in come if id(v) not in paired_new)
    return out


def _fingerprints(manifest: Manifest) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for kernel in manifest.kernels:
        found.setdefault(kernel.name, set()).add(kernel.fingerprint)
    return found


def _by_kernel(manifest: Manifest) -> dict[str, dict[str, Variant]]:
    found: dict[str, dict[str, Variant]] = defaultdict(dict)
    for variant in manifest.variants:
        found[variant.kernel.name].setdefault(variant.digest, variant)
    return found


def _header(before: Iterable[Environment], after: Iterable[Environment]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (field, values before, values after) for each field of the environments that differs."""
    old, new = _fields(before), _fields(after)
    for name in sorted({*old, *new}):
        was, now = old.get(name, []), new.get(name, [])
        if was != now:
            yield name, _single(was), _single(now)


def _single(found: list[Any]) -> Any:
    return found[0] if len(found) == 1 else (found or None)


def _fields(environments: Iterable[Environment]) -> dict[str, list[Any]]:
    """Return each field's distinct values, nested fields with dotted names."""
    found: dict[str, list[Any]] = defaultdict(list)
    for environment in environments:
        for name, value in msgspec.to_builtins(environment).items():
            pairs = {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
            for key, item in pairs.items():
                if item not in found[key]:
                    found[key].append(item)
    return {name: sorted(values, key=repr) for name, values in found.items()}


def key_part(argument: Argument) -> Any:
    """Return what an argument adds to the key: its specialization, and its value where that is a constant."""
    if argument.spec.startswith(("*", "i", "u", "fp", "bf", "tensordesc", "nvTma")) or isinstance(
        argument.value, Tensor
    ):
        return argument.spec
    if argument.spec.startswith("(") and "constexpr" not in argument.spec:
        return argument.spec
    return (argument.spec, argument.value)


def _row(variant: Variant) -> dict[str, Any]:
    """Return the key parts of a variant by name: arguments, then options, then the options' order."""
    names = [param.name for param in variant.kernel.params]
    row: dict[str, Any] = {name: key_part(arg) for name, arg in zip(names, variant.args, strict=False)}
    row |= {f"option {name}": value for name, value in variant.options}
    row["option order"] = tuple(name for name, _ in variant.options)
    return row


def _differing(a: Variant, b: Variant) -> list[tuple[str, Argument, Argument]]:
    left, right = _row(a), _row(b)
    names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    if any(name != "option order" for name in names):
        # A changed set of options changes their order too; that says nothing more.
        names = [name for name in names if name != "option order"]
    return [(name.removeprefix("option "), _argument(a, name), _argument(b, name)) for name in names]


def _argument(variant: Variant, name: str) -> Argument:
    if name == "option order":
        return Argument(Tuple(tuple(Text(option) for option, _ in variant.options)), "constexpr")
    if name.startswith("option "):
        value = dict(variant.options).get(name.removeprefix("option "), Opaque("not given"))
        return Argument(value, "constexpr")
    names = [param.name for param in variant.kernel.params]
    if name not in names:
        return Argument(Opaque("no such parameter"), "constexpr")
    return variant.args[names.index(name)]


def _count(a: dict[str, Any], b: dict[str, Any]) -> int:
    """Return how many arguments and options differ; the options' order counts only when nothing else does."""
    if a.keys() == b.keys():
        count = sum(1 for name, value in a.items() if value != b[name])
    else:
        count = sum(1 for name in {**a, **b} if a.get(name) != b.get(name))
    if count > 1 and a["option order"] != b["option order"]:
        count -= 1
    return count


def _pair(gone: list[Variant], come: list[Variant]) -> list[tuple[Variant, Variant]]:
    """Pair variants one to one by fewest differing arguments, ties in manifest order."""
    if not gone or not come:
        return []
    left, right = [_row(v) for v in gone], [_row(v) for v in come]
    if len(gone) * len(come) <= _PAIRS:
        found = [(n, i, j) for i, a in enumerate(left) for j, b in enumerate(right) if (n := _count(a, b)) <= MOST]
    else:
        found = list(_masked(left, right))
    pairs, used_left, used_right = [], set(), set()
    for _, i, j in sorted(found):
        if i not in used_left and j not in used_right:
            used_left.add(i)
            used_right.add(j)
            pairs.append((gone[i], come[j]))
    return sorted(pairs, key=lambda pair: pair[0].identity)


def _masked(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> Iterator[tuple[int, int, int]]:
    """Yield candidate pairs of large sets: those that agree once a few varying arguments are masked.

    For each mask, a row of the left meets the first rows of the right that agree, in order; that is enough for a
    pairing in manifest order, and linear in the number of rows.
    """
    everything = left + right
    names = dict.fromkeys(name for row in everything for name in row)
    varying = [name for name in names if len({repr(row.get(name)) for row in everything}) > 1]
    free_left, free_right = set(range(len(left))), set(range(len(right)))
    for size in range(MOST + 1):
        if comb(len(varying), size) * len(everything) > _MASKS:
            return
        for mask in combinations(varying, size):
            kept = [name for name in varying if name not in mask]
            seen: dict[Any, list[int]] = defaultdict(list)
            for j in sorted(free_right):
                seen[repr([right[j].get(name) for name in kept])].append(j)
            for i in sorted(free_left):
                if waiting := seen.get(repr([left[i].get(name) for name in kept])):
                    j = waiting.pop(0)
                    free_left.discard(i)
                    free_right.discard(j)
                    yield size, i, j


def as_data(found: Diff) -> dict[str, Any]:
    """Return a diff as `diff --json` prints it."""
    return {
        "header": [{"name": name, "from": was, "to": now} for name, was, now in found.header],
        "kernels": {"added": found.kernels_added, "removed": found.kernels_removed, "changed": found.kernels_changed},
        "variants": {
            "added": [{"kernel": v.kernel.name, "digest": v.digest} for v in found.added],
            "removed": [{"kernel": v.kernel.name, "digest": v.digest} for v in found.removed],
            "changed": [
                {
                    "kernel": c.after.kernel.name,
                    "from": c.before.digest,
                    "to": c.after.digest,
                    "args": [
                        {
                            "name": name,
                            "from": words.class_of(a),
                            "to": words.class_of(b),
                            "text": words.sentence(name, a, b),
                        }
                        for name, a, b in c.args
                    ],
                }
                for c in found.changed
            ],
        },
    }


def nearest(variant: Variant, others: Iterable[Variant]) -> tuple[Variant, list[tuple[str, Argument, Argument]]] | None:
    """Return the variant of the same kernel with the fewest differing arguments, and those; None without any."""
    row = _row(variant)
    rows = [(other, _row(other)) for other in others if other.kernel.name == variant.kernel.name]
    if not rows:
        return None
    found, _ = min(rows, key=lambda pair: _count(pair[1], row))
    return found, _differing(found, variant)
