"""What a process uses: of the host's memory, and of its GPU's."""

from __future__ import annotations

import os
import sys


def used() -> dict[str, int]:
    """Return the bytes in use: `host`, this process's own; `device`, by all on its current GPU, where CUDA runs here.

    No driver is started. (Linux: the second number of /proc/self/statm is resident pages; torch: `mem_get_info`.)
    """
    found = {}
    try:
        with open("/proc/self/statm") as file:
            found["host"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is not None and cuda.is_initialized():
            free, whole = cuda.mem_get_info()
            found["device"] = whole - free
    except Exception:
        pass  # a driver that does not tell
    return found
