"""What the live runner says of a recorded launch: its own buffers, its settings, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..manifest.derivation import Survivors, parse
from ..manifest.model import Argument, Variant
from ..manifest.values import Integer, Tensor

MOST = 8
"""Other keys that one variant may stand for, where it is not certain what its integers follow."""


class Live(msgspec.Struct):
    """The runner's buffers (tensors by name) and settings (numbers and words by name). Empty without an engine."""

    buffers: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}


class Form(msgspec.Struct, frozen=True):
    """One form of a variant for this runner: its arguments, the live tensors by index, and what was replaced, in words.

    `certain` is False for a form that only may be launched.
    """

    args: tuple[Argument, ...]
    tensors: dict[int, Any]
    replaced: tuple[str, ...] = ()
    certain: bool = True


def view(tensor: Tensor, buffer: Any) -> Any:
    """Return the live buffer's part that a recorded tensor was: dims that were the buffer's own follow the live one.

    The dtype is the live buffer's (another KV cache dtype makes another key). Returns None when the live buffer cannot
    be seen so (another rank).
    """
    place = tensor.view
    if place is None:
        return None
    own = len(place.shape) == buffer.dim()
    if not own and -1 in (*place.shape, *place.strides):
        return None
    shape = [buffer.shape[i] if n < 0 else min(n, buffer.shape[i]) if own else n for i, n in enumerate(place.shape)]
    strides = [buffer.stride(i) if n < 0 else n for i, n in enumerate(place.strides)]
    offset = buffer.storage_offset() + place.offset
    room = buffer.untyped_storage().size() // buffer.element_size()
    extent = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if offset + extent <= room:
        return buffer.as_strided(shape, strides, offset)
    # A batch larger than this runner's tables: its beginning is as good for the key.
    start = min(offset, buffer.storage_offset())
    if start >= room:
        return buffer.as_strided([0] * len(shape), strides, 0)  # a cache of no blocks
    return buffer.as_strided([min(n, 1) for n in shape], strides, start)


def needs_late(variant: Variant, survivors: Survivors, live: Live) -> bool:
    """Whether a variant waits for the runner's tables, or for a setting that is not known yet."""
    for index, argument in enumerate(variant.args):
        if isinstance(argument.value, Tensor) and argument.value.buffer:
            return True
        for text in survivors.of(variant, index):
            kind, name, _ = parse(text)
            if kind == "setting" and name not in live.settings:
                return True
    return False


def forms(variant: Variant, survivors: Survivors, live: Live) -> list[Form]:
    """Return the forms of a variant for this runner: what it surely launches first, then what it may.

    Where nothing differs from the recording that is the recorded launch alone.
    """
    tensors = {
        index: found
        for index, argument in enumerate(variant.args)
        if isinstance(argument.value, Tensor)
        and (buffer := live.buffers.get(argument.value.buffer)) is not None
        and (found := view(argument.value, buffer)) is not None
    }
    args, replaced = list(variant.args), []
    guesses: dict[str, list[_Guess]] = {}
    for index, argument in enumerate(variant.args):
        if not isinstance(argument.value, Integer):
            continue
        name, recorded = _name(variant, index), argument.value.number
        certain, possible = _values(variant, index, survivors, live, tensors)
        if certain and recorded not in certain.values():
            text, number = next(iter(certain.items()))
            args[index] = Argument(Integer.of(number), argument.spec)
            replaced.append(f"{name}: {recorded} -> {number} ({text})")
        # Two buffers that agreed when it was recorded and differ here: either may be what it follows.
        for text, number in (certain or possible).items():
            if Integer.of(number) != args[index].value:
                words = f"{name}: {recorded} -> {number} ({text})"
                guesses.setdefault(text, []).append(_Guess(index, number, words))
    first = Form(tuple(args), tensors, tuple(replaced))
    return [first, *_guessed(first, guesses)]


def is_recorded_form(form: Form) -> bool:
    """Whether a form has the arguments that were recorded, all of them."""
    return not form.tensors and not form.replaced


class _Guess(msgspec.Struct, frozen=True):
    """That one argument may have another value here."""

    index: int
    number: int
    words: str


def _guessed(first: Form, guesses: Mapping[str, list[_Guess]]) -> list[Form]:
    """Return the forms that may be launched too: all that one derivation gives together, then each argument alone."""
    together = [group for group in guesses.values() if len(group) > 1]
    alone = [[guess] for group in guesses.values() for guess in group]
    found: dict[tuple[Argument, ...], Form] = {}
    for group in (*together, *alone):
        args = list(first.args)
        for guess in group:
            args[guess.index] = Argument(Integer.of(guess.number), args[guess.index].spec)
        words = (*first.replaced, *(guess.words for guess in group))
        found.setdefault(tuple(args), Form(tuple(args), first.tensors, words, certain=False))
    return list(found.values())[:MOST]


def _values(
    variant: Variant, index: int, survivors: Survivors, live: Live, tensors: Mapping[int, Any]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return what an integer's derivations give here: those that are certain, and those that may be coincidence."""
    certain: dict[str, int] = {}
    possible: dict[str, int] = {}
    names = [param.name for param in variant.kernel.params]
    for text in survivors.of(variant, index):
        kind, name, dim = parse(text)
        if kind == "setting":
            number = live.settings.get(name)
            if type(number) is int:
                (certain if survivors.confirmed(variant, index, text) else possible)[text] = number
            continue
        at = names.index(name) if name in names else -1
        if at not in tensors or dim >= tensors[at].dim():
            continue
        own = variant.args[at].value
        place = own.view if isinstance(own, Tensor) else None
        dims = () if place is None else place.shape if kind == "size" else place.strides
        if dim < len(dims) and dims[dim] < 0:
            certain[text] = tensors[at].shape[dim] if kind == "size" else tensors[at].stride(dim)
    return certain, possible


def _name(variant: Variant, index: int) -> str:
    return variant.kernel.params[index].name
