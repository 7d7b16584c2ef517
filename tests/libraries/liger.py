"""Liger-Kernel's operators, forward and backward, on CPU tensors."""

from collections.abc import Callable
from typing import Any

import torch

PACKAGE = "liger_kernel"
DISTRIBUTION = "liger-kernel"
ALLOW = ("liger_kernel",)
TARGET = "cuda:90/H200"

B, T, H, V = 2, 64, 128, 512


def leaf(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def labels(count: int = B * T, most: int = V) -> torch.Tensor:
    return torch.arange(count) % most


def both(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], None]:
    """Return a run of an operator forward, then backward from the sum of what it gave."""

    def run() -> None:
        found = call(*args, **kwargs)
        outputs = [o for o in (found if isinstance(found, tuple) else (found,)) if isinstance(o, torch.Tensor)]
        outputs = [o for o in outputs if o.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(o) for o in outputs])

    return run


def operators() -> dict[str, Callable[[], None]]:
    """Return the operators by name."""
    import liger_kernel.ops as ops
    from liger_kernel.transformers import functional as F

    found: dict[str, Callable[[], None]] = {}
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")

        def x(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return leaf(*shape, dtype=dtype)

        cos = torch.zeros(1, T, 64, dtype=dtype)

        def heads(count: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return leaf(B, T, count, 64, dtype=dtype).transpose(1, 2)

        calls: dict[str, Callable[[], None]] = {
            "cross_entropy": both(F.liger_cross_entropy, x(B * T, V), labels()),
            "cross_entropy, options": both(
                F.liger_cross_entropy, x(B * T, V), labels(), torch.ones(V), label_smoothing=0.1, softcap=30.0
            ),
            "fused_linear_cross_entropy": both(F.liger_fused_linear_cross_entropy, x(B * T, H), x(V, H), labels()),
            "fused_linear_jsd": both(
                *(F.liger_fused_linear_jsd, x(B * T, H), x(V, H), x(B * T, 2 * H).detach(), x(V, 2 * H).detach()),
                labels(),
            ),
            "fused_linear_kl_div": both(F.liger_fused_linear_kl_div, x(B * T, H), x(V, H), x(B * T, V).detach()),
            "geglu": both(F.liger_geglu, x(B, T, H), x(B, T, H)),
            "swiglu": both(F.liger_swiglu, x(B, T, H), x(B, T, H)),
            "relu_squared": both(F.liger_relu_squared, x(B, T, H)),
            "group_norm": both(F.liger_group_norm, x(B, 16, T), x(16), x(16), 16, 4, 1e-5),
            "jsd": both(F.liger_jsd, x(B * T, V), x(B * T, V).detach(), labels()),
            "kl_div": both(F.liger_kl_div, x(B * T, V), x(B * T, V).detach()),
            "tvd": both(F.liger_tvd, x(B * T, V), x(B * T, V).detach()),
            "layer_norm": both(F.liger_layer_norm, x(B, T, H), x(H), x(H), 1e-5),
            "rms_norm": both(F.liger_rms_norm, x(B, T, H), x(H), 1e-5),
            "rms_norm, gemma": both(F.liger_rms_norm, x(B, T, H), x(H), 1e-5, 1.0, "gemma", False),
            "rms_norm, large": both(F.liger_rms_norm, x(B * 4096, 64), x(64), 1e-5),
            "modulated_rms_norm": both(F.liger_modulated_rms_norm, x(B, T, H), x(H), x(B, 1, H), x(B, 1, H)),
            "fused_add_rms_norm": both(F.liger_fused_add_rms_norm, x(B, T, H), x(B, T, H), x(H), 1e-5),
            "poly_norm": both(F.liger_poly_norm, x(B, T, H), x(3), x()),
            "rope": both(F.liger_rope, heads(4), heads(2), cos, cos),
            "qwen2vl_mrope": both(
                *(F.liger_qwen2vl_mrope, heads(4), heads(2)),
                *(torch.zeros(3, B, T, 64, dtype=dtype), torch.zeros(3, B, T, 64, dtype=dtype), [8, 12, 12]),
            ),
            "softmax": both(F.liger_softmax, x(B * T, V)),
            "softmax, several blocks": both(F.liger_softmax, x(4, 1 << 16)),
            "sparsemax": both(F.liger_sparsemax, x(B * T, V)),
            "dyt": both(F.liger_dyt, x(B, T, H), x(1), x(H), x(H)),
            "multi_token_attention": both(F.liger_multi_token_attention, x(B, 4, T, T), x(4, 4, 3, 3), padding=1),
            "neighborhood_attention": both(
                F.liger_fused_neighborhood_attention, x(B, 4, T, 32), x(B, 4, T, 32), x(B, 4, T, 32)
            ),
            "attn_res": both(F.liger_attn_res, x(3, B, T, H), x(H), x(H)),
            "mhc_pre": both(F.liger_mhc_pre, x(B, T, 4, H), x(B, T, 4, dtype=torch.float32)),
            "mhc_post_res": both(
                *(F.liger_mhc_post_res, x(B, T, 4, H), x(B, T, H)),
                *(x(B, T, 4, dtype=torch.float32), x(B, T, 4, 4, dtype=torch.float32)),
            ),
            "mhc_coeffs": both(
                *(F.liger_mhc_coeffs, x(B, T, 4, H), x(4 * H, 24), x(24, dtype=torch.float32)),
                *(x(dtype=torch.float32) for _ in range(3)),
                allow_fp32=True,
            ),
            "grpo_loss": both(
                *(ops.GrpoLossFunction.apply, x(B, T + 1, V), None, x(B, T, dtype=torch.float32).detach()),
                *(labels().view(B, T), torch.ones(B), torch.ones(B, T, dtype=torch.int32), 1.0, 0.04, 0.2, 0.4, False),
            ),
            "fused_moe": both(
                *(ops.LigerFusedMoEFunction.apply, x(T, H), x(4, 2 * H, H), x(4, H, H)),
                *((torch.arange(2 * T) % 4).view(T, 2).int(), torch.ones(T, 2)),
            ),
        }
        found.update({f"{operator} {name}": call for operator, call in calls.items()})
    q, k = torch.zeros(B, T, 4, 64), torch.zeros(B, T, 2, 64)
    found["llama4_rope"] = both(ops.LigerLlama4RopeFunction.apply, q, k, torch.zeros(T, 32, dtype=torch.complex64))
    return found
