"""The startup phase of this process, and its end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..manifest.model import Phase

_ready = threading.Event()
_calls: dict[Callable[[], None], None] = {}


def ready() -> None:
    """Say that startup is over: what is launched first from now on was not covered by any warm-up.

    Call it once the server can take requests. It costs nothing where nothing is recorded; calling it again is allowed.
    """
    _ready.set()
    for call in tuple(_calls):
        call()


def at_ready(call: Callable[[], None]) -> None:
    """Have something done whenever startup is over, once for each time that it is given. It must not raise."""
    _calls[call] = None


def starting() -> None:
    """Say that the server warms up again, as elastic expert parallelism does; `ready` ends that too."""
    _ready.clear()


def is_ready() -> bool:
    """Whether `ready` was called in this process (or in the one it was forked from)."""
    return _ready.is_set()


def current() -> Phase:
    return Phase.SERVING if _ready.is_set() else Phase.STARTUP
