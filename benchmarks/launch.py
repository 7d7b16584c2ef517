"""What a warm launch costs with the recorder and without it: the ratio, measured in one run.

    python benchmarks/launch.py [--target cuda:90] [--rounds 30] [--launches 2000]

Headless, the launcher takes the arguments and drops them, so what is timed is Triton's own Python path: the part
that a recorder could slow down. On a GPU (no --target) launches are real, and the device is drained between rounds.
The three states take turns in each round, in changing order, so that a drift of the machine's speed falls on all.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

import jitreplay

STATES = ("off", "on", "on, after a look")


@triton.jit
def kernel(x, y, n, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at * stride, tl.load(x + at, at < n), at < n)


def measure(rounds: int, launches: int, device: Any, wait: Callable[[], Any], folder: Path) -> dict[str, list[float]]:
    """Return microseconds a launch, for each state and round."""
    x, y = torch.zeros(64, device=device), torch.zeros(64, device=device)
    blocks = {"off": 16, "on": 16, "on, after a look": 32}
    recorder = jitreplay.Recorder(folder)

    def launch(block: int, times: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(times):
            kernel[(1,)](x, y, 64, 1, BLOCK=block)
        spent = time.perf_counter() - start
        wait()
        return spent / times * 1e6

    with recorder:
        kernel.warmup(x, y, 64, 1, BLOCK=32, grid=(1,))
        launch(32, 1)
    assert recorder.counts["launches"] == 1
    launch(16, 1)

    found: dict[str, list[float]] = {state: [] for state in STATES}
    for _ in range(rounds):
        for state in random.sample(STATES, len(STATES)):
            if state != "off":
                recorder.start()
            launch(blocks[state], launches // 10)
            found[state].append(launch(blocks[state], launches))
            recorder.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of a warm launch with and without the recorder.")
    parser.add_argument(
        "--target", help="without a GPU: the target to compile for (default cuda:90 where there is none)"
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--launches", type=int, default=2000)
    options = parser.parse_args()
    target = options.target or (None if torch.cuda.is_available() else "cuda:90")
    device, wait, place = "cuda", torch.cuda.synchronize, ""
    with tempfile.TemporaryDirectory(prefix="jitreplay-bench-") as temporary:
        if target:
            from jitreplay.jit.headless import install

            install(target)
            device, wait, place = "cpu", lambda: None, f"headless, {target}"
        else:
            place = torch.cuda.get_device_name()
        found = measure(options.rounds, options.launches, device, wait, Path(temporary) / "recording")
    print(f"warm launch, Triton {triton.__version__}, {place}; {options.rounds} rounds of {options.launches}")
    print(f"{'recorder':20}{'median us':>12}{'best us':>12}{'ratio':>10}")
    for state in STATES:
        ratio = statistics.median(here / off for here, off in zip(found[state], found["off"], strict=True))
        print(f"{state:20}{statistics.median(found[state]):>12.2f}{min(found[state]):>12.2f}{ratio:>10.3f}")


if __name__ == "__main__":
    main()
