"""Kernels of one line each, for every kind of argument that the tests launch."""

import triton
import triton.language as tl

FACTOR: tl.constexpr = tl.constexpr(3)


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n), at < n)


@triton.jit
def biased(x, bias, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    if bias is not None:
        value += tl.load(bias + at)
    tl.store(x + at, value)


@triton.jit(do_not_specialize=["n"])
def plain(x, n):
    tl.store(x, n)


@triton.jit
def annotated(x, n: tl.int64):  # pyright: ignore[reportInvalidTypeForm]
    tl.store(x, n)


@triton.jit
def unused(x, n):
    tl.store(x, 1.0)


@triton.jit
def twice(value):
    return value + value


@triton.jit
def applied(x, FUNCTION: tl.constexpr):
    tl.store(x, FUNCTION(tl.load(x)))


@triton.jit
def scaled(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, twice(tl.load(x + at)) * FACTOR)


@triton.jit
def kept(x, KIND: tl.constexpr):
    # Takes any constant: only the key depends on it.
    tl.store(x, 1.0)


@triton.jit
def not_for_one(x, n):
    # An integer that is 1 is folded to a constant, which has no `to` (CASES B7).
    tl.store(x, n.to(tl.float32))


@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def heuristic(x, n, EVEN: tl.constexpr):
    tl.store(x, n if EVEN else 0)


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def tuned(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, n, at < n)


class Holder:
    """Holds a kernel, as libraries do that group theirs in classes."""

    @staticmethod
    @triton.jit
    def held(x, n):
        tl.store(x, n)


@triton.jit
def sampler(x, n, TOP_K: tl.constexpr, TOP_P: tl.constexpr):
    value = tl.load(x)
    if TOP_K:
        value += n
    if TOP_P:
        value *= 2
    tl.store(x, value)


@triton.jit
def rows(table, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(table + at * stride, at)
