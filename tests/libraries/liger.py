"""Liger-Kernel's operators, forward and backward, on CPU tensors."""

from collections.abc import Callable
from typing import Any

import torch

from .calls import both, forward, on_gpu, replaced, written

PACKAGE = "liger_kernel"
DISTRIBUTION = "liger-kernel"
ALLOW = ("liger_kernel",)
TARGET = "cuda:90/H200"

B, T, H, V = 2, 64, 128, 512


def leaf(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def labels(count: int = B * T, most: int = V) -> torch.Tensor:
    return torch.arange(count) % most


def operators() -> dict[str, Callable[[], object]]:
    """Return the operators by name."""
    import liger_kernel.ops as ops
    from liger_kernel.ops import dyt, fused_ce_tvd, grpo_loss, mhc, mlp, softmax, swiglu, vocab_parallel_cross_entropy
    from liger_kernel.ops.experimental.embedding import LigerEmbeddingFunction
    from liger_kernel.ops.experimental.mm_int8int2 import matmul
    from liger_kernel.transformers import functional as F

    loss: Any = F.liger_cross_entropy
    found: dict[str, Callable[[], object]] = {}
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")

        def x(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return leaf(*shape, dtype=dtype)

        cos = torch.zeros(1, T, 64, dtype=dtype)

        def heads(count: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return leaf(B, T, count, 64, dtype=dtype).transpose(1, 2)

        calls: dict[str, Callable[[], object]] = {
            "cross_entropy": both(F.liger_cross_entropy, x(B * T, V), labels()),
            "cross_entropy, scaled": both(lambda *args: 2 * loss(*args), x(B * T, V), labels()),
            "fused_ce_tvd": both(
                fused_ce_tvd.LigerFusedCETVDFunction.apply, x(B * T, V), x(B * T, V).detach(), labels()
            ),
            "vocab_parallel_cross_entropy": both(
                *(vocab_parallel_cross_entropy.LigerVocabParallelCEFunction.apply, x(T, B, V), labels().view(T, B)),
                *(None, -100, 0.0, "megatron", "megatron"),
            ),
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
            "swiglu, tiled": replaced(  # as on Blackwell
                both(F.liger_swiglu, x(4, 1 << 14), x(4, 1 << 14)), swiglu, "_should_tile", lambda columns: True
            ),
            "swiglu, fused gate and up": both(swiglu.LigerFusedGateUpSiLUMulFunction.apply, x(T, 2 * H)),
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
            "rms_norm, blocks of rows": both(F.liger_rms_norm, x(1 << 15, 64), x(64), 1e-5),
            "modulated_rms_norm": both(F.liger_modulated_rms_norm, x(B, T, H), x(H), x(B, 1, H), x(B, 1, H)),
            "fused_add_rms_norm": both(F.liger_fused_add_rms_norm, x(B, T, H), x(B, T, H), x(H), 1e-5),
            "poly_norm": both(F.liger_poly_norm, x(B, T, H), x(3), x()),
            "rope": both(F.liger_rope, heads(4), heads(2), cos, cos),
            "qwen2vl_mrope": both(
                *(F.liger_qwen2vl_mrope, heads(4), heads(2)),
                *(torch.zeros(3, B, T, 64, dtype=dtype), torch.zeros(3, B, T, 64, dtype=dtype), [8, 12, 12]),
            ),
            "softmax": both(F.liger_softmax, x(B * T, V)),
            "softmax, large": both(F.liger_softmax, x(4, 1 << 16)),
            # It has kernels for several blocks, and no size that takes them.
            "softmax, several blocks": replaced(
                both(F.liger_softmax, x(4, 1 << 14)), softmax, "calculate_settings", lambda columns: (4096, 16)
            ),
            "sparsemax": both(F.liger_sparsemax, x(B * T, V)),
            "dyt": replaced(both(F.liger_dyt, x(B, T, H), x(1), x(H), x(H)), dyt, "infer_device", lambda: "cuda"),
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
            "grpo_loss, sequences": both(
                *(ops.GrpoLossFunction.apply, x(B, T + 1, V), None, x(B, T, dtype=torch.float32).detach()),
                *(labels().view(B, T), torch.ones(B), torch.ones(B, T, dtype=torch.int32), 1.0, 0.04, 0.2, 0.4, False),
                *("grpo", None, True, "sequence"),
            ),
            "selective_log_softmax": forward(
                grpo_loss.fused_selective_log_softmax, x(B, T + 1, V), labels().view(B, T)
            ),
            "mhc_sinkhorn, again": forward(  # without the history that its forward pass keeps
                *(mhc.mhc_sinkhorn_bwd, x(B * T, 24, dtype=torch.float32), x(24, dtype=torch.float32)),
                *(x(dtype=torch.float32), x(B * T, 4, 4, dtype=torch.float32)),
                tmax=20,
                sinkhorn_eps=1e-6,
            ),
            "mlp": on_gpu(both(mlp.LigerMLPFunction.apply, x(B, T, H), x(2 * H, H), x(2 * H, H), x(H, 2 * H))),
            "mlp, inference": on_gpu(
                forward(
                    mlp.LigerMLPFunction.apply,
                    *(x(B, T, H), x(2 * H, H), x(2 * H, H), x(H, 2 * H)),
                )
            ),
            "embedding": both(LigerEmbeddingFunction.apply, x(V, H), labels()),
            "fused_moe": written(
                both(
                    *(ops.LigerFusedMoEFunction.apply, x(T, H), x(4, 2 * H, H), x(4, H, H)),
                    *((torch.arange(2 * T) % 4).view(T, 2).int(), torch.ones(T, 2)),
                )
            ),
        }
        found.update({f"{operator} {name}": call for operator, call in calls.items()})
    q, k = torch.zeros(B, T, 4, 64), torch.zeros(B, T, 2, 64)
    found["llama4_rope"] = both(ops.LigerLlama4RopeFunction.apply, q, k, torch.zeros(T, 32, dtype=torch.complex64))
    found["mm_int8int2"] = forward(
        matmul, torch.zeros(T, 1024, dtype=torch.int8), torch.zeros(256, H, dtype=torch.uint8)
    )
    return found
