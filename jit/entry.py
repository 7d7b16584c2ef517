"""Kernels of the disk cache, made in less time than Triton's constructor takes, which is a third of a second boot.

Triton makes a namedtuple class for the metadata of each kernel and a Path for each of its files. Kernels whose
metadata has the same fields can share one class. Read on Triton 3.6.0 to 3.9.0 (`CompiledKernel.__init__`).
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from .hook import Hook
from .internals import internals
from .miss import is_replaying

Fields = tuple[str, ...]


class Entries(Hook):
    """While it is entered, a replay's threads make kernels of the disk cache by `_read`; all others as ever.

    The first kernel of each set of fields is made by Triton and compared: where one attribute differs, Triton makes
    the others too. So it does where another tool has put its own constructor, and where reading fails.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Fields, tuple[Any, dict[str, None]] | None] = {}

    def __enter__(self) -> None:
        cls = internals().CompiledKernel
        if cls.__init__.__module__ == cls.__module__ and not hasattr(cls.__init__, "__wrapped__"):
            self._put_on((cls, "__init__", self._wrap))

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def _wrap(self, original: Any) -> Any:
        @functools.wraps(original)
        def __init__(kernel: Any, src: Any, metadata_group: Any, hash: Any) -> None:
            fields: Fields = ()
            if self._on and is_replaying():
                try:
                    fields, found = self._read(src, metadata_group, hash)
                    if found is not None:
                        vars(kernel).update(found)
                        return
                except Exception:
                    fields = ()  # Triton says what is wrong
            original(kernel, src, metadata_group, hash)
            if fields and fields not in self._known:
                self._learn(fields, kernel)

        return __init__

    def _learn(self, fields: Fields, kernel: Any) -> None:
        """Note the class of a kernel that Triton made, None where one made here would differ."""
        there = vars(kernel)
        self._known[fields] = type(kernel.metadata), {name: None for name, value in there.items() if value is None}
        try:
            made = self._read(kernel.src, kernel.metadata_group, kernel.hash)[1] or {}
            alike = made == there and all(type(made[name]) is type(value) for name, value in there.items())
        except Exception:
            alike = False
        if not alike:
            self._known[fields] = None

    def _read(self, src: Any, group: dict[str, str], hash: str) -> tuple[Fields, dict[str, Any] | None]:
        """Return the fields of an entry's metadata, and its kernel's attributes if those fields' class is known."""
        from triton.backends.compiler import GPUTarget
        from triton.compiler.compiler import AsmDict, make_backend

        with open(next(path for name, path in group.items() if name.endswith(".json"))) as file:
            metadata = json.load(file)
        target = metadata["target"]
        metadata["target"] = GPUTarget(target["backend"], target["arch"], target["warp_size"])
        fields = tuple(sorted(metadata))
        if (known := self._known.get(fields)) is None:
            return fields, None
        cls, none = known
        told = cls(**metadata)
        backend = make_backend(told.target)
        asm = AsmDict()
        for name, path in group.items():
            if not name.endswith(".json"):
                stage = os.path.splitext(path)[1][1:]
                with open(path, "rb" if stage == backend.binary_ext else "r") as file:
                    asm[stage] = file.read()
        return fields, {
            **none,
            "metadata": told,
            "packed_metadata": backend.pack_metadata(told),
            "src": src,
            "hash": hash,
            "name": told.name,
            "asm": asm,
            "metadata_group": group,
            "kernel": asm[backend.binary_ext],
        }
