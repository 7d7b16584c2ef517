"""flash-linear-attention's operators: linear, delta rule and sparse attention, forward, backward and decode steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from . import linear_layers
from .calls import both, forward, on_gpu

PACKAGE = "fla"
DISTRIBUTION = "flash-linear-attention"
ALLOW = ("fla",)
TARGET = "cuda:80/A100"
"""On Hopper it refuses gated backward passes with some Tritons, 3.6 among them."""

NOT_LAUNCHED = {
    "Gluon's": "off unless FLA_GLUON asks for them, see below",
    "TileLang's": "not Triton's",
    "`fla.ops.cp`": "a sequence split over several ranks",
    "`fla.ops.deltaformer.parallel`": "needs flash-attn",
    "`fla.ops.delta_rule.parallel`": "its module fails to import: no `fwd_prepare_T` in `fla.ops.delta_rule.wy_fast`",
    "`fla.ops.cyfa.fused_recurrent._fused_recurrent_cyfa_{k,readout,v}_kernel`": "its step of one token takes others",
    "the rest": "nothing calls them, or only for sizes, states or GPUs that these calls do not have",
}
"""Not in the table, with why."""

B, T, H, D = 1, 128, 4, 64


def _x(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def _q(length: int = T, heads: int = H) -> torch.Tensor:
    return _x(B, length, heads, D)


def _gate(length: int = T, heads: int = H) -> torch.Tensor:
    """Return a number per token and head."""
    return _x(B, length, heads, dtype=torch.float32)


def _gates(length: int = T, size: int = D) -> torch.Tensor:
    """Return a number per token, head and channel."""
    return _x(B, length, H, size, dtype=torch.float32)


def operators() -> dict[str, Callable[[], object]]:
    """Return the operators by name."""
    return {**_chunks(), **_deltas(), **_attentions(), **_decodes(), **linear_layers.operators()}


def _chunks() -> dict[str, Callable[[], object]]:
    """Return gated and ungated linear attention, at a length that chunks divide and at one that they do not."""
    from fla import ops
    from fla.ops.common import chunk_h_parallel, chunk_h_split
    from fla.ops.hgrn import chunk_hgrn
    from fla.ops.rebased import parallel_rebased
    from fla.ops.rwkv4 import fused_recurrent_rwkv4

    found: dict[str, Callable[[], object]] = {}
    for length in (T, 333):
        q, gate, gates = partial(_q, length), partial(_gate, length), partial(_gates, length)
        calls: dict[str, tuple[Any, ...]] = {
            "chunk_simple_gla": (ops.chunk_simple_gla, q(), q(), q(), gate()),
            "chunk_retention": (ops.chunk_retention, q(), q(), q()),
            "chunk_gla": (ops.chunk_gla, q(), q(), q(), q()),
            "chunk_linear_attn": (ops.chunk_linear_attn, q(), q(), q()),
            "chunk_lightning_attn": (ops.chunk_lightning_attn, q(), q(), q(), 3, 12),
            "chunk_abc": (ops.chunk_abc, q(), q(), q(), q()),
            "chunk_gsa": (ops.chunk_gsa, q(), q(), q(), q(), gates()),
            "chunk_rwkv6": (ops.chunk_rwkv6, q(), q(), q(), q(), _x(H, D)),
            "fused_chunk_simple_gla": (ops.fused_chunk_simple_gla, q(), q(), q(), gate()),
            "fused_chunk_based": (ops.fused_chunk_based, _x(B, length, H, 16), _x(B, length, H, 16), q()),
            "fused_recurrent_gla": (ops.fused_recurrent_gla, q(), q(), q(), gates()),
            "fused_recurrent_simple_gla": (ops.fused_recurrent_simple_gla, q(), q(), q(), gate()),
            "fused_recurrent_retention": (ops.fused_recurrent_retention, q(), q(), q()),
            "fused_recurrent_rwkv6": (ops.fused_recurrent_rwkv6, q(), q(), q(), q(), _x(H, D)),
            "fused_recurrent_hgrn": (ops.fused_recurrent_hgrn, _x(B, length, D), _x(B, length, D)),
            "chunk_hgrn": (chunk_hgrn, _x(B, length, D), _x(B, length, D)),
        }
        found.update({f"{name} {length}": both(*call) for name, call in calls.items()})
    found["chunk_log_linear_attn"] = both(
        ops.chunk_log_linear_attn, _q(heads=1), _q(heads=1), _q(), _gate(), _x(B, T, H, 8, dtype=torch.float32)
    )
    found["chunk_log_linear_attn, states"] = forward(
        *(ops.chunk_log_linear_attn, _q(100, heads=1), _q(100, heads=1), _q(100), _gate(100)),
        _x(B, 100, H, 8, dtype=torch.float32),
        output_final_state=True,
    )
    for name, module in {"split": chunk_h_split, "parallel": chunk_h_parallel}.items():
        gates = partial(_gates, 2 * T)
        inputs = _q(2 * T), _q(2 * T), gates(size=1)[..., 0], gates(), gates()
        state = torch.zeros(B, H, D, D)
        found[f"chunk_fwd_h, {name}"] = forward(module.chunk_fwd_h, *inputs, state, True)
        found[f"chunk_bwd_dh, {name}"] = forward(
            module.chunk_bwd_dh, _q(2 * T), *inputs, _q(2 * T), state, state, scale=0.125
        )
    found["chunk_gla, large heads"] = both(ops.chunk_gla, *(_x(B, T, H, 512) for _ in range(4)))
    found["chunk_rwkv6, large heads"] = both(ops.chunk_rwkv6, *(_x(B, T, H, 512) for _ in range(4)), _x(H, 512))
    found["parallel_based"] = both(ops.parallel_based, _x(B, T, H, 16), _x(B, T, H, 16), _q())
    found["parallel_rebased"] = both(parallel_rebased, _x(B, T, H, 16), _x(B, T, H, 16), _q())
    found["parallel_retention"] = both(ops.parallel_retention, _q(), _q(), _q())
    found["parallel_simple_gla"] = both(ops.parallel_simple_gla, _q(), _q(), _q(), _gate())
    w, u, k, v = _x(D), _x(D), _x(B, T, D), _x(B, T, D)
    found["fused_recurrent_rwkv4"] = both(fused_recurrent_rwkv4, w, u, k, v, torch.zeros(B, 3, 1, D))
    return found


def _deltas() -> dict[str, Callable[[], object]]:
    """Return the delta rules and what grew from them."""
    from fla import ops
    from fla.ops.gated_delta_product import chunk_gated_delta_product
    from fla.ops.gated_oja_rule import chunk_gated_oja_rule, fused_recurrent_gated_oja_rule
    from fla.ops.gdn2 import chunk_gdn2
    from fla.ops.ttt import chunk_ttt_linear, fused_chunk_ttt_linear

    found: dict[str, Callable[[], object]] = {}
    for length in (T, 333):
        q, gate, gates = partial(_q, length), partial(_gate, length), partial(_gates, length)
        beta = partial(_x, B, length, H)
        calls: dict[str, tuple[Any, ...]] = {
            "chunk_delta_rule": (ops.chunk_delta_rule, q(), q(), q(), beta()),
            "chunk_comba": (ops.chunk_comba, q(), q(), q(), q(), gate(), beta()),
            "chunk_kda": (ops.chunk_kda, q(), q(), q(), gates(), beta()),
            "chunk_gdn2": (chunk_gdn2, q(), q(), q(), gates(), q(), q()),
            "chunk_rwkv7": (ops.chunk_rwkv7, q(), q(), q(), q(), q(), q()),
            "chunk_dplr_delta_rule": (ops.chunk_dplr_delta_rule, q(), q(), q(), q(), q(), gates()),
            "chunk_gated_oja_rule": (chunk_gated_oja_rule, q(), q(), q(), gates(), beta()),
            "chunk_mesa_net": (ops.chunk_mesa_net, q(), q(), q(), gate(), beta(), _x(H, D)),
            "fused_recurrent_delta_rule": (ops.fused_recurrent_delta_rule, q(), q(), q(), beta()),
            "fused_recurrent_iplr_delta_rule": (ops.fused_recurrent_iplr_delta_rule, q(), q(), q(), q(), q()),
        }
        found.update({f"{name} {length}": both(*call) for name, call in calls.items()})
        found[f"chunk_iplr_delta_rule {length}"] = forward(ops.chunk_iplr_delta_rule, *(q() for _ in range(5)))
        found[f"chunk_gated_delta_rule {length}"] = both(
            ops.chunk_gated_delta_rule, q(), q(), q(), gate(), beta(), use_qk_l2norm_in_kernel=True
        )
        found[f"chunk_gated_delta_rule {length}, states"] = both(
            *(ops.chunk_gated_delta_rule, q(), q(), q(), gate(), beta()),
            initial_state=torch.zeros(B, H, D, D),
            output_final_state=True,
        )
    sequences = torch.tensor([0, 30, T])
    found["chunk_gated_delta_rule, sequences"] = both(
        ops.chunk_gated_delta_rule, _q(), _q(), _q(), _gate(), _x(B, T, H), cu_seqlens=sequences
    )
    found["chunk_kda, sequences"] = both(
        *(ops.chunk_kda, _q(), _q(), _q(), _gates(), _x(B, T, H)), cu_seqlens=sequences, use_qk_l2norm_in_kernel=True
    )
    safe: dict[str, Any] = {"safe_gate": True, "lower_bound": -5.0}
    found["chunk_kda, safe gate"] = both(ops.chunk_kda, _q(), _q(), _q(), _gates(), _x(B, T, H), **safe)
    found["chunk_gdn2, safe gate"] = both(chunk_gdn2, _q(), _q(), _q(), _gates(), _q(), _q(), **safe)
    found["chunk_rwkv7, safe gate"] = both(ops.chunk_rwkv7, *(_q() for _ in range(6)), **safe)
    found["chunk_precond_kda, safe gate"] = both(
        ops.chunk_precond_kda, _q(), _q(), _q(), _gates(), _gates(), _x(B, T, H), _x(B, T, H), **safe
    )
    found["chunk_gated_delta_product"] = both(
        *(chunk_gated_delta_product, _q(), _q(2 * T), _q(2 * T), _gate(), _x(B, 2 * T, H), 2)
    )
    found["chunk_momentum_delta_rule"] = both(ops.chunk_momentum_delta_rule, _q(), _q(), _q(), _gate(), _gate())
    found["chunk_precond_gated_delta_rule"] = both(
        *(ops.chunk_precond_gated_delta_rule, _q(), _q(), _q(), _gate(), _gate(), _x(B, T, H), _x(B, T, H))
    )
    found["chunk_precond_kda"] = both(
        ops.chunk_precond_kda, _q(), _q(), _q(), _gates(), _gates(), _x(B, T, H), _x(B, T, H)
    )
    for name, call in {"chunk_ttt_linear": chunk_ttt_linear, "fused_chunk_ttt_linear": fused_chunk_ttt_linear}.items():
        found[name] = both(call, _q(), _q(), _q(), _x(H, D), _x(H, D), _x(B, T, H, 1))
    found["fused_recurrent_gated_oja_rule"] = forward(
        *(fused_recurrent_gated_oja_rule, _q(), _q(), _q(), _gates(), _x(B, T, H))
    )
    return found


def _attentions() -> dict[str, Callable[[], object]]:
    """Return attention over all keys, or over chosen ones."""
    from fla import ops
    from fla.ops.deltaformer import deltaformer_attn

    blocks = torch.zeros(B, T, 1, 2, dtype=torch.long)
    return {
        "parallel_attn": both(ops.parallel_attn, _q(), _q(), _q()),
        "parallel_attn, window": both(ops.parallel_attn, _q(), _q(heads=2), _q(heads=2), window_size=32),
        "parallel_forgetting_attn": both(ops.parallel_forgetting_attn, _q(), _q(), _q(), _gate()),
        "parallel_stickbreaking_attn": both(ops.parallel_stickbreaking_attn, _q(), _q(), _q()),
        "parallel_path_attn": both(ops.parallel_path_attn, _q(), _q(), _q(), _gates(), _gate(), _gate()),
        "parallel_path_attn, cache": forward(
            ops.parallel_path_attn, _q(), _q(), _q(), _gates(), _gate(), use_cache=True
        ),
        "parallel_parallax": both(ops.parallel_parallax, _q(), _q(), _q(), _q()),
        "parallel_wall_attn": both(ops.parallel_wall_attn, _q(), _q(), _q(), _gates()),
        "parallel_wall_attn_decode": forward(
            *(ops.parallel_wall_attn_decode, _q(1), _q(), _gates(1), _q(), _gates(2), None, 0.125, 64)
        ),
        "parallel_nsa": both(
            *(ops.parallel_nsa, _q(heads=16), _q(heads=1), _q(heads=1), *(_x(B, T, 16) for _ in range(3))),
            block_indices=blocks,
            block_counts=2,
        ),
        "parallel_nsa, top": both(
            *(ops.parallel_nsa, _q(heads=16), _q(heads=1), _q(heads=1), *(_x(B, T, 16) for _ in range(3))),
            block_counts=2,
            block_size=32,
        ),
        "deltaformer_attn": both(deltaformer_attn, _q(), _q(), _q(), _x(B, T, H)),
        "fused_attnres": on_gpu(both(ops.fused_attnres, _x(D), [_x(B, T, D) for _ in range(3)], _x(D))),
        "chunk_cyfa": on_gpu(
            both(
                *(ops.chunk_cyfa, _q(), _q(), _q(), _gate(), _gate(), _gate(), _x(H, 15, 15), _x(D), _x(D)),
                *(1e-6, 1e-6),
            )
        ),
    }


def _decodes() -> dict[str, Callable[[], object]]:
    """Return one step of decoding."""
    from fla import ops
    from fla.ops.attn.decoding import attn_decoding_one_step
    from fla.ops.gated_oja_rule import fused_recurrent_gated_oja_rule
    from fla.ops.gdn2 import fused_recurrent_gdn2
    from fla.ops.mesa_net.decoding_one_step import mesa_net_decoding_one_step
    from fla.ops.parallax.decode import parallax_decode, parallax_decode_one_step
    from fla.ops.rwkv7.fused_recurrent import fused_mul_recurrent_rwkv7

    state = torch.zeros(B, H, D, D)
    q, gate, gates, beta = partial(_q, 1), partial(_gate, 1), partial(_gates, 1), partial(_x, B, 1, H)
    with_state: dict[str, tuple[Any, ...]] = {
        "fused_recurrent_gated_delta_rule": (ops.fused_recurrent_gated_delta_rule, q(), q(), q(), gate()),
        "fused_recurrent_comba": (ops.fused_recurrent_comba, q(), q(), q(), q(), gate(), beta()),
        "fused_recurrent_kda": (ops.fused_recurrent_kda, q(), q(), q(), gates(), beta()),
        "fused_recurrent_gdn2": (fused_recurrent_gdn2, q(), q(), q(), gates(), q(), q()),
        "fused_recurrent_rwkv7": (ops.fused_recurrent_rwkv7, q(), q(), q(), q(), q(), q()),
        "fused_recurrent_dplr_delta_rule": (ops.fused_recurrent_dplr_delta_rule, q(), q(), q(), q(), q(), gates()),
        "fused_recurrent_gated_oja_rule": (fused_recurrent_gated_oja_rule, q(), q(), q(), gates(), beta()),
    }
    found: dict[str, Callable[[], object]] = {
        f"{name}, decode": forward(call, *rest, initial_state=state, output_final_state=True)
        for name, (call, *rest) in with_state.items()
    }
    calls: dict[str, tuple[Any, ...]] = {
        "fused_recurrent_gsa": (ops.fused_recurrent_gsa, q(), q(), q(), q(), gates()),
        "fused_mul_recurrent_rwkv7": (fused_mul_recurrent_rwkv7, q(), q(), q(), q(), q(), q()),
        "fused_recurrent_precond_kda": (
            *(ops.fused_recurrent_precond_kda, q(), q(), q(), gates(), gates(), beta(), beta()),
        ),
        "fused_recurrent_momentum_delta_rule": (
            *(ops.fused_recurrent_momentum_delta_rule, q(), q(), q(), gate(), gate()),
        ),
        "mesa_net_decoding_one_step": (
            *(mesa_net_decoding_one_step, _x(B, H, D), _x(B, H, D), _x(B, H, D), _x(B, H), _x(H, D), _x(B, H)),
            *(state, state),
        ),
        "parallax_decode": (parallax_decode, q(), q(), _q(), _q()),
        "parallax_decode_one_step": (parallax_decode_one_step, q(), q(), _q(), _q()),
    }
    found.update({f"{name}, decode": forward(call, *rest) for name, (call, *rest) in calls.items()})
    found["fused_recurrent_precond_gated_delta_rule, decode"] = forward(
        *(ops.fused_recurrent_precond_gated_delta_rule, q(), q(), q()),
        g=gate(),
        beta=beta(),
        g_atk=gate(),
        beta_atk=beta(),
    )
    found["fused_recurrent_cyfa, decode"] = on_gpu(
        forward(
            *(ops.fused_recurrent_cyfa, q(), q(), q(), gate(), gate(), gate(), _x(H, 15, 15), _x(D), _x(D)),
            *(1e-6, 1e-6),
        )
    )
    found["attn_decoding_one_step"] = forward(attn_decoding_one_step, q(), _q(), _q(), cu_seqlens=torch.tensor([0, T]))
    return found
