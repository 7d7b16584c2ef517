"""One compile worker: takes a task, compiles it into Triton's disk cache, says what became of it. It never launches."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterable
from typing import Any

from ..jit import disk, launcher
from ..jit.internals import internals
from ..jit.lock import KeyLocks
from ..jit.resolve import Resolver, Unresolved
from ..manifest.model import Variant, digest
from . import rebuild
from .live import Form
from .outcome import said
from .plan import Planned
from .wire import Answer, Frames, State, Task, receive, send

_PR_SET_PDEATHSIG = 1


class Compiler:
    """Compiles tasks in this process, on a headless driver. `launchers` asks for launchers too."""

    def __init__(self, allow: Iterable[str], launchers: bool) -> None:
        self.resolver = Resolver(allow)
        self._launchers = launchers
        self._locks: KeyLocks | None = None

    def find(self, variant: Variant) -> Any:
        """Return the live kernel of a variant. Raises Unresolved."""
        return self.resolver.kernel(variant.kernel)

    def __call__(self, task: Task) -> Answer:
        """Compile a task. Every failure is an answer."""
        variant, answer = task.variant, Answer(task.id, State.UNRESOLVED)
        try:
            fn = self.find(variant)
            answer.fingerprint = self.resolver.fingerprint(fn)
            planned, form = Planned(variant, fn, False), Form(variant.args, {})
            bound = rebuild.bind(planned, form, self.resolver, disk.probe)
        except Exception as error:
            # What fails before the compiler runs may be this process's own fault: the server tries by itself.
            answer.reason = str(error) if isinstance(error, Unresolved) else said(error)
            return answer
        if not isinstance(bound.kernel, disk.Entry):
            answer.reason = "Triton had the key in memory"
            return answer
        answer.digest, answer.hash = digest(bound.key), bound.kernel.hash
        locks = self._locks = self._locks or KeyLocks(internals().knobs.cache.dir)
        if not locks.take(bound.kernel.hash):
            answer.state = State.BUSY
            return answer
        try:
            self._compile(answer, planned, form, bound.kernel)
        finally:
            locks.release(bound.kernel.hash)
            disk.forget(fn, bound.key)
        return answer

    def _compile(self, answer: Answer, planned: Planned, form: Form, entry: disk.Entry) -> None:
        start = time.perf_counter()
        try:
            fault = disk.recheck(entry)  # who had the lock before may have made it
            if fault and fault != disk.ABSENT:
                disk.drop(entry)
            kernel = rebuild.bind(planned, form, self.resolver).kernel
            answer.state = State.COMPILED if fault else State.CACHED
            answer.seconds = time.perf_counter() - start
        except MemoryError:
            answer.state, answer.reason = State.MEMORY, "the compiler ran out of its memory limit"
            return
        except Exception as error:
            answer.state, answer.reason = State.FAILED, said(error)
            return
        if self._launchers:
            try:
                answer.launcher = launcher.build(kernel, self._locks)
            except Exception as error:
                answer.trouble = said(error)


def serve(work: Any, inbox: int, outbox: int, memory: int, parent: int) -> None:
    """Do tasks from one pipe until it ends, answering on the other. For a forked child; it does not return.

    It is the leader of a process group, which the tools that it starts (ptxas, gcc) belong to, and dies with `parent`.
    """
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        limit_memory(memory)
        frames = Frames()
        while (tasks := receive(inbox, frames)) is not None:
            for task in tasks:
                send(outbox, work(task))
    except BaseException:
        os._exit(1)
    finally:
        os._exit(0)


def limit_memory(more: int) -> None:
    """Let this process have `more` bytes of data on top of what it has (RLIMIT_DATA: past it, a MemoryError)."""
    if more <= 0:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used() + more
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def used() -> int:
    """Return the bytes of data of this process, as RLIMIT_DATA counts them."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0
