"""A server that forks while a replay goes on in the background: the child is as if there had been none."""

import os
import threading
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


def test_what_a_thread_holds_is_free_in_a_forked_child() -> None:
    serial, captures, release, held = Serial(), Captures(Graph), threading.Event(), threading.Event()
    serial.install()
    captures.install()
    wrapped, fn = internals().JITFunction._do_compile, object()

    def hold() -> None:
        with captures.apart(), serial.of(fn), serial._loading:
            held.set()
            release.wait()

    def child() -> None:
        assert Graph().capture_begin() == "begun"
        with serial.of(fn), serial._loading:
            pass
        assert not serial._on and not captures._on
        serial.uninstall()
        captures.uninstall()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert in_child(child) == 0
    finally:
        release.set()
        thread.join()
        serial.uninstall()
        captures.uninstall()
    assert internals().JITFunction._do_compile is not wrapped


def test_a_thread_that_changes_hooks_holds_up_no_child() -> None:
    from jitreplay.jit import internals as module

    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with module._hooks:
            held.set()
            release.wait()

    def child() -> None:
        found = Serial()
        found.install()
        found.uninstall()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert in_child(child) == 0
    finally:
        release.set()
        thread.join()
