"""A link in the chain of `knobs.compilation.listener`, Triton's single slot for compile events."""

from __future__ import annotations

import threading
from typing import Any

from .internals import internals


class Listener:
    """Notes, per thread, whether the last compile was a disk hit; calls on what was in the slot before.

    `unclaimed` counts the compiles of threads that were not told to `expect` one.

    Read on Triton 3.6.0 to 3.9.0: the slot is called with keywords (src, metadata, metadata_group, times,
    cache_hit), in the compiling thread, and what it raises goes into the launch, so nothing is raised here.
    """

    def __init__(self) -> None:
        self._previous: Any = None
        self._was_set = self._linked = self._on = False
        self._installs = 0
        self._seen = threading.local()
        self._lock = threading.RLock()
        self.unclaimed = 0

    def install(self) -> None:
        """Link into the slot. Installs are counted: several threads may need it at once."""
        with self._lock:
            self._installs += 1
            self._on = True
            if self._linked:  # also where another tool's link came on top of ours and we stayed beneath it
                return
            slot = internals().knobs.compilation
            self._was_set = "listener" in vars(slot)  # else its class has the default
            self._previous, self._linked = slot.listener, True
            slot.listener = self

    def uninstall(self) -> None:
        """Put back what was there; when another tool has wrapped us since, stay as an inert link."""
        with self._lock:
            self._installs = max(0, self._installs - 1)
            if self._installs:
                return
            self._on = False
            slot = internals().knobs.compilation
            if slot.listener is not self:
                return
            link = self
            while isinstance(link._previous, Listener) and not link._previous._on:
                link._linked = False
                link = link._previous  # one that was stopped before us
            link._linked = False
            if link._was_set:
                slot.listener = link._previous
            else:
                del slot.listener

    def expect(self, expected: bool) -> None:
        """Say that the compiles of this thread are known of, or no longer are."""
        self._seen.expected = expected

    def take(self) -> bool | None:
        """Return whether this thread's last compile was a disk hit, or None when none was seen; then forget it."""
        hit = getattr(self._seen, "hit", None)
        self._seen.hit = None
        return hit

    def __call__(self, **event: Any) -> None:
        if self._on:
            self._seen.hit = bool(event.get("cache_hit"))
            if not getattr(self._seen, "expected", False):
                with self._lock:
                    self.unclaimed += 1
        if self._previous is not None:
            self._previous(**event)
