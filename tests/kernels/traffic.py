"""The traffic that the acceptance tests record: one launch a case, each a variant of its own."""

from collections.abc import Callable

import torch
import triton.language as tl

from .basic import Holder, annotated, applied, biased, copy, heuristic, kept, plain, twice, unused


def cases() -> dict[str, Callable[[], object]]:
    """Return the launches by name, in order."""
    x, y = torch.zeros(64), torch.zeros(64)
    half = torch.zeros(64, dtype=torch.bfloat16)
    return {
        "aligned": lambda: copy[(1,)](x, y, 32, BLOCK=16),
        "offset view": lambda: copy[(1,)](x[1:], y, 32, BLOCK=16),
        "other dtype": lambda: copy[(1,)](half, half, 32, BLOCK=16),
        "n = 1": lambda: copy[(1,)](x, y, 1, BLOCK=16),
        "n = 5": lambda: copy[(1,)](x, y, 5, BLOCK=16),
        "n = 2**31": lambda: copy[(1,)](x, y, 2**31, BLOCK=16),
        "n = 2**31 + 1": lambda: copy[(1,)](x, y, 2**31 + 1, BLOCK=16),
        "n = 2**63": lambda: copy[(1,)](x, y, 2**63, BLOCK=16),
        "other constexpr": lambda: copy[(1,)](x, y, 32, BLOCK=32),
        "num_warps given": lambda: copy[(1,)](x, y, 32, BLOCK=16, num_warps=4),
        "two options": lambda: copy[(1,)](x, y, 32, BLOCK=16, num_warps=4, num_ctas=1),
        "other order": lambda: copy[(1,)](x, y, 32, BLOCK=16, num_ctas=1, num_warps=4),
        "pointer": lambda: biased[(1,)](x, y, BLOCK=16),
        "pointer is None": lambda: biased[(1,)](x, None, BLOCK=16),
        "not specialised": lambda: plain[(1,)](x, 7),
        "not specialised, wide": lambda: plain[(1,)](x, 2**40),
        "annotated, 1": lambda: annotated[(1,)](x, 1),
        "annotated, 2": lambda: annotated[(1,)](x, 2),
        "unused, 1": lambda: unused[(1,)](x, 1),
        "unused, 7": lambda: unused[(1,)](x, 7),
        "function": lambda: applied[(1,)](x, twice),
        "heuristic": lambda: heuristic[(1,)](x, 16),
        "in a class": lambda: Holder.held[(1,)](x, 16),
        "float": lambda: kept[(1,)](x, 0.5),
        "dtype": lambda: kept[(1,)](x, tl.float16),
        "string": lambda: kept[(1,)](x, "fp32"),
        "None": lambda: kept[(1,)](x, None),
        "tuple": lambda: kept[(1,)](x, (1, 2.0, "a")),
    }


# What Triton finds on disk at once, since a case before it made the same binary under another key.
SHARED = {"num_warps given", "two options", "other order"}
