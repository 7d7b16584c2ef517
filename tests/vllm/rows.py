"""The traffic: one function a row, each driving vLLM's own code and knowing nothing of jitreplay.

A row builds its objects and returns a `Row`: `serve` is what requests cause, `warm` what this
version of vLLM does for it at start-up (None where it does nothing), and `runner` holds the row's
tables under the attribute paths that they have on the real model runner. What differs between
versions of vLLM is found out by looking at its functions.
"""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import torch

CPU = torch.device("cpu")
BF16, F32 = torch.bfloat16, torch.float32
I32, I64, U64 = torch.int32, torch.int64, torch.uint64

ROWS: dict[str, Callable[..., "Row"]] = {}


@dataclass(frozen=True)
class Row:
    serve: Callable[[], object]
    warm: Callable[[], object] | None = None
    runner: object = None


def row(function):
    """Register a row under its name. Its keyword parameters are the configuration."""
    ROWS[function.__name__] = function
    return function


def given(function, *args, **kwargs):
    """Call a function of vLLM with those of the keywords that this version of it has."""
    known = inspect.signature(function).parameters
    return function(*args, **{name: value for name, value in kwargs.items() if name in known})


def ints(*values, dtype=I32):
    return torch.tensor(values, dtype=dtype)


def starts(lengths):
    """query_start_loc for requests of these lengths."""
    return torch.cat([ints(0), torch.tensor(lengths, dtype=I32).cumsum(0).to(I32)])


def blocks_for(max_model_len, block_size):
    return -(-max_model_len // block_size)


def registry(vllm_config=None):
    """vLLM's registry of kernels to compile at start-up (0.33), or None (0.26)."""
    try:
        from vllm.model_executor.warmup.jit_warmup import JitWarmupRegistry
    except ImportError:
        return None
    return JitWarmupRegistry(vllm_config)


def collecting(reg):
    return reg.activate() if reg is not None else nullcontext()


def fewer_configs(modules, count):
    """Keep the first `count` configs of every autotuner in these modules (0: all)."""
    from triton.runtime.autotuner import Autotuner, Heuristics

    for module in modules if count else ():
        for value in vars(module).values():
            while isinstance(value, (Autotuner, Heuristics)):
                if isinstance(value, Autotuner):
                    value.configs[count:] = []
                value = value.fn


def chunk_modules():
    """The modules of the chunked delta rule's kernels."""
    import vllm.third_party.flash_linear_attention.ops as ops

    return [module for module in vars(ops).values() if inspect.ismodule(module)]


# ---------------------------------------------------------------- the runner's tables


@row
def zeroer(num_blocks=64, block_size=16, num_kv_heads=8, head_size=128, layers=2, counts=(1, 2, 3, 16, 17, 32)):
    """The KV-block zeroer, for these numbers of blocks. 0.26 has n_blocks in its key, 0.33 has not."""
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    from vllm.v1.worker.utils import AttentionGroup, KVBlockZeroer

    names = [f"model.layers.{i}.self_attn.attn" for i in range(layers)]
    spec = given(
        FullAttentionSpec, block_size=block_size, num_kv_heads=num_kv_heads, head_size=head_size, dtype=BF16
    )
    new = "num_blocks" in inspect.signature(KVBlockZeroer.__init__).parameters
    if new:  # 0.33: one standard view [blocks, heads, tokens, content]
        shape = (num_blocks, num_kv_heads, block_size, 2 * head_size)
    else:
        shape = TritonAttentionBackend.get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size)
    context = {name: SimpleNamespace(kv_cache=torch.zeros(shape, dtype=BF16)) for name in names}
    group = given(
        AttentionGroup,
        backend=TritonAttentionBackend,
        layer_names=names,
        kv_cache_spec=spec,
        kv_cache_group_id=0,
    )
    made = given(
        KVBlockZeroer,
        device=CPU,
        pin_memory=False,
        attn_groups_iter=[group],
        kernel_block_sizes=[block_size],
        cache_dtype="auto",
        static_forward_context=context,
        num_blocks=num_blocks,
    )
    runner = SimpleNamespace(
        device=CPU,
        _kv_block_zeroer=made,
        kv_block_zeroer=made,
        kv_caches=[layer.kv_cache for layer in context.values()],
        kv_cache_config=SimpleNamespace(num_blocks=num_blocks),
        compilation_config=SimpleNamespace(static_forward_context=context),
    )

    def serve():
        for count in counts:
            made.zero_block_ids(list(range(min(count, num_blocks))))

    def warm():
        if hasattr(made, "warmup"):
            return made.warmup(num_blocks)
        import vllm.model_executor.warmup.qwen_triton_warmup as qwen

        qwen._warm_zero_kv_blocks_with_runner_zeroer(runner)
        qwen._warm_zero_kv_blocks_kernel(CPU, qwen._zero_kv_warmup_config(runner))

    return Row(serve, warm, runner)


