"""From a launch to an event: what a miss, or the look at a first real launch, says of a variant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..jit.bind import injected, strip
from ..jit.encode import encode, spec
from ..jit.miss import Miss
from ..manifest.journal import VariantEvent
from ..manifest.model import Argument, Phase, digest


def arguments(values: Iterable[Any], specs: Iterable[str]) -> tuple[Argument, ...]:
    """Return live arguments, with the text of their specializations, as the manifest holds them."""
    return tuple(Argument(encode(value), text) for value, text in zip(values, specs, strict=False))


def specs(miss: Miss) -> tuple[str, ...]:
    """Return the specialization of each argument as text; one that Triton gives none for (3.7: a stage's) is left out."""
    return tuple(spec(*item) for item in miss.specialization[: len(miss.bound)] if len(item) == 2)


def of_miss(miss: Miss, texts: tuple[str, ...], kernel: int, phase: Phase, order: int) -> VariantEvent:
    """Return the event of a compiled key. A warm-up's is not real, and its phase is `never` so far."""
    options = strip(miss.options, injected(miss.fn))
    return VariantEvent(
        kernel,
        digest(miss.key),
        arguments(miss.bound.values(), texts),
        tuple((name, encode(value)) for name, value in options.items()),
        miss.grid,
        Phase.NEVER if miss.warmup else phase,
        real=not miss.warmup,
        order=order,
        compile_ms=0 if miss.disk_hit else round(miss.seconds * 1000),
        disk_hit=bool(miss.disk_hit),
    )


def of_launch(event: VariantEvent, values: tuple[Any, ...], texts: tuple[str, ...], grid: Any, phase: Phase) -> VariantEvent:
    """Return the event of a warmed variant's first real launch; what the compile said of time stays with that event."""
    return msgspec.structs.replace(event, args=arguments(values, texts), grid=tuple(grid), phase=phase, real=True)
