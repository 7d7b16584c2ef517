"""A small server: boots, says that it is ready, and handles requests with Triton kernels.

    python -m jitreplay.examples.serving [--target cuda:90] [--manifest FILE] [--json FILE]

On a GPU it computes. On a headless target (`--target`, no GPU needed) every kernel is bound,
specialised and compiled as for the real one, and each launch is dropped. It prints, per request,
what Triton compiled while the client waited, as `counter.py` saw it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from triton.runtime import driver

import jitreplay

from . import counter as counting
from .kernels import COPY_BLOCK, BlockTable, KVBlockZeroer, batch_memcpy, batch_memcpy_kernel
from .model import VOCAB, Model

DECODE_SIZES = (1, 2, 4, 8, 16)  # a decode step is padded to one of them
MAX_REQS, MAX_TOKENS, NUM_BLOCKS = 16, 512, 64
WIDE_COPY = 12  # so many copies at once are given more warps


@dataclass(frozen=True)
class Request:
    """What a client asks for: prompts of these lengths, and what to do with them."""

    name: str
    prompts: tuple[int, ...]
    decode: int = 1
    cached: bool = False  # the prompt's first block is in the prefix cache
    image: bool = False
    logprobs: bool = False
    weighted: bool = False  # log-probabilities with a weight per token
    sample: bool = False
    embed: bool = False
    parallel: int = 1  # samples of the one prompt


CHAT = (
    Request("chat-5", (5,), decode=2),
    Request("chat-1", (1,)),
    Request("chat-16", (16,), decode=2),
    Request("chat-40", (40,)),
    Request("batch-16", (5,) * 16),
    Request("batch-3", (9, 5, 2)),
    Request("prefix-hit", (40,), cached=True),
)
MIXED = (
    *CHAT,
    Request("logprobs-17", (17,), decode=0, logprobs=True),
    Request("logprobs-2", (2,), decode=0, logprobs=True),
    Request("logprobs-6", (6,), decode=0, logprobs=True),
    Request("score", (6,), decode=0, logprobs=True, weighted=True),
    Request("sample", (5,), sample=True),
    Request("embed", (7,), decode=0, embed=True),
    Request("image-16", (16,), image=True),
    Request("image-5", (5,), image=True),
    Request("parallel-2", (20,), parallel=2),
    Request("parallel-4", (20,), parallel=4),
)
TRAFFIC = {
    "chat": CHAT,
    "mixed": MIXED,
    # mixed, and after it what no record of mixed has seen
    "drift": (*MIXED, Request("batch-7", (3,) * 7), Request("prefix-hit-32", (32,), cached=True)),
}


class Server:
    """The runner: model, block table, zeroer and free blocks, and what handles a request."""

    def __init__(self, device: torch.device, max_model_len: int, block_size: int) -> None:
        self.device, self.block_size = device, block_size
        self.model = Model(device, max_model_len, NUM_BLOCKS, block_size)
        self.table = BlockTable(MAX_REQS, max_model_len, block_size, MAX_TOKENS, device)
        self.zeroer = KVBlockZeroer(self.model.segments())
        self.free = list(range(1, NUM_BLOCKS))  # block 0 takes what padding writes

    def warm_up(self) -> None:
        """The dummy run of a boot: one aligned shape, and none of the runner's own steps."""
        tokens = torch.zeros(16, dtype=torch.int64, device=self.device)
        self.model.forward(tokens, tokens.view(1, -1))
        batch_memcpy_kernel.warmup(torch.uint64, torch.uint64, torch.int32, BLOCK=COPY_BLOCK, grid=(1,))

    def handle(self, request: Request) -> None:
        """Serves one request to its end: prefill, decode steps, blocks given back."""
        model, lengths = self.model, list(request.prompts)
        blocks = [self._allocate(row, 0, -(-length // self.block_size)) for row, length in enumerate(lengths)]
        new = self._tensor([block for row in blocks for block in row])
        self.zeroer.zero(new[1:] if request.cached else new)

        prompt = self._tensor([i * 7 % VOCAB for length in lengths for i in range(length)])
        hidden = self._step(prompt, [range(length) for length in lengths], request.image)
        if request.logprobs:
            model.prompt_logprobs(hidden, prompt, request.weighted)
        if request.embed:
            model.pooled(hidden)
        last = self._tensor(lengths).cumsum(0) - 1
        tokens = model.next_tokens(hidden[last], request.sample)

        if request.parallel > 1:
            self._fork(lengths, blocks, request.parallel)
            tokens = tokens.expand(request.parallel)
        for _ in range(request.decode):
            self._extend(lengths, blocks)
            spans = [range(length, length + 1) for length in lengths]
            hidden = self._step(tokens, spans, request.image)
            lengths = [length + 1 for length in lengths]
            tokens = model.next_tokens(hidden[: len(lengths)], request.sample)
        self.free = sorted({*self.free, *(block for row in blocks for block in row)})

    def _step(self, tokens: torch.Tensor, spans: list[range], image: bool) -> torch.Tensor:
        """One forward pass over the next tokens of each request; spans: their positions."""
        is_padding = None
        decode = all(len(span) == 1 for span in spans)
        if decode:
            padding = next(size for size in DECODE_SIZES if size >= len(spans)) - len(spans)
            spans = spans + [range(1)] * padding
            if padding:
                is_padding = torch.arange(len(spans), device=self.device) >= len(tokens)
                tokens = torch.nn.functional.pad(tokens, (0, padding))
        starts = [0]
        for span in spans:
            starts.append(starts[-1] + len(span))
        flat = self._tensor([position for span in spans for position in span])
        slots = self.table.map_slots(self._tensor(starts, torch.int32), flat, is_padding)
        if image:  # time, height and width in a picture four patches wide
            positions = torch.stack([flat, flat // 4, flat % 4])
        else:
            positions = flat.view(len(spans) if decode else 1, -1)
        return self.model.forward(tokens, positions, self.table, slots, spans, image)

    def _fork(self, lengths: list[int], blocks: list[list[int]], samples: int) -> None:
        """Samples share all blocks of their prompt but the last, of which each gets a copy."""
        sources, targets = [], []
        for row in range(1, samples):
            self.table.append(row, 0, blocks[0][:-1])
            copy = self._allocate(row, len(blocks[0]) - 1, 1)
            for segment in self.model.segments():
                sources.append(segment[blocks[0][-1]].data_ptr())
                targets.append(segment[copy[0]].data_ptr())
            lengths.append(lengths[0])
            blocks.append(blocks[0][:-1] + copy)
        page = self.model.segments()[0][0]
        batch_memcpy(
            self._tensor(sources, torch.uint64),
            self._tensor(targets, torch.uint64),
            self._tensor([page.numel() * page.element_size()] * len(sources), torch.int32),
            num_warps=8 if len(sources) >= WIDE_COPY else None,
        )

    def _extend(self, lengths: list[int], blocks: list[list[int]]) -> None:
        """Gives another block to each request whose last one is full."""
        new = []
        for row, length in enumerate(lengths):
            if length % self.block_size == 0:
                blocks[row] += self._allocate(row, len(blocks[row]), 1)
                new.append(blocks[row][-1])
        self.zeroer.zero(self._tensor(new))

    def _allocate(self, row: int, start: int, count: int) -> list[int]:
        new, self.free = self.free[:count], self.free[count:]
        self.table.append(row, start, new)
        return new

    def _tensor(self, values: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


def serve(options: argparse.Namespace, counter: counting.Counter) -> dict[str, Any]:
    """Boots and handles the traffic; returns what happened in each phase, and the keys at the end."""
    active: Any = driver.active
    device = torch.device(active.get_active_torch_device())
    server = Server(device, options.max_model_len, options.block_size)
    boot: dict[str, Any] = {"replay": _replay(options.manifest) if options.manifest else None}
    server.warm_up()
    jitreplay.ready()
    boot |= _told("boot", counter.take())

    requests = list(TRAFFIC[options.traffic])
    if options.seed:
        random.Random(options.seed).shuffle(requests)
    served = []
    for request in requests[: options.requests]:
        server.handle(request)
        served.append({"name": request.name} | _told(request.name, counter.take()))
    held = {f"{module}:{name}": keys for (module, name), keys in counting.keys().items()}
    compiled = sum(len(request["compiles"]) for request in served)
    print(f"{len(served)} requests: {compiled} compiles while a client waited", flush=True)
    return {"boot": boot, "requests": served, "keys": held}


def _replay(manifest: str) -> dict[str, Any] | None:
    try:
        report = jitreplay.replay(manifest, allow=("liger_kernel",))
    except Exception as error:  # no boot fails for want of a warm-up
        print(f"no replay: {error}", file=sys.stderr, flush=True)
        return None
    print(report.summary(), flush=True)
    return {"counts": dict(report.counts), "summary": report.summary()}


def _told(name: str, events: list[counting.Event]) -> dict[str, list[str]]:
    """Prints one line for a phase; returns the names of its kernels by kind of event."""
    told = {
        "compiles": counting.names(events, counting.COMPILE),
        "disk_hits": counting.names(events, counting.DISK_HIT),
        "loads": counting.names(events, counting.LOAD),
        "benches": counting.names(events, counting.BENCH),
    }
    line = "  ".join(f"{kind} {len(kernels)}" for kind, kernels in told.items() if kernels)
    often = collections.Counter(told["compiles"])
    kernels = ", ".join(f"{kernel} x{n}" if n > 1 else kernel for kernel, n in often.items())
    print(f"{name:<14} {line or 'nothing new'}{': ' * bool(kernels)}{kernels}", flush=True)
    return told


def _set_target(target: str) -> None:
    """Makes Triton compile for a target without its GPU, unless `jitreplay record --target` did."""
    from ..jit.headless import HeadlessDriver, install

    with contextlib.suppress(RuntimeError):  # Triton found no driver at all
        if os.environ.get("JITREPLAY_TARGET") and isinstance(driver.active, HeadlessDriver):
            return
    install(target)


def main(arguments: Sequence[str] | None = None) -> int:
    counter = counting.Counter().install()
    parser = argparse.ArgumentParser(
        prog="python -m jitreplay.examples.serving", description="A small server of requests."
    )
    args = parser.add_argument
    args("--target", help="compile for this target without its GPU, such as cuda:90 or hip:gfx942")
    args("--manifest", default=os.environ.get("JITREPLAY_MANIFEST"), help="replay this at boot")
    args("--json", metavar="OUT", help="write what happened here")
    args("--traffic", choices=TRAFFIC, default="mixed", help="which requests")
    args("--requests", type=int, metavar="N", help="only the first N; 0 boots and stops")
    args("--seed", type=int, default=0, help="another order of the requests; 0: as listed")
    args("--max-model-len", type=int, default=4096)
    args("--block-size", type=int, default=16)
    options = parser.parse_args(arguments)
    try:
        if options.target:
            _set_target(options.target)
        driver.active.get_current_target()
    except ValueError as error:
        parser.error(str(error))
    except RuntimeError as error:
        parser.error(f"Triton found no GPU ({error}); without one, give --target, such as cuda:90")
    with torch.inference_mode():
        result = serve(options, counter)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
