"""The names of Triton that jitreplay needs, looked up once. If one is gone, jitreplay is off and says which."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

from ..manifest.errors import JitreplayError


class Unsupported(JitreplayError):
    """This Triton lacks something that jitreplay hooks; the program runs as without jitreplay."""


class Internals(NamedTuple):
    """Triton's objects, read on 3.6.0, 3.7.1, 3.8.0 and 3.9.0."""

    version: str
    JITFunction: Any
    JITCallable: Any
    CompiledKernel: Any
    Autotuner: Any
    Heuristics: Any
    knobs: Any
    driver: Any


@lru_cache(maxsize=1)
def internals() -> Internals:
    """Import Triton and return what jitreplay uses of it.

    Raises Unsupported, in one line, when Triton is absent or lacks a name.
    """
    try:
        import triton
        from triton import knobs
        from triton.compiler.compiler import CompiledKernel
        from triton.runtime.autotuner import Autotuner, Heuristics
        from triton.runtime.driver import driver
        from triton.runtime.jit import JITCallable, JITFunction
    except Exception as error:
        hint = '; install it with: pip install "jitreplay[triton]"' if isinstance(error, ModuleNotFoundError) else ""
        raise Unsupported(f"Triton cannot be used: {type(error).__name__}: {error}{hint}") from None
    needed = {
        "JITFunction.run": (JITFunction, "run"),
        "JITFunction._pack_args": (JITFunction, "_pack_args"),
        "JITFunction._do_compile": (JITFunction, "_do_compile"),
        "CompiledKernel._init_handles": (CompiledKernel, "_init_handles"),
        "knobs.compilation.listener": (knobs.compilation, "listener"),
        "JITCallable.cache_key": (JITCallable, "cache_key"),
        "Autotuner._bench": (Autotuner, "_bench"),
    }
    if missing := [name for name, (owner, attribute) in needed.items() if not hasattr(owner, attribute)]:
        raise Unsupported(f"Triton {triton.__version__} has no {', '.join(missing)}; this jitreplay knows 3.6 to 3.9")
    return Internals(triton.__version__, JITFunction, JITCallable, CompiledKernel, Autotuner, Heuristics, knobs, driver)


_hooks = threading.RLock()
Method = TypeVar("Method", bound=Callable[..., Any])


def changes_hooks(method: Method) -> Method:
    """Let one thread at a time put wrappers on Triton's classes and take them off."""

    @functools.wraps(method)
    def alone(*args: Any, **kwargs: Any) -> Any:
        with _hooks:
            return method(*args, **kwargs)

    return alone  # type: ignore[return-value]


class Renewable(Protocol):
    """What has locks, which in a forked child nobody holds: the threads that did are not there."""

    def renew(self) -> None:
        """Be as new."""


_renewable: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_children(thing: Renewable) -> None:
    """Have a thing renewed in every process that is forked from this one."""
    _renewable.add(thing)


def _renew() -> None:
    global _hooks
    _hooks = threading.RLock()
    for thing in list(_renewable):
        thing.renew()


os.register_at_fork(after_in_child=_renew)
