"""Seconds to load, compare and merge a manifest of 100,000 variants, and its bytes per variant.

    python benchmarks/manifest.py [VARIANTS]

The manifest is made here, the same each time, in the likeness of a serving engine's: 300 kernels, few of them with
most of the variants; 18 arguments in the median, 5 % of the variants with more than 40; launches of usual batch sizes
and of any other. The one it is compared and merged with has 5 % of its variants changed in one to three arguments.
Seconds are of wall time, in one run, beside the processor's own: on a busy machine they differ.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from jitreplay.manifest import diff, file, merge
from jitreplay.manifest.model import Argument, Device, Environment, Kernel, Manifest, Param, Phase, Variant, digest
from jitreplay.manifest.values import Bool, Float, Integer, Nothing, Tensor, Text

KERNELS = 300
BATCHES = (1, 2, 4, 8, 16, 24, 32, 64, 128, 256, 512, 2048, 8192)
WIDTHS = (64, 128, 512, 1024, 2048, 4096, 5120, 14336)
DTYPES = (("bfloat16", "*bf16", 2), ("float32", "*fp32", 4), ("float8_e4m3fn", "*fp8e4nv", 1), ("int32", "*i32", 4))
ENVIRONMENT = Environment(
    "cuda", 90, 32, Device("H200", 232448, 132, 150 << 30), "0.1.0", "3.6.0", "2.9.0", "3.11.7", "vllm 0.33.0"
)


def kernels(draw: random.Random) -> list[Kernel]:
    """Return kernels with the spread of parameter counts that the module's text gives."""
    found = []
    for number in range(KERNELS):
        count = draw.randint(41, 60) if number % 20 == 7 else round(draw.triangular(5, 34, 18))
        params = tuple(Param(f"argument_{i}", constexpr=i >= count * 4 // 5) for i in range(count))
        found.append(Kernel(f"engine.ops.module_{number % 40}", f"kernel_{number}", digest(str(number)), params))
    return found


def integer(value: int) -> Argument:
    spec = "constexpr" if value == 1 else "i32:D" if value % 16 == 0 else "i32:"
    return Argument(Integer.of(value), spec)


def argument(draw: random.Random, kernel: Kernel, index: int, tokens: int) -> Argument:
    """Return the argument of one launch: what it is follows from kernel and place, its value from the launch."""
    role = random.Random(f"{kernel.qualname} {index}")
    width, (dtype, pointer, size) = role.choice(WIDTHS), role.choice(DTYPES)
    if kernel.params[index].constexpr:
        choices = (Integer.of(16 << role.randrange(4)), Bool(True), Bool(False), Text("bf16"), Float.of(0.5), Nothing())
        return Argument(draw.choice(role.sample(choices, 2)), "constexpr")
    if index % 2 == 0:
        rows = tokens if role.random() < 0.4 else width
        aligned = draw.random() < 0.9
        tensor = Tensor(dtype, (rows, width), (width, 1), 0, 0 if aligned else size % 16, rows * width * size)
        return Argument(tensor, f"{pointer}:{'D' if aligned else ''}")
    return integer(tokens if role.random() < 0.3 else role.choice((1, width, width + 3)))


def variants(draw: random.Random, count: int) -> list[Variant]:
    found = []
    ours = kernels(draw)
    weights = [1 / (rank + 10) for rank in range(KERNELS)]
    for number, kernel in enumerate(draw.choices(ours, weights, k=count)):
        tokens = draw.choice(BATCHES) if draw.random() < 0.5 else draw.randint(1, 8192)
        args = tuple(argument(draw, kernel, index, tokens) for index in range(len(kernel.params)))
        found.append(
            Variant(
                kernel,
                digest(f"key {number}"),
                args,
                (("num_warps", Integer.of(draw.choice((4, 8)))), ("num_stages", Integer.of(3))),
                (tokens, draw.choice((1, 8, 32)), 1),
                draw.choice((Phase.SERVING, Phase.STARTUP)),
                real=True,
                order=number,
                compile_ms=draw.choice((0, draw.randint(80, 900))),
                environments=(0,),
            )
        )
    return found


def changed(draw: random.Random, variant: Variant) -> Variant:
    """Return the variant with one to three of its arguments drawn anew, under another key."""
    args = list(variant.args)
    for index in draw.sample(range(len(args)), draw.randint(1, 3)):
        args[index] = argument(draw, variant.kernel, index, draw.choice(BATCHES))
    return msgspec.structs.replace(variant, args=tuple(args), digest=digest(variant.digest))


def timed(action: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return an action's result, its seconds by the clock and those of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = action()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def main(count: int = 100_000) -> None:
    draw = random.Random(0)
    made = variants(draw, count)
    old = merge.merge([Manifest((ENVIRONMENT,), tuple(made))])
    other = tuple(changed(draw, v) if draw.random() < 0.05 else v for v in made)
    new = merge.merge([Manifest((msgspec.structs.replace(ENVIRONMENT, triton="3.7.1"),), other)])
    sizes = [len(v.args) for v in made]
    data, newer = file.dumps(old), file.dumps(new)
    del made, other, old, new
    before, *loading = timed(lambda: file.loads(data))
    after = file.loads(newer)
    found, *comparing = timed(lambda: diff.diff(before, after))
    merged, *merging = timed(lambda: merge.merge([before, after]))
    _, *saving = timed(lambda: file.dumps(merged))

    above = sum(size > 40 for size in sizes) / count
    print(f"{count} variants, {statistics.median(sizes):.0f} arguments in the median, {above:.1%} with more than 40")
    print(f"compared: {len(found.changed)} changed, {len(found.added)} added, {len(found.removed)} removed")
    print(f"merged: {len(merged.variants)} variants")
    print(f"\n{'what':<18}{'measured':>12}{'processor':>12}{'bar':>10}")
    rows = (
        ("load, s", loading, 1.0),
        ("diff, s", comparing, 2.0),
        ("merge, s", merging, 3.0),
        ("save, s", saving, None),
    )
    for name, (wall, cpu), bar in rows:
        print(f"{name:<18}{wall:>12.2f}{cpu:>12.2f}{'-' if bar is None else format(bar, '.0f'):>10}")
    print(f"{'bytes a variant':<18}{len(data) / count:>12.1f}{'':>12}{200:>10}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
