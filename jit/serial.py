"""One compile of a kernel at a time: a thread of ours and the launches of the program wait for each other.

Triton itself lets two threads compile one key at once, and load one binary twice (3.6.0 to 3.9.0).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .hook import Hook
from .internals import internals, renew_in_children


class Serial(Hook):
    """Serialises the compiles of each kernel, and all loads, while it is installed. A warm launch meets none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Be off, with locks that nobody has: in a forked child, the thread that had them is not there."""
        self._on = False
        self._guard, self._loading = threading.Lock(), threading.RLock()
        self._locks: dict[int, tuple[Any, threading.RLock]] = {}  # with the kernel: its id is not another's meanwhile

    def install(self) -> None:
        names = internals()
        self._put_on(
            (names.JITFunction, "_do_compile", self._wrap_compile),
            (names.CompiledKernel, "_init_handles", self._wrap_load),
        )

    @contextmanager
    def of(self, fn: Any) -> Iterator[None]:
        """Let no other thread compile this kernel meanwhile."""
        with self._guard:
            _, lock = self._locks.setdefault(id(fn), (fn, threading.RLock()))
        with lock:
            yield

    def _wrap_compile(self, original: Any) -> Any:
        serial = self

        @functools.wraps(original)
        def _do_compile(fn: Any, key: Any, signature: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
            if not serial._on:
                return original(fn, key, signature, device, *args, **kwargs)
            with serial.of(fn):
                # Who had the lock before may have compiled it.
                found = fn.device_caches[device][0].get(key)
                return original(fn, key, signature, device, *args, **kwargs) if found is None else found

        return _do_compile

    def _wrap_load(self, original: Any) -> Any:
        serial = self

        @functools.wraps(original)
        def _init_handles(kernel: Any) -> Any:
            if not serial._on:
                return original(kernel)
            with serial._loading:
                return original(kernel)

        return _init_handles
