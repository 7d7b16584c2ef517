"""The plan: which variants apply in this process, in which order, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..jit.options import refused
from ..jit.resolve import Absent, Resolver, Unresolved
from ..manifest.model import PHASE_WEIGHT, Manifest, Variant
from .outcome import Outcome, Result


class Planned(msgspec.Struct, frozen=True):
    """A variant to replay, its live kernel, and whether that kernel's source is another than recorded.

    `twins` are other live kernels of the same name and source: a function made them. Triton caches for each.
    """

    variant: Variant
    fn: Any
    changed: bool
    twins: tuple[Any, ...] = ()


class Plan(msgspec.Struct):
    """What to replay, dearest and most needed first, what was dropped, and what waits for its kernel, with why."""

    todo: list[Planned] = []
    dropped: list[Result] = []
    absent: list[tuple[Variant, str]] = []


def order(variants: Iterable[Variant], rank: str = "") -> list[Variant]:
    """Return variants in the order of replay: this rank's own, serving before startup, dearest first, as first seen."""

    def place(v: Variant) -> tuple[Any, ...]:
        others = bool(rank and v.ranks and rank not in v.ranks)
        return (others, -PHASE_WEIGHT[v.phase], -v.compile_ms, v.order, v.identity)

    return sorted(variants, key=place)


def stage(rank: str) -> str:
    """Return the pipeline stage within a rank such as `dp0:pp1:tp0`, or "" when it names none."""
    return next((part for part in rank.split(":") if part.startswith("pp")), "")


def make_plan(manifest: Manifest, backend: str, resolver: Resolver, rank: str = "") -> Plan:
    """Plan a replay on a backend ("cuda", "hip"), for one rank of several. Imports the modules that are allowed.

    A rank replays its own variants, then those of its pipeline stage's others; where the recording does not know the
    stage, those of all.
    """
    plan = Plan()
    stages = known_stages(manifest)
    prints: dict[int, str] = {}
    for variant in order(manifest.variants, rank):
        try:
            applies(manifest, variant, backend, rank, stages)
            plan.todo.append(planned(variant, resolver, prints))
        except Absent as reason:
            plan.absent.append((variant, str(reason)))
        except Unresolved as reason:
            plan.dropped.append(Result(variant, Outcome.SKIPPED, str(reason)))
    return plan


BEYOND = "beyond JITREPLAY_MOST="
ELSEWHERE = ("recorded on ", "another pipeline stage's ", BEYOND)
"""How the reason of a variant begins that is not for this process at all."""


def cut(plan: Plan, most: int) -> None:
    """Drop what is beyond so many variants, the most needed; 0 drops none."""
    if most:
        plan.dropped += [Result(p.variant, Outcome.SKIPPED, f"{BEYOND}{most}") for p in plan.todo[most:]]
        del plan.todo[most:]


def known_stages(manifest: Manifest) -> frozenset[str]:
    """Return the pipeline stages that the recording names."""
    return frozenset(stage(r) for ranks in {v.ranks for v in manifest.variants} for r in ranks)


def applies(manifest: Manifest, variant: Variant, backend: str, rank: str, stages: frozenset[str]) -> None:
    """Raise Unresolved, with the reason, for a variant that nothing has to be imported for to know it is not for here.

    `stages` are `known_stages` of the manifest.
    """
    if rank and stage(rank) in stages and variant.ranks and stage(rank) not in map(stage, variant.ranks):
        raise Unresolved(f"another pipeline stage's ({', '.join(variant.ranks)})")
    targets = {manifest.environments[index].backend for index in variant.environments}
    if targets and backend not in targets:
        raise Unresolved(f"recorded on {', '.join(sorted(targets))}, this is {backend}")
    if (opaque := variant.opaque()) is not None:
        name, value = opaque
        raise Unresolved(f"argument {name} ({value.type}) cannot be rebuilt: {value.why}")
    if reason := refused(backend, variant.options):
        raise Unresolved(reason)


def planned(variant: Variant, resolver: Resolver, prints: dict[int, str] | None = None) -> Planned:
    """Plan one variant. Raises Unresolved, Absent where its kernel may yet come.

    `prints` are the fingerprints of live kernels that one pass has taken, by id.
    """
    fn, *twins = resolver.kernels(variant.kernel)
    check_parameters(variant, fn)
    known = {} if prints is None else prints
    if id(fn) not in known:
        known[id(fn)] = resolver.fingerprint(fn)
    return Planned(variant, fn, known[id(fn)] != variant.kernel.fingerprint, tuple(twins))


def check_parameters(variant: Variant, fn: Any) -> None:
    """Raise Unresolved unless a live kernel has the parameters that were recorded."""
    found = [param.name for param in fn.params]
    recorded = [param.name for param in variant.kernel.params]
    if found != recorded:
        raise Unresolved(f"the kernel's parameters changed: recorded {_names(recorded)}, now {_names(found)}")
    if len(variant.args) != len(found):
        raise Unresolved(f"{len(variant.args)} arguments were recorded for {len(found)} parameters")


def _names(names: list[str]) -> str:
    return f"({', '.join(names)})"
