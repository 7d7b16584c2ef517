"""The watch: counts every compile after startup, and says what the manifest lacked."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..manifest import words
from ..manifest.diff import nearest
from ..manifest.model import Variant
from ..manifest.words import many
from .phase import current, is_ready

if TYPE_CHECKING:
    from ..jit.miss import Miss, MissHook

LOGGER = logging.getLogger("jitreplay")


class Watch:
    """Watches this process from `ready()` on. `recorded` are the variants of the manifest that was replayed.

    Warns once per kernel and argument; `compiles` counts all, by kernel. It journals nothing: a `Recorder` does.
    """

    def __init__(self, recorded: Iterable[Variant] = (), logger: logging.Logger = LOGGER) -> None:
        self.compiles: Counter[str] = Counter()
        self._recorded: dict[str, list[Variant]] = {}
        for variant in recorded:
            self._recorded.setdefault(variant.kernel.name, []).append(variant)
        self._logger = logger
        self._told: set[tuple[str, ...]] = set()
        self._hook: MissHook | None = None

    def start(self) -> Watch:
        """Install the hooks; returns itself. Raises Unsupported when this Triton lacks something."""
        from ..jit.miss import MissHook

        if self._hook is None:
            self._hook = MissHook(self._on_miss, self._trouble)
            self._hook.install()
        return self

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.uninstall()
            self._hook = None

    def summary(self) -> str:
        """Return one line on what was compiled after startup."""
        total = sum(self.compiles.values())
        names = ", ".join(f"{name.rpartition('.')[2]} x{count}" for name, count in self.compiles.most_common(5))
        return f"{many(total, 'compile')} after startup" + (f": {names}" if names else "")

    def _trouble(self, error: Exception) -> None:
        self._logger.debug("the watch failed on a compile: %s", error)

    def _on_miss(self, miss: Miss) -> None:
        if not is_ready() or miss.replayed:
            return
        variant = self._variant(miss)
        name = variant.kernel.name
        self.compiles[name] += 1
        near = nearest(variant, self._recorded.get(name, ()))
        args = [] if near is None else near[1]
        key = (name, *(argument for argument, _, _ in args))
        if key in self._told:
            return
        self._told.add(key)
        took = f"{miss.seconds * 1000:.0f} ms" + (" from disk" if miss.disk_hit else "")
        if near is None:
            why = "the manifest has no variant of this kernel" if self._recorded else "no manifest was replayed"
        elif any(each.digest == variant.digest for each in self._recorded[name]):
            why = "it is in the manifest, but it is not warm: the replay left it out, or it was lost since"
        else:
            why = "; ".join(words.sentence(*item) for item in args) or "only the key's text differs"
        # Without a manifest every compile is to be expected: then the count at the end says it all.
        level = logging.WARNING if self._recorded else logging.DEBUG
        self._logger.log(level, "compiled while serving (%s): %s: %s", took, name, why)

    def _variant(self, miss: Miss) -> Variant:
        from ..jit.source import kernel
        from . import capture

        event = capture.of_miss(miss, capture.specs(miss), 0, capture.Scene({}, None, "", current()), 0)
        return Variant(kernel(miss.fn), event.digest, event.args, event.options, event.grid, event.phase, event.real)
