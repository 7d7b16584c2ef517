"""Values of arguments and options, without loss, and without torch or triton.

A value is one of a closed set of frozen structs. Equality is the compiler's, not Python's: `Integer(1)`,
`Bool(True)` and `Float.of(1.0)` differ, so do `Float.of(0.0)` and `Float.of(-0.0)`, and NaN equals NaN.
"""

from __future__ import annotations

from typing import Union

import msgspec

_INT64 = range(-(1 << 63), 1 << 64)


class _Value(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", gc=False, cache_hash=True):
    """Base: encoded as an array whose first element is the tag; elements may be added at the end only."""


class View(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a tensor lies in a buffer of the runner: `offset` in elements from the buffer's own start.

    `shape` and `strides` hold -1 where the dimension is the buffer's own, so that it follows the live buffer.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Tensor(_Value, tag="tensor", frozen=True):
    """A tensor, or any object with `data_ptr` and `dtype` (then `plain` is False and shape may be empty).

    `dtype` is torch's name without the prefix. `shape` and `strides` are in elements, `offset` is the storage
    offset in elements, `residue` is `data_ptr() % 16`, `storage` is the size of the storage in bytes.
    `view_as` is the dtype that `triton.reinterpret` gave it, or "". `buffer` is the runner's name of the tensor.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    residue: int = 0
    storage: int = 0
    plain: bool = True
    view_as: str = ""
    buffer: str = ""
    view: View | None = None


class Integer(_Value, tag="int", frozen=True):
    """An integer of any size: beyond 64 bits it is held as hexadecimal text, as msgpack has no larger one.

    Raises ValueError for text that is not `hex` of such a number.
    """

    value: int | str

    def __post_init__(self) -> None:
        if isinstance(self.value, str):
            number = int(self.value, 16)
            if number in _INT64 or hex(number) != self.value:
                raise ValueError("not the hexadecimal text of an integer past 64 bits")
        elif self.value not in _INT64:
            raise ValueError("an integer past 64 bits is held as hexadecimal text: use Integer.of")

    @classmethod
    def of(cls, number: int) -> Integer:
        return cls(number if number in _INT64 else hex(number))

    @property
    def number(self) -> int:
        return self.value if isinstance(self.value, int) else int(self.value, 16)


class Float(_Value, tag="float", frozen=True):
    """A float by its hexadecimal form (`float.hex`), which keeps -0.0, infinities and NaN.

    Raises ValueError for any other text.
    """

    hex: str

    def __post_init__(self) -> None:
        try:
            known = float.fromhex(self.hex).hex() == self.hex
        except OverflowError:
            known = False
        if not known:
            raise ValueError("not the hexadecimal text of a float")

    @classmethod
    def of(cls, number: float) -> Float:
        return cls(number.hex())

    @property
    def number(self) -> float:
        return float.fromhex(self.hex)


class Bool(_Value, tag="bool", frozen=True):
    value: bool


class Nothing(_Value, tag="none", frozen=True):
    """Python's None."""


class Text(_Value, tag="str", frozen=True):
    value: str


class Bytes(_Value, tag="bytes", frozen=True):
    value: bytes


class DType(_Value, tag="dtype", frozen=True):
    """A dtype as a value: `library` is "tl" (name as `tl.dtype.name`) or "torch" (name without the prefix).

    A pointer type of Triton has a name that begins with "*".
    """

    library: str
    name: str


class Function(_Value, tag="function", frozen=True):
    """A JITFunction (or constexpr function) passed as a value, known by name and source fingerprint."""

    module: str
    name: str
    fingerprint: str


class Enum(_Value, tag="enum", frozen=True):
    """A member of an enum class; `module` and `cls` name the class, `name` the member."""

    module: str
    cls: str
    name: str


class NumpyScalar(_Value, tag="numpy", frozen=True):
    """A numpy scalar: dtype string with byte order, and its bytes."""

    dtype: str
    data: bytes


class Tuple(_Value, tag="tuple", frozen=True):
    items: tuple[Value, ...]


class NamedTuple(_Value, tag="namedtuple", frozen=True):
    """A named tuple: its class by module and name, its fields, its items."""

    module: str
    cls: str
    fields: tuple[str, ...]
    items: tuple[Value, ...]


class Descriptor(_Value, tag="descriptor", frozen=True):
    """A host tensor descriptor: `cls` is its class's full name, `base` its tensor, `extra` its other fields."""

    module: str
    cls: str
    base: Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    extra: tuple[tuple[str, Value], ...] = ()


class Record(_Value, tag="record", frozen=True):
    """A frozen dataclass of an allowed library (Gluon's layouts): class and fields by name."""

    module: str
    cls: str
    fields: tuple[tuple[str, Value], ...]


class Wrapped(_Value, tag="constexpr", frozen=True):
    """A `tl.constexpr` object that was passed as a value."""

    value: Value


class Opaque(_Value, tag="opaque", frozen=True):
    """What cannot be rebuilt in another process: the name of its type (never its repr), and why."""

    type: str
    why: str = ""


Value = Union[  # noqa: UP007 - forward references inside need the typing form on 3.10
    Tensor,
    Integer,
    Float,
    Bool,
    Nothing,
    Text,
    Bytes,
    DType,
    Function,
    Enum,
    NumpyScalar,
    Tuple,
    NamedTuple,
    Descriptor,
    Record,
    Wrapped,
    Opaque,
]


def children(value: Value) -> tuple[Value, ...]:
    """Return the values that `value` holds, one level down."""
    if isinstance(value, (Tuple, NamedTuple)):
        return value.items
    if isinstance(value, Descriptor):
        return (value.base, *(item for _, item in value.extra))
    if isinstance(value, Record):
        return tuple(item for _, item in value.fields)
    if isinstance(value, Wrapped):
        return (value.value,)
    return ()


def first_opaque(value: Value) -> Opaque | None:
    """Return the first opaque part of `value`, or None when all of it can be rebuilt."""
    stack = [value]
    while stack:
        head = stack.pop()
        if isinstance(head, Opaque):
            return head
        stack.extend(children(head))
    return None
