"""Many equal failures are the machine's: one message that says what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from jitreplay.replayer.failures import MANY, Tally, advice

from .helpers import LIMIT, environment, goods, save


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("PTXASError: ptxas fatal : Value 'sm_121a' is not defined for option 'gpu-name'", "TRITON_PTXAS_PATH"),
        ("CalledProcessError: fatal error: Python.h: No such file or directory", "python3-dev"),
        ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable", "C compiler"),
        ("OSError: [Errno 28] No space left on device: '/cache/X'", "make room"),
        ("OSError: [Errno 122] Disk quota exceeded", "make room"),
        ("PermissionError: [Errno 13] Permission denied: '/cache/X'", "writable"),
        ("OSError: [Errno 30] Read-only file system: '/cache/X'", "writable"),
        ("ImportError: /cache/x.so: failed to map segment from shared object", "noexec"),
        ("AssertionError: libcuda.so cannot found!", "libcuda.so.1"),
        ("RuntimeError: Triton Error [CUDA]: device kernel image is invalid", "update the driver"),
        ("RuntimeError: Triton Error [CUDA]: the provided PTX was compiled with an unsupported toolchain.", "update"),
        ("RuntimeError: Triton Error [HIP]: no kernel image is available for execution on the device", "update"),
        ("MemoryError: std::bad_alloc", "JITREPLAY_JOBS"),
        ("ValueError: of a kind that nobody knows", "jitreplay doctor"),
    ],
)
def test_each_known_reason_has_its_advice(reason: str, what: str) -> None:
    assert what in advice(reason)


def test_equal_ones_in_a_row_stop_the_work_whatever_paths_they_name() -> None:
    tally = Tally()
    for number in range(MANY):
        assert not tally.stopped
        tally.bad(f"PermissionError: [Errno 13] Permission denied: '/cache/{number:08X}'")
    assert f"{MANY} variants in a row failed alike" in tally.stopped and "writable" in tally.stopped


def test_one_that_works_or_fails_otherwise_begins_the_count_anew() -> None:
    tally = Tally()
    for number in range(3 * MANY):
        tally.bad("a reason" if number % 5 else "another")
        if number % 7 == 0:
            tally.good()
    assert not tally.stopped


@pytest.mark.parametrize("call", ["replay", "prefetch"])
def test_a_machine_without_a_gpu_costs_one_line(tmp_path: Path, call: str) -> None:
    """Nor a PATH in which nothing is found (CASES H2)."""
    save(goods(tmp_path / "recorded", 1), tmp_path / "kernels.jitreplay")
    code = f"""
import logging
logging.basicConfig(level=logging.WARNING, format="%(message)s")
import jitreplay
found = jitreplay.{call}("kernels.jitreplay", allow=("kernels",))
print("goes on", getattr(found, "error", found))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(tmp_path, PATH="/nowhere", JITREPLAY_JOBS="1"),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    if call == "replay":
        assert len(lines) == 1 and lines[0].startswith("no replay: ") and "goes on " in done.stdout
    else:
        assert len(lines) <= 1 and "goes on " in done.stdout
