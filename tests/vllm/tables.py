"""Rows over the tables that the model runner owns, V1 and V2."""

import inspect
from types import SimpleNamespace

import torch
from traffic import BF16, CPU, F32, I32, I64, U64, Row, blocks_for, collecting, given, registry, row, starts


@row
def zeroer(num_blocks=64, block_size=16, num_kv_heads=8, head_size=128, layers=2, counts=(1, 2, 3, 16, 17, 32)):
    """The KV-block zeroer, for these numbers of blocks. 0.26 has n_blocks in its key, 0.33 has not."""
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    from vllm.v1.worker.utils import AttentionGroup, KVBlockZeroer

    names = [f"model.layers.{i}.self_attn.attn" for i in range(layers)]
    spec = given(FullAttentionSpec, block_size=block_size, num_kv_heads=num_kv_heads, head_size=head_size, dtype=BF16)
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


def v1_runner(
    max_model_len,
    block_size,
    max_num_seqs,
    max_num_batched_tokens,
    groups=1,
    decode_context_parallel_size=1,
    dcp_rank=0,
):
    """The tables of the V1 runner, made as GPUModelRunner and InputBatch make them."""
    import vllm.v1.worker.block_table as module
    from vllm.v1.utils import CpuGpuBuffer
    from vllm.v1.worker.block_table import MultiGroupBlockTable

    def buffer(*size, dtype):
        return CpuGpuBuffer(*size, dtype=dtype, device=CPU, pin_memory=False)

    # The tables ask the process groups for their place in context parallelism.
    here = SimpleNamespace(world_size=decode_context_parallel_size, rank_in_group=dcp_rank)
    module.get_dcp_group = lambda: here
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
def v1_slot_mapping(
    max_model_len=4096,
    block_size=16,
    max_num_seqs=8,
    max_num_batched_tokens=8192,
    decode_context_parallel_size=1,
    dcp_rank=0,
):
    """Block tables and slot mapping of the V1 runner, for batches of 1, 2 and all requests."""
    reg = registry()
    with collecting(reg):
        runner = v1_runner(
            *(max_model_len, block_size, max_num_seqs, max_num_batched_tokens),
            decode_context_parallel_size=decode_context_parallel_size,
            dcp_rank=dcp_rank,
        )
    table = runner.input_batch.block_table

    def serve():
        for requests in (1, 2, max_num_seqs):
            for request in range(requests):
                table.add_row(([1, 2],), request)
            table.commit_block_table(requests)
            tokens = 4 * requests
            table.compute_slot_mapping(requests, runner.query_start_loc.gpu[: requests + 1], runner.positions[:tokens])

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
    decode_context_parallel_size=1,
    dcp_rank=0,
):
    """Block tables and slot mappings of the V2 runner; several groups write by the fused kernel."""
    sizes = (max_model_len, block_size, max_num_seqs, max_num_batched_tokens)
    runner = v2_runner(*sizes, groups, 0, decode_context_parallel_size, dcp_rank)
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
    names = ("state", "source", "bias", "accepted", "computed")
    columns = {name: torch.zeros(max_num_seqs, dtype=I32) for name in names}

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
    shapes, dtypes = ((3, 8192), (32, 128, 128)), (BF16, F32)
    mamba_spec = given(
        MambaSpec,
        block_size=block_size,
        shapes=shapes,
        dtypes=dtypes,
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
            kv_cache=[torch.zeros(num_blocks, *shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
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
