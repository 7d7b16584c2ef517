"""Kernels whose results can be told apart, for tests on a real GPU."""

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, ADD: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask) + tl.load(y + at, mask) + ADD, mask)


@triton.autotune([triton.Config({"BLOCK": block}) for block in (64, 128, 256)], key=["n"])
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask) * 2, mask)


def inputs(n: int = 1000, dtype: Any = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x, y and room for a result on the GPU."""
    x = torch.arange(n, device="cuda").to(dtype)
    return x, x + 1, torch.zeros_like(x)


def traffic(constants: int = 4) -> list[float]:
    """Launch all: dtypes, an unaligned view, integers of each class, constants; return a sum of each result."""
    sums = []
    for n, dtype in ((1000, torch.float32), (1024, torch.float16), (1, torch.float32)):
        x, y, out = inputs(max(n, 16), dtype)
        add[(8,)](x, y, out, n, 1, 128)
        sums.append(out.double().sum().item())
        add[(8,)](x[1:], y[1:], out[1:], max(n - 1, 1), 1, 128)
        sums.append(out.double().sum().item())
    x, y, out = inputs()
    for number in range(constants):
        add[(8,)](x, y, out, 1000, 10 + number, 128)
        sums.append(out.double().sum().item())
    tuned[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, out, 1000)
    sums.append(out.double().sum().item())
    return sums
