"""Kernels that do nothing: only their keys matter. Each takes one kind of parameter."""

import collections
import enum
from typing import Any, NamedTuple

import triton
import triton.language as tl


@triton.jit
def takes(a):
    pass


@triton.jit
def takes_more(a, b, c):
    pass


@triton.jit
def takes_many(a, b, c, d, e, f, g, h, C: tl.constexpr, D: tl.constexpr):
    pass


@triton.jit
def constant(C: tl.constexpr):
    pass


@triton.jit
def constant_too(C: tl.constexpr):
    pass


@triton.jit
def one_more(C: tl.constexpr):
    pass


@triton.jit
def optioned(a):
    # For options that no manifest may set.
    pass


@triton.jit
def opaque(C: tl.constexpr):
    # For constants that no other process can make.
    pass


@triton.jit(do_not_specialize=["a"])
def not_specialized(a):
    pass


@triton.jit(do_not_specialize_on_alignment=["a"])
def not_aligned(a):
    pass


@triton.jit(do_not_specialize=["C"])
def listed_constant(C: tl.constexpr):
    pass


@triton.jit
def wide(a: tl.int64):  # pyright: ignore
    pass


@triton.jit
def unsigned(a: tl.uint32):  # pyright: ignore
    pass


@triton.jit
def single(a: tl.float32):  # pyright: ignore
    pass


@triton.jit
def truth(a: tl.int1):  # pyright: ignore
    pass


@triton.jit
def by_text(a: "i16", p: "*fp32"):  # noqa: F821, F722 # pyright: ignore
    pass


@triton.jit
def read_only(a: tl.const):
    pass


@triton.jit
def with_defaults(a, n=3, x=0.5, nothing=None, C: tl.constexpr = 8, D: tl.constexpr = "relu"):
    pass


@triton.jit(debug=True)
def with_debug(a):
    pass


@triton.jit
def callee(x):
    return x


@triton.jit
def other_callee(x):
    return x + 1


@triton.constexpr_function
def doubled(x):
    return x * 2


class Shade(enum.Enum):
    DARK = 1
    LIGHT = "light"


class Level(enum.IntEnum):
    ONE = 1
    SIXTEEN = 16
    FIVE = 5


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    first: Any
    second: Any


Point = collections.namedtuple("Point", "x y")


class Rank(int):
    """An int's subclass, with an int's text."""


class Loud(int):
    """An int's subclass with a text of its own."""

    def __repr__(self) -> str:
        return f"Loud {int(self)}"


class Held:
    class Inner(enum.Enum):
        """An enum in a class."""

        A = 1

    @staticmethod
    @triton.jit
    def static(a):
        pass


class Address:
    """Has `data_ptr` and `dtype`, and nothing else."""

    def __init__(self, address: int, dtype: Any) -> None:
        self.address, self.dtype = address, dtype

    def data_ptr(self) -> int:
        return self.address


class Ranged(Address):
    """Also says how far it reaches, which AMD's backend asks for."""

    def __init__(self, address: int, dtype: Any, size: int) -> None:
        super().__init__(address, dtype)
        self.size = size

    def ptr_range(self) -> int:
        return self.size
