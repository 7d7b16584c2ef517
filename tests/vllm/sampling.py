"""Rows of sampling, speculation and adapters."""

from types import SimpleNamespace

import torch
from tables import v1_runner
from traffic import BF16, CPU, F32, I32, I64, Row, collecting, given, registry, row


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
                result = torch.zeros(count, hidden * slices, dtype=BF16)
                expand._lora_expand(between, up, result, *args, add_inputs=True)

    return Row(serve, None, SimpleNamespace(device=CPU))
