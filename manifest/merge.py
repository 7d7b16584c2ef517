"""Merging: many journals and manifests become one, in canonical order, whatever the order they came in."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from . import alike, file, journal, record, table
from .errors import ManifestError
from .model import PHASE_WEIGHT, Choice, Environment, Kernel, Manifest, Variant
from .words import many


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
        try:
            found.extend(_inside(source))
        except OSError as error:
            raise ManifestError(f"{source}: cannot be read: {error.strerror or error}") from None
    return list(dict.fromkeys(found))


def _inside(source: Path) -> list[Path]:
    if not source.is_dir():
        if not source.exists():
            raise ManifestError(f"{source}: no such file or folder")
        return [source]
    found = sorted(path for path in source.rglob("[!.]*") if path.is_file() and _is_ours(path))
    if not found:
        raise ManifestError(f"{source}: holds no journal: was anything recorded there?")
    return found


def _is_ours(path: Path) -> bool:
    """Whether a file in a folder is to be read. One that is named as a journal and cannot be read is told later."""
    try:
        with open(path, "rb") as handle:
            return handle.read(len(record.MANIFEST_MAGIC)) == record.MANIFEST_MAGIC or journal.is_journal(path)
    except OSError:
        return path.suffix == journal.SUFFIX


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
        if part.skipped:
            merged.notes.append(f"{path}: {len(part.skipped)} records left out: {part.skipped[0]}")
        merged.notes.extend(f"{path}: {count} {name}" for name, count in sorted(part.counts.items()) if count)
        if part.environment is not None:
            parts.append(_of_journal(part, part.environment))
        elif part.variants:
            merged.notes.append(
                f"{path}: its {len(part.variants)} events were left out, since it says not where it ran"
            )
    merged.notes.extend(_disagreements(parts))
    merged.manifest = merge(_without_losers(parts))
    merged.notes.extend(alike.warnings(merged.manifest.variants))
    return merged


def _disagreements(parts: list[Manifest]) -> list[str]:
    """Say which autotuner choices differ between recordings; `_join_choice` is the rule that settles them."""
    found: dict[Any, dict[Any, list[Choice]]] = {}
    for choice in (choice for part in parts for choice in part.choices):
        config = frozenset((*choice.kwargs, *choice.options))
        found.setdefault(choice.identity, {}).setdefault(config, []).append(choice)
    return [
        f"{name}: recordings differ in {many(count, 'autotuner choice')}; of each, the fastest stays for all ranks"
        for name, count in sorted(Counter(i[0][0] + "." + i[0][1] for i, by in found.items() if len(by) > 1).items())
    ]


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


class _Group(msgspec.Struct):
    """A kernel, and its variants by digest."""

    kernel: Kernel
    variants: dict[str, Variant]

    def meet(self, kernel: Kernel) -> None:
        """Settle which of two kernels of one identity stays."""
        if kernel != self.kernel:
            self.kernel = min(kernel, self.kernel, key=_bytes)


def merge(parts: Iterable[Manifest]) -> Manifest:
    """Merge manifests; the result depends on their content alone, not on their order or grouping.

    Facts of a real launch replace those of a warm-up; the weightier phase, the earliest order and the longest
    compile stay; ranks and environments add up. Derivations that do not hold in every real launch are dropped.
    """
    with table.collector_paused():
        return _merge(list(parts))


def _merge(parts: list[Manifest]) -> Manifest:
    environments = {_bytes(env): env for part in parts for env in part.environments}
    index = {key: at for at, key in enumerate(sorted(environments))}
    groups: dict[tuple[str, str, str], _Group] = {}
    choices: dict[Any, Choice] = {}
    for part in parts:
        move = _Move([index[_bytes(env)] for env in part.environments])
        known: dict[int, _Group] = {}
        for item in (*part.variants, *part.choices):
            if (group := known.get(id(item.kernel))) is None:
                group = known[id(item.kernel)] = groups.setdefault(item.kernel.identity, _Group(item.kernel, {}))
                group.meet(item.kernel)
            item = move(item)
            if isinstance(item, Choice):
                same = choices.get(item.identity)
                choices[item.identity] = item if same is None else _join_choice(same, item)
            else:
                before = group.variants.get(item.digest)
                group.variants[item.digest] = item if before is None else _join(before, item)

    variants = [
        variant if variant.kernel is group.kernel else msgspec.structs.replace(variant, kernel=group.kernel)
        for _, group in sorted(groups.items())
        for _, variant in sorted(group.variants.items())
    ]
    settled = [msgspec.structs.replace(c, kernel=groups[c.kernel.identity].kernel) for c in choices.values()]
    settled.sort(key=lambda c: (c.kernel.identity, c.device, _bytes(c.key)))
    return Manifest(tuple(environments[key] for key in index), tuple(variants), tuple(settled))


class _Move(dict[tuple[int, ...], tuple[int, ...]]):
    """Moves a part's variants and choices to the places that its environments have in the result."""

    def __init__(self, places: list[int]) -> None:
        super().__init__()
        self._places = places

    def __missing__(self, environments: tuple[int, ...]) -> tuple[int, ...]:
        self[environments] = moved = tuple(sorted({self._places[at] for at in environments}))
        return moved

    def __call__(self, item: Any) -> Any:
        here, ranks = self[item.environments], item.ranks
        if len(ranks) > 1:
            ranks = _union(ranks, ())
        if here == item.environments and ranks == item.ranks:
            return item
        return msgspec.structs.replace(item, environments=here, ranks=ranks)


