"""Variants of kernels that are not there yet: a function makes the kernel later, or rewrites it from another.

They are bound when such a kernel is first launched. Not when it is made: its source may still be rewritten then, and a
kernel bound too early would be a wrong one under a live key.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..jit.resolve import Resolver
from ..manifest.model import Variant
from .outcome import Outcome, Report, Result
from .plan import Planned, check_parameters

if TYPE_CHECKING:
    from ..jit.miss import Miss, MissHook

LOGGER = logging.getLogger("jitreplay")
Warm = Callable[[Planned], Result]
WAITS = "; bound when it first appears"


class Waiting:
    """Watches for kernels by name and source. `warm` makes one variant warm, whose result takes its place in `report`.

    A function may make its kernel many times, so it goes on watching until `stop`; a warm launch costs nothing more.
    """

    def __init__(self, resolver: Resolver, report: Report, warm: Warm) -> None:
        self._resolver, self._report, self._warm = resolver, report, warm
        self._variants: dict[tuple[str, str], list[Variant]] = {}
        self._bound: dict[int, weakref.ref[Any]] = {}
        self._lock = threading.RLock()
        self._hook: MissHook | None = None

    def watch(self, variant: Variant, fn: Any = None) -> None:
        """Bind a variant whenever its kernel appears; `fn` is one that it is bound to already."""
        known = self._variants.setdefault((variant.kernel.module, variant.kernel.qualname), [])
        if not any(each is variant for each in known):
            known.append(variant)
        if fn is not None:
            self._bound[id(fn)] = weakref.ref(fn)

    def start(self) -> None:
        """Install the hook, if there is anything to wait for. Raises Unsupported when this Triton lacks something."""
        from ..jit.miss import MissHook

        if self._variants and self._hook is None:
            self._hook = MissHook(self._on_miss, self._trouble)
            self._hook.install()

    def stop(self) -> None:
        """Wait no longer."""
        if self._hook is not None:
            self._hook.uninstall()
            self._hook = None

    def _trouble(self, error: Exception) -> None:
        LOGGER.warning("a variant that waited for its kernel was not bound: %s: %s", type(error).__name__, error)

    def _on_miss(self, miss: Miss) -> None:
        fn = miss.fn
        named = self._variants.get((fn.fn.__module__, fn.fn.__qualname__))
        if named is None or miss.replayed:
            return
        with self._lock:
            known = self._bound.get(id(fn))
            if known is not None and known() is fn:
                return
            self._bound[id(fn)] = weakref.ref(fn)
        fingerprint = self._resolver.fingerprint(fn)
        for variant in named:
            if variant.kernel.fingerprint == fingerprint:
                self._bind(variant, fn)

    def _bind(self, variant: Variant, fn: Any) -> None:
        check_parameters(variant, fn)
        result = self._warm(Planned(variant, fn, False))
        results = self._report.results
        for at, before in enumerate(results):
            if before.variant is variant and before.outcome is Outcome.SKIPPED:
                results[at] = result