def v1_runner(max_model_len, block_size, max_num_seqs, max_num_batched_tokens, groups=1):
    """The tables of the V1 runner, made as GPUModelRunner and InputBatch make them."""
    from vllm.v1.utils import CpuGpuBuffer
    from vllm.v1.worker.block_table import MultiGroupBlockTable

    def buffer(*size, dtype):
        return CpuGpuBuffer(*size, dtype=dtype, device=CPU, pin_memory=False)

    sizes = [block_size] * groups
    table = given(
        MultiGroupBlockTable,
        max_num_reqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        pin_memory=False,
        device=CPU,
        block_sizes=sizes,
        kernel_block_sizes=sizes,
        max_num_blocks=[blocks_for(max_model_len, size) for size in sizes],
    )
    return SimpleNamespace(
        device=CPU,
        input_batch=SimpleNamespace(block_table=table),
        max_num_reqs=max_num_seqs,
        max_num_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        query_start_loc=buffer(max_num_seqs + 1, dtype=I32),
        positions=torch.zeros(max_num_batched_tokens, dtype=I64),
        seq_lens=torch.zeros(max_num_seqs, dtype=I32),
        num_accepted_tokens=buffer(max_num_seqs, dtype=I32),
    )


@row
def v1_slot_mapping(max_model_len=4096, block_size=16, max_num_seqs=8, max_num_batched_tokens=8192):
    """Block tables and slot mapping of the V1 runner, for batches of 1, 2 and all requests."""
    reg = registry()
    with collecting(reg):
        runner = v1_runner(max_model_len, block_size, max_num_seqs, max_num_batched_tokens)
    table = runner.input_batch.block_table

    def serve():
        for requests in (1, 2, max_num_seqs):
            for request in range(requests):
                table.add_row(([1, 2],), request)
            table.commit_block_table(requests)
            tokens = 4 * requests
            table.compute_slot_mapping(
                requests, runner.query_start_loc.gpu[: requests + 1], runner.positions[:tokens]
            )

    def warm():
        if reg is not None:
            return reg.warmup()
        from vllm.model_executor.warmup.v1_block_table_warmup import warm_v1_block_table_kernels

        warm_v1_block_table_kernels(CPU, max_num_batched_tokens)

    return Row(serve, warm, runner)


def v2_runner(max_model_len, block_size, max_num_seqs, max_num_batched_tokens, groups, spec, cp_size=1, cp_rank=0):
    """The tables of the V2 runner, made as its __init__ and initialize_kv_cache make them."""
    from vllm.v1.worker.gpu.block_table import BlockTables
    from vllm.v1.worker.gpu.input_batch import InputBuffers
    from vllm.v1.worker.gpu.states import RequestState

    sizes = [block_size] * groups
    return SimpleNamespace(
        device=CPU,
        max_num_reqs=max_num_seqs,
        max_num_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        num_speculative_steps=spec,
        dcp_rank=cp_rank,
        input_buffers=InputBuffers(max_num_seqs, max_num_batched_tokens, CPU),
        req_states=given(
            RequestState,
            max_num_reqs=max_num_seqs,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            num_speculative_steps=spec,
            vocab_size=32000,
            device=CPU,
        ),
        block_tables=given(
            BlockTables,
            block_sizes=sizes,
            kernel_block_sizes=sizes,
            max_num_reqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_blocks_per_group=[blocks_for(max_model_len, size) for size in sizes],
            device=CPU,
            cp_size=cp_size,
            cp_rank=cp_rank,
        ),
    )


@row
def v2_block_tables(
    max_model_len=4096,
    block_size=16,
    max_num_seqs=8,
    max_num_batched_tokens=8192,
    groups=1,
    cp_size=1,
    cp_rank=0,
):
    """Block tables and slot mappings of the V2 runner; several groups write by the fused kernel."""
    runner = v2_runner(max_model_len, block_size, max_num_seqs, max_num_batched_tokens, groups, 0, cp_size, cp_rank)
    tables = runner.block_tables

    def serve():
        for requests in (1, 2, max_num_seqs):
            for request in range(requests):
                tables.append_block_ids(request, ([1, 2],) * groups, True)
            tables.apply_staged_writes()
            mapping = torch.arange(requests, dtype=I64)
            tables.gather_block_tables(mapping, requests)
            tables.compute_slot_mappings(
                mapping,
                runner.input_buffers.query_start_loc[: requests + 1],
                runner.input_buffers.positions[: 4 * requests],
                4 * requests,
            )

    return Row(serve, None, runner)


