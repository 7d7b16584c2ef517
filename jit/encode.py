"""From live arguments to the manifest's values. Nothing here calls `repr`, copies a tensor or keeps one."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from ..manifest import values as V
from .internals import internals
from .source import cached_fingerprint

_DEPTH, _ITEMS = 16, 4096


def type_name(value: Any) -> str:
    """Return a type's full name, the only thing ever said of a value that is not on the list."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def encode(value: Any, depth: int = 0) -> V.Value:
    """Return `value` as the manifest holds it; what cannot be rebuilt elsewhere becomes `Opaque`."""
    try:
        return _encode(value, depth)
    except Exception as error:
        return V.Opaque(type_name(value), f"could not be read: {type(error).__name__}")


def argument(value: Any, spec: str) -> V.Value:
    """Return an argument as the manifest holds it; `spec` is the part of the key that it made (see `spec`).

    A tensor that is a constant is in the key by its text, which holds its content: it is opaque.
    """
    encoded = encode(value)
    if spec == "constexpr" and _has_tensor(encoded):
        return V.Opaque(type_name(value), "a tensor as a constant, whose key holds its content or its address")
    return encoded


def _has_tensor(value: V.Value) -> bool:
    return isinstance(value, V.Tensor) or any(_has_tensor(item) for item in V.children(value))


def _encode(value: Any, depth: int) -> V.Value:
    simple = _SIMPLE.get(type(value))
    if simple is not None:
        return simple(value)
    if depth > _DEPTH:
        return V.Opaque(type_name(value), "nested too deeply")
    if isinstance(value, enum.Enum):
        if not isinstance(value.name, str):
            return V.Opaque(type_name(value), "several flags, which have no name before Python 3.11")
        return V.Enum(type(value).__module__, type(value).__qualname__, value.name)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return V.NumpyScalar(value.dtype.str, value.tobytes())
    if isinstance(value, tuple):
        return _tuple(value, depth)
    if type(value) is list:
        # Only in the fields of layouts: Triton takes none as an argument.
        return V.Record("builtins", "list", (("items", _tuple(tuple(value), depth)),))
    base: Any
    for base in (int, float, str, bytes):
        if isinstance(value, base) and type(value).__repr__ is base.__repr__:
            return _SIMPLE[base](base(value))  # its text, and so its key, is the plain one's
    module, name = type(value).__module__, type(value).__qualname__
    top = module.partition(".")[0]
    if name == "dtype" and top == "torch":
        return V.DType("torch", str(value).removeprefix("torch."))
    if top == "triton" and (found := _triton(value, module, name, depth)) is not None:
        return found
    if isinstance(value, internals().JITCallable):
        return V.Function(value.fn.__module__, value.fn.__qualname__, cached_fingerprint(value))
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return _tensor(value)
    if isinstance(value, type):
        return V.Opaque(type_name(value), "a class is not rebuilt from a name")
    if callable(value):
        return V.Opaque(type_name(value), "its key holds a memory address, so no other process can match it")
    return V.Opaque(type_name(value), "jitreplay has no form for this type")


_SIMPLE: dict[type, Callable[[Any], V.Value]] = {
    int: V.Integer.of,
    bool: V.Bool,
    float: V.Float.of,
    str: V.Text,
    bytes: V.Bytes,
    type(None): lambda _: V.Nothing(),
}


def _tuple(value: tuple[Any, ...], depth: int) -> V.Value:
    if len(value) > _ITEMS:
        return V.Opaque(type_name(value), f"more than {_ITEMS} items")
    items = tuple(encode(item, depth + 1) for item in value)
    kind = type(value)
    if kind is tuple:
        return V.Tuple(items)
    if kind.__module__ == "torch" and kind.__qualname__ == "Size":
        return V.Record("torch", "Size", (("items", V.Tuple(items)),))
    if hasattr(kind, "_fields"):
        return V.NamedTuple(kind.__module__, kind.__qualname__, tuple(kind._fields), items)
    return V.Opaque(type_name(value), "a tuple's subclass")


def _triton(value: Any, module: str, name: str, depth: int) -> V.Value | None:
    """Encode an object of Triton's own classes (read on 3.6.0 to 3.9.0), or return None for any other."""
    if module == "triton.language.core":
        if name == "constexpr":
            return V.Wrapped(encode(value.value, depth + 1))
        if name == "dtype":
            return V.DType("tl", value.name)
        if name == "pointer_type" and type(value.element_ty).__qualname__ == "dtype":
            return V.DType("tl", f"*{'k' if value.const else ''}{value.element_ty.name}")
    if module == "triton.runtime.jit":
        if name == "TensorWrapper":
            base = _tensor(value.base)
            return V.Opaque(type_name(value)) if not base.plain else _replace(base, view_as=_dtype(value.dtype))
        if name == "MockTensor":
            shape = tuple(value.shape)
            return V.Tensor(_dtype(value.dtype), shape, tuple(value.stride()))
    if name.startswith("TensorDescriptor") and dataclasses.is_dataclass(value):
        return _descriptor(value, module, name, depth)
    if module.startswith("triton.experimental.gluon") and dataclasses.is_dataclass(value):
        return V.Record(
            module, name, tuple((f.name, encode(getattr(value, f.name), depth + 1)) for f in _fields(value))
        )
    return None


def _fields(value: Any) -> list[Any]:
    return [field for field in dataclasses.fields(value) if field.init]


def _descriptor(value: Any, module: str, name: str, depth: int) -> V.Value:
    base = encode(value.base, depth + 1)
    if not isinstance(base, V.Tensor):
        return V.Opaque(type_name(value), "a descriptor over something that is no tensor")
    known = {"base", "shape", "strides", "block_shape"}
    extra = tuple((f.name, encode(getattr(value, f.name), depth + 1)) for f in _fields(value) if f.name not in known)
    return V.Descriptor(
        module,
        name,
        base,
        tuple(int(n) for n in value.shape),
        tuple(int(n) for n in value.strides),
        tuple(int(n) for n in value.block_shape),
        extra,
    )


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _replace(tensor: V.Tensor, **fields: Any) -> V.Tensor:
    return msgspec.structs.replace(tensor, **fields)


def _tensor(value: Any) -> V.Tensor:
    """Encode a tensor, or an object that has only `data_ptr` and `dtype`. Reads host-side facts alone."""
    pointer = value.data_ptr()
    dtype = value.dtype
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        name = _dtype(dtype) if type(dtype).__name__ == "dtype" else str(dtype) if isinstance(dtype, str) else ""
        # AMD's backend asks for `ptr_range` (HIPBackend.is_within_2gb, 3.6.0 to 3.9.0).
        reach = value.ptr_range() if hasattr(value, "ptr_range") else -1
        return V.Tensor(name, residue=pointer % 16, storage=reach, plain=False)
    return V.Tensor(
        _dtype(dtype),
        tuple(value.shape),
        tuple(value.stride()),
        value.storage_offset(),
        pointer % 16,
        value.untyped_storage().size(),
    )


def spec(kind: Any, cls: Any) -> str:
    """Return Triton's (type, class) of one argument as text; a constant's value is not repeated."""
    if isinstance(kind, (tuple, list)):
        inner = cls if isinstance(cls, (tuple, list)) and len(cls) == len(kind) else [None] * len(kind)
        return "(" + ",".join(spec(k, c) for k, c in zip(kind, inner, strict=True)) + ")"
    if kind == "constexpr":
        return "constexpr"
    if cls is None:
        return str(kind)
    return f"{kind}:{cls if isinstance(cls, str) else 1 if cls == 1 else ''}"
