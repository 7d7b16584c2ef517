"""conch-triton-kernels' operators."""

from collections.abc import Callable
from functools import partial

import torch

PACKAGE = "conch"
DISTRIBUTION = "conch-triton-kernels"
ALLOW = ("conch",)
TARGET = "cuda:90/H200"


def _x(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def operators() -> dict[str, Callable[[], object]]:
    """Return the operators by name."""
    from conch.ops.activation.gelu_tanh_and_mul import gelu_tanh_and_mul
    from conch.ops.activation.silu_and_mul import silu_and_mul
    from conch.ops.attention.paged_attention import paged_attention
    from conch.ops.embedding.rotary_embedding import rotary_embedding
    from conch.ops.normalization.gemma_rms_norm import gemma_rms_norm
    from conch.ops.normalization.rms_norm import fused_add_rms_norm, rms_norm
    from conch.ops.quantization.bitsandbytes import functional as bits
    from conch.ops.quantization.fp8 import scaled_fp8_quant
    from conch.ops.quantization.int8 import scaled_int8_quant
    from conch.ops.vision.bev_pool import bev_pool
    from conch.ops.vision.nms import nms
    from conch.ops.vllm.copy_blocks import copy_blocks
    from conch.ops.vllm.reshape_and_cache import reshape_and_cache

    found: dict[str, Callable[[], object]] = {}
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        cache = _x(8, 32, 2, 64, dtype=dtype)
        calls: dict[str, Callable[[], object]] = {
            "gelu_tanh_and_mul": partial(gelu_tanh_and_mul, _x(16, 256, dtype=dtype)),
            "silu_and_mul": partial(silu_and_mul, _x(16, 256, dtype=dtype)),
            "rms_norm": partial(rms_norm, _x(16, 256, dtype=dtype), _x(256, dtype=dtype), 1e-6),
            "gemma_rms_norm": partial(gemma_rms_norm, _x(16, 256, dtype=dtype), _x(256, dtype=dtype), 1e-6),
            "fused_add_rms_norm": partial(
                *(fused_add_rms_norm, _x(16, 256, dtype=dtype), _x(16, 256, dtype=dtype), _x(256, dtype=dtype)), 1e-6
            ),
            "rotary_embedding": partial(
                *(rotary_embedding, torch.arange(16), _x(16, 256, dtype=dtype), _x(16, 128, dtype=dtype), 64),
                _x(128, 64, dtype=dtype),
            ),
            "scaled_int8_quant": partial(scaled_int8_quant, _x(16, 256, dtype=dtype), _x(1, dtype=torch.float32)),
            "scaled_fp8_quant": partial(scaled_fp8_quant, _x(16, 256, dtype=dtype), _x(1, dtype=torch.float32)),
            "quantize_4bit": partial(bits.quantize_4bit, _x(64, 256, dtype=dtype)),
            "quantize_blockwise": partial(bits.quantize_blockwise, _x(64, 256, dtype=dtype)),
            "reshape_and_cache": partial(
                *(reshape_and_cache, _x(16, 2, 64, dtype=dtype), _x(16, 2, 64, dtype=dtype), cache, cache.clone()),
                torch.arange(16),
                *("auto", 1.0, 1.0),
            ),
            "paged_attention": partial(
                *(paged_attention, _x(4, 8, 64, dtype=dtype), cache, cache.clone()),
                *(torch.zeros(4, 2, dtype=torch.int32), torch.full((4,), 33, dtype=torch.int32)),
            ),
            "copy_blocks": partial(
                *(copy_blocks, [_x(8, 4096, dtype=dtype)], [_x(8, 4096, dtype=dtype)], torch.tensor([[0, 1]]))
            ),
        }
        found.update({f"{operator} {name}": call for operator, call in calls.items()})
    found["nms"] = partial(nms, _x(64, 4, dtype=torch.float32), torch.rand(64), 0.5)
    found["bev_pool"] = partial(
        *(bev_pool, _x(128, 16, dtype=torch.float32), torch.zeros(128, 4, dtype=torch.int32)),
        *(torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32), 1, 1, 8, 8),
    )
    return found