@row
def v2_decode(max_model_len=4096, block_size=16, max_num_seqs=8, max_num_batched_tokens=8192, spec=3):
    """Input preparation and postprocessing of V2 steps: prefill, decodes with, without and with mixed drafts."""
    import vllm.v1.worker.gpu.input_batch as steps

    runner = v2_runner(max_model_len, block_size, max_num_seqs, max_num_batched_tokens, 1, spec)
    buffers, states = runner.input_buffers, runner.req_states

    def step(lengths, logits):
        requests = len(lengths)
        mapping = torch.arange(requests, dtype=I64)
        query_start = buffers.query_start_loc[: requests + 1]
        query_start.copy_(starts(lengths))
        cumulated = starts(logits)
        steps.prepare_prefill_inputs(
            buffers.input_ids,
            states.next_prefill_tokens,
            mapping,
            query_start,
            states.all_token_ids.gpu,
            states.prefill_len.gpu,
            states.num_computed_tokens.gpu,
        )
        steps.prepare_pos_seq_lens(
            mapping, query_start, states.num_computed_tokens.gpu, buffers.positions, buffers.seq_lens
        )
        if max(logits) > 1:
            steps.expand_idx_mapping(mapping, sum(logits), cumulated, max(logits))
        steps.combine_sampled_and_draft_tokens(
            buffers.input_ids,
            mapping,
            states.last_sampled_tokens,
            query_start,
            buffers.seq_lens,
            states.prefill_len.gpu,
            states.draft_tokens,
            cumulated,
            sum(logits),
        )
        sampled, rejected = steps.get_num_sampled_and_rejected(
            torch.ones(requests, dtype=I32), buffers.seq_lens[:requests], cumulated, mapping, states.prefill_len.gpu
        )
        steps.post_update(
            mapping,
            states.num_computed_tokens.gpu,
            states.last_sampled_tokens,
            None,
            torch.zeros(requests, max(logits), dtype=I64),
            sampled,
            rejected,
            query_start,
            states.all_token_ids.gpu,
            states.total_len.gpu,
        )

    def serve():
        many = min(4, max_num_seqs)
        step([7], [1])  # prefill of one request
        step([7] * many, [1] * many)
        step([1], [1])  # decode without drafts
        step([1] * many, [1] * many)
        if spec:
            step([spec + 1] * many, [spec + 1] * many)  # all with drafts
            step([spec + 1, 1], [spec + 1, 1])  # mixed
            step([spec + 1], [spec + 1])

    return Row(serve, None, runner)


@row
def v2_mamba_align(max_model_len=4096, block_size=64, max_num_seqs=8, layers=2, num_blocks=32, spec=2):
    """State copies of hybrid models under prefix caching ("align"): before, after and at postprocessing."""
    import vllm.v1.worker.mamba_utils as mamba

    runner, config, context, copy_funcs = _mamba_runner(max_num_seqs, block_size, layers, num_blocks, spec)
    table = torch.zeros(max_num_seqs, blocks_for(max_model_len, block_size), dtype=I32)
    made = given(
        mamba.MambaSpecDecodeGPUContext.create,
        max_num_reqs=max_num_seqs,
        kv_cache_config=config,
        copy_funcs=copy_funcs,
        num_state_types=2,
        device=CPU,
        make_buffer=runner._make_buffer,
    )
    given(
        made.initialize_from_forward_context,
        kv_cache_config=config,
        forward_context=context,
        mamba_state_copy_funcs=copy_funcs,
        block_tables=[table],
        aligned_index_block_tables=[table],
    )
    runner.model_state = SimpleNamespace(_mamba_ctx=made)
    columns = {name: torch.zeros(max_num_seqs, dtype=I32) for name in ("state", "source", "bias", "accepted", "computed")}

    def serve():
        for requests in (1, 2, max_num_seqs):
            mapping = torch.arange(requests, dtype=I32)
            made.run_fused_precopy(requests, columns["state"], columns["source"], columns["bias"], mapping)
            made.run_fused_postprocess_align(
                requests, columns["accepted"], columns["state"], columns["computed"], mapping
            )

    return Row(serve, None, runner)


