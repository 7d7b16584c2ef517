"""Rows over the kernels of layers: rotary, vision, gated delta net, experts, attention."""

import inspect
from types import SimpleNamespace

import torch
from tables import v1_runner
from traffic import BF16, CPU, F32, I32, I64, Row, chunk_modules, fewer_configs, given, registry, row, starts


@row
def mrope(tokens=(1, 2, 16, 17, 40), heads=16, kv_heads=8, head_size=128):
    """Multimodal rotary embedding, for these numbers of tokens."""
    import harness
    from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding

    with harness.alone():
        rope = MRotaryEmbedding(head_size, head_size, 1024, 1e6, True, BF16, mrope_section=[24, 20, 20])
    positions = SimpleNamespace(gpu=torch.zeros(3, 8192 + 1, dtype=I64))  # [dims, max_num_tokens + 1]
    runner = SimpleNamespace(device=CPU, mrope_positions=positions)

    def call(count, where):
        query = torch.zeros(count, heads * head_size, dtype=BF16)
        key = torch.zeros(count, kv_heads * head_size, dtype=BF16)
        rope.forward_cuda(where, query, key)

    def serve():
        for count in tokens:
            call(count, positions.gpu[:, :count])

    def warm():
        from vllm.model_executor.warmup.qwen_vl_triton_warmup import _MROPE_TOKEN_COUNTS

        for count in _MROPE_TOKEN_COUNTS:
            call(count, torch.arange(count).expand(3, -1))

    return Row(serve, warm if registry() is not None else None, runner)


@row
def vision(grids=((1, 16, 16), (1, 2, 2), (2, 6, 10))):
    """Position embedding and rotary embedding of the Qwen3-VL vision tower."""
    import harness
    from transformers import Qwen3VLConfig
    from vllm.model_executor.models.qwen3_vl import Qwen3_VisionTransformer

    config = Qwen3VLConfig().vision_config
    config.depth, config.hidden_size, config.num_heads, config.intermediate_size = 1, 256, 4, 512
    config.deepstack_visual_indexes = []
    with harness.alone():
        tower = Qwen3_VisionTransformer(config)
    attention = tower.blocks[0].attn
    heads, size = int(attention.num_attention_heads_per_partition), int(attention.hidden_size_per_attention_head)

    def serve():
        for grid in grids:
            wanted = [list(grid)]
            tower.fast_pos_embed_interpolate(wanted)
            cos, sin = tower.rot_pos_emb(wanted)
            tokens = grid[0] * grid[1] * grid[2]
            attention.apply_rotary_emb(torch.zeros(2, tokens, heads, size, dtype=cos.dtype), cos, sin)

    def warm():
        from vllm.model_executor.warmup.qwen_vl_triton_warmup import _warm_vision

        _warm_vision(torch.nn.ModuleList([tower]), CPU)

    return Row(serve, warm if registry() is not None else None, SimpleNamespace(device=CPU))


GDN = SimpleNamespace(heads=16, value_heads=32, key_dim=128, value_dim=128, width=4)
GDN.conv_dim = 2 * GDN.heads * GDN.key_dim + GDN.value_heads * GDN.value_dim


def gdn_runner(num_blocks, pooling=False):
    """A runner with one GDN layer: its states, and what vLLM's warm-up reads from the layer."""
    states = [
        torch.zeros(num_blocks, GDN.width - 1, GDN.conv_dim, dtype=BF16),
        torch.zeros(num_blocks, GDN.value_heads, GDN.value_dim, GDN.key_dim, dtype=F32),
    ]
    layer = SimpleNamespace(
        num_k_heads=GDN.heads,
        num_v_heads=GDN.value_heads,
        head_k_dim=GDN.key_dim,
        head_v_dim=GDN.value_dim,
        conv_kernel_size=GDN.width,
        tp_size=1,
        kv_cache=states,
        norm=SimpleNamespace(weight=torch.ones(GDN.value_dim, dtype=BF16), norm_before_gate=True, activation="swish"),
        A_log=torch.zeros(GDN.value_heads, dtype=F32),
        dt_bias=torch.zeros(GDN.value_heads, dtype=BF16),
        prefix="model.layers.0.linear_attn",
        get_state_dtype=lambda: (BF16, F32),
        gdn_prefill_backend="triton",
        _prefill_kernels_warmed_up=False,
        _exports_checkpoints=False,
    )
    return SimpleNamespace(
        device=CPU,
        is_pooling_model=pooling,
        max_num_tokens=8192,
        max_num_reqs=8,
        speculative_config=None,
        kv_caches=states,
        compilation_config=SimpleNamespace(static_forward_context={layer.prefix: layer}),
    ), layer


def _warm_qwen(runner):
    from vllm.model_executor.warmup.qwen_triton_warmup import qwen_triton_warmup

    text = SimpleNamespace(model_type="qwen3_next")
    qwen_triton_warmup(runner, SimpleNamespace(hf_text_config=text, hf_config=text, dtype=BF16))


