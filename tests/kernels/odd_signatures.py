"""Kernels whose signatures only later Tritons take: variadic from 3.8 on, keyword-only from 3.9 on."""

from typing import Any

import triton
import triton.language as tl

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

variadic: Any = None
keyword_only: Any = None
both: Any = None

if VERSION >= (3, 8):

    @triton.jit
    def takes_any_number(a, *rest):
        pass

    variadic = takes_any_number

if VERSION >= (3, 9):

    @triton.jit
    def takes_by_name(a, *, n, C: tl.constexpr = 4):
        pass

    @triton.jit
    def takes_both(a, *rest, n, C: tl.constexpr = 4):
        pass

    keyword_only, both = takes_by_name, takes_both
