"""Kernels in every place that programs keep them: classes, closures, rewritten sources, wrappers."""

import types
from typing import Any

import triton
import triton.language as tl
from triton.experimental import gluon

SCALE = tl.constexpr(2)


@triton.jit
def plain(n):
    pass


class Outer:
    class Inner:
        @staticmethod
        @triton.jit
        def nested(n):
            pass


def make(scale: float) -> Any:
    """Return a new kernel that holds a constant, as factories do."""
    held = tl.constexpr(scale)

    @triton.jit
    def made(n, C: tl.constexpr):
        n + held  # type: ignore[operator]

    return made


@triton.jit
def rewritten(n):
    pass


def rewrite(body: str) -> Any:
    """Return a kernel of the same name with another body, as `triton_kernels.specialize` does."""
    raw = rewritten.fn
    function = types.FunctionType(raw.__code__, raw.__globals__, raw.__name__)
    function.__qualname__, function.__module__ = raw.__qualname__, raw.__module__
    kernel: Any = triton.JITFunction(function)
    kernel._unsafe_update_src(f"def rewritten(n):\n    {body}\n")
    return kernel


CONFIGS = [triton.Config({"C": 16}, num_warps=2), triton.Config({"C": 32}, num_warps=8)]


@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def tuned(n, C: tl.constexpr):
    pass


@triton.heuristics({"C": lambda args: args["n"] % 2})
@triton.jit
def heuristic(n, C: tl.constexpr):
    pass


@triton.autotune(CONFIGS, key=["n"])
@triton.heuristics({"D": lambda args: args["n"] % 2})
@triton.jit
def both(n, C: tl.constexpr, D: tl.constexpr):
    pass


class Wrapper:
    """A third party's wrapper that leads on by `fn`."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def launch(self, *args: Any) -> None:
        self.fn[(1,)](*args)


class Closed:
    """A third party's wrapper that nothing can look into."""

    __slots__ = ("_call",)

    def __init__(self, fn: Any) -> None:
        self._call = fn

    def launch(self, *args: Any) -> None:
        self._call[(1,)](*args)


@Wrapper
@triton.jit
def wrapped(n):
    pass


@Closed
@triton.jit
def closed(n):
    pass


@gluon.jit
def in_gluon(n):
    pass


NUMBERS = (1, 5, 16, 2**40)


def launch_named() -> None:
    """Launch every kernel that its module's name leads to."""
    gluon_kernel: Any = in_gluon
    for n in NUMBERS:
        plain[(1,)](n)
        Outer.Inner.nested[(1,)](n)
        tuned[(1,)](n)
        heuristic[(1,)](n)
        both[(1,)](n)
        wrapped.launch(n)
        closed.launch(n)
        gluon_kernel[(1,)](n)
