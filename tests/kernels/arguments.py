"""One launch for each kind of argument that Triton takes, by group and name.

`launches(backend)` are what must be replayed key by key, `hopeless()` what is recorded and can never be replayed, and
`refusals()` what Triton itself raises for.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from . import odd, odd_signatures
from .odd import Address, Held, Level, Mode, Pair, Point, Rank, Shade

Launch = Callable[[], object]

INTEGERS = (
    *(0, 1, 2, 8, 15, 16, 17, 32, -1, -15, -16),
    *(2**31 - 1, 2**31 - 16, 2**31, 2**31 + 1, -(2**31), -(2**31) - 1, -(2**31) - 16),
    *(2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63 - 16, 2**63, 2**63 + 1, -(2**63), 2**64 - 1, 2**64 - 16),
)
CONSTANTS: dict[str, Any] = {
    **{f"integer {n}": n for n in (2, 5, 16, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 2**70, 10**30, -(10**30))},
    "float": 0.1,
    "-0.0": -0.0,
    "tiny": 5e-324,
    "infinity": math.inf,
    "-infinity": -math.inf,
    "NaN": math.nan,
    "True": True,
    "None": None,
    "text": "relu",
    "text like a dtype": "fp16",
    "empty text": "",
    "quotes": 'it\'s "so"\n',
    "beyond ASCII": "größe ✓",
    "lone surrogate": "\udc80",
    "bytes": b"\x00x'",
    "tl dtype": tl.float16,
    "tl fp8": tl.float8e4nv,
    "torch dtype": torch.bfloat16,
    "constexpr": tl.constexpr(7),
    "constexpr of a dtype": tl.constexpr(tl.int8),
    "jit function": odd.callee,
    "another": odd.other_callee,
    "Triton's own": tl.sum,
    "constexpr function": odd.doubled,
    "tuple": (3, 2.5, "a", None, tl.int32),
    "empty tuple": (),
    "nested": ((1, (2, (3.5,))), ("x", torch.int8)),
    "tuple of functions": (odd.callee, odd.doubled),
    "named tuple": Pair(4, "b"),
    "named tuple of named tuples": Pair(Point(1, 2.5), odd.callee),
    "torch.Size": torch.Size((2, 3)),
    "enum": Shade.DARK,
    "enum by text": Shade.LIGHT,
    "IntEnum": Level.ONE,
    "flag": Mode.READ,
    "flags": Mode.READ | Mode.WRITE,
    "enum in a class": Held.Inner.A,
    "numpy.int64": numpy.int64(3),
    "numpy.int8": numpy.int8(5),
    "numpy.float64": numpy.float64(0.25),
    "numpy.float32": numpy.float32(0.1),
    "numpy.bool": numpy.bool_(False),
    "numpy NaN": numpy.float32("nan"),
    "integer's subclass": Rank(11),
}

EQUALS = {"-0.0", "IntEnum", "numpy.int8"}
"""Constants that Python takes for another one above (0, True, ...): of one kernel, the first would stand for both."""


def launches(backend: str) -> dict[str, Launch]:
    """Return the launches by name, `backend` being "cuda" or "hip"."""
    found: dict[str, Launch] = {}
    for group in (_integers, _scalars, _pointers, _objects, _tuples, _constants, _descriptors, _layouts, _signatures):
        for name, launch in group():
            found[f"{group.__name__[1:]}: {name}"] = launch
    for name, launch in _options(backend):
        found[f"options: {name}"] = launch
    return found


def _call(kernel: Any, *args: Any, **kwargs: Any) -> Launch:
    return lambda: kernel[(1,)](*args, **kwargs)


def _integers() -> Iterator[tuple[str, Launch]]:
    for n in INTEGERS:
        for kernel in (odd.takes, odd.not_specialized, odd.not_aligned, odd.wide):
            yield f"{kernel.__name__} {n}", _call(kernel, n)
    for n in (0, 1, 16, 7):
        yield f"unsigned {n}", _call(odd.unsigned, n)
        yield f"by text {n}", _call(odd.by_text, n, torch.zeros(4))
    for n in (1, 16, 3):
        yield f"listed constant {n}", _call(odd.listed_constant, n)
    for level in Level:
        yield f"IntEnum {level.name}", _call(odd.takes_more, level, 1, 16)
    yield "subclass", _call(odd.takes_more, Rank(32), Rank(1), Rank(2**40))


def _scalars() -> Iterator[tuple[str, Launch]]:
    values = (0.0, 1.0, 16.0, -0.0, 0.1, math.inf, -math.inf, math.nan, True, False, None, "text", "")
    for value in values:
        for kernel in (odd.takes, odd.not_specialized):
            yield f"{kernel.__name__} {value!r}", _call(kernel, value)
    for value in (0.5, 1.0, 1):
        yield f"annotated float {value!r}", _call(odd.single, value)
    for value in (True, False, 1):
        yield f"annotated bool {value!r}", _call(odd.truth, value)
    yield "dtype", _call(odd.takes, tl.float16)
    yield "torch dtype", _call(odd.takes, torch.float16)
    yield "function", _call(odd.takes, odd.callee)
    yield "constexpr function", _call(odd.takes, odd.doubled)
    yield "constexpr", _call(odd.takes, tl.constexpr(9))
    yield "constexpr text", _call(odd.takes, tl.constexpr("mode"))


def dtypes() -> list[Any]:
    """Return all dtypes of this torch that a tensor can be made of."""
    found = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    return sorted(found, key=str)


def _pointers() -> Iterator[tuple[str, Launch]]:
    for dtype in dtypes():
        try:
            base = torch.empty(64, dtype=dtype)
        except (RuntimeError, NotImplementedError, TypeError):
            continue
        name = str(dtype).removeprefix("torch.")
        yield name, _call(odd.takes, base)
        if "qint" in name or "quint" in name:
            continue  # torch cannot slice a quantized tensor of no scheme
        yield f"{name}, one on", _call(odd.takes, base[1:])
        yield f"{name}, 16 on", _call(odd.takes, base[16:])
    x = torch.zeros(64)
    for kernel in (odd.not_specialized, odd.not_aligned, odd.read_only):
        yield f"{kernel.__name__}", _call(kernel, x)
        yield f"{kernel.__name__}, one on", _call(kernel, x[1:])
    yield "strided", _call(odd.takes_more, x.view(8, 8).t(), x.view(8, 8)[:, ::2], x[:1].expand(64))
    yield "0-d", _call(odd.takes, torch.tensor(3, dtype=torch.int16))
    yield "0-d of a view", _call(odd.takes, torch.zeros(8, dtype=torch.int16)[3])
    yield "empty", _call(odd.takes, torch.empty(0, dtype=torch.int8))
    yield "empty rows", _call(odd.takes, torch.empty((0, 7), dtype=torch.uint8)[:, 1:])
    yield "parameter", _call(odd.takes, torch.nn.Parameter(torch.zeros(4, dtype=torch.float64)))
    odd_address = torch.frombuffer(bytearray(80), dtype=torch.uint8)
    for at in range(1, 4):
        yield f"at {at} bytes", _call(odd.takes, _at(odd_address, at, torch.float32))
    yield "complex128 at 8 bytes", _call(odd.takes, _at(odd_address, 8, torch.complex128))
    for size in (2**31 - 1, 2**31, 6 << 30):
        large = torch.empty(size, dtype=torch.uint8, device="meta")
        yield f"{size} bytes", _call(odd.takes, large)
        yield f"{size} bytes, a slice", _call(odd.takes, large[7:9])
    yield "a large row", _call(odd.takes, torch.empty((3, 1 << 30), device="meta")[1])
    yield "pointers", _call(odd.takes, torch.tensor([2**62], dtype=torch.uint64))


def _at(base: torch.Tensor, address: int, dtype: torch.dtype) -> Any:
    """Return a tensor of `dtype` whose address has this rest by 16, which no allocator gives."""
    skip = (address - base.data_ptr()) % 16
    raw = memoryview(base.numpy())[skip : skip + 32]
    return torch.frombuffer(raw, dtype=dtype)


def _objects() -> Iterator[tuple[str, Launch]]:
    for address in (0, 8, 16, 17, 2**63 + 16):
        yield f"address {address}", _call(odd.takes, Address(address, torch.float16))
    yield "tl dtype", _call(odd.takes, Address(32, tl.int8))
    yield "dtype by text", _call(odd.takes, Address(32, "fp64"))
    yield "with a range", _call(odd.takes, odd.Ranged(32, torch.int8, 4096))
    yield "with a large range", _call(odd.takes, odd.Ranged(32, torch.int8, 2**33))
    base = torch.zeros(64, dtype=torch.int8)
    yield "reinterpret", _call(odd.takes, triton.reinterpret(base, tl.float8e5))
    yield "reinterpret, one on", _call(odd.takes, triton.reinterpret(base[1:], tl.float8e4nv))
    yield "reinterpret to torch's", _call(odd.takes, triton.reinterpret(base, torch.float8_e4m3fn))
    yield "reinterpret twice", _call(odd.takes, triton.reinterpret(triton.reinterpret(base, tl.int8), tl.uint8))
    yield "warm-up", lambda: odd.takes.warmup(torch.float32, grid=(1,))
    yield "warm-up of many", lambda: odd.takes_more.warmup(torch.int8, 1, torch.float16, grid=(1,))


def _tuples() -> Iterator[tuple[str, Launch]]:
    x = torch.zeros(64)
    yield "integers", _call(odd.takes, (1, 16, 5, 2**40))
    yield "tensors", _call(odd.takes, (x, x[1:], None))
    yield "empty", _call(odd.takes, ())
    yield "nested", _call(odd.takes, (x, (1, (x[1:], 2.5)), (True, None)))
    yield "functions", _call(odd.takes, (odd.callee, odd.doubled, 3))
    yield "constexprs", _call(odd.takes, (tl.constexpr(4), tl.constexpr(tl.int8), 4))
    yield "named", _call(odd.takes, Pair(x, 16))
    yield "named, nested", _call(odd.takes, Pair(Pair(x, 1), Point(2.5, None)))
    yield "torch.Size", _call(odd.takes, torch.Size((4, 16, 1)))
    yield "strides", _call(odd.takes, x.view(8, 8).stride())
    yield "not specialized", _call(odd.not_specialized, (1, 16, x))
    yield "not aligned", _call(odd.not_aligned, (1, 16, x[1:]))


def _constants() -> Iterator[tuple[str, Launch]]:
    for name, value in CONSTANTS.items():
        yield name, _call(odd.constant_too if name in EQUALS else odd.constant, value)


def _descriptors() -> Iterator[tuple[str, Launch]]:
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int8):
        base = torch.zeros((64, 64), dtype=dtype)
        for block in ([16, 32], [64, 64]):
            descriptor = TensorDescriptor.from_tensor(base, block)
            yield f"{dtype} {block}", _call(odd.takes, descriptor)
    base = torch.zeros((64, 64), dtype=torch.float16)
    yield "padding", _call(odd.takes, TensorDescriptor.from_tensor(base, [16, 16], padding="nan"))
    yield "1-d", _call(odd.takes, TensorDescriptor.from_tensor(base.view(-1), [64]))
    yield "3-d", _call(odd.takes, TensorDescriptor.from_tensor(base.view(8, 8, 64), [1, 8, 64]))
    yield "a part", _call(odd.takes, TensorDescriptor(base[8:], [8, 48], [64, 1], [8, 16]))
    yield "in a tuple", _call(odd.takes, (TensorDescriptor.from_tensor(base, [32, 32]), 1))
    if "round_f32_to_tf32" in TensorDescriptor.__dataclass_fields__:
        rounded = TensorDescriptor.from_tensor(torch.zeros((8, 64)), [8, 64], round_f32_to_tf32=True)
        yield "rounded", _call(odd.takes, rounded)


def _layouts() -> Iterator[tuple[str, Launch]]:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    blocked = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    swizzled = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    shared = gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16, rank=2)
    layouts = {
        "auto": gl.AutoLayout(),
        "blocked": blocked,
        "slice": gl.SliceLayout(1, blocked),
        "swizzled": swizzled,
        "hopper shared": shared,
        "linear": gl.DistributedLinearLayout([[0, 1]], [[1, 0]], [], [], [2, 2]),
        "hopper": gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16]),
        "operand": gl.DotOperandLayout(0, gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]), 2),
        "padded": gl.PaddedSharedLayout.with_identity_for([[32, 4]], [32, 32], [1, 0]),
    }
    for name, layout in layouts.items():
        yield name, _call(odd.constant, layout)
    yield "in a tuple", _call(odd.constant, (blocked, 3))
    base = torch.zeros((64, 64), dtype=torch.float16)
    yield "descriptor", _call(odd.takes, GluonDescriptor.from_tensor(base, [32, 32], shared))


def _signatures() -> Iterator[tuple[str, Launch]]:
    x = torch.zeros(64)
    yield "defaults", _call(odd.with_defaults, x)
    yield "defaults given", _call(odd.with_defaults, x, 3, 0.5, None, C=8, D="relu")
    yield "some given", _call(odd.with_defaults, x, 16, C=16)
    yield "by keyword", _call(odd.with_defaults, a=x, x=1.5, n=1, D="gelu")
    yield "by keyword, in another order", _call(odd.with_defaults, D="silu", n=2**33, a=x)
    yield "static method", _call(Held.static, x)
    yield "18 arguments", _call(odd.takes_many, x, 1, 2, 3, x[1:], 5, 16, None, C=3, D=(1, 2))
    if odd_signatures.variadic is not None:
        for rest in ((), (1,), (x, 16, 2.5), ((1, x), None, True)):
            yield f"variadic {len(rest)}", _call(odd_signatures.variadic, x, *rest)
    if odd_signatures.keyword_only is not None:
        yield "keyword only", _call(odd_signatures.keyword_only, x, n=16)
        yield "keyword only, all", _call(odd_signatures.keyword_only, x, C=2, n=1)
        yield "variadic and keyword only", _call(odd_signatures.both, x, 1, x[1:], C=2, n=7)


COMMON_OPTIONS: tuple[dict[str, Any], ...] = (
    {"num_warps": 4},
    {"num_warps": 8, "num_stages": 2},
    {"num_stages": 2, "num_warps": 8},
    {"num_ctas": 1},
    {"enable_fp_fusion": False},
    {"launch_cooperative_grid": True},
    {"sanitize_overflow": False},
    {"default_dot_input_precision": "ieee"},
    {"allowed_dot_input_precisions": ("ieee",)},
    {"debug": True},
    {"debug": False},
    {"debug": True, "num_warps": 2},
    {"num_warps": 2, "debug": True},
)
CUDA_OPTIONS: tuple[dict[str, Any], ...] = (
    {"maxnreg": 64},
    {"maxnreg": None, "num_warps": 4},
    {"launch_pdl": True},
    {"enable_reflect_ftz": False},
    {"ptx_version": 80},
)
HIP_OPTIONS: tuple[dict[str, Any], ...] = (
    {"waves_per_eu": 2},
    {"matrix_instr_nonkdim": 16, "kpack": 1},
    {"allow_flush_denorm": True},
    {"schedule_hint": "attention"},
)


def _options(backend: str) -> Iterator[tuple[str, Launch]]:
    x = torch.zeros(64)
    own = {"cuda": CUDA_OPTIONS, "hip": HIP_OPTIONS}[backend]
    for options in (*COMMON_OPTIONS, *own):
        yield str(options), _call(odd.takes, x, **options)
    yield "debug kernel", _call(odd.with_debug, x)
    yield "debug kernel, without", _call(odd.with_debug, x, debug=False)
    yield "among the arguments", _call(odd.with_defaults, num_stages=2, n=5, num_warps=1, a=x)


def hopeless() -> dict[str, Launch]:
    """Return launches whose keys no other process can make, by the name of the type that must be told."""
    found = {
        "builtins.function": lambda value: value,
        "builtins.builtin_function_or_method": math.sqrt,
        "builtins.type": int,
        "builtins.frozenset": (1, frozenset((1,))),
        "builtins.complex": 1j,
        "builtins.ellipsis": ...,
        "kernels.odd.Loud": odd.Loud(3),
        "torch.Tensor": torch.zeros(2),
    }
    return {name: _call(odd.opaque, value) for name, value in found.items()}


def refused_options(backend: str) -> dict[str, Launch]:
    """Return launches with an option that no manifest may set, by the option's name."""
    found: dict[str, Any] = {
        "extern_libs": (("libdevice", "/nowhere.bc"),),
        "arch": "sm90" if backend == "cuda" else "gfx90a",
    }
    found |= {"backend_name": backend}
    if backend == "cuda":
        found |= {"ptx_options": "-O1", "ir_override": "/nowhere.ttir", "warp_size": 32}
    elif odd_signatures.VERSION >= (3, 8):
        found |= {"llvm_fn_attrs": "a=b"}
    return {name: _call(odd.optioned, 1, **{name: value}) for name, value in found.items()}


def refusals() -> dict[str, Launch]:
    """Return launches that Triton refuses, with or without a recorder."""
    return {
        "numpy.int64": _call(odd.takes, numpy.int64(3)),
        "numpy.float32": _call(odd.takes, numpy.float32(3)),
        "2**64": _call(odd.takes, 2**64),
        "-2**63 - 1": _call(odd.takes, -(2**63) - 1),
        "text in a tuple": _call(odd.takes, (1, "a")),
        "dtype in a tuple": _call(odd.takes, (1, tl.int8)),
        "pointer type as a constant": _call(odd.constant, tl.pointer_type(tl.float32)),
        "quantized tensor": _call(odd.takes, torch.empty(4, dtype=torch.quint8)),
        "list": _call(odd.takes, [1, 2]),
        "list as a constant": _call(odd.constant, [1, 2]),
        "dict": _call(odd.takes, {}),
        "object": _call(odd.takes, object()),
        "unknown option": _call(odd.takes, 1, num_warpz=4),
        "too few arguments": _call(odd.takes_more, 1),
    }
