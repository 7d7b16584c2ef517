"""Derivations: that an integer of a launch equals a size or stride of one of its tensors, or a setting.

As text, `size(table,1)`, `stride(table,0)` or a setting's name. A variant keeps every candidate of its launch; a batch
of 16 equals a block size of 16. The other variants of the kernel remove those that are coincidence.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .model import Argument, Environment, Variant
from .values import Integer, Tensor

MOST = 64
"""Candidates that one argument keeps."""

_CALL = re.compile(r"(size|stride)\(([^,()]+),(\d+)\)")


@functools.lru_cache(4096)
def parse(text: str) -> tuple[str, str, int]:
    """Return (kind, name, dimension): kind is "size", "stride" or "setting" (dimension 0)."""
    match = _CALL.fullmatch(text)
    return (match[1], match[2], int(match[3])) if match else ("setting", text, 0)


def of_tensors(tensors: Iterable[tuple[str, Tensor]]) -> dict[int, list[str]]:
    """Return, by value, the derivations that a launch's tensors offer."""
    found: dict[int, list[str]] = defaultdict(list)
    for name, tensor in tensors:
        for dim, size in enumerate(tensor.shape):
            found[size].append(f"size({name},{dim})")
        for dim, stride in enumerate(tensor.strides):
            found[stride].append(f"stride({name},{dim})")
    return found


def candidates(number: int, tensors: Mapping[int, list[str]], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the derivations that hold for a number, sizes and strides first."""
    named = [name for name, value in settings.items() if type(value) is int and value == number]
    return tuple([*tensors.get(number, ()), *sorted(named)][:MOST])


class Survivors:
    """What is left of each argument's derivations once all variants of its kernel have been heard.

    Only real launches have a say: the tensors of a warm-up are stand-ins. A setting that changed after the launch, as
    vLLM's block size may in mid-boot, is what the header ends with; a derivation that does not fit it is dropped.
    """

    def __init__(self, variants: Iterable[Variant], environments: Sequence[Environment] = ()) -> None:
        self._left: dict[tuple[Any, int], tuple[str, ...]] = {}
        self._values: dict[tuple[Any, int, str], set[int]] = defaultdict(set)
        for variant in variants:
            if variant.real:
                settings = [environments[i].settings for i in variant.environments if i < len(environments)]
                for index, number, derivations in _numbers(variant):
                    kept = tuple(text for text in derivations if _fits(text, number, settings))
                    self._hear((variant.kernel.identity, index), number, kept)

    def _hear(self, key: tuple[Any, int], number: int, derivations: tuple[str, ...]) -> None:
        before = self._left.get(key)
        self._left[key] = derivations if before is None else tuple(item for item in before if item in derivations)
        for item in derivations:
            self._values[(*key, item)].add(number)

    def of(self, variant: Variant, index: int) -> tuple[str, ...]:
        """Return the derivations of an argument that every real launch of its kernel bears out."""
        left = self._left.get((variant.kernel.identity, index), ())
        own = variant.args[index].derivations
        return tuple(item for item in left if item in own)

    def confirmed(self, variant: Variant, index: int, derivation: str) -> bool:
        """Whether launches with two different values bear the derivation out."""
        return len(self._values[(variant.kernel.identity, index, derivation)]) > 1


def _fits(text: str, number: int, settings: Sequence[Mapping[str, Any]]) -> bool:
    kind, name, _ = parse(text)
    return kind != "setting" or not settings or any(found.get(name) == number for found in settings)


def _numbers(variant: Variant) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    for index, argument in enumerate(variant.args):
        if isinstance(argument.value, Integer):
            yield index, argument.value.number, argument.derivations


def derive(args: tuple[Argument, ...], names: Iterable[str], settings: Mapping[str, Any]) -> tuple[Argument, ...]:
    """Return a real launch's arguments with the candidate derivations of each integer."""
    pairs = list(zip(names, args, strict=False))
    tensors = of_tensors((name, arg.value) for name, arg in pairs if isinstance(arg.value, Tensor))
    out = []
    for argument in args:
        if isinstance(argument.value, Integer):
            found = candidates(argument.value.number, tensors, settings)
            argument = Argument(argument.value, argument.spec, found) if found else argument
        out.append(argument)
    return tuple(out)
