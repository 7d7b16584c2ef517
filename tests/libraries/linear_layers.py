"""flash-linear-attention's layers and helpers: norms, activations, convolutions, losses, sums; a part of its table."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch

from .calls import both, forward, on_gpu

B, T, H, D = 1, 128, 4, 64


def _x(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def operators() -> dict[str, Callable[[], object]]:
    """Return the operators by name."""
    return {**_norms(), **_activations(), **_convolutions(), **_losses(), **_helpers(), **_rwkv7()}


def _norms() -> dict[str, Callable[[], object]]:
    from fla.modules.fused_bitlinear import layer_norm_linear_quant
    from fla.modules.norm import fused_norm_gate, l2norm, layernorm, layernorm_gated

    found: dict[str, Callable[[], object]] = {}
    # Above 512 columns they launch the kernels that take a row each.
    for size in (256, 1024):
        x, w = partial(_x, B, T, size), partial(_x, size)
        calls: dict[str, tuple[Any, ...]] = {
            "l2norm": (l2norm.l2norm, x()),
            "layer_norm": (layernorm.layer_norm, x(), w(), w()),
            "rms_norm": (layernorm.rms_norm, x(), w(), None),
            "group_norm": (layernorm.group_norm, x(), w(), w()),
            "layer_norm_gated": (fused_norm_gate.layer_norm_gated, x(), x(), w(), w()),
            "rms_norm_gated": (fused_norm_gate.rms_norm_gated, x(), x(), w(), None),
            "rms_norm_linear": (layernorm.rms_norm_linear, x(), w(), None, _x(size, size), None),
            "layernorm_fn": (layernorm_gated.layernorm_fn, x(), w(), w(), x()),
            "rmsnorm_fn": (layernorm_gated.rmsnorm_fn, x(), w(), None, x()),
        }
        found.update({f"{name} {size}": both(*call) for name, call in calls.items()})
        found[f"rms_norm {size}, residual"] = both(
            layernorm.rms_norm, x(), w(), None, residual=x(), prenorm=True, residual_in_fp32=True
        )
        found[f"layer_norm_linear_quant {size}"] = both(layer_norm_linear_quant, x(), w(), w(), _x(size, size), None)
    return found


def _activations() -> dict[str, Callable[[], object]]:
    from fla.modules import activations

    x = partial(_x, B, T, D)
    calls: dict[str, tuple[Any, ...]] = {
        "sigmoid": (activations.sigmoid, x()),
        "logsigmoid": (activations.logsigmoid, x()),
        "swish": (activations.swish, x()),
        "elu_p1": (activations.ops.ELUPlusOneFunction.apply, x()),  # elu_p1 leaves CPU tensors to torch
        "swiglu": (activations.swiglu, x(), x()),
        "swiglu_linear": (activations.swiglu_linear, x(), x(), _x(D, D), _x(D)),
        "sigmoidglu": (activations.sigmoidglu, x(), x()),
        "powglu": (activations.powglu, x(), x()),
    }
    return {name: both(*call) for name, call in calls.items()}


def _convolutions() -> dict[str, Callable[[], object]]:
    from fla.modules.rotary.ops import rotary_embedding
    from fla.modules.token_shift import token_shift

    convolution: Any = import_module("fla.modules.causal_conv1d.ops")
    x, w = partial(_x, B, T, D), partial(_x, D, 4)
    sequences = torch.tensor([0, 30, T])
    return {
        "causal_conv1d": both(convolution.causal_conv1d, x(), w(), _x(D), activation="silu"),
        "causal_conv1d, residual": both(convolution.causal_conv1d, x(), w(), residual=x()),
        "causal_conv1d, states": both(
            convolution.causal_conv1d, x(), w(), initial_state=_x(B, D, 4), output_final_state=True, activation="silu"
        ),
        "causal_conv1d, sequences": both(convolution.causal_conv1d, x(), w(), cu_seqlens=sequences),
        "causal_conv1d_update": forward(convolution.causal_conv1d_update, _x(B, D), torch.zeros(B, D, 4), weight=w()),
        "token_shift": both(token_shift, x()),
        "token_shift, long": both(token_shift, _x(B, 8192, 16)),
        "token_shift, sequences": both(token_shift, x(), cu_seqlens=sequences),
        "rotary_embedding": both(rotary_embedding, _x(B, T, H, D), _x(T, 32).detach(), _x(T, 32).detach()),
        "rotary_embedding, interleaved": both(
            rotary_embedding, _x(B, T, H, D), _x(T, 32).detach(), _x(T, 32).detach(), interleaved=True, inplace=True
        ),
    }


def _losses() -> dict[str, Callable[[], object]]:
    from fla.modules.fused_cross_entropy.ops import cross_entropy_loss
    from fla.modules.fused_kl_div.ops import fused_kl_div_loss
    from fla.modules.fused_linear_cross_entropy.ops import fused_linear_cross_entropy_loss
    from fla.modules.grpo.ops import fused_grpo_loss

    vocabulary, target = 512, torch.arange(T)
    ids, teacher = torch.arange(T).view(B, T), (_x(T, D).detach(), _x(vocabulary, D).detach())
    return {
        "cross_entropy_loss": both(cross_entropy_loss, _x(T, vocabulary), target),
        "cross_entropy_loss, large": both(
            cross_entropy_loss, _x(T, 1 << 17), target, label_smoothing=0.1, lse_square_scale=1e-4
        ),
        "fused_kl_div_loss": both(fused_kl_div_loss, _x(T, D), teacher[0], _x(vocabulary, D), teacher[1]),
        "fused_linear_cross_entropy_loss": both(
            fused_linear_cross_entropy_loss, _x(T, D), target, _x(vocabulary, D), _x(vocabulary)
        ),
        "fused_grpo_loss": both(
            *(fused_grpo_loss, _x(B, T + 1, vocabulary), _x(B, T, dtype=torch.float32).detach(), ids),
            *(torch.ones(B), 0.1, torch.ones(B, T, dtype=torch.int32)),
        ),
    }


def _helpers() -> dict[str, Callable[[], object]]:
    from fla.ops import utils
    from fla.ops.common.gate import fused_beta_sigmoid
    from fla.ops.gated_delta_rule.gate import fused_gdn_gate, gdn_gate_chunk_cumsum
    from fla.ops.gsa.gate import fused_additive_gate
    from fla.ops.kda.gate import fused_kda_gate, kda_gate_chunk_cumsum
    from fla.ops.utils import logsumexp, softmax

    gate, gates = (partial(_x, *shape, dtype=torch.float32) for shape in ((B, T, H), (B, T, H, D)))
    x, sequences = partial(_x, B, T, H, D), torch.tensor([0, 30, T])
    heads = partial(_x, H, dtype=torch.float32)

    found: dict[str, Callable[[], object]] = {
        "chunk_global_cumsum, scalars": forward(utils.chunk_global_cumsum, gate()),
        "chunk_global_cumsum, vectors": forward(utils.chunk_global_cumsum, gates()),
        "chunk_local_cumsum, reverse": forward(utils.chunk_local_cumsum, gate(), 64, reverse=True),
        "matmul": forward(utils.matmul, _x(T, D), _x(D, T)),
        "matmul, relu": forward(utils.matmul, _x(T, D), _x(D, T), activation="relu"),
        "addmm": forward(utils.addmm, _x(T, T), _x(T, D), _x(D, T)),
        "pack_sequence": both(utils.pack_sequence, _x(2, 98, D), sequences),
        "unpack_sequence": both(utils.unpack_sequence, _x(T, D), sequences),
        "mean_pooling": both(utils.mean_pooling, x(), 64),
        "sinkhorn": on_gpu(both(utils.sinkhorn, _x(T, 4, 4, dtype=torch.float32))),
        "softmax": forward(softmax.softmax_fwd, gates()),
        "softmax, backward": forward(softmax.softmax_bwd, gates(), gates()),
        "logsumexp": forward(logsumexp.logsumexp_fwd, gates()),
        "fused_beta_sigmoid": both(fused_beta_sigmoid, gate()),
        "fused_additive_gate": both(fused_additive_gate, x()),
        "fused_gdn_gate": both(fused_gdn_gate, gate(), heads(), heads()),
        "gdn_gate_chunk_cumsum": forward(gdn_gate_chunk_cumsum, gate(), heads(), 64),
        "fused_kda_gate": both(fused_kda_gate, gates(), heads(), _x(H * D, dtype=torch.float32)),
        "kda_gate_chunk_cumsum": forward(kda_gate_chunk_cumsum, gates(), heads(), 64),
    }
    for size in (16, 32, 64):
        found[f"solve_tril {size}"] = forward(utils.solve_tril, _x(B, T, H, size, dtype=torch.float32))
    return found


def _rwkv7() -> dict[str, Callable[[], object]]:
    from fla.ops.rwkv7.channel_mixing import channel_mixing_rwkv7
    from fla.ops.rwkv7.fused_addcmul import fused_addcmul_rwkv7
    from fla.ops.rwkv7.fused_k_update import fused_k_rwkv7
    from fla.ops.rwkv7.gate_output_correction import gate_output_correction

    x, mix = partial(_x, B, T, H * D), partial(_x, 1, 1, H * D)
    q = partial(_x, B, T, H, D)
    return {
        "channel_mixing_rwkv7": both(
            channel_mixing_rwkv7, x(), _x(B, H * D), _x(H * D), _x(H * D, 512), _x(512, H * D), False
        ),
        "fused_addcmul_rwkv7": both(fused_addcmul_rwkv7, x(), x(), *(mix() for _ in range(6))),
        "fused_k_rwkv7": both(fused_k_rwkv7, x(), x(), mix()),
        "fused_k_rwkv7, long": both(fused_k_rwkv7, _x(B, 8192, D), _x(B, 8192, D), _x(1, 1, D)),
        "gate_output_correction": both(gate_output_correction, x(), q(), q(), _x(H, D), q(), x()),
    }
