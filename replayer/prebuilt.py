"""A cache that was filled elsewhere: made usable where it lies now, and checked for being good for this toolchain."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ..jit import place
from ..manifest.settings import LOGGER


def settle(cache: str) -> str:
    """Make a prebuilt cache that was moved findable; return the directory to use.

    That is another one, which points into the cache, where the cache cannot be written; TRITON_CACHE_DIR is set to it.
    """
    try:
        if count := place.settle(cache):
            LOGGER.info("the cache was filled elsewhere; %d entries were made findable in %s", count, cache)
        return cache
    except OSError:
        pass
    upper = _upper(cache)
    try:
        count = place.settle(cache, upper)
    except OSError as error:
        LOGGER.warning("the cache %s was filled elsewhere and cannot be made findable: %s", cache, error)
        return cache
    os.environ["TRITON_CACHE_DIR"] = str(upper)
    LOGGER.info("the cache %s cannot be written; its %d entries are used by way of %s", cache, count, upper)
    return str(upper)


def _upper(cache: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(os.path.abspath(cache).encode()).hexdigest()[:16]
    for root in (home, os.environ.get("TMPDIR") or "/tmp"):
        folder = Path(root) / "jitreplay" / f"over-{name}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return Path(root) / "jitreplay" / f"over-{name}"


def differences(cache: str) -> str:
    """Return in one line how a prebuilt cache is not for this toolchain, or "". Asks the driver."""
    try:
        found = place.differences(cache)
    except Exception:
        return ""  # a toolchain that cannot be told: each variant tells by itself
    return (
        f"the prebuilt cache is for another toolchain, its entries will not be found: {'; '.join(found)}"
        if found
        else ""
    )
