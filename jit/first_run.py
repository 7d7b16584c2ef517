"""Autotuners that are made later: their first run is noticed before it looks for a choice.

An attribute `run` of the object stands before its class's until it is called, and takes itself off then, so a later
launch costs nothing more. Read on Triton 3.6.0 to 3.9.0: `KernelInterface.__getitem__` calls `self.run`, and
`Heuristics.run` `self.fn.run`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from .internals import internals, live


class FirstRun:
    """Calls `on_first(tuner)` before the first run of each autotuner that is made while it is installed.

    What that raises goes to `on_error`; the run goes on.
    """

    def __init__(self, on_first: Callable[[Any], None], on_error: Callable[[Exception], None]) -> None:
        self._on_first, self._on_error = on_first, on_error
        self._on = False
        self._original: Any = None
        self._wrapper: Any = None

    def install(self) -> None:
        cls = internals().Autotuner
        self._original = cls.__dict__["__init__"]
        self._wrapper = self._wrap(self._original)
        cls.__init__ = self._wrapper
        self._on = True

    def uninstall(self) -> None:
        """Take the wrapper off where it is the top one. A tuner that has not run yet takes its own off at its run."""
        self._on = False
        if self._original is None:
            return
        cls = internals().Autotuner
        if cls.__dict__.get("__init__") is self._wrapper:
            cls.__init__ = live(self._original)
        self._original = self._wrapper = None

    def _wrap(self, original: Any) -> Any:
        hook = self

        def __init__(tuner: Any, *args: Any, **kwargs: Any) -> None:
            original(tuner, *args, **kwargs)
            if hook._on and "run" not in vars(tuner):
                tuner.run = hook._first(weakref.ref(tuner))

        __init__._jitreplay = hook, original  # type: ignore[attr-defined]
        return __init__

    def _first(self, ref: weakref.ref[Any]) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            tuner = ref()
            assert tuner is not None  # it is being run
            vars(tuner).pop("run", None)
            if self._on:
                try:
                    self._on_first(tuner)
                except Exception as error:
                    self._on_error(error)
            return tuner.run(*args, **kwargs)

        return run
