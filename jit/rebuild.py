"""From the manifest's values to arguments that the live Triton specialises alike. They own no device memory."""

from __future__ import annotations

import functools
import operator
from typing import Any

from ..manifest import values as V
from .resolve import Resolver, Unresolved


class PointerStandIn:
    """An argument that has `data_ptr` and `dtype` and nothing else; its address has the recorded residue."""

    def __init__(self, dtype: Any, residue: int) -> None:
        self.dtype = dtype
        self._residue = residue

    def data_ptr(self) -> int:
        return self._residue


class RangedStandIn(PointerStandIn):
    """One that also says how many bytes it reaches, which AMD's backend asks for (HIPBackend.is_within_2gb)."""

    def __init__(self, dtype: Any, residue: int, reach: int) -> None:
        super().__init__(dtype, residue)
        self._reach = reach

    def ptr_range(self) -> int:
        return self._reach


def _stand_in(dtype: Any, residue: int, reach: int) -> PointerStandIn:
    return PointerStandIn(dtype, residue) if reach < 0 else RangedStandIn(dtype, residue, reach)


def rebuild(value: V.Value, resolver: Resolver) -> Any:
    """Return an argument for `value`. Raises Unresolved, with the reason, when this process cannot make one."""
    match value:
        case V.Integer():
            return value.number
        case V.Float():
            return value.number
        case V.Bool() | V.Text() | V.Bytes():
            return value.value
        case V.Nothing():
            return None
        case V.Tensor():
            return _tensor(value)
        case V.DType():
            return _dtype(value)
        case V.Wrapped():
            from triton.language import constexpr

            return constexpr(rebuild(value.value, resolver))
        case V.Tuple():
            return tuple(rebuild(item, resolver) for item in value.items)
        case V.NamedTuple():
            cls = resolver.cls(value.module, value.cls)
            if tuple(getattr(cls, "_fields", ())) != value.fields:
                raise Unresolved(f"named tuple {value.module}.{value.cls} has other fields now")
            return cls(*(rebuild(item, resolver) for item in value.items))
        case V.Function():
            return _function(value, resolver)
        case V.Enum():
            return _enum(value, resolver)
        case V.NumpyScalar():
            import numpy

            return numpy.frombuffer(value.data, dtype=numpy.dtype(value.dtype))[0]
        case V.Descriptor():
            return _descriptor(value, resolver)
        case V.Record():
            return _record(value, resolver)
        case V.Opaque():
            raise Unresolved(f"a {value.type} cannot be rebuilt: {value.why}")


def _torch_dtype(name: str) -> Any:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Unresolved(f"this torch has no dtype {name!r}")
    return dtype


def _dtype(value: V.DType) -> Any:
    if value.library == "torch":
        return _torch_dtype(value.name)
    import triton.language as tl

    name = value.name
    try:
        if name.startswith("*"):
            element = name.removeprefix("*")
            const = element.startswith("k")
            return tl.pointer_type(tl.dtype(element.removeprefix("k")), const=const)
        return tl.dtype(name)
    except (AssertionError, ValueError, TypeError):
        raise Unresolved(f"this Triton has no dtype {name!r}") from None


def _tensor(value: V.Tensor) -> Any:
    """Return a stand-in: a meta tensor of the same dtype, strides, alignment and storage size.

    A meta tensor's `data_ptr()` is its storage offset in bytes, so the offset gives the alignment. An address that
    no offset gives (it is no multiple of the item size) needs an object of our own.
    """
    import torch

    if not value.plain:
        known = isinstance(getattr(torch, value.dtype, None), torch.dtype)
        return _stand_in(_torch_dtype(value.dtype) if known else value.dtype, value.residue, value.storage)
    dtype = _torch_dtype(value.dtype)
    if value.residue % dtype.itemsize or dtype.itemsize > 16 or dtype is torch.complex128:
        return RangedStandIn(dtype, value.residue, value.storage)
    offset = value.residue // dtype.itemsize
    shape, strides = value.shape, value.strides
    if len(shape) != len(strides) or any(n < 0 for n in (*shape, *strides)):
        raise Unresolved("a tensor's shape or strides are not ones that torch can have")
    extent = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    items = max(offset + extent, value.storage // dtype.itemsize)
    if items > 1 << 60:
        raise Unresolved(f"a tensor claims {items} elements")
    tensor = torch.empty(items, dtype=dtype, device="meta").as_strided(shape, strides, offset)
    if value.view_as:
        import triton

        library = "torch" if hasattr(torch, value.view_as) else "tl"
        return triton.reinterpret(tensor, _dtype(V.DType(library, value.view_as)))
    return tensor


def _enum(value: V.Enum, resolver: Resolver) -> Any:
    """Return an enum's member; several flags together are named `A|B` (Python 3.11 on)."""
    members = getattr(resolver.cls(value.module, value.cls), "__members__", {})
    names = value.name.split("|")
    if missing := [name for name in names if name not in members]:
        raise Unresolved(f"enum {value.module}.{value.cls} has no {missing[0]} now")
    return functools.reduce(operator.or_, (members[name] for name in names))


def _function(value: V.Function, resolver: Resolver) -> Any:
    from ..manifest.model import Kernel

    return resolver.function(Kernel(value.module, value.name, value.fingerprint))


def _descriptor(value: V.Descriptor, resolver: Resolver) -> Any:
    cls = resolver.cls(value.module, value.cls)
    extra = {name: rebuild(item, resolver) for name, item in value.extra}
    fields = {"base": _tensor(value.base), "shape": list(value.shape), "strides": list(value.strides)}
    return _construct(cls, {**fields, "block_shape": list(value.block_shape), **extra})


def _record(value: V.Record, resolver: Resolver) -> Any:
    fields = {name: rebuild(item, resolver) for name, item in value.fields}
    if (value.module, value.cls) == ("builtins", "list"):
        return list(fields["items"])
    if (value.module, value.cls) == ("torch", "Size"):
        import torch

        return torch.Size(fields["items"])
    return _construct(resolver.cls(value.module, value.cls), fields)


def _construct(cls: Any, fields: dict[str, Any]) -> Any:
    try:
        return cls(**fields)
    except (TypeError, ValueError, AssertionError) as error:
        raise Unresolved(f"{cls.__qualname__} does not take the recorded fields: {error}") from None
