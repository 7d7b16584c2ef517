"""The compile helper: `python -m jitreplay.replayer.child`, started by a server that replays.

It imports Triton and the kernels' modules once, on a headless driver that answers for the server's device, forks
workers, and compiles what comes in on stdin into the Triton cache that the server reads. It never asks a GPU driver.
It ends when stdin does, or when its parent is gone, and its workers end with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
import time
from typing import Any

import msgspec

from . import wire
from .meeting import is_waited_for, listen


def main() -> None:
    """Serve until stdin ends. Whatever goes wrong ends the process, which the server then does without."""
    inbox, outbox = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what libraries print is not for the server
    frames = wire.Frames()
    first: list[Any] = []
    while not first:
        more = wire.receive(inbox, frames)
        if more is None:
            return
        first = more
    hello, rest = first[0], first[1:]
    sys.path[:] = hello.path
    line = _listen(hello.listen)
    with _Watch(inbox, outbox, line, frames, rest):
        start = time.perf_counter()
        from .service import Service

        compiler, notes = _prepare(hello)
    ready = wire.Ready(time.perf_counter() - start, notes)
    try:
        wire.send(outbox, ready)
        Service(hello, compiler, ready, line).run(inbox, outbox, frames, rest)
    except BrokenPipeError:
        pass
    finally:
        if line is not None:
            with contextlib.suppress(OSError):
                os.unlink(hello.listen)
    os._exit(0)  # taking down an interpreter with torch in it takes a second


class _Watch:
    """Hears the server while the process imports, adding what it says to `rest`. Gone before anything is forked.

    When the server or the parent is gone the process ends; when the server leaves, then too, unless another has joined.
    """

    def __init__(
        self, inbox: int, outbox: int, line: socket.socket | None, frames: wire.Frames, rest: list[Any]
    ) -> None:
        self._inbox, self._outbox, self._line = inbox, outbox, line
        self._frames, self._rest = frames, rest
        self._parent, self._over = os.getppid(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._heed(self._rest)  # said before this process was there to hear it
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._inbox, select.POLLIN)
        try:
            while not self._over.is_set():
                if poll.poll(100):
                    self._hear()
                if os.getppid() != self._parent:
                    os._exit(0)
        except (OSError, ValueError, msgspec.DecodeError):
            os._exit(0)

    def _hear(self) -> None:
        messages = wire.receive(self._inbox, self._frames)
        if messages is None:
            os._exit(0)
        self._rest += messages
        self._heed(messages)

    def _heed(self, messages: list[Any]) -> None:
        if any(isinstance(message, wire.Leave) for message in messages):
            if not is_waited_for(self._line):
                os._exit(0)
            wire.send(self._outbox, wire.Bye(stays=True))


def _prepare(hello: wire.Hello) -> tuple[Any, list[str]]:
    """Import what the work needs; return what compiles, and which modules could not be imported."""
    from ..jit.headless import install
    from ..jit.resolve import Unresolved
    from .worker import Compiler

    install(str(hello.device.target), hello.device)
    compiler = Compiler(hello.allow, hello.launchers)
    failed: dict[str, list[str]] = {}
    for name in hello.modules:
        try:
            compiler.resolver.module(name)
        except Unresolved as reason:
            why = str(reason)
            failed.setdefault(why.removeprefix(f"module {name} "), []).append(name)
    _warm_up(hello.device.target)
    return compiler, [f"{_few(names)} {why}; the server compiles these itself" for why, names in failed.items()]


def _few(names: list[str]) -> str:
    """Return one line for modules that failed alike: the first by name, the others by their number."""
    return f"module {names[0]}" if len(names) == 1 else f"module {names[0]} and {len(names) - 1} more"


def _warm_up(target: Any) -> None:
    """Compute once what every worker needs: Triton's own hash, and ptxas' version."""
    from ..jit.disk import warm_up

    try:
        warm_up()
    except Exception:
        pass  # a broken ptxas fails each task, where it is told


def _listen(path: str) -> socket.socket | None:
    """Return a socket that listens at a path, None where there is no path or it cannot be: then nobody joins."""
    if not path:
        return None
    try:
        return listen(path)
    except OSError:
        return None


if __name__ == "__main__":
    main()
