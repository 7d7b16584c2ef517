"""FlagGems' operators on CPU tensors: kernels generated into modules that are in no `sys.modules`, entries and tuners
of its own."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from .calls import forward, on_gpu

PACKAGE = "flag_gems"
DISTRIBUTION = "flag-gems"
ALLOW = ("flag_gems",)
TARGET = "cuda:90/H200"

ONE = (
    *("abs", "acos", "angle", "atan", "ceil", "cos", "cosh", "erf", "exp", "exp2", "expm1", "isfinite", "isinf"),
    *("isnan", "log", "log10", "logical_not", "neg", "reciprocal", "relu", "relu6", "round", "rsqrt", "sigmoid"),
    *("signbit", "silu", "sin", "sqrt", "square", "tan", "tanh", "gelu", "softplus", "elu", "celu", "nan_to_num"),
    *("sum", "mean", "max", "min", "amax", "prod", "argmax", "argmin", "any", "all", "std", "var_mean", "contiguous"),
    *("log_sigmoid", "hardsigmoid", "selu", "softshrink", "ones_like", "zeros_like", "triu", "tril", "isneginf"),
)
TWO = (
    *("add", "sub", "mul", "true_divide", "floor_divide", "remainder", "atan2", "fmin", "hypot"),
    *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logaddexp"),
    *("isclose", "pow_tensor_tensor", "mse_loss"),
)

NOT_LAUNCHED = {
    "`copysign_func_kernel_rank_1`": "its module's name is a hash that holds an address, another in each process, so "
    "that no replay can know it: each boot's first launch compiles it",
}


def operators() -> dict[str, Callable[[], object]]:
    """Return the operators by name."""
    os.environ.setdefault("GEMS_VENDOR", "nvidia")
    # What it generates and tunes lies in files of its own, which another process must not find.
    os.environ["FLAGGEMS_CACHE_DIR"] = folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    import flag_gems
    from flag_gems import fused, ops

    found: dict[str, Callable[[], object]] = {}

    def put(name: str, call: Callable[..., Any], *args: Any, **options: Any) -> None:
        found[name] = forward(call, *args, **options)

    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(33, 128, dtype=dtype)
        y, row, wide = x + 1, x[0], torch.ones(4, 33, 128, dtype=dtype)
        name = str(dtype).removeprefix("torch.")
        for one in ONE:
            put(f"{one} {name}", getattr(ops, one), x)
        for two in TWO:
            put(f"{two} {name}", getattr(ops, two), x, y)
        for two in ("maximum", "minimum"):
            found[f"{two} {name}"] = on_gpu(forward(getattr(ops, two), x, y))
        square = torch.ones(128, 128, dtype=dtype)
        more: dict[str, tuple[Any, ...]] = {
            "add, broadcast": (ops.add, wide, x),
            "add, transposed": (ops.add, square.T, square),
            "add, a number": (ops.add, x, 2.5),
            "sum_dim": (ops.sum_dim, x, [1]),
            "mean_dim": (ops.mean_dim, x, [0]),
            "softmax": (ops.softmax, x, -1),
            "log_softmax": (ops.log_softmax, x, -1),
            "cumsum": (ops.cumsum, x, 1),
            "topk": (ops.topk, x, 5),
            "sort": (ops.sort, x),
            "layer_norm": (ops.layer_norm, x, (128,), row, row),
            "rms_norm": (ops.rms_norm, x, (128,), row),
            "group_norm": (
                ops.group_norm,
                wide.reshape(4, 33 * 4, 32),
                row.new_ones(132),
                row.new_ones(132),
                4,
                132,
                32,
                4,
            ),
            "mm": (ops.mm, x, square),
            "bmm": (ops.bmm, wide, wide.transpose(1, 2).contiguous()),
            "addmm": (ops.addmm, row, x, square),
            "mv": (ops.mv, square, row),
            "dot": (ops.dot, row, row),
            "cat": (ops.cat, [x, y], 0),
            "masked_fill": (ops.masked_fill, x, x > 0, 0.0),
            "index_select": (ops.index_select, x, 0, torch.arange(5)),
            "gather": (ops.gather, x, 1, torch.zeros(33, 4, dtype=torch.int64)),
            "embedding": (ops.embedding, square, torch.arange(9)),
            "flip": (ops.flip, x, [0]),
            "repeat": (ops.repeat, x, (2, 1)),
            "silu_and_mul": (fused.silu_and_mul, x, y),
            "gelu_and_mul": (fused.gelu_and_mul, x, y),
            "fused_add_rms_norm": (fused.fused_add_rms_norm, x, y, (128,), row),
        }
        for label, (call, *args) in more.items():
            put(f"{label} {name}", call, *args)
    put("arange", ops.arange, 100, device="cpu")
    put("eye", ops.eye, 20, device="cpu")
    assert flag_gems.vendor_name == "nvidia"
    return found
