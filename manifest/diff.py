"""What changed between two manifests: header, kernels, and variants paired by their arguments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from . import words
from .model import Argument, Choice, Environment, Manifest, Variant
from .pair import ORDER, distance, pair
from .values import Opaque, Tensor, Text, Tuple


class Change(msgspec.Struct):
    """One variant that became another: the differing arguments as (name, before, after)."""

    before: Variant
    after: Variant
    args: list[tuple[str, Argument, Argument]]


class ChoiceChange(msgspec.Struct):
    """The config of one key of an autotuner on one device model, in words; None where none was made."""

    choice: Choice
    before: str | None
    after: str | None


class Diff(msgspec.Struct):
    """Differences from one manifest to another; empty lists where there are none."""

    header: list[tuple[str, Any, Any]] = []
    kernels_added: list[str] = []
    kernels_removed: list[str] = []
    kernels_changed: list[str] = []
    added: list[Variant] = []
    removed: list[Variant] = []
    changed: list[Change] = []
    choices: list[ChoiceChange] = []

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
    both = {k.fingerprint for k in before.kernels} & {k.fingerprint for k in after.kernels}
    made, make = _choices(before, both), _choices(after, both)
    for name in sorted({*made, *make}):
        was, now = (winner(found[name]) if name in found else None for found in (made, make))
        if was != now:
            out.choices.append(ChoiceChange(made.get(name) or make[name], was, now))
    return out


def _choices(manifest: Manifest, both: set[str]) -> dict[tuple[str, str, str, str], Choice]:
    """Return choices by kernel, key and device, and by source where both manifests have that source."""
    return {
        (c.kernel.name, words.texts(c.key), c.device, c.kernel.fingerprint if c.kernel.fingerprint in both else ""): c
        for c in manifest.choices
    }


def winner(choice: Choice) -> str:
    """Return a choice's config in words, options after the kernel's arguments."""
    return ", ".join(f"{name}={words.text(value)}" for name, value in (*choice.kwargs, *choice.options))


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
        was, now = old.get(name, {}), new.get(name, {})
        if was.keys() != now.keys():
            yield name, _single(was), _single(now)


def _single(found: dict[str, Any]) -> Any:
    values = [words.finite(value) for value in found.values()]
    return values[0] if len(values) == 1 else (values or None)


def _fields(environments: Iterable[Environment]) -> dict[str, dict[str, Any]]:
    """Return each field's distinct values, nested fields with dotted names.

    Values are told apart by their text, since 1, True and 1.0 are equal to Python, and NaN is not to itself.
    """
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for environment in environments:
        for name, value in msgspec.to_builtins(environment).items():
            pairs = {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
            for key, item in pairs.items():
                found[key][repr(item)] = item
    return {name: dict(sorted(values.items())) for name, values in found.items()}


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
    row[ORDER] = tuple(name for name, _ in variant.options)
    return row


def _differing(a: Variant, b: Variant) -> list[tuple[str, Argument, Argument]]:
    left, right = _row(a), _row(b)
    names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    if any(name != ORDER for name in names):
        # A changed set of options changes their order too; that says nothing more.
        names = [name for name in names if name != ORDER]
    return [(_shown(name), _argument(a, name), _argument(b, name)) for name in names]


def _shown(name: str) -> str:
    return name if name == ORDER else name.removeprefix("option ")


def _argument(variant: Variant, name: str) -> Argument:
    if name == ORDER:
        return Argument(Tuple(tuple(Text(option) for option, _ in variant.options)), "constexpr")
    if name.startswith("option "):
        value = dict(variant.options).get(name.removeprefix("option "), Opaque("not given"))
        return Argument(value, "constexpr")
    for param, argument in zip(variant.kernel.params, variant.args, strict=False):
        if param.name == name:
            return argument
    return Argument(Opaque("no such parameter"), "constexpr")


def _pair(gone: list[Variant], come: list[Variant]) -> list[tuple[Variant, Variant]]:
    found = pair([_row(v) for v in gone], [_row(v) for v in come]) if gone and come else []
    return [(gone[i], come[j]) for i, j in sorted(found)]


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
                        dict(zip(("name", "from", "to"), (name, *words.sides(a, b)), strict=True))
                        for name, a, b in c.args
                    ],
                }
                for c in found.changed
            ],
        },
        "choices": [
            {
                "kernel": c.choice.kernel.name,
                "key": [words.plain(value) for value in c.choice.key],
                "device": c.choice.device,
                "from": c.before,
                "to": c.after,
            }
            for c in found.choices
        ],
    }


def nearest(variant: Variant, others: Iterable[Variant]) -> tuple[Variant, list[tuple[str, Argument, Argument]]] | None:
    """Return the variant of the same kernel with the fewest differing arguments, and those; None without any."""
    row = _row(variant)
    rows = [(other, _row(other)) for other in others if other.kernel.name == variant.kernel.name]
    if not rows:
        return None
    found, _ = min(rows, key=lambda found: distance(found[1], row))
    return found, _differing(found, variant)
