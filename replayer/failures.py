"""Failures that are the machine's and not a kernel's: many equal ones stop the work, with one message."""

from __future__ import annotations

import re

MANY = 20
"""Equal failures in a row that stop a replay."""

_ADVICE = (
    (
        "gpu-name|PTXAS|ptxas",
        "check that ptxas runs and knows this GPU, or set TRITON_PTXAS_PATH (and _BLACKWELL_PATH) to one that does",
    ),
    ("Python\\.h", "install Python's headers (python3-dev)"),
    (
        "C compiler|gcc|clang|'cc'|CalledProcessError",
        "install a C compiler and Python's headers, or set CC to one that works; `jitreplay doctor` tries it",
    ),
    ("No space left|Disk quota|ENOSPC", "make room in the cache directory, or set TRITON_CACHE_DIR to another"),
    ("Read-only|Permission denied", "make the cache directory writable, or set TRITON_CACHE_DIR to one that is"),
    ("noexec|failed to map segment", "move the cache directory to a file system that allows programs (not noexec)"),
    ("libcuda", "install the driver's libcuda.so.1, or run ldconfig"),
    (
        "image is invalid|no kernel image|unsupported toolchain",
        "update the driver: it is older than this Triton's ptxas",
    ),
    ("[Mm]emory|bad_alloc|SIGKILL", "give the boot more memory, or fewer workers by JITREPLAY_JOBS"),
)


class Tally:
    """Counts equal failures in a row. `stopped` is the message once there were too many, else ""."""

    def __init__(self) -> None:
        self.stopped = ""
        self._last, self._count = "", 0

    def good(self) -> None:
        """Something worked."""
        self._last, self._count = "", 0

    def bad(self, reason: str) -> None:
        """Something failed for this reason."""
        plain = re.sub(r"[0-9a-f]{6,}|\d+|/\S+", "", reason)[:160]
        self._count = self._count + 1 if plain == self._last else 1
        self._last = plain
        if self._count >= MANY and not self.stopped:
            self.stopped = f"{self._count} variants in a row failed alike ({reason}); {advice(reason)}"


def advice(reason: str) -> str:
    """Return what to do about a failure."""
    for pattern, words in _ADVICE:
        if re.search(pattern, reason):
            return words
    return "`jitreplay doctor` checks this machine"
