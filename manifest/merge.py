"""Merging: many journals and manifests become one, in canonical order, whatever the order they came in."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from . import file, journal, record
from .errors import ManifestError
from .model import PHASE_WEIGHT, Choice, Environment, Kernel, Manifest, Variant

_Identity = tuple[tuple[str, str, str], str]


class Merged(msgspec.Struct):
    """The result: the manifest, how many files of each kind went in, and what a user should know of them."""

    manifest: Manifest
    journals: int = 0
    manifests: int = 0
    notes: list[str] = []


def paths(sources: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the files that the sources stand for: a folder stands for all journals and manifests below it.

    Raises ManifestError for a path that does not exist and for a folder without any.
    """
    found: list[Path] = []
    for source in map(Path, sources):
        if not source.is_dir():
            if not source.exists():
                raise ManifestError(f"{source}: no such file or folder")
            found.append(source)
            continue
        inside = sorted(path for path in source.rglob("*") if path.is_file() and _is_ours(path))
        if not inside:
            raise ManifestError(f"{source}: holds no journal: was anything recorded there?")
        found.extend(inside)
    return list(dict.fromkeys(found))


def _is_ours(path: Path) -> bool:
    with open(path, "rb") as handle:
        return handle.read(len(record.JOURNAL_MAGIC)) in (record.JOURNAL_MAGIC, record.MANIFEST_MAGIC)


def merge_files(sources: Iterable[str | os.PathLike[str]]) -> Merged:
    """Read journals, manifests and folders of them, and merge them.

    Raises ManifestError when a source is missing or is neither; a journal with a cut tail is only noted.
    """
    merged = Merged(Manifest())
    parts: list[Manifest] = []
    for path in paths(sources):
        if not journal.is_journal(path):
            parts.append(file.load(path))
            merged.manifests += 1
            continue
        part = journal.read(path)
        merged.journals += 1
        if part.damage:
            merged.notes.append(f"{path}: {part.damage}; {len(part.variants)} events before it were kept")
        merged.notes.extend(f"{path}: {count} {name}" for name, count in sorted(part.counts.items()) if count)
        if part.environment is not None:
            parts.append(_of_journal(part, part.environment))
    merged.manifest = merge(_without_losers(parts))
    return merged


def _without_losers(parts: list[Manifest]) -> list[Manifest]:
    """Drop what an autotuner compiled only to time it: the candidates whose config no key of that kernel chose."""
    winners = {(c.kernel.identity, frozenset((*c.kwargs, *c.options))) for part in parts for c in part.choices}
    return [
        Manifest(
            part.environments,
            tuple(
                v if v.candidate is None else msgspec.structs.replace(v, candidate=None)
                for v in part.variants
                if v.candidate is None or (v.kernel.identity, frozenset(v.candidate)) in winners
            ),
            part.choices,
        )
        for part in parts
    ]


def _of_journal(part: journal.Journal, environment: Environment) -> Manifest:
    here = (0,)
    return Manifest(
        (environment,),
        tuple(msgspec.structs.replace(v, environments=here) for v in part.variants),
        tuple(msgspec.structs.replace(c, environments=here) for c in part.choices),
    )


def merge(parts: Iterable[Manifest]) -> Manifest:
    """Merge manifests; the result depends on their content alone, not on their order.

    Facts of a real launch replace those of a warm-up; the weightier phase, the earliest order and the longest
    compile stay; ranks and environments add up. Derivations that do not hold in every part are dropped.
    """
    parts = list(parts)
    encoded = {_bytes(env): env for part in parts for env in part.environments}
    order = sorted(encoded)
    environments = tuple(encoded[key] for key in order)
    index = {key: at for at, key in enumerate(order)}
    kernels: dict[tuple[str, str, str], Kernel] = {}
    variants: dict[_Identity, Variant] = {}
    choices: dict[Any, Choice] = {}
    for part in parts:
        moved = [index[_bytes(env)] for env in part.environments]
        for variant in part.variants:
            _take_kernel(kernels, variant.kernel)
            here = tuple(sorted({moved[i] for i in variant.environments}))
            if here != variant.environments:
                variant = msgspec.structs.replace(variant, environments=here)
            before = variants.get(variant.identity)
            variants[variant.identity] = variant if before is None else _join(before, variant)
        for choice in part.choices:
            _take_kernel(kernels, choice.kernel)
            here = tuple(sorted({moved[i] for i in choice.environments}))
            choice = msgspec.structs.replace(choice, environments=here)
            before_choice = choices.get(choice.identity)
            choices[choice.identity] = choice if before_choice is None else _join_choice(before_choice, choice)

    def settle(item: Any) -> Any:
        kernel = kernels[item.kernel.identity]
        return item if item.kernel is kernel else msgspec.structs.replace(item, kernel=kernel)

    return Manifest(
        environments,
        tuple(settle(variants[key]) for key in sorted(variants)),
        tuple(settle(c) for c in sorted(choices.values(), key=lambda c: (c.kernel.identity, c.device, _bytes(c.key)))),
    )


def _bytes(content: Any) -> bytes:
    """Return a canonical encoding, to sort and compare by."""
    return record.pack(msgspec.to_builtins(content, builtin_types=(bytes,), order="sorted"))


def _take_kernel(kernels: dict[tuple[str, str, str], Kernel], kernel: Kernel) -> None:
    before = kernels.setdefault(kernel.identity, kernel)
    if before is not kernel and before != kernel:
        kernels[kernel.identity] = min(before, kernel, key=_bytes)


def _facts(variant: Variant) -> tuple[Any, ...]:
    """Sort key of a launch's facts: a real launch first, then the fuller one, then whichever bytes are less."""
    return (not variant.real, variant.harvested, variant.grid is None, _bytes([variant.args, variant.grid]))


def _join(a: Variant, b: Variant) -> Variant:
    first, second = sorted((a, b), key=_facts) if a.args != b.args or a.real != b.real or a.grid != b.grid else (a, b)
    phase = max(a.phase, b.phase, key=lambda p: PHASE_WEIGHT[p])
    args = first.args
    if first.real == second.real and len(first.args) == len(second.args):
        args = tuple(
            x if not x.derivations else msgspec.structs.replace(x, derivations=_common(x.derivations, y.derivations))
            for x, y in zip(first.args, second.args, strict=True)
        )
    return msgspec.structs.replace(
        first,
        args=args,
        phase=phase,
        ranks=tuple(sorted({*a.ranks, *b.ranks})),
        order=min(a.order, b.order),
        compile_ms=max(a.compile_ms, b.compile_ms),
        disk_hit=a.disk_hit and b.disk_hit,
        environments=tuple(sorted({*a.environments, *b.environments})),
        harvested=a.harvested and b.harvested,
    )


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(item for item in a if item in b)


def _join_choice(a: Choice, b: Choice) -> Choice:
    """Settle two decisions for one key: the winner with the lesser median time, then the lesser bytes."""
    first = min(
        (a, b), key=lambda c: (min((t for _, t in c.timings), default=float("inf")), _bytes([c.kwargs, c.options]))
    )
    return msgspec.structs.replace(
        first,
        ranks=tuple(sorted({*a.ranks, *b.ranks})),
        environments=tuple(sorted({*a.environments, *b.environments})),
    )


__all__ = ["Merged", "merge", "merge_files", "paths"]