@row
def gdn_norm(tokens=(1, 2, 16, 40, 500)):
    """The gated RMS norm: its rows per block follow the number of tokens."""
    from vllm.third_party.flash_linear_attention.ops.layernorm_guard import layer_norm_fwd

    runner, layer = gdn_runner(16)

    def serve():
        for count in tokens:
            rows = torch.zeros(count * GDN.value_heads, GDN.value_dim, dtype=BF16)
            layer_norm_fwd(
                rows,
                layer.norm.weight,
                None,
                1e-6,
                z=rows.clone(),
                group_size=GDN.value_dim,
                norm_before_gate=True,
                is_rms_norm=True,
            )

    return Row(serve, lambda: _warm_qwen(runner), runner)


@row
def gdn_conv(num_blocks=16, prefills=((8,), (8, 32), (16,)), batches=(1, 4, 16), decode=True):
    """The causal convolution over the runner's conv state: forward for prefills, update for decodes."""
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_fn, causal_conv1d_update

    runner, layer = gdn_runner(num_blocks, pooling=not decode)
    conv_state = layer.kv_cache[0].transpose(-1, -2)
    weight = torch.zeros(GDN.conv_dim, GDN.width, dtype=BF16)

    def serve():
        for lengths in prefills:
            causal_conv1d_fn(
                torch.zeros(sum(lengths), GDN.conv_dim, dtype=BF16).t(),
                weight,
                None,
                conv_state,
                starts(lengths),
                cache_indices=torch.ones(len(lengths), dtype=I32),
                has_initial_state=torch.zeros(len(lengths), dtype=torch.bool),
                activation="silu",
            )
        for batch in batches if decode else ():
            causal_conv1d_update(
                torch.zeros(batch, GDN.conv_dim, dtype=BF16),
                conv_state,
                weight,
                None,
                "silu",
                conv_state_indices=torch.ones(batch, dtype=I32),
            )

    return Row(serve, lambda: _warm_qwen(runner), runner)


@row
def gdn_post_conv(lengths=(1, 2, 16, 40)):
    """What follows the convolution of a prefill: split, L2 norm and gates in one kernel."""
    from vllm.third_party.flash_linear_attention.ops.fused_gdn_prefill_post_conv import fused_post_conv_prep

    runner, layer = gdn_runner(16)

    def serve():
        for length in lengths:
            gates = torch.zeros(length, GDN.value_heads, dtype=BF16)
            fused_post_conv_prep(
                torch.zeros(length, GDN.conv_dim, dtype=BF16),
                gates,
                gates.clone(),
                layer.A_log,
                layer.dt_bias,
                GDN.heads,
                GDN.key_dim,
                GDN.value_dim,
                apply_l2norm=True,
                output_g_exp=False,
            )

    return Row(serve, lambda: _warm_qwen(runner), runner)


@row
def gdn_decode(num_blocks=16, batches=(1, 4, 16)):
    """The fused gate and delta rule of a decode, over the runner's recurrent state."""
    from vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating import (
        fused_sigmoid_gating_delta_rule_update,
    )

    runner, layer = gdn_runner(num_blocks)

    def serve():
        for batch in batches:
            fused_sigmoid_gating_delta_rule_update(
                A_log=layer.A_log,
                a=torch.zeros(1, batch, GDN.value_heads, dtype=BF16),
                b=torch.zeros(1, batch, GDN.value_heads, dtype=BF16),
                dt_bias=layer.dt_bias,
                q=torch.zeros(1, batch, GDN.heads, GDN.key_dim, dtype=BF16),
                k=torch.zeros(1, batch, GDN.heads, GDN.key_dim, dtype=BF16),
                v=torch.zeros(1, batch, GDN.value_heads, GDN.value_dim, dtype=BF16),
                beta=1.0,
                threshold=20.0,
                initial_state=layer.kv_cache[1],
                inplace_final_state=True,
                cu_seqlens=torch.arange(batch + 1, dtype=I32),
                ssm_state_indices=torch.ones(batch, 1, dtype=I32),
                use_qk_l2norm_in_kernel=True,
                is_kda=False,
            )

    return Row(serve, lambda: _warm_qwen(runner), runner)


