"""CUDA graph captures: nothing may be loaded while one is under way, in whatever thread.

Read on torch 2.11 and 2.13: `torch.cuda.graph` calls `CUDAGraph.capture_begin` and `capture_end`, and a capture in the
default mode fails when another thread loads a module meanwhile.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .hook import Hook
from .internals import renew_in_children


def capturing() -> bool:
    """Whether this thread's current stream is being captured. Starts no driver."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return cuda is not None and cuda.is_initialized() and bool(cuda.is_current_stream_capturing())
    except Exception:
        return False  # a torch without CUDA


class Captures(Hook):
    """Keeps a background thread's work and captures of other threads apart, while it is installed."""

    def __init__(self, graph: Any = None) -> None:
        super().__init__()
        self._graph = graph
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Be off, with nothing under way: in a forked child, the threads that were at work are not there."""
        self._changed = threading.Condition()
        self._under_way, self._busy, self._on = 0, False, False

    def install(self) -> None:
        """Wrap what begins and ends a capture. Without torch's CUDA there is nothing to wrap."""
        graph = self._graph or getattr(getattr(sys.modules.get("torch"), "cuda", None), "CUDAGraph", None)
        methods = (graph, "capture_begin", self._wrap_begin), (graph, "capture_end", self._wrap_end)
        self._put_on(*(each for each in methods if hasattr(graph, each[1])))

    @contextmanager
    def apart(self, unless: Callable[[], bool] = bool) -> Iterator[None]:
        """Wait until no capture is under way, or `unless` is true (see `wake`); none begins before this ends."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way or unless())
            self._busy = True
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def wake(self) -> None:
        """Have those that wait look again."""
        with self._changed:
            self._changed.notify_all()

    def _wrap_begin(self, original: Any) -> Any:
        @functools.wraps(original)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return original(graph, *args, **kwargs)
            with self._changed:
                self._under_way += 1
                self._changed.wait_for(lambda: not self._busy)
            try:
                return original(graph, *args, **kwargs)
            except BaseException:
                self._end()
                raise

        return capture_begin

    def _wrap_end(self, original: Any) -> Any:
        @functools.wraps(original)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(graph, *args, **kwargs)
            finally:
                self._end()

        return capture_end

    def _end(self) -> None:
        with self._changed:
            self._under_way = max(0, self._under_way - 1)
            self._changed.notify_all()