def _mamba_runner(max_num_seqs, block_size, layers, num_blocks, spec):
    """A runner with GDN states: [conv, ssm] a layer, with the shapes of Qwen3-Next."""
    import vllm.v1.worker.mamba_utils as mamba
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateCopyFuncCalculator
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec
    from vllm.v1.utils import CpuGpuBuffer

    names = [f"model.layers.{i}.linear_attn" for i in range(layers)]
    shapes = ((3, 8192), (32, 128, 128))
    mamba_spec = given(
        MambaSpec,
        block_size=block_size,
        shapes=shapes,
        dtypes=(BF16, F32),
        mamba_type="gdn_attention",
        mamba_cache_mode="align",
        num_speculative_blocks=spec,
    )
    config = given(
        KVCacheConfig,
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[given(KVCacheGroupSpec, layer_names=names, kv_cache_spec=mamba_spec)],
    )
    context = {
        name: SimpleNamespace(
            kv_cache=[torch.zeros(num_blocks, *shape, dtype=dtype) for shape, dtype in zip(shapes, (BF16, F32))]
        )
        for name in names
    }
    copy_funcs = MambaStateCopyFuncCalculator.gated_delta_net_state_copy_func()
    if hasattr(mamba, "validate_mamba_state_copy_funcs"):  # 0.33: by type of state
        copy_funcs = {mamba_spec.mamba_type: copy_funcs}
    runner = SimpleNamespace(
        device=CPU,
        kv_cache_config=config,
        max_num_reqs=max_num_seqs,
        compilation_config=SimpleNamespace(static_forward_context=context),
        kv_caches=[state for layer in context.values() for state in layer.kv_cache],
        _make_buffer=lambda *size, dtype: CpuGpuBuffer(*size, dtype=dtype, device=CPU, pin_memory=False),
    )
    return runner, config, context, copy_funcs


@row
def mamba_memcpy(max_num_seqs=8, entries=4):
    """The batched memcpy of Mamba states, whose sizes are int32 as the runner makes them."""
    import vllm.v1.worker.mamba_utils as mamba
    from vllm.v1.utils import CpuGpuBuffer

    def buffer(dtype):
        return CpuGpuBuffer(max_num_seqs * entries, dtype=dtype, device=CPU, pin_memory=False)

    copies = mamba.MambaCopyBuffers(
        src_ptrs=buffer(U64), dst_ptrs=buffer(U64), sizes=buffer(I32), mamba_group_ids=[0], mamba_spec=None
    )
    runner = SimpleNamespace(device=CPU, _mamba_bufs=SimpleNamespace(preprocess=copies, postprocess_align=None))

    def serve():
        for copies.offset in (1, 2, max_num_seqs * entries):
            mamba.do_mamba_copy_block(copies)

    def warm():
        from vllm.model_executor.warmup.mamba_triton_warmup import _warm_batch_memcpy_kernel

        _warm_batch_memcpy_kernel(CPU)

    return Row(serve, warm if registry() is not None else None, runner)


@row
def mamba_memcpy_i64():
    """The same kernel with int64 sizes: another variant, which no warm-up of vLLM compiles."""
    from vllm.v1.worker.mamba_utils import batch_memcpy

    pointers = torch.zeros(3, dtype=U64)
    return Row(lambda: batch_memcpy(pointers, pointers.clone(), torch.zeros(3, dtype=I64)))


# ---------------------------------------------------------------- layers


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
        query, key = torch.zeros(count, heads * head_size, dtype=BF16), torch.zeros(count, kv_heads * head_size, dtype=BF16)
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
    """The chunked delta rule of a prefill: seven autotuned kernels.

    `configs` keeps that many configs of each (0: all 88), since each is compiled.
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
def attention(max_model_len=4096, block_size=16, max_num_seqs=8, num_blocks=64, kv_dtype="bfloat16", heads=32, kv_heads=8):
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


# ---------------------------------------------------------------- sampling and speculation


def sampling(**changes):
    """SamplingMetadata of vLLM for a batch of three, greedy unless changed."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    zero = torch.zeros(3, dtype=F32)
    values = dict(
        temperature=None,
        all_greedy=True,
        all_random=False,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=zero,
        presence_penalties=zero,
        repetition_penalties=zero,
        output_token_ids=[[], [], []],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )
    return given(SamplingMetadata, **(values | changes))


