"""What vLLM 0.26 and 0.33 say of a worker: its rank, its settings, its buffers. All looked up by name."""

from __future__ import annotations

import sys
from typing import Any

from .runner import Tables
from .runner import tables as find_tables

PACKAGES = ("vllm",)
_MISSING = object()

# Where a number is kept, from the VllmConfig on; the name is the field's own.
_NUMBERS = {
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "max_model_len": "model_config.max_model_len",
    "block_size": "cache_config.block_size",
    "num_speculative_tokens": "speculative_config.num_speculative_tokens",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
    "pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
    "data_parallel_size": "parallel_config.data_parallel_size",
    "decode_context_parallel_size": "parallel_config.decode_context_parallel_size",
    "prefill_context_parallel_size": "parallel_config.prefill_context_parallel_size",
}
_WORDS = {
    "architecture": "model_config.architecture",
    "dtype": "model_config.dtype",
    "quantization": "model_config.quantization",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "runner_type": "model_config.runner_type",
    "mode": "compilation_config.mode",
    "attention_backend": "attention_config.backend",
    "enforce_eager": "model_config.enforce_eager",
    "enable_expert_parallel": "parallel_config.enable_expert_parallel",
}
LATE = "num_blocks"
"""The one number that is known only once the KV cache is there."""


def follow(thing: Any, path: str) -> Any:
    """Return the value at a dotted path, or a mark that nothing is there."""
    for part in path.split("."):
        thing = getattr(thing, part, _MISSING)
        if thing is _MISSING or thing is None:
            return _MISSING
    return thing


def settings(worker: Any) -> dict[str, int | str | bool]:
    """Return the settings of a worker by their names in vLLM, and the ranks that some kernels take as numbers."""
    found = configured(getattr(worker, "vllm_config", None))
    runner = getattr(worker, "model_runner", None)
    found["runner"] = "V2" if ".gpu.model_runner" in type(runner).__module__ else "V1"
    blocks = follow(runner, "kv_cache_config.num_blocks")
    if type(blocks) is int:
        found[LATE] = blocks
    found["rank"] = int(getattr(worker, "rank", 0) or 0)
    found.update({f"{group}_rank": number for group, number in group_ranks().items()})
    return found


def configured(config: Any) -> dict[str, int | str | bool]:
    """Return what a VllmConfig says by itself, before there is a worker."""
    found: dict[str, int | str | bool] = {}
    for name, path in _NUMBERS.items():
        value = follow(config, path)
        if type(value) is int:
            found[name] = value
    for name, path in _WORDS.items():
        value = follow(config, path)
        if value is not _MISSING:
            found[name] = value if isinstance(value, bool) else _word(value)
    vocab = getattr(follow(config, "model_config"), "get_vocab_size", None)
    if callable(vocab) and type(size := vocab()) is int:
        found["vocab_size"] = size
    return found


def architecture(worker: Any) -> str:
    """Return the model's architecture class by name, "" where it is not known."""
    found = follow(getattr(worker, "vllm_config", None), _WORDS["architecture"])
    return "" if found is _MISSING else _word(found)


def _word(value: Any) -> str:
    name = getattr(value, "name", None)  # an enum's member; a dtype and a class have none of their own
    return name if isinstance(name, str) else getattr(value, "__name__", None) or str(value).removeprefix("torch.")


def group_ranks() -> dict[str, int]:
    """Return this process's rank in each of vLLM's groups that exist: tp, pp, dp, dcp, pcp, ep."""
    state = sys.modules.get("vllm.distributed.parallel_state")
    found = {}
    for group in ("tp", "pp", "dp", "dcp", "pcp", "ep"):
        get = getattr(state, f"get_{group}_group", None)
        if get is None:
            continue
        try:
            found[group] = int(get().rank_in_group)
        except Exception:
            continue  # the group was not made in this process
    return found


def rank(worker: Any) -> str:
    """Return the rank's name, as vLLM tags it: data parallel index, pipeline stage, context and tensor rank."""
    ranks = group_ranks()
    data = follow(worker, "parallel_config.data_parallel_index")
    number = data if type(data) is int else ranks.get("dp", 0)
    return f"dp{number}:pp{ranks.get('pp', 0)}:pcp{ranks.get('pcp', 0)}:tp{ranks.get('tp', 0)}"


def is_first_rank(worker: Any) -> bool:
    return int(getattr(worker, "rank", 0) or 0) == 0


def tables(worker: Any) -> Tables:
    """Return the runner's tensors by name, and the numbers with them.

    The tensors are tables, positions, KV caches, Mamba states, those of the sampler and of the drafter. The KV caches
    that layers hold are named `kv_cache[LAYER]`, with an index where a layer has several.
    """
    runner = getattr(worker, "model_runner", None)
    if runner is None:
        return Tables({}, {})
    found: dict[str, Any] = {}
    layers = follow(worker, "vllm_config.compilation_config.static_forward_context")
    if isinstance(layers, dict):
        caches = {name: getattr(layer, "kv_cache", None) for name, layer in layers.items()}
        for name, cache in caches.items():
            for path, tensor in find_tables([cache], PACKAGES).buffers.items():
                found[f"kv_cache[{name}]{path.removeprefix('[0]')}"] = tensor
    own = find_tables(runner, PACKAGES)
    return Tables({**own.buffers, **found}, own.settings)


def version() -> str:
    """Return vLLM's name and version, for the header."""
    return f"vllm {getattr(sys.modules.get('vllm'), '__version__', '')}".strip()
