"""Words and plain data for values: what `show` and `diff` print."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .model import Argument, Param
from .values import (
    Bool,
    Bytes,
    Descriptor,
    DType,
    Enum,
    Float,
    Function,
    Integer,
    NamedTuple,
    Nothing,
    NumpyScalar,
    Opaque,
    Record,
    Tensor,
    Text,
    Tuple,
    Value,
    Wrapped,
)

KINDS: dict[type, str] = {
    Tensor: "tensor",
    Integer: "integer",
    Float: "float",
    Bool: "bool",
    Nothing: "none",
    Text: "string",
    Bytes: "bytes",
    DType: "dtype",
    Function: "function",
    Enum: "enum",
    NumpyScalar: "numpy",
    Tuple: "tuple",
    NamedTuple: "namedtuple",
    Descriptor: "descriptor",
    Record: "record",
    Wrapped: "constexpr",
    Opaque: "opaque",
}
"""The `kind` of each value in JSON."""


def many(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 variant` or `3 variants`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def text(value: Value) -> str:
    """Return a value in a few characters, as a person would write it."""
    match value:
        case Tensor():
            dims = "x".join(map(str, value.shape)) or "scalar"
            return f"{value.view_as or value.dtype}[{dims}]"
        case Integer():
            return str(value.number) if isinstance(value.value, int) else str(value.value)
        case Float():
            return repr(value.number)
        case Bool():
            return str(value.value)
        case Nothing():
            return "None"
        case Text():
            return repr(value.value)
        case Bytes():
            return repr(value.value)
        case DType():
            return f"{value.library}.{value.name}"
        case Function():
            return f"{value.module}.{value.name}"
        case Enum():
            return f"{value.cls}.{value.name}"
        case NumpyScalar():
            return f"numpy {value.dtype} {value.data.hex()}"
        case Tuple():
            return texts(value.items)
        case NamedTuple():
            pairs = zip(value.fields, value.items, strict=False)
            return f"{value.cls}(" + ", ".join(f"{name}={text(item)}" for name, item in pairs) + ")"
        case Descriptor():
            return f"{value.cls}({text(value.base)}, block {list(value.block_shape)})"
        case Record():
            return f"{value.cls}(" + ", ".join(f"{name}={text(item)}" for name, item in value.fields) + ")"
        case Wrapped():
            return f"constexpr({text(value.value)})"
        case Opaque():
            return f"<{value.type}>"


def texts(values: Iterable[Value]) -> str:
    """Return several values as a person would write a tuple of them."""
    return f"({', '.join(map(text, values))})"


def finite(value: Any) -> Any:
    """Return a builtin as JSON holds it: infinities and NaN as text."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def equal_as(value: Value) -> Any:
    """Return what Python compares a value by, as Triton's cache in memory does.

    1, True and 1.0 are equal, so are 0.0 and -0.0. NaN, which equals nothing, and what is no number stand for
    themselves.
    """
    match value:
        case Integer():
            return value.number
        case Bool():
            return value.value
        case Float() if value.number == value.number:
            return value.number
        case Tuple() | NamedTuple():
            return tuple(map(equal_as, value.items))
    return value


def plain(value: Value) -> Any:
    """Return a value as JSON holds it: numbers, booleans, null and strings as such, all else as words.

    An integer past 64 bits is its hexadecimal text, an infinity or NaN its name.
    """
    match value:
        case Integer():
            return value.value
        case Float():
            return finite(value.number)
        case Bool() | Text():
            return value.value
        case Nothing():
            return None
        case Tuple():
            return [plain(item) for item in value.items]
    return text(value)


_CLASSES = {"D": "multiple of 16", "": "other", "S": "other, under 2 GB", "DS": "multiple of 16, under 2 GB"}


def split(spec: str) -> tuple[str, str | None]:
    """Return a specialization's type and class; the class is None where the argument is not specialised."""
    kind, colon, cls = spec.partition(":")
    return (kind, cls) if colon else (kind, None)


def specialization(argument: Argument) -> str:
    """Return the class of an argument in words: `multiple of 16`, `equal to 1`, `unaligned`, ..."""
    value, spec = argument.value, argument.spec
    if spec == "constexpr":
        if isinstance(value, Integer):
            return "equal to 1" if value.number == 1 else "constant"
        return "None" if isinstance(value, Nothing) else "constant"
    kind, cls = split(spec)
    if spec.startswith("(") or kind.startswith(("tensordesc", "constexpr")):
        return spec
    if cls is None:
        return kind if isinstance(value, (Float, Bool)) else "not specialized"
    if kind.startswith("*"):
        return {"D": "aligned to 16", "": "unaligned"}.get(cls, _CLASSES.get(cls, cls))
    return "equal to 1" if cls == "1" else _CLASSES.get(cls, cls)


def argument(param: Param, arg: Argument) -> dict[str, Any]:
    """Return one argument as `show --json` prints it."""
    value, kind = arg.value, KINDS[type(arg.value)]
    if param.constexpr:
        out: dict[str, Any] = {"name": param.name, "kind": "constexpr", "type": kind, "value": plain(value)}
    else:
        out = {"name": param.name, "kind": kind, "specialization": specialization(arg), "spec": arg.spec}
    if isinstance(value, Tensor):
        out |= {"dtype": value.dtype, "shape": list(value.shape), "strides": list(value.strides)}
        out |= {"offset": value.offset, "residue": value.residue, "storage": value.storage}
        if value.buffer:
            out["buffer"] = value.buffer
    elif isinstance(value, Opaque):
        out |= {"type": value.type, "why": value.why}
    elif not param.constexpr:
        out["value"] = plain(value)
    if arg.derivations:
        out["derivations"] = list(arg.derivations)
    return out


def sentence(name: str, before: Argument, after: Argument) -> str:
    """Return a difference in words, such as `n_blocks: multiple of 16 -> other (32 -> 7)`."""
    was, now = class_of(before), class_of(after)
    values = (text(before.value), text(after.value))
    tail = "" if (was, now) == values else f" ({values[0]} -> {values[1]})"
    return f"{name}: {was} -> {now}{tail}"


def sides(before: Argument, after: Argument) -> tuple[str, str]:
    """Return both sides of a difference, such as `multiple of 16 (32)` and `other (7)`."""
    was, now = class_of(before), class_of(after)
    values = (text(before.value), text(after.value))
    return (was, now) if (was, now) == values else (f"{was} ({values[0]})", f"{now} ({values[1]})")


def class_of(arg: Argument) -> str:
    """Return the part of an argument that is in the key, in words: a class, or the value where it is a constant."""
    if isinstance(arg.value, Tensor):
        return f"{split(arg.spec)[0]} {specialization(arg)}"
    words = specialization(arg)
    if words == "constant" or words == split(arg.spec)[0]:
        return text(arg.value)
    kind = split(arg.spec)[0]
    return words if kind in ("i32", "constexpr") or arg.spec.startswith("(") else f"{kind} {words}"