@row
def sampler(batches=(1, 16), vocab=32000, modes=("k", "p", "kp")):
    """Top-k and top-p of the V1 sampler: each alone, both, and the split form of top-p (0.33)."""
    import vllm.v1.sample.ops.topk_topp_triton as ops

    reg = registry(
        SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=max(batches)),
            num_speculative_tokens=0,
            model_config=SimpleNamespace(get_vocab_size=lambda: vocab),
        )
    )
    if reg is not None:
        from vllm.v1.sample.ops.topk_topp_sampler import register_top_k_top_p_warmups

        with collecting(reg):
            register_top_k_top_p_warmups()

    def serve():
        for batch in batches:
            k, p = torch.full((batch,), 20, dtype=I32), torch.full((batch,), 0.9, dtype=F32)
            for mode in modes:
                logits = torch.zeros(batch, vocab, dtype=F32)
                if mode == "p" and hasattr(ops, "_apply_topp_split"):
                    ops._apply_topp_split(logits, None, p, float("-inf"), ops.num_compute_units(0))
                else:
                    ops.apply_top_k_top_p_triton(logits, k if "k" in mode else None, p if "p" in mode else None)

    return Row(serve, reg.warmup if reg is not None else None, SimpleNamespace(device=CPU))


@row
def rejection(vocab=32000):
    """The V1 rejection sampler: greedy, random and mixed requests, drafts with and without probabilities."""
    import vllm.v1.sample.rejection_sampler as module
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    reg = registry(
        SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=8),
            num_speculative_tokens=2,
            model_config=SimpleNamespace(get_vocab_size=lambda: vocab),
            speculative_config=SimpleNamespace(num_speculative_tokens=2),
        )
    )
    target = Sampler()
    with collecting(reg):
        verifier = module.RejectionSampler(target)

    def call(metadata, probabilities):
        drafts = SpecDecodeMetadata.make_dummy([[1, 2], [3], [4, 5]], CPU)
        count = len(drafts.draft_token_ids)
        verifier(
            drafts,
            torch.zeros(count, vocab, dtype=F32) if probabilities else None,
            torch.zeros(count + 3, vocab, dtype=BF16),
            metadata,
        )

    def serve():
        random = dict(all_greedy=False, all_random=True, temperature=torch.ones(3, dtype=F32))
        mixed = random | dict(all_random=False)
        call(sampling(), False)
        for probabilities in (False, True):
            call(sampling(**random), probabilities)
            call(sampling(**mixed), probabilities)

    return Row(serve, reg.warmup if reg is not None else None, SimpleNamespace(device=CPU))


@row
def eagle(max_model_len=4096, block_size=16, max_num_seqs=64, batches=(1, 3, 16)):
    """A step of an EAGLE drafter over the runner's own block table, whose rows are padded to 128 tokens.

    0.33's warm-up takes cdiv(max_model_len, block_size) for the row, so it compiles another key
    where that is no multiple of the padding (5000, 131000).
    """
    import vllm.v1.spec_decode.utils as utils

    reg = registry()
    with collecting(reg):
        runner = v1_runner(max_model_len, block_size, max_num_seqs, 8192)
        if reg is not None:
            utils._eagle_step_slot_mapping_metadata.register_warmup(
                max_model_len=max_model_len, max_batch_size=max_num_seqs
            )
    table = runner.input_batch.block_table.block_tables[0].block_table.gpu
    runner.drafter = SimpleNamespace(
        positions=torch.zeros(8192, dtype=I64), _slot_mapping_buffer=torch.zeros(8192, dtype=I64)
    )

    def serve():
        for batch in batches:
            utils.eagle_step_update_slot_mapping_and_metadata(
                runner.drafter.positions[:batch],
                table[:batch],
                runner.seq_lens[:batch],
                block_size,
                max_model_len,
                torch.zeros(batch, dtype=I64),
                runner.drafter._slot_mapping_buffer[:batch],
                batch,
            )

    return Row(serve, reg.warmup if reg is not None else None, runner)


@row
def lora(max_loras=4, rank=16, hidden=1024, tokens=(1, 16, 40), slices=2):
    """LoRA shrink and expand, with vLLM's own metadata for two adapters."""
    import harness

    import vllm.lora.ops.triton_ops.lora_expand_op as expand
    import vllm.lora.ops.triton_ops.lora_shrink_op as shrink
    from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta

    meta = LoRAKernelMeta.make(max_loras, 8192, CPU)
    down = [torch.zeros(max_loras, 1, rank, hidden, dtype=BF16) for _ in range(slices)]
    up = [torch.zeros(max_loras, 1, hidden, rank, dtype=BF16) for _ in range(slices)]

    def serve():
        with harness.alone():
            for count in tokens:
                meta.prepare_tensors(torch.arange(count, dtype=I32) % 2)
                args = meta.meta_args(count, False)
                between = torch.zeros(slices, count, rank, dtype=F32)
                shrink._lora_shrink(torch.zeros(count, hidden, dtype=BF16), down, between, *args, 1.0)
                expand._lora_expand(between, up, torch.zeros(count, hidden * slices, dtype=BF16), *args, add_inputs=True)

    return Row(serve, None, SimpleNamespace(device=CPU))
