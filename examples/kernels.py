"""Four Triton kernels in the manner of a serving engine's runner, each with its launcher.

What makes their keys is decided by traffic and by the deployment, as in a real engine: how many
blocks are new, how wide the block table is, how many tokens a step has, whether a slice starts at
a multiple of 16 bytes, whether an optional pointer is there.
"""

# A launch passes an int where a kernel says constexpr; Triton's types do not know that.
# pyright: reportArgumentType=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

NULL_BLOCK = 0  # never handed out; padding is written there
PAD_SLOT = -1
TABLE_ALIGNMENT = 128  # a table's row covers a multiple of so many tokens

ZERO_BLOCK = 256
SLOT_BLOCK = 128
COPY_BLOCK = 1024


@triton.jit
def zero_kv_blocks_kernel(segment_ptrs, block_ids_ptr, n_blocks, page_size, BLOCK: tl.constexpr):
    # One program zeroes BLOCK words of one block of one segment.
    pid = tl.program_id(0)
    chunks = tl.cdiv(page_size, BLOCK)
    chunk = pid % chunks
    block = pid // chunks % n_blocks
    segment = pid // (chunks * n_blocks)
    base = tl.load(segment_ptrs + segment).to(tl.pointer_type(tl.int32))
    block_id = tl.load(block_ids_ptr + block)
    words = chunk * BLOCK + tl.arange(0, BLOCK)
    zeros = tl.zeros([BLOCK], dtype=tl.int32)
    tl.store(base + block_id * page_size + words, zeros, mask=words < page_size)


class KVBlockZeroer:
    """Zeroes newly allocated blocks in every segment of the KV cache.

    segments: contiguous tensors of shape [num_blocks, ...] and one size, a whole number of 4-byte
    words a block. They must outlive the zeroer, which keeps their addresses.
    """

    def __init__(self, segments: Sequence[torch.Tensor]) -> None:
        self.page_size = segments[0][0].numel() * segments[0].element_size() // 4
        self.n_segments = len(segments)
        addresses = [segment.data_ptr() for segment in segments]
        self.segment_ptrs = torch.tensor(addresses, dtype=torch.uint64, device=segments[0].device)

    def zero(self, block_ids: torch.Tensor) -> None:
        """Zeroes the blocks of these ids, int64 [n_blocks] on the segments' device."""
        n_blocks = block_ids.numel()
        if n_blocks == 0:
            return
        grid = (self.n_segments * n_blocks * triton.cdiv(self.page_size, ZERO_BLOCK),)
        zero_kv_blocks_kernel[grid](self.segment_ptrs, block_ids, n_blocks, self.page_size, BLOCK=ZERO_BLOCK)


