"""A server that forks while a replay goes on in the background: the child is as if there had been none."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from jitreplay.jit.capture import Captures
from jitreplay.jit.internals import internals
from jitreplay.jit.serial import Serial


class Graph:
    """Stands for torch's class of CUDA graphs."""

    def capture_begin(self) -> str:
        return "begun"

    def capture_end(self) -> None:
        pass


def in_child(work: Any) -> int:
    """Return the exit code of a forked child that does this, 1 when it raises; one that hangs is killed by an alarm."""
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(60)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def holding(*contexts: Any) -> Iterator[None]:
    """Have a thread be within these contexts meanwhile."""
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        release.set()
        thread.join()


def test_what_a_thread_holds_is_free_in_a_forked_child() -> None:
    serial, captures = Serial(), Captures(Graph)
    serial.install()
    captures.install()
    wrapped, fn = internals().JITFunction._do_compile, object()

    def child() -> None:
        assert Graph().capture_begin() == "begun"
        with serial.of(fn), serial._loading:
            pass
        assert not serial._on and not captures._on
        serial.uninstall()
        captures.uninstall()

    try:
        with holding(captures.apart(), serial.of(fn), serial._loading):
            assert in_child(child) == 0
    finally:
        serial.uninstall()
        captures.uninstall()
    assert internals().JITFunction._do_compile is not wrapped


def test_a_thread_that_changes_hooks_holds_up_no_child() -> None:
    from jitreplay.jit import internals as module

    def child() -> None:
        found = Serial()
        found.install()
        found.uninstall()

    with holding(module._hooks):
        assert in_child(child) == 0
