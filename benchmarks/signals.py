"""How soon a replay ends that is told to, with all that it started: seconds from the signal, most of so many runs.

    python benchmarks/signals.py [--runs 5] [--target cuda:90]

The signal comes while children compile, in a fresh process and Triton cache each time. Bar: 2 s.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from boot import Boots  # pyright: ignore[reportMissingImports]

PROGRAM = """
import json, sys, time
import torch, triton, jitreplay
from jitreplay.jit.headless import install
mode, target, path, answer = sys.argv[1:]
install(target)
import boot_kernels
if mode == "record":
    x = torch.zeros(64, 64, dtype=torch.float16)
    with jitreplay.Recorder(path):
        for n in range(40):
            boot_kernels.matmul[(1, 1)](x, x, torch.zeros(64, 64), 64, 64, 64, BLOCK=(32, 64)[n % 2], DEPTH=32, SEED=n)
    json.dump(None, open(answer, "w"))
else:
    try:
        jitreplay.replay(path, allow=("boot_kernels",), jobs=2)
    except KeyboardInterrupt:
        sys.exit(7)
"""


def family(leader: int) -> list[int]:
    """Return the processes whose ancestor this is, and itself."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    found = [leader]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def lives(process: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Bench(Boots):
    """Replays that a signal ends."""

    def once(self, number: signal.Signals, manifest: Path, target: str) -> tuple[float, int]:
        """Return the seconds until all processes of a replay were gone, and how many they were."""
        with tempfile.TemporaryDirectory() as cache:
            words = [sys.executable, str(self.folder / "program.py"), "replay", target, str(manifest), "-"]
            server = subprocess.Popen(words, env=self._env | {"TRITON_CACHE_DIR": cache})
            while not list(Path(cache).glob("*/*.cubin")) and server.poll() is None:
                time.sleep(0.05)
            processes = family(server.pid)
            start = time.perf_counter()
            server.send_signal(number)
            code = server.wait()
            while any(map(lives, processes)):
                time.sleep(0.005)
            seconds = time.perf_counter() - start
        if code != (7 if number is signal.SIGINT else -number):
            raise SystemExit(f"the replay ended by itself, with {code}: more variants are needed")
        return seconds, len(processes)


def main() -> None:
    """Run all and print a line for each signal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--target", default="cuda:90")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Bench(folder, PROGRAM)
        bench.run(folder / "recorded", "record", chosen.target, folder / "journals")
        bench.command("merge", folder / "journals", "-o", folder / "kernels.jitreplay")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            found = [bench.once(number, folder / "kernels.jitreplay", chosen.target) for _ in range(chosen.runs)]
            most = max(seconds for seconds, _ in found)
            count = max(processes for _, processes in found)
            print(
                f"{number.name}: {count} processes gone after {most:.2f} s at most, of {chosen.runs} runs", flush=True
            )
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, {json.dumps(chosen.target)}")


if __name__ == "__main__":
    main()
