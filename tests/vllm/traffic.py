"""What a row is made of: its registry, and small helpers to call vLLM in all its versions."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

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
    llm: object = None


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
