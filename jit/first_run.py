"""Autotuners that are made later: their first run is noticed before it looks for a choice.

An attribute `run` of the object stands before its class's until it is called, and takes itself off then, so a later
launch costs nothing more. Read on Triton 3.6.0 to 3.9.0: `KernelInterface.__getitem__` calls `self.run`, and
`Heuristics.run` `self.fn.run`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .hook import Hook
from .internals import internals


class _Stub:
    """Stands for `run` of one autotuner until it is called."""

    def __init__(self, tuner: Any) -> None:
        self._tuner = tuner  # who holds `tuner.run` holds the tuner, as by a method; the first run ends the cycle
        self.calls: list[Callable[[Any], None]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tuner = self._tuner
        if vars(tuner).get("run") is self:
            del tuner.run
            for call in self.calls:
                call(tuner)
        return tuner.run(*args, **kwargs)


def before_first_run(tuner: Any, call: Callable[[Any], None]) -> None:
    """Have `call(tuner)` called once, before an autotuner's next run. It must not raise.

    Not where another tool has set a `run` of the object.
    """
    stub = vars(tuner).get("run")
    if stub is None:
        stub = tuner.run = _Stub(tuner)
    if isinstance(stub, _Stub):
        stub.calls.append(call)


class FirstRun(Hook):
    """Calls `on_first(tuner)` before the first run of each autotuner that is made while it is installed.

    What that raises goes to `on_error`; the run goes on. A tuner that has not run yet when it is uninstalled takes its
    own wrapper off at its run.
    """

    def __init__(self, on_first: Callable[[Any], None], on_error: Callable[[Exception], None]) -> None:
        super().__init__()
        self._on_first, self._on_error = on_first, on_error

    def install(self) -> None:
        self._put_on((internals().Autotuner, "__init__", self._wrap))

    def _wrap(self, original: Any) -> Any:
        hook = self

        @functools.wraps(original)
        def __init__(tuner: Any, *args: Any, **kwargs: Any) -> None:
            original(tuner, *args, **kwargs)
            if hook._on:
                before_first_run(tuner, hook._call)

        return __init__

    def _call(self, tuner: Any) -> None:
        if self._on:
            try:
                self._on_first(tuner)
            except Exception as error:
                self._on_error(error)
