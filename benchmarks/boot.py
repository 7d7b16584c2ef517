"""What a boot costs, as ratios of one run: compile children against serial and threads; prefetch; second boots.

    python benchmarks/boot.py [--variants 24] [--jobs 2] [--target cuda:90] [--rounds 3]

Every boot is a fresh process with its own Triton cache. On a headless target, binaries are not loaded. With rounds,
each figure is the median of so many boots, one of each kind after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

BEYOND, SECOND = ", beyond their start", "second boot"

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, M, N, K, BLOCK: tl.constexpr, DEPTH: tl.constexpr, SEED: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        x = tl.load(a + row[:, None] * K + depth[None, :], (row[:, None] < M) & (depth[None, :] < K), 0.0)
        y = tl.load(b + depth[:, None] * N + column[None, :], (depth[:, None] < K) & (column[None, :] < N), 0.0)
        total = tl.dot(x, y, total)
    tl.store(c + row[:, None] * N + column[None, :], total + SEED, (row[:, None] < M) & (column[None, :] < N))
"""

PROGRAM = """
import json, os, sys, time
start = time.perf_counter()
import torch, triton, jitreplay
from jitreplay.jit.headless import install
mode, target, path, answer, argument = sys.argv[1:]
if target != "live":
    install(target)
    device = "cpu"
else:
    device = "cuda"
import boot_kernels
imported = time.perf_counter()
report = None
if mode == "record":
    x = torch.zeros(64, 64, device=device, dtype=torch.float16)
    out = torch.zeros(64, 64, device=device)
    with jitreplay.Recorder(path):
        for n in range(int(argument)):
            boot_kernels.matmul[(1, 1)](x, x, out, 64, 64, 64, BLOCK=(32, 64)[n % 2], DEPTH=32, SEED=n)
elif mode == "threads":
    from concurrent.futures import ThreadPoolExecutor
    x = torch.zeros(64, 64, device=device, dtype=torch.float16)
    out = torch.zeros(64, 64, device=device)
    with ThreadPoolExecutor(int(argument)) as pool, triton.AsyncCompileMode(pool):
        for n in range(int(os.environ["BOOT_VARIANTS"])):
            boot_kernels.matmul.warmup(
                x, x, out, 64, 64, 64, BLOCK=(32, 64)[n % 2], DEPTH=32, SEED=n, grid=(1, 1)
            )
elif mode == "prefetch":
    jitreplay.prefetch(path, allow=("boot_kernels",))
    time.sleep(float(argument))  # the weights
    loaded = time.perf_counter()
    report = jitreplay.replay(path, allow=("boot_kernels",))
else:
    if mode == "serial":
        import jitreplay.replayer.worth as worth
        worth.START = 1e9  # seconds: never worth a helper
    report = jitreplay.replay(path, allow=("boot_kernels",), jobs=int(argument))
end = time.perf_counter()
found = {"seconds": end - (loaded if mode == "prefetch" else imported)}
if report is not None:
    found |= {"counts": report.counts, "stages": report.seconds}
with open(answer, "w") as file:
    json.dump(found, file)
"""


class Boots:
    """Runs a program in fresh processes, in a folder that has the kernels. `variables` are its environment's."""

    def __init__(self, folder: Path, program: str, **variables: str) -> None:
        self.folder = folder
        (folder / "boot_kernels.py").write_text(KERNELS)
        (folder / "program.py").write_text(program)
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("JITREPLAY_")}
        self._env.pop("PYTHONDONTWRITEBYTECODE", None)  # pip keeps the bytecode of what it installs
        self._env |= {"PYTHONPATH": os.pathsep.join([str(folder), PATH]), **variables}

    def run(self, cache: Path, mode: str, target: str, path: Path, *more: object) -> dict[str, Any]:
        """Run the program once with a Triton cache directory; return its answer."""
        answer = self.folder / "answer.json"
        words = [mode, target, path, answer, *more]
        line = [sys.executable, str(self.folder / "program.py"), *map(str, words)]
        subprocess.run(line, env=self._env | {"TRITON_CACHE_DIR": str(cache)}, check=True)
        return json.loads(answer.read_text())

    def command(self, *words: object) -> None:
        """Run a command of jitreplay's."""
        line = [sys.executable, "-m", "jitreplay.cli", *map(str, words)]
        subprocess.run(line, env=self._env, check=True, stdout=subprocess.DEVNULL)


class Bench(Boots):
    """Boots of so many variants for a target."""

    def __init__(self, folder: Path, target: str, variants: int) -> None:
        super().__init__(folder, PROGRAM, BOOT_VARIANTS=str(variants))
        self.target, self.variants = target, variants
        self.manifest = folder / "kernels.jitreplay"

    def boot(self, mode: str, cache: str, path: Path | None = None, argument: object = 0) -> dict[str, Any]:
        """Run one boot; return its seconds beyond imports, and what became of the variants."""
        return self.run(self.folder / cache, mode, self.target, path or self.manifest, argument)

    def record(self) -> None:
        """Make the manifest."""
        self.boot("record", "recorded", self.folder / "journals", self.variants)
        self.command("merge", self.folder / "journals", "-o", self.manifest)


def one_round(bench: Bench, number: int, jobs: list[int], threads: bool) -> dict[str, float]:
    """Run one boot of each kind; return their seconds by what they are called."""
    found = {"serial": bench.boot("serial", f"serial.{number}")["seconds"]}
    for count in jobs:
        boot = bench.boot("replay", f"children{count}.{number}", argument=count)
        found[f"children, {count} jobs"] = boot["seconds"]
        if start := boot["stages"].get("helper_start"):
            found[f"children, {count} jobs{BEYOND}"] = boot["seconds"] - start
        if threads:
            found[f"threads, {count}"] = bench.boot("threads", f"threads{count}.{number}", argument=count)["seconds"]
    found[SECOND] = bench.boot("replay", f"serial.{number}", argument=0)["seconds"]
    return found


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, default=24)
    parser.add_argument("--jobs", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--target", default="cuda:90", help="a headless target, or `live`")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", action=argparse.BooleanOptionalAction, default=True, help="also Triton's threads")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), chosen.target, chosen.variants)
        start = time.perf_counter()
        bench.record()
        print(f"{chosen.variants} matmul variants, {chosen.target}, {len(os.sched_getaffinity(0))} cores")
        print(f"recorded in {time.perf_counter() - start:.1f} s", flush=True)
        rounds = [one_round(bench, number, chosen.jobs, chosen.threads) for number in range(chosen.rounds)]
        ahead = bench.boot("prefetch", "ahead", argument=20)["seconds"]
    seconds = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    serial, second = seconds["serial"], seconds[SECOND]
    print(f"all, against serial; medians of {chosen.rounds}, and their spread:")
    for name, median in seconds.items():
        each = [found[name] for found in rounds]
        spread = f"{min(each):.2f} to {max(each):.2f}"
        print(f"  {name:50} {median:7.2f} s  {serial / max(median, 1e-3):6.2f}x  {spread}")
    print(f"  replay after a prefetch behind 20 s of loading, once: {ahead:.2f} s, {serial / ahead:.2f}x")
    print("without what a second boot costs too (driver, binding, loading):")
    for name, median in seconds.items():
        if BEYOND in name:
            net = max(median - second, 1e-3)
            print(f"  {name:50} {net:7.2f} s  {(serial - second) / net:6.2f}x")


if __name__ == "__main__":
    main()
