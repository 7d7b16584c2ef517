"""The one-shot look at the first real launch of a kernel that was compiled without one.

A warm-up compiles with stand-ins; the real launch that follows is a hit and never comes to the miss path. So
the kernel object's launcher is replaced once: the stand-in notes the arguments, puts the launcher back and calls
it. After that launch nothing of ours is on its path.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

Noted = Callable[[tuple[int, ...], tuple[Any, ...]], None]


class Look:
    """Waits on one CompiledKernel (Triton 3.6.0 to 3.9.0: `_run` is its launcher, made by `_init_handles`).

    `noted(grid, arguments)` is called once, in the launching thread; what it raises goes to `on_error`.
    """

    # Triton calls the launcher with the grid (3), stream, function, metadata (2) and hooks (2), then the arguments.
    _BEFORE = 9

    def __init__(self, kernel: Any, noted: Noted, on_error: Callable[[Exception], None]) -> None:
        self._kernel = weakref.ref(kernel)
        self._noted = [noted]  # taken by `pop`, which only one thread can
        self._on_error = on_error
        self._launcher: Any = None
        self._loader: Any = kernel.__dict__.get("_init_handles")  # another recorder's
        if kernel.module is None and kernel._run is None:
            kernel._init_handles = self._load
        elif kernel._run is not None:
            self._replace(kernel)

    def _load(self) -> None:
        """Stand in for `_init_handles`: `run` makes the launcher there, over anything that was put before."""
        kernel = self._kernel()
        if kernel is None:
            return
        kernel.__dict__.pop("_init_handles", None)
        if self._loader is not None:
            kernel._init_handles = self._loader
        kernel._init_handles()
        if self._noted and kernel._run is not None:
            self._replace(kernel)

    def _replace(self, kernel: Any) -> None:
        launcher = kernel._run
        if not _is_ours(launcher, self):  # another thread may have come first
            self._launcher = launcher
            kernel._run = self._launch

    def _launch(self, *args: Any, **kwargs: Any) -> Any:
        noted = _pop(self._noted)
        kernel = self._kernel()
        if kernel is not None and _is_ours(kernel.__dict__.get("_run"), self):
            kernel._run = _beneath(self._launcher, "_launcher")
        if noted is not None:
            try:
                noted(args[:3], args[self._BEFORE :])
            except Exception as error:
                self._on_error(error)
        return self._launcher(*args, **kwargs)

    def remove(self) -> None:
        """Put the kernel back as it was; nothing will be noted."""
        self._noted.clear()
        kernel = self._kernel()
        if kernel is None:
            return
        if _is_ours(kernel.__dict__.get("_init_handles"), self):
            del kernel._init_handles
            if (loader := _beneath(self._loader, "_loader")) is not None:
                kernel._init_handles = loader
        if _is_ours(kernel.__dict__.get("_run"), self):
            kernel._run = _beneath(self._launcher, "_launcher")

    @property
    def waiting(self) -> bool:
        """Whether the launch is still to come, and can."""
        return bool(self._noted) and self._kernel() is not None


def _pop(noted: list[Noted]) -> Noted | None:
    try:
        return noted.pop()
    except IndexError:
        return None


def _beneath(method: Any, name: str) -> Any:
    """Return what lies beneath the looks that were removed while another was on top of them."""
    while isinstance(look := getattr(method, "__self__", None), Look) and not look._noted:
        method = getattr(look, name)
    return method


def _is_ours(method: Any, look: Look) -> bool:
    return getattr(method, "__self__", None) is look


def is_future(kernel: Any) -> bool:
    """Whether it is a FutureKernel of AsyncCompileMode, told without asking it: it would wait (3.6.0 to 3.9.0)."""
    return "finalize_compile" in getattr(kernel, "__dict__", {})


def when_compiled(
    kernel: Any,
    then: Callable[[Any], None],
    on_error: Callable[[Exception], None],
    on_failure: Callable[[], None] | None = None,
) -> None:
    """Call `then` with the CompiledKernel: at once, or when a FutureKernel (AsyncCompileMode) has been finalised.

    `on_failure` is called in the worker's thread when the FutureKernel's compile raised.
    """
    if not is_future(kernel):
        then(kernel)
        return
    if kernel.future is None:  # another launch of its key has finalised it
        if kernel.kernel is not None:
            then(kernel.kernel)
        return
    if on_failure is not None:
        kernel.future.add_done_callback(lambda done: on_failure() if done.exception() is not None else None)
    original = kernel.finalize_compile

    def finalize(compiled: Any) -> None:
        original(compiled)
        try:
            then(compiled)
        except Exception as error:
            on_error(error)

    kernel.finalize_compile = finalize
