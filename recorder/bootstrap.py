"""Waiting for Triton: arms the recorder in a process that may or may not import it. Imports the standard library."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_HELLO = "JITREPLAY_HELLO"
"""A folder where each process under `jitreplay record` leaves a mark, so that the command can say what it saw."""

_armed = False
_stood_down = False


def arm() -> None:
    """Start recording to `JITREPLAY_RECORD` once Triton is imported; at once if it already is.

    With `JITREPLAY_TARGET`, the headless driver for that target is installed first. Does nothing the second time.
    """
    global _armed
    if _armed:
        return
    _armed = True
    _mark("python")
    # A child may run in another folder.
    os.environ["JITREPLAY_RECORD"] = os.path.abspath(os.environ["JITREPLAY_RECORD"])
    when_imported("triton", _start)


def stand_down() -> None:
    """Leave the recording to an engine's plugin, which knows which of its processes launch kernels.

    Under `jitreplay record` every process records, so nothing changes there.
    """
    global _stood_down
    if os.environ.get(_HELLO):
        return
    _stood_down = True
    session = sys.modules.get(f"{__package__}.session")
    if session is not None:
        session.stop_if_idle()


def _start() -> None:
    if _stood_down:
        return
    _mark("triton")
    target = os.environ.get("JITREPLAY_TARGET")
    if target:
        _with_torch(lambda: _headless(target))
    from .session import start_from_environment

    start_from_environment()


def _headless(target: str) -> None:
    from ..jit.headless import install

    install(target)


def _with_torch(then: Callable[[], None]) -> None:
    """Call `then` when torch is whole: torch itself may be the one that is importing Triton."""
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch.__spec__, "_initializing", False):
        when_imported("torch", then)
    else:
        then()


def _mark(kind: str) -> None:
    folder = os.environ.get(_HELLO)
    if folder and os.path.isdir(folder):
        try:
            open(os.path.join(folder, f"{kind}-{os.getpid()}"), "w").close()
        except OSError:
            pass  # only the command's closing words depend on it


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call `then` once the module has been executed, at once if it has. What `then` raises is told, not raised."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _guard(then)
        return
    sys.meta_path.insert(0, _Waiter(name, then))


def _guard(then: Callable[[], None]) -> None:
    try:
        then()
    except Exception as error:
        sys.stderr.write(f"jitreplay: off: {type(error).__name__}: {error}\n")


class _Waiter(importlib.abc.MetaPathFinder):
    """Finds the module by the other finders and runs `then` behind its loader's `exec_module`; then steps aside."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then
        self._looking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path or getattr(self._looking, "on", False):
            return None
        self._looking.on = True
        try:
            for finder in [other for other in sys.meta_path if other is not self]:
                find = getattr(finder, "find_spec", None)
                spec = find(fullname, path, target) if find is not None else None
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, self._done)
                    return spec
        finally:
            self._looking.on = False
        return None

    def _done(self) -> None:
        """The module has run. Until then we stay: many programs look a module up before they import it."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then()


class _Loader(importlib.abc.Loader):
    """Passes everything on to the real loader, which it leaves in its place once the module has run."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader, self._then = loader, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _guard(self._then)
