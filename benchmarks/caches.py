"""What a boot finds and what that costs: nothing, a Triton cache, an archive; with a manifest, without, by `preload`.

    python benchmarks/caches.py [--sizes 30 300] [--target cuda:90] [--jobs 0]

For each number of variants, ratios of one run; each boot is a fresh process. `live` loads on this machine's GPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from boot import Boots  # pyright: ignore[reportMissingImports]

PROGRAM = """
import json, os, sys, time
import torch, triton, jitreplay
from jitreplay.jit.headless import install
mode, target, path, answer, count, jobs, ahead = sys.argv[1:]
count = int(count)
device = "cuda" if target == "live" else "cpu"
if target != "live":
    install(target)
elif torch.cuda.is_available():
    torch.zeros(1, device="cuda")
import boot_kernels
x = torch.zeros(64, 64, device=device, dtype=torch.float16)
out = torch.zeros(64, 64, device=device)

def launch(n):
    boot_kernels.matmul[(1, 1)](x, x, out, 64, 64, 64, BLOCK=(32, 64)[n % 2], DEPTH=32, SEED=n)

modules = [0, 0.0]  # what the driver's own load of a module costs
utils = triton.runtime.driver.active.utils
load_binary = utils.load_binary

def timed(*args):
    begun = time.perf_counter()
    try:
        return load_binary(*args)
    finally:
        modules[:] = modules[0] + 1, modules[1] + time.perf_counter() - begun

utils.load_binary = timed
start = time.perf_counter()
report = None
if mode == "keys":  # recorded without the compiler: what was launched is what a server launches
    sys.path.insert(0, os.environ["BOOT_TESTS"])
    from kernels import uncompiled
    uncompiled.install()
    with jitreplay.Recorder(path):
        for n in range(count):
            launch(n)
elif mode == "spec":  # what Triton's own preload takes
    found = []
    triton.knobs.runtime.jit_post_compile_hook = lambda **kw: found.append(kw["compile"]["specialization_data"])
    for n in range(count):
        launch(n)
    with open(path, "w") as file:
        json.dump(found, file)
elif mode == "preload":
    with open(path) as file:
        for each in json.load(file):
            boot_kernels.matmul.preload(each)
elif mode == "replay":
    if float(ahead):  # while weights load
        jitreplay.prefetch(path, allow=("boot_kernels",))
        time.sleep(float(ahead))
        start = time.perf_counter()
    report = jitreplay.replay(path, allow=("boot_kernels",), jobs=int(jobs))
ready = time.perf_counter()
loaded = tuple(modules)
slowest = 0.0
for n in range(0 if mode in ("keys", "spec") else count):
    begun = time.perf_counter()
    launch(n)
    slowest = max(slowest, time.perf_counter() - begun)
end = time.perf_counter()
found = {"boot": ready - start, "modules": loaded[1], "serving": end - ready, "slowest": slowest}
if report is not None:
    found |= {"counts": report.counts, "bound": report.seconds["compile"] + report.seconds["load"]}
    found |= {"memory": report.memory}
with open(answer, "w") as file:
    json.dump(found, file)
