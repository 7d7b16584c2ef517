"""A cache that was filled elsewhere: made usable where it lies now, and checked for being good for this toolchain."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..jit import place
from ..jit.lock import private_folder
from ..manifest.settings import LOGGER

_OVER = "over-"


def settle(cache: str) -> str:
    """Make a cache usable that was moved here, or that cannot be written; return the directory to use.

    That is another one, a layer over the cache, where the cache cannot be written: Triton raises out of a launch when
    it has nowhere to put what it compiles. TRITON_CACHE_DIR is set to it.
    """
    if is_writable(cache):
        try:
            if count := place.settle(cache):
                LOGGER.info("the cache was filled elsewhere; %d entries were made findable in %s", count, cache)
            return cache
        except OSError:
            pass  # it cannot be written after all
    try:
        upper = _upper(cache)
        count = place.layer(cache, upper)
    except OSError as error:
        LOGGER.warning(
            "the cache %s cannot be written, and neither can a layer over it (%s): what it lacks cannot be compiled",
            *(cache, error),
        )
        return cache
    place.use(str(upper))
    LOGGER.info("the cache %s cannot be written; its %d entries are used by way of %s", cache, count, upper)
    return str(upper)


@contextmanager
def read_only(cache: str) -> Iterator[str]:
    """Let a cache be looked into that stays as it is; gives the directory to use, in TRITON_CACHE_DIR meanwhile.

    The entries of a cache that was moved are found by way of a layer that ends with this.
    """
    if not place.was_moved(cache):
        yield cache
        return
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="jitreplay-") as folder:
        place.layer(cache, folder)
        place.use(folder)
        try:
            yield folder
        finally:
            place.use(cache)
            if before is None:
                del os.environ["TRITON_CACHE_DIR"]


def is_writable(cache: str) -> bool:
    """Whether entries can be made in a cache directory, which may not be there yet."""
    path = Path(cache).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return os.access(path, os.W_OK | os.X_OK)


def kept(cache: str) -> str:
    """Return in one line where what is compiled is kept, if that is not the cache that the user named, else ""."""
    beneath = place.beneath(cache)
    return f"compiled into {cache}, since the cache {beneath} cannot be written" if beneath else ""


def _upper(cache: str) -> Path:
    """Return a folder for a layer over a cache: this user's own, else one of this host. Raises OSError without one."""
    name = _OVER + hashlib.sha256(os.path.abspath(cache).encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    try:
        folder = Path(home) / "jitreplay" / name
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    folder = private_folder() / name
    folder.mkdir(exist_ok=True)
    return folder


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
