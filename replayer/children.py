"""The server's side of the compile helper: start it, give it variants, wait for answers, end it."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any

import msgspec

from ..manifest.model import Variant
from .meeting import connect
from .wire import Answer, Bye, Drop, Frames, Hello, Leave, Ready, State, Task, pack, receive

MODULE = "jitreplay.replayer.child"
PATIENCE = 1.0
"""Seconds that a helper has to end by itself before it is killed."""
_alive: weakref.WeakSet[Children] = weakref.WeakSet()


class Children:
    """A helper and what it was asked, over a pair of files.

    Nothing is raised when the helper dies: what it has not answered is answered with `LOST`.
    """

    def __init__(self, hello: Hello, inbox: Any, outbox: Any) -> None:
        self.notes: list[str] = []
        self.why_lost = ""
        self._answers: dict[int, Answer] = {}
        self._asked = 0
        self._lost = self._closing = False
        self._bye: Bye | None = None
        self._ready = 0.0
        self._changed = threading.Condition()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._inbox, self._outbox = inbox, outbox
        self._files: list[Any] = [inbox, outbox]
        self._started = time.perf_counter()
        self._outgoing.put(pack(hello))
        for target in (self._write, self._read):
            threading.Thread(target=target, name="jitreplay-children", daemon=True).start()
        _alive.add(self)

    @property
    def ended(self) -> bool:
        """Whether the helper ended by itself, because for a while it was asked for nothing."""
        return self._bye is not None and not self._closing

    @property
    def ready_after(self) -> float:
        """Seconds from the start until the helper had imported what it needs; 0 while it has not."""
        return self._ready

    def submit(self, variant: Variant) -> int:
        """Ask for a variant; return the number of its answer."""
        self._asked += 1
        self._outgoing.put(pack(Task(self._asked, variant)))
        return self._asked

    def wait(self, number: int, seconds: float | None = None) -> Answer | None:
        """Return an answer, waiting for it at most so long; None when it has not come."""
        end = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while number not in self._answers:
                if self._lost:
                    return Answer(number, State.LOST, self.why_lost)
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
            return self._answers[number]

    def answered(self, number: int) -> bool:
        """Whether an answer is there, or never will be."""
        return self._lost or number in self._answers

    def wait_any(self, numbers: Iterable[int], seconds: float | None = None) -> None:
        """Wait until one of these is answered, at most so long."""
        asked = tuple(numbers)
        with self._changed:
            self._changed.wait_for(lambda: any(map(self.answered, asked)), seconds)

    def drop(self, numbers: Iterable[int]) -> None:
        """Say that nobody waits for these any more."""
        self._outgoing.put(pack(Drop([number for number in numbers if number not in self._answers])))

    def close(self) -> None:
        """Let go of the helper."""
        self._closing = True
        self._outgoing.put(None)
        _alive.discard(self)

    def continues(self, before: Children) -> None:
        """Keep what an earlier helper answered, under its numbers."""
        self._answers |= before._answers
        self._asked = before._asked

    def _write(self) -> None:
        file = self._inbox
        try:
            while (data := self._outgoing.get()) is not None:
                file.write(data)
                file.flush()
        except (OSError, ValueError):
            pass
        finally:
            try:
                file.close()
            except OSError:
                pass

    def _read(self) -> None:
        file, frames = self._outbox, Frames()
        why = ""
        try:
            while (messages := receive(file.fileno(), frames)) is not None:
                with self._changed:
                    for message in messages:
                        self._take(message)
                    self._changed.notify_all()
        except (OSError, ValueError, msgspec.DecodeError) as error:
            why = f"{type(error).__name__}: {error}"
        with self._changed:
            self.why_lost = "" if self._closing or self._bye is not None else why or self._last_words()
            self._lost = True
            self._changed.notify_all()

    def _take(self, message: Any) -> None:
        if isinstance(message, Ready):
            self._ready, self.notes = time.perf_counter() - self._started, message.notes
        elif isinstance(message, Answer):
            self._answers[message.id] = message
        elif isinstance(message, Bye):
            self._bye = message

    def _last_words(self) -> str:
        return "the compile helper ended"

    def _forget(self) -> None:
        """In a forked child of the server: let go of the files, so that the helper sees the server's end."""
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for file in self._files:
            try:
                os.dup2(null, file.fileno(), inheritable=False)  # not closed: its object would close the number again
            except (OSError, ValueError):
                pass
        os.close(null)


class Helper(Children):
    """A helper that this process starts. `cache` is the Triton cache directory that it fills.

    Works in any process: no multiprocessing, no fork of this one. `lock` is an open file that the helper holds as long
    as it lives. Raises OSError when it cannot be started at all.
    """

    def __init__(self, hello: Hello, cache: str, lock: int | None = None) -> None:
        self._errors: Any = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the helper
        self._shared = bool(hello.listen)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment(cache),
                start_new_session=True,  # a Ctrl-C is for the server, which then ends its helper
                pass_fds=() if lock is None else (lock,),
            )
        finally:
            if lock is not None:
                os.close(lock)
        super().__init__(hello, self._process.stdin, self._process.stdout)
        self._files.append(self._errors)

    def close(self) -> None:
        """End the helper with all that it started, within `PATIENCE`; others that joined it may keep it."""
        if self._closing:
            return
        if self._shared and not self._lost:
            self._closing = True
            self._outgoing.put(pack(Leave()))
            with self._changed:
                self._changed.wait_for(lambda: self._lost or self._bye is not None, PATIENCE)
            if self._bye is not None and self._bye.stays and not self._lost:
                return
        super().close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        super()._read()
        self._process.wait()  # one that ended by itself is no zombie of this process

    def _last_words(self) -> str:
        """Return the last line that the helper wrote to stderr."""
        try:
            self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, self._errors.tell() - 4096))
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
        except (OSError, ValueError):
            lines = []
        return f"the compile helper ended{': ' + lines[-1][:300] if lines else ''}"


class Guest(Children):
    """A helper that another process of this host has started, joined over its socket. Raises OSError without one."""

    def __init__(self, hello: Hello, path: str) -> None:
        line = connect(path)
        file = line.makefile("rwb", buffering=0)
        self._line = line
        super().__init__(hello, file, file)

    def close(self) -> None:
        """Leave the helper."""
        super().close()
        try:
            self._line.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._line.close()


def _forget_all() -> None:
    for children in list(_alive):
        children._forget()
    _alive.clear()


os.register_at_fork(after_in_child=_forget_all)


def environment(cache: str) -> dict[str, str]:
    """Return the variables of a helper: the server's, its cache directory, and no GPU that it could touch."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("JITREPLAY_")}
    env |= {
        "TRITON_CACHE_DIR": cache,
        "JITREPLAY_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(path for path in map(os.path.abspath, sys.path) if os.path.exists(path)),
        "PYTHONSAFEPATH": "1",
        # Threads of numeric libraries, which would have no work and be lost in a fork.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    for name in ("PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONHOME" if sys.prefix != sys.base_prefix else ""):
        env.pop(name, None)
    return env
