"""Autotuners: noticing their decisions as they are made, and restoring them without a benchmark.

Read on Triton 3.6.0 to 3.9.0: `Autotuner.run` looks its key up in `self.cache` and, on a miss, times each config by
`_bench` and stores the winner there; from 3.8 a single pruned config is stored without timing.
"""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import tuner_cache
from .first_run import before_first_run
from .hook import Hook
from .internals import changes_hooks, internals
from .tuner_cache import NoticingCache, Overlay, is_cache

_local = threading.local()


def benching() -> tuple[Any, Any] | None:
    """Return the (autotuner, config) that this thread is timing, or None."""
    return getattr(_local, "benching", None)


class TunerHook(Hook):
    """Reports each decision of each autotuner: `on_choice(tuner, key, config, timings)`, timings a dict config to ms.

    What `on_choice` raises goes to `on_error`. Tuners that exist already are found by one pass over live objects.
    """

    def __init__(
        self, on_choice: Callable[[Any, Any, Any, dict[Any, float]], None], on_error: Callable[[Exception], None]
    ) -> None:
        super().__init__()
        self._on_choice, self._on_error = on_choice, on_error
        self._timings = threading.local()
        self._tuners: list[weakref.ref[Any]] = []

    @changes_hooks
    def install(self) -> None:
        cls = internals().Autotuner
        self._put_on((cls, "__init__", self._wrap_init), (cls, "_bench", self._wrap_bench))
        for thing in gc.get_objects():
            if issubclass(type(thing), cls):  # `isinstance` would ask objects for `__class__`
                self._adopt(thing)

    @changes_hooks
    def uninstall(self) -> None:
        """Take the wrappers off, and give each tuner its own dict back, updated."""
        super().uninstall()
        for ref in self._tuners:
            tuner = ref()
            cache = getattr(tuner, "cache", None)
            if tuner is not None and isinstance(cache, NoticingCache) and cache.hook is self:
                original = cache.original
                while isinstance(original, NoticingCache) and not original.hook._on:
                    original = original.original  # one that was stopped before us
                dict.clear(original)
                dict.update(original, cache)
                tuner.cache = original
            while isinstance(cache, Overlay):
                if cache.hook is self:
                    cache.hook = None
                if not cache.needed and tuner is not None and tuner.cache is cache:
                    tuner.cache = cache.original
                cache = cache.original
        self._tuners.clear()

    def decided(self, tuner: Any, key: Any, config: Any, timings: dict[Any, float] | None = None) -> None:
        """Report a decision, with the times that this thread took for it unless `timings` are given."""
        if not self._on:
            return
        if timings is None:
            timings = dict(getattr(self._timings, "of", {}).pop(id(tuner), {}))
        try:
            self._on_choice(tuner, key, config, timings)
        except Exception as error:
            self._on_error(error)

    def _adopt(self, tuner: Any) -> None:
        cache = getattr(tuner, "cache", None)
        if isinstance(cache, Overlay) and cache.hook in (None, self):
            cache.tell(self)
            self._tuners.append(weakref.ref(tuner))
        elif not isinstance(cache, dict) and is_cache(cache):
            tuner.cache = Overlay(cache, tuner, self)
            self._tuners.append(weakref.ref(tuner))
        if isinstance(cache, dict) and not (isinstance(cache, NoticingCache) and cache.hook is self):
            tuner.cache = NoticingCache(cache, tuner, self)
            self._tuners.append(weakref.ref(tuner))
            for key, config in list(cache.items()):
                self.decided(tuner, key, config)

    def _adopt_late(self, tuner: Any) -> None:
        """Adopt a tuner whose class gave it another cache after `Autotuner.__init__`."""
        if not self._on:
            return
        try:
            cache = getattr(tuner, "cache", None)
            while isinstance(cache, (NoticingCache, Overlay)) and cache.hook is not self:
                cache = cache.original
            if not isinstance(cache, (NoticingCache, Overlay)):
                self._adopt(tuner)
        except Exception as error:
            self._on_error(error)

    def _wrap_init(self, original: Any) -> Any:
        hook = self

        @functools.wraps(original)
        def __init__(tuner: Any, *args: Any, **kwargs: Any) -> None:
            original(tuner, *args, **kwargs)
            if hook._on:
                try:
                    hook._adopt(tuner)
                    before_first_run(tuner, hook._adopt_late)
                except Exception as error:
                    hook._on_error(error)

        return __init__

    def _wrap_bench(self, original: Any) -> Any:
        hook = self

        def _bench(tuner: Any, *args: Any, config: Any, **kwargs: Any) -> Any:
            if not hook._on:
                return original(tuner, *args, config=config, **kwargs)
            hook._adopt_late(tuner)
            before, _local.benching = benching(), (tuner, config)
            try:
                timing = original(tuner, *args, config=config, **kwargs)
            finally:
                _local.benching = before
            if not hasattr(hook._timings, "of"):
                hook._timings.of = {}
            median = timing[0] if isinstance(timing, (list, tuple)) and timing else timing
            hook._timings.of.setdefault(id(tuner), {})[config] = median
            return timing

        return _bench


def parts(config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a config's kernel arguments and its launch options (`Config.all_kwargs` less `kwargs`)."""
    kwargs = dict(config.kwargs)
    return kwargs, {name: value for name, value in config.all_kwargs().items() if name not in kwargs}


def is_tuner(thing: Any) -> bool:
    """Whether this is an autotuner, of Triton's class or a subclass."""
    return isinstance(thing, internals().Autotuner)


def find(tuners: Any, fn: Any) -> Any:
    """Return the first autotuner among kernel objects that leads to `fn`, else the live one that does, or None."""
    for tuner in tuners:
        if is_tuner(tuner):
            return tuner
    cls = internals().Autotuner
    for thing in gc.get_objects():
        if issubclass(type(thing), cls) and innermost(thing) is fn:
            return thing
    return None


def innermost(tuner: Any) -> Any:
    """Return the JITFunction that an autotuner leads to, or None."""
    names, inner = internals(), tuner
    for _ in range(16):
        if isinstance(inner, names.JITFunction):
            return inner
        inner = getattr(inner, "fn", None)
    return None


def replaces_run(tuner: Any) -> bool:
    """Whether another tool or a subclass chooses configs by itself (`Autotuner.run` is not Triton's own)."""
    return getattr(type(tuner).run, "__module__", "") != internals().Autotuner.__module__


def prunes(tuner: Any) -> bool:
    """Whether an autotuner times a part of its configs only (3.6.0 to 3.9.0: `prune_configs_by`)."""
    return bool(getattr(tuner, "early_config_prune", None) or getattr(tuner, "perf_model", None))


def restore(tuner: Any, key: Any, config: Any, timings: dict[Any, float] | None = None) -> None:
    """Put a live config object into an autotuner's cache; a recorder is told of it with the recorded timings."""
    if not isinstance(tuner.cache, (dict, Overlay)):
        tuner.cache = Overlay(tuner.cache, tuner)
    tuner_cache.restore(tuner.cache, key, config, timings or {})
