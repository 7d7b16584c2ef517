"""Wrappers on methods of Triton's classes, or of torch's: put on, and taken off beneath whatever came on top."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .internals import changes_hooks


class Hook:
    """Has wrappers on methods while it is on. Off, those under another tool's wrappers stay as inert pass-throughs.

    A wrapper must look at `_on` at each call. It carries its hook, the function that it found, and itself, as
    `_jitreplay`: another tool's that came on top may have copied the mark with the rest of its attributes.
    """

    def __init__(self) -> None:
        self._on = False
        self._placed: list[tuple[Any, str, Any, Any]] = []

    @changes_hooks
    def _put_on(self, *methods: tuple[Any, str, Callable[[Any], Any]]) -> None:
        """Wrap methods, each given as its class, its name, and what makes a wrapper of the function found there."""
        found = [(owner, name, wrap, getattr(owner, name)) for owner, name, wrap in methods]
        for owner, name, wrap, original in found:
            wrapper = wrap(original)
            wrapper._jitreplay = self, original, wrapper
            self._placed.append((owner, name, wrapper, original))
            setattr(owner, name, wrapper)
        self._on = True

    @changes_hooks
    def uninstall(self) -> None:
        """Take the wrappers off where they are the top ones."""
        self._on = False
        for owner, name, wrapper, original in self._placed:
            if getattr(owner, name) is wrapper:
                setattr(owner, name, live(original))
        self._placed.clear()


def live(function: Any) -> Any:
    """Return what lies beneath wrappers of ours that were stopped while another was on top of them."""
    while (mark := getattr(function, "_jitreplay", None)) is not None and mark[2] is function and not mark[0]._on:
        function = mark[1]
    return function