def _bytes(content: Any) -> bytes:
    """Return a canonical encoding, to sort and compare by."""
    return record.pack(content)


def _union(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    return a if a == b and len(a) < 2 else tuple(sorted({*a, *b}))


def _join(a: Variant, b: Variant) -> Variant:
    """Return one variant for two of a key. Associative, commutative and idempotent, field by field."""
    first = a if a.args == b.args and _facts(a) == _facts(b) else _join_facts(a, b)
    return msgspec.structs.replace(
        first,
        phase=a.phase if PHASE_WEIGHT[a.phase] >= PHASE_WEIGHT[b.phase] else b.phase,
        ranks=_union(a.ranks, b.ranks),
        order=min(a.order, b.order),
        compile_ms=max(a.compile_ms, b.compile_ms),
        disk_hit=a.disk_hit and b.disk_hit,
        environments=_union(a.environments, b.environments),
        candidate=a.candidate if a.candidate == b.candidate else None,
    )


def _facts(v: Variant) -> tuple[Any, ...]:
    """Return what a launch showed besides its arguments; it stays together with them."""
    return (v.real, v.harvested, v.grid, v.options, v.keywords)


def _level(v: Variant) -> tuple[bool, bool]:
    """Sort key of how much a variant's facts say: a real launch's first, then those that were not harvested."""
    return (not v.real, v.harvested)


def _join_facts(a: Variant, b: Variant) -> Variant:
    """Return the variant whose facts stay. Of equal ones, only the derivations that both have are kept."""
    if _level(a) != _level(b):
        return min(a, b, key=_level)
    first = min(a, b, key=_rest)
    held = _derivations(a) & _derivations(b)
    args = tuple(
        msgspec.structs.replace(arg, derivations=tuple(d for d in arg.derivations if (at, d) in held))
        if arg.derivations
        else arg
        for at, arg in enumerate(first.args)
    )
    return msgspec.structs.replace(first, args=args)


def _rest(v: Variant) -> tuple[bool, bytes]:
    """Sort key of facts of one level: those with a grid first, then whichever bytes are less."""
    return (v.grid is None, _bytes([[(arg.value, arg.spec) for arg in v.args], v.grid, v.options, v.keywords]))


def _derivations(v: Variant) -> set[tuple[int, str]]:
    return {(at, derivation) for at, arg in enumerate(v.args) for derivation in arg.derivations}


def _join_choice(a: Choice, b: Choice) -> Choice:
    """Settle two decisions for one key: the winner with the least time, then the lesser bytes."""
    return msgspec.structs.replace(
        min(a, b, key=_speed), ranks=_union(a.ranks, b.ranks), environments=_union(a.environments, b.environments)
    )


def _speed(choice: Choice) -> tuple[float, bytes]:
    best = min((time for _, time in choice.timings if time == time), default=float("inf"))  # NaN has no order
    return (best, _bytes([choice.kwargs, choice.options, choice.timings]))


__all__ = ["Merged", "merge", "merge_files", "paths"]
