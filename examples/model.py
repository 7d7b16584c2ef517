"""A toy language model over a paged KV cache, computed by Liger-Kernel's operators and M-RoPE.

Two layers of hidden size 256. On a headless target nothing is computed and its outputs mean
nothing, so no shape and no branch here depends on a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from .kernels import NULL_BLOCK, BlockTable, mrope

HIDDEN, INNER, VOCAB, LAYERS = 256, 512, 1024, 2
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
MROPE_SECTIONS = (8, 12)  # angles that follow time and height; the other 12 follow width
EPS = 1e-6


class Liger:
    """The operators of Liger-Kernel that the model uses.

    Imported when it is made: Liger looks at the device on import, so a target must be set before.
    """

    def __init__(self) -> None:
        from liger_kernel import ops

        self.rms_norm: Callable[..., Any] = ops.LigerRMSNormFunction.apply
        self.add_rms_norm: Callable[..., Any] = ops.LigerFusedAddRMSNormFunction.apply
        self.layer_norm: Callable[..., Any] = ops.LigerLayerNormFunction.apply
        self.rope: Callable[..., Any] = ops.LigerRopeFunction.apply
        self.swiglu: Callable[..., Any] = ops.LigerSiLUMulFunction.apply
        self.geglu: Callable[..., Any] = ops.LigerGELUMulFunction.apply
        self.softmax: Callable[..., Any] = ops.LigerSoftmaxFunction.apply
        self.cross_entropy: Callable[..., Any] = ops.LigerCrossEntropyFunction.apply


class Model:
    """Weights, all bfloat16 and made without chance, and the KV cache of each layer.

    kv: per layer, [2, num_blocks, block_size, kv_heads, head_dim]: the keys' half and the values'.
    """

    def __init__(self, device: torch.device, max_model_len: int, num_blocks: int, block_size: int) -> None:
        self.liger = Liger()
        shape = (2, num_blocks, block_size, KV_HEADS, HEAD_DIM)
        self.kv = [torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(LAYERS)]
        self.embedding = _weight(VOCAB, HIDDEN, device)
        self.norm = torch.ones(HIDDEN, dtype=torch.bfloat16, device=device)
        self.bias = torch.zeros(HIDDEN, dtype=torch.bfloat16, device=device)
        self.qkv = _weight(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM, device)
        self.out = _weight(HEADS * HEAD_DIM, HIDDEN, device)
        self.gate, self.up = _weight(HIDDEN, INNER, device), _weight(HIDDEN, INNER, device)
        self.down = _weight(INNER, HIDDEN, device)
        self.token_weights = torch.linspace(0.5, 1.5, VOCAB, device=device)
        steps = torch.arange(0, HEAD_DIM, 2, device=device) / HEAD_DIM
        angles = torch.arange(max_model_len, device=device)[:, None] / 10000.0**steps
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def segments(self) -> list[torch.Tensor]:
        """The halves of every layer's cache, each [num_blocks, ...]."""
        return [half for layer in self.kv for half in layer]

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        table: BlockTable | None = None,
        slots: torch.Tensor | None = None,
        spans: list[range] | None = None,
        image: bool = False,
    ) -> torch.Tensor:
        """Returns the last hidden states, [n, HIDDEN], of int64 tokens [n].

        positions: int64 [rows, n / rows], or [3, n] for an image. slots: where each token's key and
        value go. spans: the positions of each request's tokens. A dummy run has none of the last.
        """
        liger, residual, x = self.liger, None, self.embedding[tokens]
        if image:
            x = liger.layer_norm(x, self.norm, self.bias, EPS)
            x = liger.geglu(x @ self.gate, x @ self.up) @ self.down
        for kv in self.kv:
            if residual is None:
                residual, x = x, liger.rms_norm(x, self.norm, EPS)
            else:
                x, residual = liger.add_rms_norm(x, residual, self.norm, EPS)
            qkv = (x @ self.qkv).unflatten(-1, (-1, HEAD_DIM))
            q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
            q, k = self._rotate(q, k, positions, image)
            if table is not None and slots is not None and spans is not None:
                q = _attend(kv, q, k, v, table, slots, spans)
            x, residual = liger.add_rms_norm(q.flatten(1) @ self.out, residual, self.norm, EPS)
            x = liger.swiglu(x @ self.gate, x @ self.up) @ self.down
        return liger.add_rms_norm(x, residual, self.norm, EPS)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.embedding.T

    def next_tokens(self, hidden: torch.Tensor, sample: bool) -> torch.Tensor:
        """The likeliest token of each row, of the softmax at a temperature if `sample`."""
        logits = self.logits(hidden)
        if sample:
            logits = self.liger.softmax(logits.float() / 0.8)
        return logits.argmax(-1)

    def prompt_logprobs(self, hidden: torch.Tensor, prompt: torch.Tensor, weighted: bool) -> torch.Tensor:
        """The negative log-probability of each token of a prompt after its first, float32 [n - 1]."""
        weights = self.token_weights if weighted else None
        logits = self.logits(hidden[:-1]).float()
        return self.liger.cross_entropy(logits, prompt[1:], weights, -100, 0.0, 0.0, "none")[0]

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        """The embedding of a prompt, float32 [1, HIDDEN]: its mean, normalised without a weight."""
        return self.liger.rms_norm(hidden.float().mean(0, keepdim=True), None, EPS)

    def _rotate(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, image: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self.cos[positions], self.sin[positions]
        if image:
            q, k = q.contiguous(), k.contiguous()
            mrope(q, k, cos, sin, MROPE_SECTIONS)
            return q, k
        q, k = (each.unflatten(0, positions.shape).transpose(1, 2) for each in (q, k))
        q, k = self.liger.rope(q, k, torch.cat([cos, cos], -1), torch.cat([sin, sin], -1))
        return q.transpose(1, 2).flatten(0, 1), k.transpose(1, 2).flatten(0, 1)


def _weight(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    wave = torch.arange(rows * columns, device=device).sin() / rows**0.5
    return wave.view(rows, columns).bfloat16()


def _attend(
    kv: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: BlockTable,
    slots: torch.Tensor,
    spans: list[range],
) -> torch.Tensor:
    """Writes k and v to their slots, then attends to the blocks of each request."""
    for half, new in zip(kv, (k, v), strict=True):
        half.flatten(0, 1)[slots.clamp_min(NULL_BLOCK)] = new
    outputs = []
    for row, queries in enumerate(q.split([len(span) for span in spans])):
        length = spans[row].stop
        used = table.table[row, : -(-length // table.block_size)].long()
        keys, values = (half[used].flatten(0, 1)[:length].transpose(0, 1) for half in kv)
        output = scaled_dot_product_attention(
            queries.transpose(0, 1), keys, values, is_causal=len(queries) > 1, enable_gqa=True
        )
        outputs.append(output.transpose(0, 1))
    return torch.cat(outputs)
