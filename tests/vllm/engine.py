"""A whole vLLM engine, headless: configuration, scheduler, worker and runner are vLLM's own.

`engine(model)` returns an `LLM` that serves requests in this process: every Triton kernel that a
request causes is bound and compiled for the target, launches do nothing, so what it answers
means nothing. What replaces the GPU is `HeadlessWorker.init_device` and the native form of vLLM's CUDA
operators.
"""

import json
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import torch
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment

from jitreplay.examples.counter import Counter

KV_BYTES = 1 << 27

_COMMON = {
    "vocab_size": 4096,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 1e6,
    "attention_bias": False,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
}
_GDN = {
    "num_hidden_layers": 2,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "full_attention_interval": 2,
    "layer_types": ["linear_attention", "full_attention"],
}
MODELS = {
    "dense": _COMMON
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "layer_types": ["full_attention"] * 2,
    },
    # Qwen3-Next with experts: gated delta net, attention and MoE in one model, in both versions.
    "gdn": _COMMON
    | _GDN
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
    },
}


def model(name):
    """The folder of a model that is a config alone; its weights are made up."""
    folder = Path(tempfile.mkdtemp(prefix=f"model-{name}-"))
    (folder / "config.json").write_text(json.dumps(MODELS[name]))
    # Pooling asks for a tokenizer even where the prompts are numbers.
    words = {f"w{number}": number for number in range(MODELS[name]["vocab_size"])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return str(folder)


class HeadlessWorker(Worker):
    """vLLM's GPU worker on the CPU. Only what asks a device for its memory is replaced."""

    counter: ClassVar[Any] = None

    def init_device(self):
        HeadlessWorker.counter = HeadlessWorker.counter or Counter().install()
        self.device = torch.device("cpu")
        init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, "gloo"
        )
        if hasattr(self, "_init_workspace_and_model_runner"):
            self._init_workspace_and_model_runner()
            return
        from vllm.v1.worker.workspace import init_workspace_manager  # 0.26 does it inside init_device

        init_workspace_manager(self.device, 1)
        if self.use_v2_model_runner:
            from vllm.v1.worker.gpu.model_runner import GPUModelRunner
        else:
            from vllm.v1.worker.gpu_model_runner import GPUModelRunner
        self.model_runner = GPUModelRunner(self.vllm_config, self.device)

    def determine_available_memory(self):
        with torch.inference_mode():
            self.model_runner.profile_run()
        return self.cache_config.kv_cache_memory_bytes

    def jit_events(self):
        """What Triton did in this process since the last call, as (kind, kernel)."""
        return [[event.kind, event.kernel] for event in self.counter.take()]

    def process(self):
        current = multiprocessing.current_process()
        return {"pid": os.getpid(), "rank": self.rank, "daemon": current.daemon}


def engine(name="dense", configs=2, **changes):
    """An LLM of a small model. Keywords are those of vllm.LLM.

    `configs` keeps that many configs of each autotuner of the chunked delta rule (0: all).
    """
    import traffic
    import vllm.model_executor.models.registry as registry
    from vllm import LLM

    if name == "gdn":
        traffic.fewer_configs(traffic.chunk_modules(), configs)
    registry._run_in_subprocess = lambda function: function()  # a fresh process would have no driver
    arguments = {
        "model": model(name),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 1024,
        "max_num_batched_tokens": 512,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "disable_log_stats": True,
        "seed": 0,
        "kv_cache_memory_bytes": KV_BYTES,
        "attention_backend": "TRITON_ATTN",
        "compilation_config": {"custom_ops": ["none"]},
        "gdn_prefill_backend": "triton",
        "worker_cls": "engine.HeadlessWorker",
    }
    return LLM(**(arguments | changes))


def worker(llm):
    """The worker of an engine that runs in this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def request(llm, prompts, **sampling):
    """Serve prompts of these lengths to the end, and return the tokens of each."""
    from vllm import SamplingParams

    sampling = {"max_tokens": 4, "temperature": 0.0} | sampling
    inputs = [{"prompt_token_ids": [(7 * i + n) % 4000 + 3 for i in range(n)]} for n in prompts]
    params = SamplingParams(detokenize=False, ignore_eos=True, **sampling)
    return [list(o.outputs[0].token_ids) for o in llm.generate(inputs, params, use_tqdm=False)]
