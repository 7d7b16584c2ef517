"""The miss path: what `JITFunction.run` does when it has no kernel for a key. A hit never comes here."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .hook import Hook
from .internals import changes_hooks, internals
from .listener import Listener
from .look import is_future

_local = threading.local()


class replaying:
    """Marks this thread's misses as a replay's, so that a recorder does not take them for the program's."""

    def __enter__(self) -> None:
        _local.replaying = getattr(_local, "replaying", 0) + 1

    def __exit__(self, *exc: object) -> None:
        _local.replaying -= 1


def is_replaying() -> bool:
    """Whether this thread is in a replay's bind."""
    return bool(getattr(_local, "replaying", 0))


@dataclass(slots=True)
class Miss:
    """One key that was compiled, with the launch that asked for it. Holds live arguments: read it and let it go.

    `bound` maps parameter names to arguments; `specialization` is Triton's list of (type, class); `options` are the
    non-parameter keywords as the caller gave them plus what `run` added; `grid` is a tuple of integers, "callable",
    or None; `seconds` is the time of the compile, `disk_hit` whether Triton's disk cache had it (None: unknown).
    `keywords` are the parameters that are launch options too and were passed by name: Triton takes those for both
    (`_pack_args` parses all keywords), though the key does not show it.
    """

    fn: Any
    key: str
    device: Any
    bound: dict[str, Any]
    specialization: list[Any]
    options: dict[str, Any]
    grid: tuple[int, ...] | str | None
    warmup: bool
    kernel: Any
    seconds: float
    disk_hit: bool | None
    replayed: bool
    keywords: tuple[str, ...] = ()


class MissHook(Hook):
    """Wraps `JITFunction._pack_args` and `_do_compile` (Triton 3.6.0 to 3.9.0) and reports each compiled key.

    `on_miss(Miss)` runs in the launching thread after the kernel is in Triton's cache. What it raises goes to
    `on_error`, never into the launch. `on_failure(fn)` is told of a compile that raised.
    """

    def __init__(
        self,
        on_miss: Callable[[Miss], None],
        on_error: Callable[[Exception], None],
        on_failure: Callable[[Any, BaseException], None] | None = None,
    ) -> None:
        super().__init__()
        self._on_miss, self._on_error, self._on_failure = on_miss, on_error, on_failure
        self._listener = Listener()
        self._pending = threading.local()
        self._in_workers: list[Any] = []

    @changes_hooks
    def install(self) -> None:
        """Put the wrappers in place. Raises Unsupported when this Triton lacks a name."""
        cls = internals().JITFunction
        self._listener.install()
        self._put_on((cls, "_pack_args", self._wrap_pack), (cls, "_do_compile", self._wrap_compile))

    @changes_hooks
    def uninstall(self) -> None:
        """Take the wrappers off, if they are in place."""
        if self._placed:
            super().uninstall()
            self._listener.uninstall()

    @property
    def outside(self) -> int:
        """How many compiles no launch asked for: `triton.compile` called directly, as torch.compile's backend does."""
        return max(0, self._listener.unclaimed - len(self._in_workers))

    def forget(self) -> None:
        """In a forked child: the compiles so far were the parent's."""
        self._listener.unclaimed = 0
        self._in_workers.clear()

    def _wrap_pack(self, original: Any) -> Any:
        hook = self

        def _pack_args(fn: Any, *args: Any, **kwargs: Any) -> Any:
            packed = original(fn, *args, **kwargs)
            if hook._on:
                try:
                    _, keywords, bound, specialization, options = args[:5]
                    hook._pending.miss = (
                        getattr(fn, "_jitreplay_kernel", fn),
                        bound,
                        list(specialization),
                        dict(options),
                        _grid(sys._getframe(1)),
                        tuple(name for name in keywords if name in bound and hasattr(packed[0], name)),
                    )
                except Exception as error:
                    hook._on_error(error)
            return packed

        return _pack_args

    def _wrap_compile(self, original: Any) -> Any:
        hook = self

        def _do_compile(fn: Any, *args: Any, **kwargs: Any) -> Any:
            if not hook._on:
                return original(fn, *args, **kwargs)
            pending, hook._pending.miss = getattr(hook._pending, "miss", None), None
            hook._listener.take()
            hook._listener.expect(True)
            start = time.perf_counter()
            try:
                kernel = original(fn, *args, **kwargs)
            except BaseException as error:
                if hook._on_failure is not None:
                    hook._on_failure(fn, error)
                raise
            finally:
                hook._listener.expect(False)
            if is_future(kernel):
                try:
                    hook._expect_worker(kernel)
                except Exception as error:
                    hook._on_error(error)
            # None: another tool's cache hook cancelled the compile. No `_pack_args`: Triton's own `preload`.
            if kernel is not None and pending is not None and pending[0] is fn:
                try:
                    hook._report(kernel, pending, args, kwargs, time.perf_counter() - start)
                except Exception as error:
                    hook._on_error(error)
            return kernel

        return _do_compile

    def _expect_worker(self, future: Any) -> None:
        """Claim the compile of a FutureKernel, which a worker of AsyncCompileMode runs (3.6.0 to 3.9.0)."""
        # Not by `hasattr`: from 3.7 on a name that it lacks makes it wait for the compile.
        if "_jitreplay_claimed" not in vars(future) and future.future is not None:
            future._jitreplay_claimed = True
            future.future.add_done_callback(lambda done: done.exception() is None and self._in_workers.append(1))

    def _report(self, kernel: Any, pending: Any, args: Any, kwargs: Any, seconds: float) -> None:
        names = ("key", "signature", "device", "constexprs", "options", "attrs", "warmup")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        fn, bound, specialization, options, grid, keywords = pending
        self._on_miss(
            Miss(
                fn,
                given["key"],
                given["device"],
                bound,
                specialization,
                options,
                None if given["warmup"] else grid,
                bool(given["warmup"]),
                kernel,
                seconds,
                self._listener.take(),
                is_replaying(),
                keywords,
            )
        )


def _grid(frame: Any) -> tuple[int, ...] | str | None:
    """Return the grid of the `run` that is on the stack. A callable is the user's code and is not called."""
    for _ in range(4):  # other tools may have wrapped `_pack_args` too
        if frame is None or frame.f_code.co_name == "run":
            break
        frame = frame.f_back
    grid = frame.f_locals.get("grid") if frame is not None else None
    if grid is None:
        return None
    if callable(grid):
        return "callable"
    dims = (*grid, 1, 1)[:3]  # as a launcher takes it
    return dims if all(type(dim) is int for dim in dims) else "callable"