"""


SECOND, BEHIND = "again: second boot", "again, behind 3 s of loading"
BOOTS = 3
"""Second boots of which the one of middle length is told."""
ARCHIVED = 1000
"""Variants beyond which no archive is made: it would be compiled a second time."""


class Bench(Boots):
    """Boots that find one thing or another, for a target."""

    def __init__(self, folder: Path, target: str, jobs: int) -> None:
        super().__init__(folder, PROGRAM, BOOT_TESTS=str(Path(__file__).resolve().parent.parent / "tests"))
        self.target, self.jobs = target, jobs

    def boot(
        self, mode: str, cache: Path, path: Path, count: int, target: str = "", ahead: float = 0
    ) -> dict[str, Any]:
        """Run one boot, after `ahead` seconds of loading behind a prefetch; return what it tells."""
        return self.run(cache, mode, target or self.target, path, count, self.jobs, ahead)

    def _median(self, cache: Path, path: Path, count: int, ahead: float = 0) -> dict[str, Any]:
        """Return the replay of middle length of so many."""
        boots = [self.boot("replay", cache, path, count, ahead=ahead) for _ in range(BOOTS)]
        boots.sort(key=lambda found: found["boot"])
        spread = f"{boots[0]['boot']:.2f} to {boots[-1]['boot']:.2f} s"
        return boots[BOOTS // 2] | {"spread": spread}

    def size(self, count: int, target: str) -> list[tuple[str, dict[str, Any]]]:
        """Return a row for each kind of boot with so many variants; `target` is what they are recorded for."""
        folder = self.folder / str(count)
        folder.mkdir()
        journals, manifest, cache = folder / "journals", folder / "kernels.jitreplay", folder / "cache"
        self.boot("keys", folder / "none", journals, count, target)
        self.command("merge", journals, "-o", manifest)
        rows = [("no cache, replay", self.boot("replay", cache, manifest, count))]
        rows.append((SECOND, self._median(cache, manifest, count)))
        rows.append((BEHIND, self._median(cache, manifest, count, ahead=3)))
        shutil.rmtree(cache / ".jitreplay")
        rows.append(("the cache, without our stamp", self.boot("replay", cache, manifest, count)))
        rows.append(("the cache, no manifest: launches find it", self.boot("none", cache, manifest, count)))
        specs = folder / "specs.json"
        self.boot("spec", cache, specs, count)
        rows.append(("the cache, Triton's own preload", self.boot("preload", cache, specs, count)))
        if count > ARCHIVED:
            return rows
        archive, unpacked = folder / "kernels.tar", folder / "unpacked"
        place = ("--target", target, "--allow", "boot_kernels", "-j", self.jobs or os.cpu_count() or 1)
        self.command("compile", manifest, *place, "--cache-dir", folder / "built", "--archive", archive)
        self.command("unpack", archive, "--cache-dir", unpacked)
        rows.append(("an archive, unpacked, replay", self.boot("replay", unpacked, manifest, count)))
        return rows


def told(count: int, rows: list[tuple[str, dict[str, Any]]]) -> None:
    """Print the rows of one size."""
    base = dict(rows)[SECOND]["boot"]
    for name, found in rows:
        boot, serving, slowest = found["boot"], found["serving"], found["slowest"]
        words = (
            f"boot {boot:7.2f} s ({boot / base:6.2f} of the second boot's, {boot / count * 1000:6.2f} ms a variant, "
        )
        words += f"{(boot - found['modules']) / count * 1000:6.2f} beside the driver's load of modules)"
        counts = " ".join(f"{number} {word}" for word, number in found.get("counts", {}).items())
        grown = ", ".join(f"{word} {size / 2**20 / count:.2f}" for word, size in found.get("memory", {}).items())
        counts += f"; MiB a variant: {grown}" if grown else ""
        print(f"  {name:42} {words}; first launches {serving:7.3f} s, slowest {slowest * 1000:7.1f} ms; {counts}")


def grown(few: int, then: dict[str, Any], many: int, now: dict[str, Any]) -> str:
    """Return in words what each variant costs from one size to another, in ms, and how far the boots were apart."""

    def each(*names: str) -> float:
        return sum(now[name] - then[name] for name in names) / (many - few) * 1000

    beside = f"{each('boot') - each('modules'):.2f} beside the driver's load of modules"
    bound = f"{each('bound') - each('modules'):.2f} to bind and load it"
    whole = f"each variant from {few} to {many}: {each('boot'):.2f} ms"
    return f"{whole}, {beside}, of which {bound}; boots {now['spread']}"


def main() -> None:
    """Run all and print a table for each size, then what each more variant costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[30, 300])
    parser.add_argument("--target", default="cuda:90", help="a headless target, or `live`")
    parser.add_argument("--recorded", default="cuda:90/H200", help="what a live GPU's manifest is recorded for")
    parser.add_argument("--jobs", type=int, default=0)
    chosen = parser.parse_args()
    recorded = chosen.recorded if chosen.target == "live" else chosen.target
    before: tuple[int, dict[str, Any]] | None = None
    for count in chosen.sizes:
        with tempfile.TemporaryDirectory() as folder:
            rows = Bench(Path(folder), chosen.target, chosen.jobs).size(count, recorded)
        print(f"{count} matmul variants, {chosen.target}, {len(os.sched_getaffinity(0))} cores", flush=True)
        told(count, rows)
        for name in (SECOND, BEHIND):
            if before is not None:
                print(f"  {name}: {grown(before[0], before[1][name], count, dict(rows)[name])}")
        before = count, dict(rows)


if __name__ == "__main__":
    main()