@triton.jit(do_not_specialize=["n_tokens", "max_num_tokens"])
def slot_mapping_kernel(
    n_tokens,
    max_num_tokens,
    query_start_ptr,
    positions_ptr,
    table_ptr,
    table_stride,
    slot_mapping_ptr,
    is_padding_ptr,
    BLOCK_SIZE: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # One program per request; the last one pads the rest of the buffer.
    request = tl.program_id(0)
    if request == tl.num_programs(0) - 1:
        for start in range(n_tokens, max_num_tokens, BLOCK):
            rest = start + tl.arange(0, BLOCK)
            tl.store(slot_mapping_ptr + rest, PAD, mask=rest < max_num_tokens)
        return
    first = tl.load(query_start_ptr + request)
    end = tl.load(query_start_ptr + request + 1)
    for start in range(first, end, BLOCK):
        token = start + tl.arange(0, BLOCK)
        mask = token < end
        position = tl.load(positions_ptr + token, mask=mask, other=0)
        entry = table_ptr + request * table_stride + position // BLOCK_SIZE
        block = tl.load(entry, mask=mask, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        if is_padding_ptr is not None:
            padding = tl.load(is_padding_ptr + token, mask=mask, other=0)
            slot = tl.where(padding != 0, PAD, slot)
        tl.store(slot_mapping_ptr + token, slot, mask=mask)


class BlockTable:
    """The KV blocks of each running request, and the slot of each token of the current step.

    table: int32 [max_num_reqs, width], the width padded as real engines pad it, so that its stride
    depends on max_model_len and block_size. slot_mapping: int64 [max_num_tokens].
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_model_len: int,
        block_size: int,
        max_num_tokens: int,
        device: torch.device,
    ) -> None:
        if TABLE_ALIGNMENT % block_size:
            raise ValueError(f"block_size must divide {TABLE_ALIGNMENT}, got {block_size}")
        width = -(-max_model_len // TABLE_ALIGNMENT) * TABLE_ALIGNMENT // block_size
        self.block_size = block_size
        self.table = torch.zeros(max_num_reqs, width, dtype=torch.int32, device=device)
        self.slot_mapping = torch.zeros(max_num_tokens, dtype=torch.int64, device=device)

    def append(self, row: int, start: int, block_ids: Sequence[int]) -> None:
        """Writes block ids into a request's row, from its entry `start` on."""
        ids = torch.tensor(block_ids, dtype=torch.int32, device=self.table.device)
        self.table[row, start : start + len(block_ids)] = ids

    def map_slots(
        self,
        query_start: torch.Tensor,
        positions: torch.Tensor,
        is_padding: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Computes the slots of a step's tokens and returns them, int64 [n_tokens].

        query_start: int32 [n_requests + 1], first token of each request. positions: int64
        [n_tokens]. is_padding: bool [n_tokens], or None where a step has no padding.
        """
        n_tokens = positions.numel()
        slot_mapping_kernel[(query_start.numel(),)](
            n_tokens,
            self.slot_mapping.numel(),
            query_start,
            positions,
            self.table,
            self.table.stride(0),
            self.slot_mapping,
            is_padding,
            BLOCK_SIZE=self.block_size,
            PAD=PAD_SLOT,
            BLOCK=SLOT_BLOCK,
        )
        return self.slot_mapping[:n_tokens]


@triton.jit
def mrope_kernel(
    q_ptr,
    k_ptr,
    cos_ptr,
    sin_ptr,
    n_tokens,
    N_Q: tl.constexpr,
    N_K: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SECTION_T: tl.constexpr,
    SECTION_H: tl.constexpr,
    PAD_Q: tl.constexpr,
    PAD_K: tl.constexpr,
    PAD_HALF: tl.constexpr,
):
    # One program rotates all heads of one token, in place. The first SECTION_T of the angles follow
    # the token's time, the next SECTION_H its height, the rest its width.
    token = tl.program_id(0)
    half: tl.constexpr = HEAD_DIM // 2
    angle = tl.arange(0, PAD_HALF)
    axis = tl.where(angle < SECTION_T, 0, tl.where(angle < SECTION_T + SECTION_H, 1, 2))
    angle_at = (axis * n_tokens + token) * half + angle
    cos = tl.load(cos_ptr + angle_at, mask=angle < half, other=0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + angle_at, mask=angle < half, other=0).to(tl.float32)[None, :]

    q_head = tl.arange(0, PAD_Q)[:, None]
    q_left = q_ptr + (token * N_Q + q_head) * HEAD_DIM + angle[None, :]
    q_mask = (q_head < N_Q) & (angle[None, :] < half)
    q1 = tl.load(q_left, mask=q_mask, other=0).to(tl.float32)
    q2 = tl.load(q_left + half, mask=q_mask, other=0).to(tl.float32)
    tl.store(q_left, q1 * cos - q2 * sin, mask=q_mask)
    tl.store(q_left + half, q2 * cos + q1 * sin, mask=q_mask)

    k_head = tl.arange(0, PAD_K)[:, None]
    k_left = k_ptr + (token * N_K + k_head) * HEAD_DIM + angle[None, :]
    k_mask = (k_head < N_K) & (angle[None, :] < half)
    k1 = tl.load(k_left, mask=k_mask, other=0).to(tl.float32)
    k2 = tl.load(k_left + half, mask=k_mask, other=0).to(tl.float32)
    tl.store(k_left, k1 * cos - k2 * sin, mask=k_mask)
    tl.store(k_left + half, k2 * cos + k1 * sin, mask=k_mask)


def mrope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    sections: tuple[int, int],
) -> None:
    """Rotates q [n, heads, head_dim] and k [n, kv_heads, head_dim] in place, all contiguous.

    cos, sin: [3, n, head_dim / 2], the angles of each token's time, height and width. sections: how
    many angles follow the time and the height; the rest follow the width.
    """
    n_tokens, n_q, head_dim = q.shape
    n_k = k.shape[1]
    mrope_kernel[(n_tokens,)](
        q,
        k,
        cos,
        sin,
        n_tokens,
        N_Q=n_q,
        N_K=n_k,
        HEAD_DIM=head_dim,
        SECTION_T=sections[0],
        SECTION_H=sections[1],
        PAD_Q=triton.next_power_of_2(n_q),
        PAD_K=triton.next_power_of_2(n_k),
        PAD_HALF=triton.next_power_of_2(head_dim // 2),
    )


@triton.jit
def batch_memcpy_kernel(src_ptrs, dst_ptrs, sizes_ptr, BLOCK: tl.constexpr):
    # One program does one copy.
    copy = tl.program_id(0)
    src = tl.load(src_ptrs + copy).to(tl.pointer_type(tl.uint8))
    dst = tl.load(dst_ptrs + copy).to(tl.pointer_type(tl.uint8))
    size = tl.load(sizes_ptr + copy)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < size
        tl.store(dst + at, tl.load(src + at, mask=mask), mask=mask)


def batch_memcpy(
    src_ptrs: torch.Tensor,
    dst_ptrs: torch.Tensor,
    sizes: torch.Tensor,
    num_warps: int | None = None,
) -> None:
    """Copies sizes[i] bytes (int32) from address src_ptrs[i] to dst_ptrs[i] (uint64), for each i.

    num_warps is passed on only when given: an option that equals the default is another key.
    """
    options = {} if num_warps is None else {"num_warps": num_warps}
    batch_memcpy_kernel[(sizes.numel(),)](src_ptrs, dst_ptrs, sizes, BLOCK=COPY_BLOCK, **options)
