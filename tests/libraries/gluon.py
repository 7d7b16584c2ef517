"""flash-linear-attention's Gluon kernels, which it launches where FLA_GLUON asks for them."""

import os
from collections.abc import Callable

import torch

from .calls import both, on_gpu

PACKAGE = "fla"
DISTRIBUTION = "flash-linear-attention"
ALLOW = ("fla",)
TARGET = "cuda:90/H200"

T, D = 128, 64


def _x(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def operators() -> dict[str, Callable[[], object]]:
    """Return the operators by name."""
    os.environ["FLA_GLUON"] = "1"  # a library runs in a process of its own
    from fla.modules.causal_conv1d.ops import causal_conv1d
    from fla.ops import fused_attnres
    from fla.ops.utils import sinkhorn

    found: dict[str, Callable[[], object]] = {}
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        x = _x(1, T, D, dtype=dtype)
        residuals = [_x(1, T, D, dtype=dtype) for _ in range(3)]
        calls: dict[str, Callable[[], None]] = {
            "causal_conv1d": both(causal_conv1d, x, _x(D, 4, dtype=dtype), _x(D, dtype=dtype), activation="silu"),
            "fused_attnres": both(fused_attnres, _x(D, dtype=dtype), residuals, _x(D, dtype=dtype)),
            "sinkhorn": both(sinkhorn, _x(T, 4, 4, dtype=dtype)),
        }
        found.update({f"{operator} {name}": on_gpu(call) for operator, call in calls.items()})
    return found
