"""flash-linear-attention: the gated delta rule's chunk kernels, and the recurrent ones of a decode step."""

from collections.abc import Callable
from typing import Any

import torch

from .liger import both

PACKAGE = "fla"
DISTRIBUTION = "flash-linear-attention"
ALLOW = ("fla",)
TARGET = "cuda:80/A100"
"""On Hopper it refuses gated backward passes with some Tritons, 3.6 among them."""

B, H, D = 1, 4, 64


def _x(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def operators() -> dict[str, Callable[[], None]]:
    """Return the operators by name."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    from fla.ops.gla import chunk_gla
    from fla.ops.retention import chunk_retention
    from fla.ops.simple_gla import chunk_simple_gla

    found: dict[str, Callable[[], None]] = {}
    for length in (128, 333):

        def q(length: int = length) -> torch.Tensor:
            return _x(B, length, H, D)

        def gate(length: int = length) -> torch.Tensor:
            return _x(B, length, H, dtype=torch.float32)

        state: Any = torch.zeros(B, H, D, D)
        found[f"chunk_gated_delta_rule {length}"] = both(
            chunk_gated_delta_rule, q(), q(), q(), gate(), _x(B, length, H), use_qk_l2norm_in_kernel=True
        )
        found[f"chunk_gated_delta_rule {length}, states"] = both(
            *(chunk_gated_delta_rule, q(), q(), q(), gate(), _x(B, length, H)),
            initial_state=state,
            output_final_state=True,
        )
        found[f"chunk_simple_gla {length}"] = both(chunk_simple_gla, q(), q(), q(), gate())
        found[f"chunk_retention {length}"] = both(chunk_retention, q(), q(), q())
        found[f"chunk_gla {length}"] = both(chunk_gla, q(), q(), q(), q())
    offsets = torch.tensor([0, 30, 128])
    found["chunk_gated_delta_rule, sequences"] = both(
        *(chunk_gated_delta_rule, _x(1, 128, H, D), _x(1, 128, H, D), _x(1, 128, H, D)),
        *(_x(1, 128, H, dtype=torch.float32), _x(1, 128, H)),
        cu_seqlens=offsets,
    )

    def decode() -> None:
        with torch.no_grad():
            fused_recurrent_gated_delta_rule(
                *(_x(B, 1, H, D), _x(B, 1, H, D), _x(B, 1, H, D), _x(B, 1, H, dtype=torch.float32), _x(B, 1, H)),
                initial_state=torch.zeros(B, H, D, D),
                output_final_state=True,
            )

    found["fused_recurrent_gated_delta_rule"] = decode
    return found
