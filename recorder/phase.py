"""The startup phase of this process, and its end."""

from __future__ import annotations

import threading

from ..manifest.model import Phase

_ready = threading.Event()


def ready() -> None:
    """Say that startup is over: what is launched first from now on was not covered by any warm-up.

    Call it once the server can take requests. It costs nothing where nothing is recorded; calling it again is allowed.
    """
    _ready.set()


def starting() -> None:
    """Say that the server warms up again, as elastic expert parallelism does; `ready` ends that too."""
    _ready.clear()


def is_ready() -> bool:
    """Whether `ready` was called in this process (or in the one it was forked from)."""
    return _ready.is_set()


def current() -> Phase:
    return Phase.SERVING if _ready.is_set() else Phase.STARTUP
