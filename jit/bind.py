"""Letting the live Triton derive a key, and compile it, without a launch and without touching the kernel.

`JITFunction.run` is called unbound on a view of the kernel with `warmup=True`. The view shows an empty
`pre_run_hooks` (they are another's code and break on stand-ins), notes the key, and passes everything else on.
Read on Triton 3.6.0 to 3.9.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .internals import internals
from .miss import replaying


class _Injected(Exception):
    """Carries the keywords that `run` hands to its binder."""


@dataclass
class Bound:
    """What a bind showed. `kernel` is None when another tool's cache hook cancelled the compile.

    `in_memory` says that Triton had the key already. `specialization` and `options` are the live ones.
    """

    key: str = ""
    kernel: Any = None
    in_memory: bool = False
    specialization: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


class _NotedCache:
    def __init__(self, cache: Any, bound: Bound) -> None:
        self._cache, self._bound = cache, bound

    def get(self, key: str, default: Any = None) -> Any:
        self._bound.key = key
        found = self._cache.get(key, default)
        self._bound.in_memory = found is not None
        return found


class _Caches:
    def __init__(self, fn: Any, bound: Bound) -> None:
        self._fn, self._bound = fn, bound

    def __getitem__(self, device: Any) -> tuple[Any, ...]:
        cache, keys, target, backend, binder = self._fn.device_caches[device]

        def noting(*args: Any, **kwargs: Any) -> Any:
            arguments, specialization, options = binder(*args, **kwargs)
            self._bound.specialization, self._bound.options = list(specialization), dict(options)
            return arguments, specialization, options

        return _NotedCache(cache, self._bound), keys, target, backend, noting


class _View:
    """A kernel as `run` sees it during a replay."""

    pre_run_hooks: tuple[Any, ...] = ()

    def __init__(self, fn: Any, bound: Bound, probe: Callable[..., Any] | None) -> None:
        self._jitreplay_kernel = fn
        self.device_caches = _Caches(fn, bound)
        self._probe = probe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jitreplay_kernel, name)

    def _pack_args(self, *args: Any) -> Any:
        return internals().JITFunction._pack_args(self, *args)

    def _do_compile(self, key: str, *args: Any, **kwargs: Any) -> Any:
        if self._probe is not None:
            return self._probe(self._jitreplay_kernel, *args)
        return self._jitreplay_kernel._do_compile(key, *args, **kwargs)


def bind(
    fn: Any, args: list[Any], kwargs: dict[str, Any], options: dict[str, Any], probe: Callable[..., Any] | None = None
) -> Bound:
    """Bind arguments to a kernel, and compile it where Triton does not have the key.

    With `probe`, nothing is compiled: on a miss `probe(fn, signature, device, constexprs, options, attrs, warmup)`
    is called, and what it returns is the kernel. What Triton raises is raised.
    """
    bound = Bound()
    view = _View(fn, bound, probe)
    with replaying():
        bound.kernel = internals().JITFunction.run(view, *args, grid=(1,), warmup=True, **{**kwargs, **options})
    if hasattr(bound.kernel, "result"):
        bound.kernel = bound.kernel.result()
    return bound


class _InjectCaches:
    def __getitem__(self, device: Any) -> tuple[Any, ...]:
        def binder(*args: Any, **kwargs: Any) -> Any:
            raise _Injected(kwargs)

        return {}, {}, None, None, binder


class _InjectView:
    pre_run_hooks: tuple[Any, ...] = ()
    device_caches = _InjectCaches()

    def __init__(self, debug: Any) -> None:
        self.debug = debug


def injected(fn: Any) -> dict[str, Any]:
    """Return the options that `run` adds to a launch of this kernel now (3.6: debug, instrumentation_mode)."""
    try:
        internals().JITFunction.run(_InjectView(getattr(fn, "debug", None)), grid=(1,), warmup=True)
    except _Injected as error:
        return dict(error.args[0])
    return {}


def strip(options: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """Return a launch's options without those that `run` added, in the caller's order.

    `run` sets its own at the end; only `debug` may be the caller's, and then stands where the caller put it.
    """
    names = list(options)
    while names and names[-1] in added and (names[-1] != "debug" or options["debug"] == added["debug"]):
        names.pop()
    return {name: options[name] for name in names if name == "debug" or name not in added}
