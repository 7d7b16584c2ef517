"""The helper's workers: forked once everything is imported, one task each at a time, replaced when they die."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from .wire import Answer, Frames, State, Task, receive, send
from .worker import serve

RETRY = 0.05
"""Seconds before a task is tried again whose key another process compiles."""


class Worker(msgspec.Struct, eq=False):
    """A forked worker, and the task that it has."""

    pid: int
    inbox: int
    outbox: int
    frames: Frames
    task: Task | None = None
    deadline: float = 0.0


class Pool:
    """Runs `work(task)` in forked workers, `jobs` at most at a time, each task for at most `limit` seconds.

    The process that has it must be single-threaded. `selector` is the caller's: a key whose `data` is a Worker is ours.
    """

    def __init__(
        self, work: Callable[[Task], Answer], jobs: int, limit: float, memory: int, selector: selectors.BaseSelector
    ) -> None:
        self._work, self._jobs, self._limit, self._memory = work, jobs, limit, memory
        self._selector = selector
        self._workers: list[Worker] = []
        self._queue: deque[Task] = deque()
        self._later: deque[tuple[float, Task]] = deque()

    def add(self, task: Task) -> None:
        """Queue a task."""
        self._queue.append(task)

    def drop(self, ids: list[int]) -> set[int]:
        """Take tasks out of the queue, and return which; those that run go on."""
        waiting = {task.id for task in self._queue} | {task.id for _, task in self._later}
        gone = waiting & set(ids)
        self._queue = deque(task for task in self._queue if task.id not in gone)
        self._later = deque(item for item in self._later if item[1].id not in gone)
        return gone

    def feed(self) -> list[Answer]:
        """Give waiting tasks to free workers, and end those that are past their time; return what that answers."""
        now, answers = time.monotonic(), []
        while self._later and self._later[0][0] <= now:
            self._queue.append(self._later.popleft()[1])
        for worker in list(self._workers):
            if worker.task is not None and now >= worker.deadline:
                answers.append(Answer(worker.task.id, State.HUNG, f"ran longer than {self._limit:g} s and was stopped"))
                self._end(worker)
        while self._queue:
            worker = next((w for w in self._workers if w.task is None), None)
            if worker is None:
                if len(self._workers) >= self._jobs:
                    break
                worker = self._fork()
            task = self._queue.popleft()
            worker.task, worker.deadline = task, now + self._limit
            try:
                send(worker.inbox, task)
            except OSError:
                self._queue.appendleft(task)
                self._end(worker)
        return answers

    def wait(self) -> float | None:
        """Return the seconds until `feed` has something to do by itself, None when that depends on others."""
        times = [worker.deadline for worker in self._workers if worker.task is not None]
        times += [when for when, _ in self._later]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def hear(self, worker: Worker) -> list[Answer]:
        """Take what a worker says; its end is an answer too."""
        try:
            answers = receive(worker.outbox, worker.frames)
        except (OSError, ValueError, msgspec.DecodeError):
            answers = None
        if answers is None:
            task, status = worker.task, self._end(worker)
            return [] if task is None else [Answer(task.id, State.CRASHED, _death(status))]
        out = []
        for answer in answers:
            task, worker.task = worker.task, None
            if answer.state is State.BUSY and task is not None:
                self._later.append((time.monotonic() + RETRY, task))
            else:
                out.append(answer)
        return out

    def close(self) -> None:
        """End every worker, and what they have started."""
        for worker in list(self._workers):
            self._end(worker)

    def _fork(self) -> Worker:
        inbox, outbox = os.pipe(), os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            keep = {inbox[0], outbox[1]}
            for file in _open_files():
                if file > 2 and file not in keep:
                    _close(file)
            serve(self._work, inbox[0], outbox[1], self._memory, parent)
        os.close(inbox[0])
        os.close(outbox[1])
        try:
            os.setpgid(pid, pid)  # the child does it too: whoever is first
        except OSError:
            pass
        worker = Worker(pid, inbox[1], outbox[0], Frames())
        self._workers.append(worker)
        self._selector.register(worker.outbox, selectors.EVENT_READ, worker)
        return worker

    def _end(self, worker: Worker) -> int:
        """Kill a worker with all that it started; return how it ended."""
        self._workers.remove(worker)
        self._selector.unregister(worker.outbox)
        os.close(worker.inbox)
        os.close(worker.outbox)
        # Whether it died by itself is only known before we kill it: an exit closes the pipe a moment earlier.
        status = _reap(worker.pid, 0.2 if worker.task is not None and time.monotonic() < worker.deadline else 0.0)
        try:
            os.killpg(worker.pid, signal.SIGKILL)
        except OSError:
            pass
        if status is None:
            _, status = os.waitpid(worker.pid, 0)
        return status


def _reap(pid: int, patience: float) -> int | None:
    end = time.monotonic() + patience
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() >= end:
            return None
        time.sleep(0.005)


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        hint = ", perhaps for want of memory" if number == signal.SIGKILL else ""
        return f"the compiler's process was killed by {name}{hint}"
    return f"the compiler's process ended by itself (exit code {os.WEXITSTATUS(status)})"


def _open_files() -> list[Any]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def _close(file: int) -> None:
    try:
        os.close(file)
    except OSError:
        pass
