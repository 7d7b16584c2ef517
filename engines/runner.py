"""Finding a serving engine's buffers: the tensors that its runner owns, by the path of attributes to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

DEPTH = 6
"""Attributes, items and keys between the runner and a buffer."""
OBJECTS = 20_000
"""Objects that are looked at, at most."""
ITEMS = 512
"""Items of one list or dict that are looked at, at most."""


def buffers(runner: Any, packages: tuple[str, ...]) -> dict[str, Any]:
    """Return the tensors under `runner` by name, such as `input_batch.block_table.block_tables[0].block_table.gpu`.

    Only instance attributes are followed (no property is run), into lists, tuples, dicts and objects of the given
    top-level packages, but not into modules of a model: weights are no buffers. The shortest path names a tensor.
    """
    import torch

    found: dict[str, Any] = {}
    seen = {id(runner)}
    queue: deque[tuple[str, Any, int]] = deque([("", runner, 0)])
    while queue and len(seen) < OBJECTS:
        name, thing, depth = queue.popleft()
        for path, value in _parts(name, thing):
            if id(value) in seen:
                continue
            if isinstance(value, torch.Tensor):
                seen.add(id(value))
                found[path] = value
            elif depth < DEPTH and _is_followed(value, packages) and not isinstance(value, torch.nn.Module):
                seen.add(id(value))
                queue.append((path, value, depth + 1))
    return found


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


def table_settings(found: dict[str, Any]) -> dict[str, int]:
    """Return the row strides of the block tables among buffers, as settings by name.

    Some kernels take such a stride without the table (vLLM's `reduce_segments`), so no tensor of the launch gives it.
    """
    return {
        f"{name}.stride(0)": tensor.stride(0)
        for name, tensor in found.items()
        if "block_table" in name and tensor.dim() == 2 and not tensor.dtype.is_floating_point
    }
