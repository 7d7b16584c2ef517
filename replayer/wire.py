"""What a server and its compile helper say to each other: frames of msgpack, their length before them.

The helper's stdin carries Hello, then Tasks and Drops, at the end Leave; its stdout Ready, then an Answer for each
Task, at the end Bye. Others of the host say the same over a socket, but that they just close it.
"""

from __future__ import annotations

import os
import struct
from enum import Enum
from typing import Any

import msgspec

from ..jit.devices import Device
from ..manifest.model import Variant

_LENGTH = struct.Struct(">I")
MAX_FRAME = 64 << 20
"""Bytes of one frame."""


class State(str, Enum):
    """What became of a task."""

    COMPILED = "compiled"
    CACHED = "cached"
    """It was whole in the disk cache."""
    FAILED = "failed"
    """The compiler raised."""
    MEMORY = "memory"
    """The compiler needed more memory than a worker may have."""
    CRASHED = "crashed"
    """The worker died."""
    HUNG = "hung"
    """It ran past its time limit and was killed."""
    UNRESOLVED = "unresolved"
    """This process cannot find the kernel or make an argument; the server may."""
    BUSY = "busy"
    """Another process compiles the same key; only between a worker and its helper."""
    LOST = "lost"
    """The helper is gone."""


class Hello(msgspec.Struct, tag="hello"):
    """How to compile. `allow` names the packages that may be imported, `modules` those to import before the work.

    `path` is the server's sys.path. `limit` is in seconds for each task, `memory` in bytes for each worker on top of
    what it has at its start. `launchers` asks for launchers too. `listen` is the path of a socket where other processes
    may join, and `linger` the seconds after which a helper that nobody asks any more ends by itself, 0 for never.
    """

    device: Device
    path: list[str]
    allow: list[str]
    modules: list[str]
    jobs: int
    limit: float
    memory: int
    launchers: bool = True
    listen: str = ""
    linger: float = 0.0


class Task(msgspec.Struct, tag="task"):
    """A variant to compile, with the arguments that it has here."""

    id: int
    variant: Variant


class Drop(msgspec.Struct, tag="drop"):
    """Tasks that nobody waits for any more."""

    ids: list[int]


class Leave(msgspec.Struct, tag="leave"):
    """The server that started the helper waits for nothing more; others may."""


class Bye(msgspec.Struct, tag="bye"):
    """The helper ends; with `stays` it goes on for others, in answer to Leave."""

    stays: bool = False


class Ready(msgspec.Struct, tag="ready"):
    """The helper has imported what it needs; `notes` tells of modules that it could not."""

    seconds: float
    notes: list[str] = []


class Answer(msgspec.Struct, tag="answer"):
    """What became of a task. `digest` is of the key, `hash` the disk entry's, `fingerprint` the kernel's source here.

    `seconds` is the time of the compile, `launcher` whether a launcher was built, `trouble` why it could not be.
    """

    id: int
    state: State
    reason: str = ""
    digest: str = ""
    hash: str = ""
    fingerprint: str = ""
    seconds: float = 0.0
    launcher: bool = False
    trouble: str = ""


Message = Hello | Task | Drop | Leave | Bye | Ready | Answer
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Message)


def pack(message: Message) -> bytes:
    """Return a message as a frame."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Puts frames together from the bytes of a pipe, as they come."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Take bytes; return the messages that are complete now. Raises ValueError for what is no frame."""
        self._bytes += data
        found = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                break
            found.append(_decoder.decode(memoryview(self._bytes)[_LENGTH.size : end]))
            del self._bytes[:end]
        return found


def send(file: int, message: Message) -> None:
    """Write a message to a file descriptor. Raises OSError when the other side is gone."""
    data = memoryview(pack(message))
    while data:
        data = data[os.write(file, data) :]


def receive(file: int, frames: Frames) -> list[Any] | None:
    """Read what is there, waiting for some; return the messages that are complete, or None at the end."""
    data = os.read(file, 1 << 16)
    return frames.feed(data) if data else None
