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
    from conch.ops.attention.varlen_attention import varlen_attention
    from conch.ops.embedding.rotary_embedding import rotary_embedding
    from conch.ops.normalization.gemma_rms_norm import gemma_rms_norm
    from conch.ops.normalization.rms_norm import fused_add_rms_norm, rms_norm
    from conch.ops.quantization.bitsandbytes import functional as bits
    from conch.ops.quantization.fp8 import scaled_fp8_quant
    from conch.ops.quantization.gemm import mixed_precision_gemm, scaled_gemm
    from conch.ops.quantization.int8 import scaled_int8_quant
    from conch.ops.vision.bev_pool import bev_pool, bev_pool_backward
    from conch.ops.vision.nms import nms
    from conch.ops.vision.voxelization import VoxelizationParameter, generate_voxels
    from conch.ops.vllm.copy_blocks import copy_blocks
    from conch.ops.vllm.reshape_and_cache import reshape_and_cache
    from conch.reference.vision.voxelization import collect_point_features, voxelization_stable
    from conch.third_party.vllm.unified_attention import unified_attention

    found: dict[str, Callable[[], object]] = {}
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        cache = _x(8, 32, 2, 64, dtype=dtype)
        lengths, starts = torch.tensor([0, 16, 64]).int(), torch.tensor([16, 48]).int()
        table = torch.zeros(2, 2, dtype=torch.int32)
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
            "quantize_blockwise, 8 bits": partial(
                bits.quantize_blockwise, _x(64, 256, dtype=dtype), code=_x(256, dtype=torch.float32), quant_type="fp8"
            ),
            "dequantize_4bit": partial(
                *(bits.dequantize_4bit, torch.zeros(8192, 1, dtype=torch.uint8)),
                absmax=_x(256, dtype=torch.float32),
                out=_x(64 * 256, dtype=dtype),
            ),
            "mixed_precision_gemm": partial(
                *(mixed_precision_gemm, _x(16, 256, dtype=dtype), torch.zeros(32, 128, dtype=torch.int32)),
                *(_x(2, 128, dtype=dtype), None, 4, 8, 128),
            ),
            "scaled_gemm": partial(
                *(scaled_gemm, torch.zeros(16, 256, dtype=torch.int8), torch.zeros(256, 128, dtype=torch.int8)),
                *(_x(1, dtype=torch.float32), _x(1, dtype=torch.float32), dtype),
            ),
            "varlen_attention": partial(
                *(varlen_attention, _x(64, 8, 64, dtype=dtype), cache, cache.clone(), lengths, 48, starts, 48, table),
                causal=True,
            ),
            "varlen_attention, splits": partial(
                *(varlen_attention, _x(2, 8, 64, dtype=dtype), cache, cache.clone(), torch.tensor([0, 1, 2]).int()),
                *(1, torch.full((2,), 4096, dtype=torch.int32), 4096, torch.zeros(2, 128, dtype=torch.int32)),
                causal=True,
            ),
            "unified_attention": partial(
                *(unified_attention, _x(64, 8, 64, dtype=dtype), cache, cache.clone(), _x(64, 8, 64, dtype=dtype)),
                *(lengths, 48, starts, 48, 0.125, True, (-1, -1), table, 0.0, None, None, None),
            ),
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
    found["bev_pool_backward"] = partial(
        *(bev_pool_backward, _x(1, 1, 8, 8, 16, dtype=torch.float32), torch.zeros(128, 4, dtype=torch.int32)),
        *(torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)),
    )
    points = _x(512, 4, dtype=torch.float32)
    voxels = VoxelizationParameter((0.0, 0.0, 0.0), (8.0, 8.0, 8.0), (1.0, 1.0, 1.0), 16)
    found["generate_voxels"] = partial(generate_voxels, points, voxels)
    found["voxelization_stable"] = partial(voxelization_stable, points, voxels)
    found["collect_point_features"] = partial(
        *(collect_point_features, points, torch.ones(8, dtype=torch.int32), torch.arange(8).int(), voxels)
    )
    return found
