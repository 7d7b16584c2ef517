"""Kernels of the disk cache, made in less time than Triton's constructor takes, which is a third of a second boot.

Triton makes a namedtuple class for the metadata of each kernel and a Path for each of its files. Kernels whose
metadata has the same fields can share one class. Read on Triton 3.6.0 to 3.9.0 (`CompiledKernel.__init__`).
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
from collections import namedtuple
from typing import Any

from .hook import Hook, live
from .internals import internals
from .miss import is_replaying

_BEFORE_LOADING = ("module", "function", "_run")
READ = {
    "98ca0e538f8e": _BEFORE_LOADING,  # 3.6.0, 3.7.1, 3.8.0
    "e0f93146488a": (*_BEFORE_LOADING, "_module_pid"),  # 3.9.0
}
"""The constructors that were read, by their source's sha256, with the attributes that they set to None."""


class Entries(Hook):
    """While it is entered, a replay's threads make kernels of the disk cache by `_read`; all others as ever.

    Where the constructor is none that was read, or another tool's, it makes all; so it does where `_read` fails.
    """

    def __init__(self) -> None:
        super().__init__()
        self._classes: dict[tuple[str, ...], Any] = {}
        self._none: tuple[str, ...] = ()

    def __enter__(self) -> None:
        cls = internals().CompiledKernel
        self._none = READ.get(source(live(cls.__init__)), ())
        if self._none:
            self._put_on((cls, "__init__", self._wrap))

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def _wrap(self, original: Any) -> Any:
        @functools.wraps(original)
        def __init__(kernel: Any, *args: Any, **kwargs: Any) -> None:
            if self._on and is_replaying() and type(kernel) is internals().CompiledKernel:
                try:
                    found = self._read(*args, **kwargs)
                except Exception:
                    found = {}  # Triton says what is wrong
                for name, value in found.items():
                    setattr(kernel, name, value)
                if found:
                    return
            original(kernel, *args, **kwargs)

        return __init__

    def _read(self, src: Any, metadata_group: dict[str, str], hash: str) -> dict[str, Any]:
        """Return the attributes of an entry's kernel."""
        from triton.backends.compiler import GPUTarget
        from triton.compiler.compiler import AsmDict, make_backend

        with open(next(path for name, path in metadata_group.items() if name.endswith(".json"))) as file:
            told = json.load(file)
        target = told["target"]
        told["target"] = GPUTarget(target["backend"], target["arch"], target["warp_size"])
        metadata = self._class(tuple(sorted(told)))(**told)
        backend = make_backend(metadata.target)
        asm = AsmDict()
        for name, path in metadata_group.items():
            if not name.endswith(".json"):
                stage = os.path.splitext(path)[1][1:]
                with open(path, "rb" if stage == backend.binary_ext else "r") as file:
                    asm[stage] = file.read()
        return {
            "metadata": metadata,
            "packed_metadata": backend.pack_metadata(metadata),
            "src": src,
            "hash": hash,
            "name": metadata.name,
            "asm": asm,
            "metadata_group": metadata_group,
            "kernel": asm[backend.binary_ext],
            **dict.fromkeys(self._none),
        }

    def _class(self, fields: tuple[str, ...]) -> Any:
        if fields not in self._classes:
            module = internals().CompiledKernel.__module__
            self._classes[fields] = namedtuple("KernelMetadata", fields, module=module)
        return self._classes[fields]


def source(constructor: Any) -> str:
    """Return the beginning of the sha256 of a function's source, "" of one that wraps another or has none."""
    if hasattr(constructor, "__wrapped__"):
        return ""
    try:
        return hashlib.sha256(inspect.getsource(constructor).encode()).hexdigest()[:12]
    except (OSError, TypeError):
        return ""
