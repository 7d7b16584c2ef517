"""Variants and choices of kernels that are not there yet: a function makes one later, or rewrites it from another.

They are bound when such a kernel is first launched, choices when its autotuner first runs. Not when it is made: its
source may still be rewritten then, and a kernel bound too early would be a wrong one under a live key.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..jit.capture import capturing
from ..jit.resolve import Resolver
from ..jit.tuner import innermost
from ..manifest.model import Choice, Variant
from .outcome import ChoiceResult, Outcome, Report, Result
from .plan import Planned, check_parameters

if TYPE_CHECKING:
    from ..jit.first_run import FirstRun
    from ..jit.miss import Miss, MissHook

LOGGER = logging.getLogger("jitreplay")
Warm = Callable[[Planned], Result]
Restore = Callable[[Choice, Any], ChoiceResult]
WAITS = "; bound when it first appears"


class Waiting:
    """Watches for kernels by name and source. `warm` makes one variant warm, whose result takes its place in `report`;
    `restore` puts a choice into an autotuner.

    A function may make its kernel many times, so it goes on watching until `stop`; a warm launch costs nothing more.
    """

    def __init__(self, resolver: Resolver, report: Report, warm: Warm, restore: Restore) -> None:
        self._resolver, self._report, self._warm, self._restore = resolver, report, warm, restore
        self._choices: dict[tuple[str, str, str], list[Choice]] = {}
        self._runs: FirstRun | None = None
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

    def watch_choice(self, choice: Choice) -> None:
        """Restore a choice in each autotuner of its kernel that is made from now on."""
        from ..jit.first_run import FirstRun

        known = self._choices.setdefault(choice.kernel.identity, [])
        if not any(each is choice for each in known):
            known.append(choice)
        if self._runs is None:
            self._runs = FirstRun(self._on_first_run, self._trouble)
            self._runs.install()

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
        if self._runs is not None:
            self._runs.uninstall()
            self._runs = None

    def _trouble(self, error: Exception) -> None:
        LOGGER.warning("what waited for its kernel was not bound: %s: %s", type(error).__name__, error)

    def _on_first_run(self, tuner: Any) -> None:
        fn = innermost(tuner)
        if fn is None:
            return
        named = (fn.fn.__module__, fn.fn.__qualname__)
        if not any(identity[:2] == named for identity in self._choices):
            return
        choices = self._report.choices
        for choice in self._choices.get((*named, self._resolver.fingerprint(fn)), ()):
            result = self._restore(choice, tuner)
            for at, before in enumerate(choices):
                if before.choice is choice and not before.restored:
                    choices[at] = result

    def _on_miss(self, miss: Miss) -> None:
        fn = miss.fn
        named = self._variants.get((fn.fn.__module__, fn.fn.__qualname__))
        if named is None or miss.replayed or capturing():
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
