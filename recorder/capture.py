"""From a launch to an event: what a miss, or the look at a first real launch, says of a variant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..jit.bind import injected, strip
from ..jit.encode import argument, encode, spec
from ..jit.miss import Miss
from ..jit.tuner import benching, innermost, parts
from ..manifest.derivation import derive
from ..manifest.journal import ChoiceEvent, VariantEvent
from ..manifest.model import Argument, Option, Phase, digest
from ..manifest.values import Opaque, Tensor, Value
from .buffers import BufferIndex


class Scene(msgspec.Struct):
    """What a recorder knows beside the launch: the engine's settings and buffers, the rank, and the phase."""

    settings: Mapping[str, Any]
    buffers: BufferIndex | None
    rank: str
    phase: Phase


def arguments(values: Iterable[Any], specs: Iterable[str], buffers: BufferIndex | None) -> tuple[Argument, ...]:
    """Return live arguments, with the text of their specializations, as the manifest holds them."""
    return tuple(Argument(_value(value, text, buffers), text) for value, text in zip(values, specs, strict=False))


def _value(live: Any, spec: str, buffers: BufferIndex | None) -> Value:
    value = argument(live, spec)
    return buffers.locate(live, value) if buffers is not None and isinstance(value, Tensor) else value


def specs(miss: Miss) -> tuple[str, ...]:
    """Return the specialization of each argument as text, without what a stages hook appended (3.7)."""
    return tuple(spec(*item) for item in miss.specialization[: len(miss.bound)] if len(item) == 2)


def of_miss(miss: Miss, texts: tuple[str, ...], kernel: int, scene: Scene, order: int) -> VariantEvent:
    """Return the event of a compiled key. A warm-up's is not real, and its phase is `never` so far."""
    options = strip(miss.options, injected(miss.fn))
    args = arguments(miss.bound.values(), texts, scene.buffers)
    tuning = benching()
    return VariantEvent(
        kernel,
        digest(miss.key),
        args if miss.warmup else derive(args, miss.bound, scene.settings),
        encode_options(options),
        miss.grid,
        Phase.NEVER if miss.warmup else scene.phase,
        real=not miss.warmup,
        rank=scene.rank,
        order=order,
        compile_ms=0 if miss.disk_hit else round(miss.seconds * 1000),
        disk_hit=bool(miss.disk_hit),
        keywords=miss.keywords,
        candidate=_config(tuning[1]) if tuning is not None and innermost(tuning[0]) is miss.fn else None,
    )


def of_launch(
    blank: VariantEvent, names: Iterable[str], values: tuple[Any, ...], texts: tuple[str, ...], grid: Any, scene: Scene
) -> VariantEvent:
    """Return the event of a warmed variant's first real launch; what the compile said of time stays with that event."""
    args = derive(arguments(values, texts, scene.buffers), names, scene.settings)
    return msgspec.structs.replace(blank, args=args, grid=tuple(grid), phase=scene.phase, real=True, rank=scene.rank)


def of_choice(
    kernel: int, key: Any, config: Any, timings: Mapping[Any, float], device: str, rank: str
) -> ChoiceEvent | None:
    """Return the event of an autotuner's decision; None when its key or config cannot be written down."""
    encoded = tuple(encode(item) for item in key) if isinstance(key, tuple) else (encode(key),)
    kwargs, options = (encode_options(part) for part in parts(config))
    if any(isinstance(value, Opaque) for value in (*encoded, *(v for _, v in kwargs), *(v for _, v in options))):
        return None
    times = sorted(
        ((str(c), round(float(ms), 4)) for c, ms in timings.items() if ms != float("inf")), key=lambda t: t[::-1]
    )
    return ChoiceEvent(kernel, encoded, kwargs, options, tuple(times), device, rank)


def encode_options(options: Mapping[str, Any]) -> tuple[Option, ...]:
    return tuple((name, encode(value)) for name, value in options.items())


def _config(config: Any) -> tuple[Option, ...]:
    kwargs, options = parts(config)
    return encode_options({**kwargs, **options})


__all__ = ["Scene", "arguments", "encode_options", "of_choice", "of_launch", "of_miss", "specs"]
