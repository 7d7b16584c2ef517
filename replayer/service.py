"""The helper's main loop: the server that started it, those that joined, the workers, and its end."""

from __future__ import annotations

import os
import selectors
import socket
import time
from typing import Any

import msgspec

from . import wire
from .desk import Desk, Peer
from .meeting import is_waited_for
from .pool import Pool, Worker


class Service:
    """Answers the server that started the helper, and whoever joins it, until there is nobody left to answer."""

    def __init__(self, hello: wire.Hello, compiler: Any, ready: wire.Ready, line: socket.socket | None) -> None:
        self._selector = selectors.DefaultSelector()
        self._pool = Pool(compiler, hello.jobs, hello.limit, hello.memory, self._selector)
        self._desk = Desk(self._pool, ready)
        self._linger, self._line = hello.linger, line
        self._guests: set[Peer] = set()
        self._left = False
        self._quiet_since = time.monotonic()

    def run(self, inbox: int, outbox: int, frames: wire.Frames, rest: list[Any]) -> None:
        """Serve. Raises BrokenPipeError when the server is gone."""
        owner = Peer(inbox, outbox, None, frames)
        self._selector.register(inbox, selectors.EVENT_READ, owner)
        if self._line is not None:
            self._selector.register(self._line, selectors.EVENT_READ, "line")
        if (parent := _parent_file()) is not None:
            self._selector.register(parent, selectors.EVENT_READ, "parent")
        try:
            self._take(owner, rest)
            while not (self._left and not self._let_in()) and not self._is_over():
                self._tell(self._pool.feed())
                for key, _ in self._selector.select(self._wait()):
                    if key.data == "parent" or not self._hear(key.data, owner):
                        return
            wire.send(outbox, wire.Bye())
        finally:
            self._pool.close()

    def _hear(self, speaker: Any, owner: Peer) -> bool:
        """Take what one has to say; return False when the server is gone."""
        if isinstance(speaker, Worker):
            self._tell(self._pool.hear(speaker))
            return True
        if speaker == "line":
            self._let_in()
            return True
        try:
            messages = wire.receive(speaker.inbox, speaker.frames)
            if messages is not None:
                self._take(speaker, messages)
                return True
        except (OSError, ValueError, msgspec.DecodeError):
            if speaker is owner:
                raise
        if speaker is owner:
            return False
        self._bid_farewell(speaker)
        return True

    def _let_in(self) -> bool:
        """Let in who waits at the door; return whether anybody has joined."""
        while is_waited_for(self._line):
            assert self._line is not None
            line, _ = self._line.accept()
            guest = Peer(line.fileno(), line.fileno(), line)
            self._guests.add(guest)
            self._selector.register(line, selectors.EVENT_READ, guest)
        return bool(self._guests)

    def _take(self, peer: Peer, messages: list[Any]) -> None:
        self._quiet_since = time.monotonic()
        for message in messages:
            if isinstance(message, wire.Leave):
                self._left = True
                self._desk.gone(peer)
                if self._let_in():
                    wire.send(peer.outbox, wire.Bye(stays=True))
            else:
                self._desk.take(peer, message)

    def _tell(self, answers: list[wire.Answer]) -> None:
        for answer in answers:
            self._quiet_since = time.monotonic()
            for peer in self._desk.answer(answer):
                if peer.line is None:
                    raise BrokenPipeError
                self._bid_farewell(peer)

    def _bid_farewell(self, guest: Peer) -> None:
        if guest in self._guests:
            self._guests.discard(guest)
            self._selector.unregister(guest.inbox)
            self._desk.gone(guest)

    def _is_over(self) -> bool:
        """Whether everything is answered, nobody has joined, and nothing was asked for a while."""
        quiet = time.monotonic() - self._quiet_since
        return bool(self._linger) and self._desk.idle and not self._guests and quiet >= self._linger

    def _wait(self) -> float | None:
        times = [self._pool.wait()]
        if self._linger and self._desk.idle and not self._guests:
            times.append(max(0.0, self._quiet_since + self._linger - time.monotonic()))
        return min((seconds for seconds in times if seconds is not None), default=None)


def _parent_file() -> int | None:
    """Return a descriptor that is readable once the parent is gone, where the kernel has such."""
    try:
        return os.pidfd_open(os.getppid())
    except (AttributeError, OSError):
        return None
