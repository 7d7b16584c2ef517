"""How many compile workers a host has room for."""

from __future__ import annotations

import math
import os
from pathlib import Path

MOST = 64


def free_cores() -> int:
    """Return how many workers may run beside what runs already: at least 1.

    It counts the cores that this process may use, a container's quota, and the load of the last minute.
    """
    cores = float(len(os.sched_getaffinity(0)))
    quota = _quota()
    if quota is not None:
        cores = min(cores, quota)
    try:
        # Of the load, our own boot is one; and a load beyond half the cores is shared with us like with anyone.
        busy = min(max(os.getloadavg()[0] - 1.0, 0.0), cores / 2)
    except OSError:
        busy = 0.0
    return max(1, min(MOST, math.floor(cores - busy)))


def _quota() -> float | None:
    """Return the cores that a control group (version 2, then 1) grants, or None."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text())
        period = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text())
        return limit / period if limit > 0 else None
    except (OSError, ValueError):
        return None