@row
def gdn_chunk(configs=2, prompts=((64,), (40,), (64, 100))):
    """The chunked delta rule of a prefill: six autotuned kernels.

    `configs` keeps that many configs of each (0: all), since each is compiled.
    """
    from vllm.third_party.flash_linear_attention.ops.chunk import chunk_gated_delta_rule

    fewer_configs(chunk_modules(), configs)
    runner, layer = gdn_runner(16)
    # As the layer's forward calls it, after fused_post_conv_prep has done the L2 norm.
    layer.chunk_gated_delta_rule = lambda **kwargs: given(chunk_gated_delta_rule, **kwargs)

    def serve():
        for lengths in prompts:
            total = sum(lengths)
            chunk_gated_delta_rule(
                torch.zeros(1, total, GDN.heads, GDN.key_dim, dtype=BF16),
                torch.zeros(1, total, GDN.heads, GDN.key_dim, dtype=BF16),
                torch.zeros(1, total, GDN.value_heads, GDN.value_dim, dtype=BF16),
                torch.zeros(1, total, GDN.value_heads, dtype=F32),
                torch.zeros(1, total, GDN.value_heads, dtype=F32),
                initial_state=torch.zeros(len(lengths), GDN.value_heads, GDN.value_dim, GDN.key_dim, dtype=F32),
                output_final_state=True,
                cu_seqlens=starts(lengths),
                use_qk_l2norm_in_kernel=False,
            )

    def warm():
        from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention

        width = GDN.value_heads * GDN.value_dim
        QwenGatedDeltaNetAttention._warmup_prefill_kernels(
            layer, *_profiled(QwenGatedDeltaNetAttention._warmup_prefill_kernels, width)
        )

    return Row(serve, warm, runner)


def _profiled(method, width):
    """The arguments of _warmup_prefill_kernels: the projection's output, and its part for the gate."""
    count = len(inspect.signature(method).parameters)
    return (torch.zeros(1, GDN.conv_dim + (width if count > 2 else 0), dtype=BF16), width)[: count - 1]


@row
def moe(experts=8, hidden=256, inner=512, top_k=2, tokens=(1, 2, 16, 40, 300)):
    """The fused MoE kernel under the configs that vLLM picks by number of tokens."""
    import vllm.model_executor.layers.fused_moe.fused_moe as fused
    from vllm.triton_utils import tl

    first = torch.zeros(experts, inner, hidden, dtype=BF16)
    second = torch.zeros(experts, hidden, inner // 2, dtype=BF16)

    def call(count):
        config = fused.try_get_optimal_moe_config(first.shape, second.shape, top_k, None, count)
        padded = count * top_k + experts * (config["BLOCK_SIZE_M"] - 1)
        fused.invoke_fused_moe_triton_kernel(
            torch.zeros(count, hidden, dtype=BF16),
            first,
            torch.zeros(count, top_k, inner, dtype=BF16),
            None,
            None,
            torch.zeros(count, top_k, dtype=F32),
            torch.zeros(padded, dtype=I32),
            torch.zeros(-(-padded // config["BLOCK_SIZE_M"]), dtype=I32),
            torch.zeros(1, dtype=I32),
            False,
            top_k,
            config,
            compute_type=tl.bfloat16,
            use_fp8_w8a8=False,
            use_int8_w8a8=False,
            use_int8_w8a16=False,
            use_int4_w4a16=False,
            per_channel_quant=False,
        )

    return Row(lambda: [call(count) for count in tokens], None, SimpleNamespace(device=CPU))


@row
def attention(
    max_model_len=4096, block_size=16, max_num_seqs=8, num_blocks=64, kv_dtype="bfloat16", heads=32, kv_heads=8
):
    """Triton's unified attention over the runner's block table and KV cache: 2D for prefills, 3D for decodes."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    runner = v1_runner(max_model_len, block_size, max_num_seqs, 8192)
    size = 128
    cache = torch.zeros(num_blocks, 2, block_size, kv_heads, size, dtype=getattr(torch, kv_dtype))
    runner.kv_caches = [cache]
    runner.kv_cache_config = SimpleNamespace(num_blocks=num_blocks)
    keys, values = cache.unbind(1)
    table = runner.input_batch.block_table.block_tables[0].block_table.gpu
    segments = dict(
        seq_threshold_3D=128 // kv_heads,
        num_par_softmax_segments=16,
        softmax_segm_output=torch.zeros(64, heads, 16, size, dtype=F32),
        softmax_segm_max=torch.zeros(64, heads, 16, dtype=F32),
        softmax_segm_expsum=torch.zeros(64, heads, 16, dtype=F32),
    )
    scale = torch.ones(1, 1, dtype=F32)

    def call(lengths):
        tokens, requests = sum(lengths), len(lengths)
        query = torch.zeros(tokens, heads, size, dtype=BF16)
        unified_attention(
            query,
            keys,
            values,
            torch.zeros_like(query),
            starts(lengths),
            max(lengths),
            runner.seq_lens[:requests],
            max_model_len,
            size**-0.5,
            True,
            (-1, -1),
            table[:requests],
            0,
            None,
            scale.expand(requests, kv_heads),
            scale.expand(requests, kv_heads),
            **segments,
        )

    def serve():
        for lengths in ([40], [40, 17], [1], [1, 1, 1], [1] * max_num_seqs):
            call(lengths)

    return Row(serve, None, runner)
