"""The helper's counter: who asked for what. The server that started it, and others of the host that joined it."""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from . import wire
from .pool import Pool


class Peer(msgspec.Struct, eq=False):
    """A process that asks: its pipe or socket. `line` is None for the server that started the helper."""

    inbox: int
    outbox: int
    line: socket.socket | None = None
    frames: wire.Frames = msgspec.field(default_factory=wire.Frames)


class Desk:
    """Gives a pool each task once, whoever asks for it and how often, and each peer its answer under its own number."""

    def __init__(self, pool: Pool, ready: wire.Ready) -> None:
        self._pool, self._ready, self._count = pool, ready, 0
        self._tasks: dict[bytes, int] = {}
        self._waiting: dict[int, list[tuple[Peer, int]]] = {}
        self._done: dict[int, wire.Answer] = {}

    @property
    def idle(self) -> bool:
        """Whether everything that was asked for is answered."""
        return not self._waiting

    def take(self, peer: Peer, message: Any) -> None:
        """Do what a peer says. Raises OSError when it cannot be answered."""
        if isinstance(message, wire.Task):
            self._ask(peer, message)
        elif isinstance(message, wire.Drop):
            self._forget(peer, set(message.ids))
        elif isinstance(message, wire.Hello):
            wire.send(peer.outbox, self._ready)

    def _ask(self, peer: Peer, task: wire.Task) -> None:
        name = msgspec.msgpack.encode(task.variant)
        if name not in self._tasks:
            self._count += 1
            self._tasks[name] = self._count
        number = self._tasks[name]
        if (answer := self._done.get(number)) is not None:
            wire.send(peer.outbox, msgspec.structs.replace(_once(answer), id=task.id))
            return
        if number not in self._waiting:
            self._pool.add(wire.Task(number, task.variant))
        self._waiting.setdefault(number, []).append((peer, task.id))

    def answer(self, answer: wire.Answer) -> list[Peer]:
        """Tell all who wait for it; return the peers that could not be told."""
        self._done[answer.id] = answer
        lost = []
        for peer, number in self._waiting.pop(answer.id, ()):
            try:
                wire.send(peer.outbox, msgspec.structs.replace(answer, id=number))
            except OSError:
                lost.append(peer)
            answer = _once(answer)
        return lost

    def gone(self, peer: Peer) -> None:
        """A peer has left: what it alone waited for is not begun any more."""
        self._forget(peer, None)
        if peer.line is not None:
            peer.line.close()

    def _forget(self, peer: Peer, ids: set[int] | None) -> None:
        dropped = []
        for number, asked in list(self._waiting.items()):
            left = [(who, id) for who, id in asked if who is not peer or (ids is not None and id not in ids)]
            self._waiting[number] = left
            if asked and not left:
                dropped.append(number)
        # What runs already goes on, and its answer is kept for whoever asks next.
        gone = self._pool.drop(dropped)
        for number in gone:
            del self._waiting[number]
        self._tasks = {name: number for name, number in self._tasks.items() if number not in gone}


def _once(answer: wire.Answer) -> wire.Answer:
    """Return an answer for those who ask for a key that was compiled for another: they find it on disk."""
    if answer.state is not wire.State.COMPILED:
        return msgspec.structs.replace(answer, launcher=False)
    return msgspec.structs.replace(answer, state=wire.State.CACHED, seconds=0.0, launcher=False)
