"""The runner's buffers, as a recorder sees them: which named tensor an argument lies in, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..manifest.values import Tensor, View


class BufferIndex:
    """Finds the buffer that a tensor is a view of, by its storage. Holds addresses and shapes, no tensors.

    `find` returns the runner's buffers by name; it is called when `refresh` is, in whatever thread asks.
    """

    def __init__(self, find: Callable[[], Mapping[str, Any]]) -> None:
        self._find = find
        self._by_storage: dict[int, list[tuple[str, int, str, int, tuple[int, ...], tuple[int, ...]]]] = {}

    def refresh(self) -> int:
        """Look at the runner again, once its tables exist; return how many buffers it has."""
        found: dict[int, list[Any]] = {}
        count = 0
        for name, tensor in self._find().items():
            storage = tensor.untyped_storage()
            if storage.size():
                row = (
                    name,
                    tensor.data_ptr(),
                    _dtype(tensor),
                    storage.size(),
                    tuple(tensor.shape),
                    tuple(tensor.stride()),
                )
                found.setdefault(storage.data_ptr(), []).append(row)
                count += 1
        self._by_storage = found
        return count

    def locate(self, live: Any, tensor: Tensor) -> Tensor:
        """Return `tensor` with its buffer's name and view where the live tensor lies in one."""
        if not self._by_storage or not tensor.plain or tensor.view_as:
            return tensor
        rows = self._by_storage.get(live.untyped_storage().data_ptr(), ())
        address = live.data_ptr()
        # The buffer that begins nearest before it: several may share one storage (KV caches, Mamba states).
        rows = [row for row in rows if row[1] <= address and row[2] == tensor.dtype]
        if not rows:
            return tensor
        name, start, _, _, shape, strides = max(
            rows, key=lambda row: (row[1], len(row[4]) == len(tensor.shape), row[0])
        )
        size = live.element_size()
        if (address - start) % size:
            return tensor
        same_rank = len(shape) == len(tensor.shape)
        view = View(
            (address - start) // size,
            tuple(-1 if same_rank and n == shape[i] else n for i, n in enumerate(tensor.shape)),
            tuple(-1 if same_rank and n == strides[i] else n for i, n in enumerate(tensor.strides)),
        )
        return msgspec.structs.replace(tensor, buffer=name, view=view)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
