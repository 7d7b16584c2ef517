"""The server's side of the compile helper: start it, give it variants, wait for answers, end it."""

from __future__ import annotations

import os
import queue
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
from .wire import Answer, Drop, Frames, Hello, Ready, State, Task, pack, receive

MODULE = "jitreplay.replayer.child"
PATIENCE = 1.0
"""Seconds that a helper has to end by itself before it is killed."""
_alive: weakref.WeakSet[Children] = weakref.WeakSet()


class Children:
    """One helper process and what it was asked. `cache` is the Triton cache directory that it fills.

    Works in any process: no multiprocessing, no fork of this one. Nothing is raised when the helper dies: what it has
    not answered is answered with `LOST`. Raises OSError when it cannot be started at all.
    """

    def __init__(self, hello: Hello, cache: str) -> None:
        self.notes: list[str] = []
        self.why_lost = ""
        self._answers: dict[int, Answer] = {}
        self._asked = 0
        self._lost = self._closing = False
        self._ready = 0.0
        self._changed = threading.Condition()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._errors: Any = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the helper
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(cache),
            start_new_session=True,  # a Ctrl-C is for the server, which then ends its helper
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._files: list[Any] = [self._process.stdin, self._process.stdout, self._errors]
        self._started = time.perf_counter()
        self._outgoing.put(pack(hello))
        for target in (self._write, self._read):
            threading.Thread(target=target, name="jitreplay-children", daemon=True).start()
        _alive.add(self)

    @property
    def lost(self) -> bool:
        """Whether the helper is gone."""
        return self._lost

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
        """End the helper with all that it started, within `PATIENCE`."""
        self._closing = True
        self._outgoing.put(None)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _alive.discard(self)

    def _write(self) -> None:
        file = self._process.stdin
        assert file is not None
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
        file, frames = self._process.stdout, Frames()
        assert file is not None
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
            self.why_lost = "" if self._closing else why or self._last_words()
            self._lost = True
            self._changed.notify_all()

    def _take(self, message: Any) -> None:
        if isinstance(message, Ready):
            self._ready, self.notes = time.perf_counter() - self._started, message.notes
        elif isinstance(message, Answer):
            self._answers[message.id] = message

    def _last_words(self) -> str:
        """Return the last line that the helper wrote to stderr."""
        try:
            self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, self._errors.tell() - 4096))
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
        except (OSError, ValueError):
            lines = []
        return f"the compile helper ended{': ' + lines[-1][:300] if lines else ''}"

    def _forget(self) -> None:
        """In a forked child of the server: let go of the pipes, so that the helper sees the server's end."""
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for file in self._files:
            try:
                os.dup2(null, file.fileno(), inheritable=False)  # not closed: its object would close the number again
            except (OSError, ValueError):
                pass
        os.close(null)


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
