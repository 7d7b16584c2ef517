"""The cache directory that this process's replay filled, and whether Triton still uses it."""

from __future__ import annotations

import os

from ..manifest.settings import LOGGER
from ..recorder.phase import at_ready
from .prefetch import usable_cache

_filled = _told = ""


def note(cache: str) -> None:
    """Note what a replay filled. When startup is over, the log tells if Triton uses another directory by then."""
    global _filled
    _filled = cache
    at_ready(_tell)


def moved() -> str:
    """Return in one line that Triton's cache directory is no longer the one that was filled, or ""."""
    now = usable_cache()
    if not _filled or os.path.realpath(now) == os.path.realpath(_filled):
        return ""
    return (
        f"TRITON_CACHE_DIR was changed after a replay, from {_filled} to {now}: what that replay made warm stays so in "
        "this process, but the next boot finds it only in the first: set it before anything starts"
    )


def _tell() -> None:
    global _told
    if (told := moved()) and told != _told:
        LOGGER.warning("%s", told)
    _told = told
