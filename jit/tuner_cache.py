"""What stands for an autotuner's cache of choices while it is watched.

Read on Triton 3.6.0 to 3.9.0, whose cache is a dict, and FlagGems 5.0.2, whose tuners keep a database in its place.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tuner import TunerHook


class NoticingCache(dict):  # type: ignore[type-arg]
    """A dict of choices that tells of a decision. A hit is a plain dict's."""

    def __init__(self, original: dict[Any, Any], tuner: Any, hook: TunerHook) -> None:
        super().__init__(original)
        self.original, self.tuner, self.hook = original, weakref.ref(tuner), hook

    def __setitem__(self, key: Any, config: Any) -> None:
        super().__setitem__(key, config)
        if isinstance(self.original, NoticingCache):
            self.original[key] = config  # another hook's
        tuner = self.tuner()
        if tuner is not None:
            self.hook.decided(tuner, key, config)

    def restore(self, key: Any, config: Any, timings: dict[Any, float]) -> None:
        """Take a choice that was made elsewhere; tell of it with its timings."""
        dict.__setitem__(self, key, config)
        tuner = self.tuner()
        if tuner is not None:
            self.hook.decided(tuner, key, config, timings)
        restore(self.original, key, config, timings)


class Overlay:
    """Stands before a cache that is no dict. A restored choice is kept here: a database is not ours to fill.

    It tells of a decision when it is made, and of one that the cache had already when it is first asked for.
    """

    def __init__(self, original: Any, tuner: Any, hook: TunerHook | None = None) -> None:
        self.original, self.hook = original, hook
        self._tuner = weakref.ref(tuner)
        self._restored: dict[Any, Any] = {}
        self._told: set[Any] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    @property
    def needed(self) -> bool:
        """Whether somebody is told of decisions, or choices are kept here."""
        return self.hook is not None or bool(self._restored)

    def tell(self, hook: TunerHook) -> None:
        """Tell this hook from now on."""
        self.hook = hook
        self._told.clear()

    def __contains__(self, key: Any) -> bool:
        return key in self._restored or key in self.original

    def __getitem__(self, key: Any) -> Any:
        config = self._restored[key] if key in self._restored else self.original[key]
        self._tell(key, config)
        return config

    def __setitem__(self, key: Any, config: Any) -> None:
        self._restored.pop(key, None)
        self.original[key] = config
        self._tell(key, config)

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def restore(self, key: Any, config: Any, timings: dict[Any, float]) -> None:
        """Take a choice that was made elsewhere; tell of it with its timings."""
        self._restored[key] = config
        self._tell(key, config, timings)
        if isinstance(self.original, Overlay):
            self.original._tell(key, config, timings)

    def _tell(self, key: Any, config: Any, timings: dict[Any, float] | None = None) -> None:
        tuner = self._tuner()
        if self.hook is not None and tuner is not None and key not in self._told:
            self._told.add(key)
            self.hook.decided(tuner, key, config, timings)


def restore(cache: Any, key: Any, config: Any, timings: dict[Any, float]) -> None:
    """Put a choice into an autotuner's cache, a dict or what stands for one here."""
    if isinstance(cache, (NoticingCache, Overlay)):
        cache.restore(key, config, timings)
    else:
        dict.__setitem__(cache, key, config)


def is_cache(thing: Any) -> bool:
    """Whether this can be asked for choices and given them."""
    return all(hasattr(type(thing), name) for name in ("__contains__", "__getitem__", "__setitem__"))
