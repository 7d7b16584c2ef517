"""Counts what Triton compiles, reads from disk, loads and tunes, and lists the keys that it holds.

The witness of the demo and of the tests: it imports nothing of jitreplay, uses none of Triton's
hooks, and knows no seconds. Read on Triton 3.6 (`compiler/compiler.py`, `runtime/jit.py`,
`runtime/autotuner.py`).

Install it before the first launch: `JITFunction.create_binder` keeps the `compile` that it finds.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import triton
import triton.compiler
import triton.compiler.compiler as compiler
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

COMPILE = "compile"
DISK_HIT = "disk_hit"
LOAD = "load"
BENCH = "bench"


class Event(NamedTuple):
    """One thing that Triton did: its kind, and the kernel's name and module."""

    kind: str
    kernel: str
    module: str


class Counter:
    """Notes every compile, disk hit, load (launcher and module) and tuning run of this process."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._patches: list[tuple[Any, str, Any, Any]] = []

    def install(self) -> Counter:
        """Wraps Triton's functions; a second call does nothing. Returns itself."""
        if self._patches:
            return self
        original, kernel = compiler.compile, compiler.CompiledKernel
        counting = self._counting_compile(original)
        for module in (compiler, triton.compiler, triton):
            if getattr(module, "compile", None) is original:
                self._patch(module, "compile", counting)
        self._patch(kernel, "_init_handles", self._counting_load(kernel._init_handles))
        self._patch(Autotuner, "_bench", self._counting_bench(Autotuner._bench))
        return self

    def remove(self) -> None:
        """Puts back what `install` found, except where someone else wrapped it since."""
        for owner, name, original, ours in reversed(self._patches):
            if getattr(owner, name) is ours:
                setattr(owner, name, original)
        self._patches.clear()

    def take(self) -> list[Event]:
        """Returns the events since the last call, and forgets them."""
        events, self.events = self.events, []
        return events

    def _patch(self, owner: Any, name: str, ours: Any) -> None:
        self._patches.append((owner, name, getattr(owner, name), ours))
        setattr(owner, name, ours)

    def _note(self, kind: str, fn: Any, name: str = "?") -> None:
        self.events.append(Event(kind, getattr(fn, "__name__", name), getattr(fn, "__module__", None) or "?"))

    def _counting_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile(src: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(src, str):  # the path of an IR file: Triton's caching of it is not told apart
                self._note(COMPILE, None, src)
                return original(src, *args, **kwargs)
            # Only a real compile makes IR; wrapping the instance covers Gluon's sources too.
            make_ir, made = src.make_ir, []
            outer = vars(src).get("make_ir")  # another counter's, where there are two

            def counting_make_ir(*a: Any, **k: Any) -> Any:
                made.append(True)
                return make_ir(*a, **k)

            src.make_ir = counting_make_ir
            try:
                return original(src, *args, **kwargs)
            finally:
                del src.make_ir
                if outer is not None:
                    src.make_ir = outer
                self._note(COMPILE if made else DISK_HIT, getattr(src, "fn", None), src.name)

        return compile

    def _counting_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _init_handles(kernel: Any) -> Any:
            if kernel.module is None:
                self._note(LOAD, getattr(kernel.src, "fn", None), kernel.name)
            return original(kernel)

        return _init_handles

    def _counting_bench(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _bench(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            self._note(BENCH, tuner.base_fn)
            return original(tuner, *args, **kwargs)

        return _bench


def names(events: Iterable[Event], kind: str) -> list[str]:
    """The kernels of the events of one kind, in order, each as often as it happened."""
    return [event.kernel for event in events if event.kind == kind]


def keys() -> dict[tuple[str, str], list[str]]:
    """The keys that the live kernels hold: (module, qualified name) to its sorted keys.

    Kernels that were never compiled are left out, and so are those of Triton's own library. Keys of
    several devices, or of several kernels of one name, are put together.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for candidate in gc.get_objects():
        # type(), since isinstance() would ask lazy proxies for their __class__
        if not issubclass(type(candidate), JITFunction):
            continue
        module, qualname = candidate.__module__, candidate.__qualname__
        if module == "triton" or module.startswith("triton."):
            continue
        for caches in list(candidate.device_caches.values()):
            if caches[0]:
                found.setdefault((module, qualname), set()).update(caches[0])
    return {kernel: sorted(found[kernel]) for kernel in sorted(found)}
