"""Variants that were compiled before a recorder came, read from the live kernels' own caches.

Read on Triton 3.6.0 to 3.9.0: `JITFunction.device_caches` holds, by device, the kernels by key, and the keys by
(specialization with live objects, text of the options). Shapes, values and buffers are gone: each argument becomes a
representative of its class, which makes the same key.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..manifest import values as V
from ..manifest.model import Argument, Option
from .bind import injected, strip
from .encode import argument, encode, spec
from .internals import internals
from .look import is_future
from .tuner import innermost, parts

_NAMED = {"i1": "bool", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
_NAMED |= {"fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "fp8e4b8": "float8_e4m3fnuz"}
_NAMED |= {f"{sign}{bits}": f"{name}{bits}" for sign, name in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)}
_INTEGERS = {"i32": (3, 16), "i64": (2**40 + 3, 2**40), "u64": (2**63 + 1, 2**63)}
_LARGE = 1 << 32
"""Bytes of a storage past the 2 GB up to which AMD's backend takes a pointer for a near one."""


@dataclass(frozen=True)
class Found:
    """A key that Triton holds: its kernel and function, and the launch that makes it again.

    `candidate` is the config of the kernel's autotuner that it was compiled for, if it has one. `launched` says that
    its binary is loaded.
    """

    fn: Any
    key: str
    kernel: Any
    args: tuple[Argument, ...]
    options: tuple[Option, ...]
    candidate: tuple[Option, ...] | None
    launched: bool


def harvest() -> Iterator[Found]:
    """Yield each key of each live kernel once, whatever device has it. What is still being compiled is left out."""
    names = internals()
    alive = [thing for thing in gc.get_objects() if issubclass(type(thing), (names.JITFunction, names.Autotuner))]
    tuners: dict[int, list[Any]] = {}
    for tuner in alive:
        if isinstance(tuner, names.Autotuner) and (fn := innermost(tuner)) is not None:
            tuners.setdefault(id(fn), []).append(tuner)
    for fn in alive:
        if isinstance(fn, names.JITFunction):
            yield from _of(fn, tuners.get(id(fn), []))


def _of(fn: Any, tuners: list[Any]) -> Iterator[Found]:
    seen: set[str] = set()
    for kernels, keys, target, *_ in list(fn.device_caches.values()):
        for (specialization, text), key in list(keys.items()):
            kernel = kernels.get(key)
            if key in seen or kernel is None or is_future(kernel):
                continue
            seen.add(key)
            items = [item for item in specialization if isinstance(item, tuple) and len(item) == 2]
            args = tuple(
                Argument(_value(*item, param, target.backend), spec(*item))
                for item, param in zip(items, fn.params, strict=False)
            )
            options = _options(fn, text)
            yield Found(
                fn, key, kernel, args, options, _candidate(fn, args, options, tuners), kernel.module is not None
            )


def _options(fn: Any, text: str) -> tuple[Option, ...]:
    """Return the options that a caller gave, from the text that Triton keys them by."""
    try:
        options = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return (("options", V.Opaque("builtins.dict", "their text in the key is no literal")),)
    return tuple((name, encode(value)) for name, value in strip(options, injected(fn)).items())


def _candidate(fn: Any, args: tuple[Argument, ...], options: tuple[Option, ...], tuners: list[Any]) -> Any:
    """Return the config that a key was compiled for, where the kernel has an autotuner and one fits."""
    given = {param.name: arg.value for param, arg in zip(fn.params, args, strict=False)} | dict(options)
    for config in (config for tuner in tuners for config in tuner.configs):
        kwargs, launch = parts(config)
        wanted = tuple((name, encode(value)) for name, value in {**kwargs, **launch}.items())
        if all(given.get(name) == value for name, value in wanted):
            return wanted
    return None


def _value(kind: Any, cls: Any, param: Any, backend: str) -> V.Value:
    """Return a value of a specialization's class. `kind` and `cls` are Triton's type and class."""
    if isinstance(kind, tuple):
        inner = cls if isinstance(cls, tuple) and len(cls) == len(kind) else (None,) * len(kind)
        items = tuple(_value(k, c, None, backend) for k, c in zip(kind, inner, strict=True))
        if hasattr(type(kind), "_fields"):
            return V.NamedTuple(type(kind).__module__, type(kind).__qualname__, tuple(type(kind)._fields), items)
        return V.Tuple(items)
    if kind == "constexpr":
        # Within a tuple a function stands as the hash of its source (3.8 on), and Triton takes no text there.
        if isinstance(cls, str) and (param is None or (not param.is_constexpr and re.fullmatch("[0-9a-f]{64}", cls))):
            return V.Opaque("triton.runtime.jit.JITCallable", "harvested, and only its hash is known")
        return argument(cls, "constexpr")
    if kind.startswith("*"):
        return _pointer(kind, cls, backend)
    if kind.startswith("tensordesc<"):
        return _descriptor(kind)
    if kind == "u1":
        return V.Bool(True)
    if kind.startswith(("fp", "bf")):
        return V.Float.of(1.5)
    if kind[:1] in "iu" and kind[1:].isdigit():
        return _integer(kind, cls, bool(param is not None and param.annotation_type))
    return V.Opaque(kind, "harvested, and its type says too little")


def _integer(kind: str, cls: Any, annotated: bool) -> V.Value:
    if cls == 1 and not isinstance(cls, str):
        return V.Integer.of(1)
    other, multiple = _INTEGERS["i32"] if annotated else _INTEGERS.get(kind, _INTEGERS["i32"])
    return V.Integer.of(multiple if cls == "D" else other)


def _pointer(kind: str, cls: Any, backend: str) -> V.Value:
    """Return a tensor of one item, of which Triton makes this type and class."""
    name = kind.removeprefix("*").removeprefix("k")
    cls = cls if isinstance(cls, str) else "D"
    dtype = _NAMED.get(name)
    if dtype is None:
        reach = 0 if "S" in cls else -1
        return V.Tensor(name, residue=0 if "D" in cls else 8, storage=reach, plain=False)
    digits = re.search(r"(\d+)", dtype)
    size = max(1, int(digits[1]) // 8) if digits else 1
    near = backend != "hip" or "S" in cls
    return V.Tensor(dtype, (1,), (1,), 0 if "D" in cls else 1, 0 if "D" in cls else size, 0 if near else _LARGE)


def _descriptor(kind: str) -> V.Value:
    """Return Triton's host descriptor of a type such as `tensordesc<fp16[32, 64]>`; Gluon's also hold a layout."""
    found = re.fullmatch(r"tensordesc<(\w+)\[([\d, ]+)\]>", kind)
    dtype = _NAMED.get(found[1]) if found else None
    if found is None or dtype is None:
        return V.Opaque("TensorDescriptor", "harvested, and its layout is known by its text only")
    block = tuple(int(part) for part in found[2].split(","))
    strides = [1]
    for size in reversed(block[1:]):
        strides.insert(0, strides[0] * max(size, 16))
    shape = tuple(max(size, 16) for size in block)
    base = V.Tensor(dtype, shape, tuple(strides))
    return V.Descriptor("triton.tools.tensor_descriptor", "TensorDescriptor", base, shape, tuple(strides), block)
