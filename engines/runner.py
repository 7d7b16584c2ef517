"""Finding a serving engine's buffers: the tensors that its runner owns, by the path of attributes to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

DEPTH = 6
"""Attributes, items and keys between the runner and a buffer."""
OBJECTS = 20_000
"""Objects that are looked at, at most."""
ITEMS = 512
"""Items of one list or dict that are looked at, at most."""


class Tables(NamedTuple):
    """What a runner owns: its tensors by name, and the numbers that belong to them, as settings by name."""

    buffers: dict[str, Any]
    settings: dict[str, int]


def tables(runner: Any, packages: tuple[str, ...]) -> Tables:
    """Return the tensors under `runner` by name, such as `input_batch.block_table.block_tables[0].block_table.gpu`.

    Only instance attributes are followed (no property is run), into lists, tuples, dicts and objects of the given
    top-level packages, but not into modules of a model: weights are no buffers. The shortest path names a tensor.
    The numbers are the row strides of block tables, and what stands in one tuple with a tensor, as the page's size does
    in vLLM's KV-block zeroer: some kernels take them, and no tensor of the launch gives them.
    """
    import torch

    found: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    seen = {id(runner)}
    queue: deque[tuple[str, Any, int]] = deque([("", runner, 0)])
    while queue and len(seen) < OBJECTS:
        name, thing, depth = queue.popleft()
        beside = isinstance(thing, tuple) and any(isinstance(item, torch.Tensor) for item in thing)
        for path, value in _parts(name, thing):
            if beside and type(value) is int:
                numbers[path] = value
            if id(value) in seen:
                continue
            if isinstance(value, torch.Tensor):
                seen.add(id(value))
                found[path] = value
            elif depth < DEPTH and _is_followed(value, packages) and not isinstance(value, torch.nn.Module):
                seen.add(id(value))
                queue.append((path, value, depth + 1))
    return Tables(found, numbers | _strides(found))


def _is_followed(value: Any, packages: tuple[str, ...]) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return True
    return type(value).__module__.partition(".")[0] in packages and not isinstance(value, type)


def _parts(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    dot = f"{name}." if name else ""
    if isinstance(thing, dict):
        for key, value in list(thing.items())[:ITEMS]:
            if isinstance(key, (str, int)):
                yield f"{name}[{key}]", value
    elif isinstance(thing, (list, tuple)):
        fields = getattr(thing, "_fields", None)
        for index, value in enumerate(thing[:ITEMS]):
            yield (f"{dot}{fields[index]}" if fields else f"{name}[{index}]"), value
    else:
        own = dict(getattr(thing, "__dict__", {}))
        for cls in type(thing).__mro__:
            for slot in _slots(cls):
                if slot not in own and hasattr(thing, slot):
                    own[slot] = getattr(thing, slot)
        for key in sorted(own):
            yield f"{dot}{key}", own[key]


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _strides(found: dict[str, Any]) -> dict[str, int]:
    """Return the row strides of the block tables, which vLLM's `reduce_segments` takes without the table."""
    return {
        f"{name}.stride(0)": tensor.stride(0)
        for name, tensor in found.items()
        if "block_table" in name and tensor.dim() == 2 and not tensor.dtype.is_floating_point
    }
