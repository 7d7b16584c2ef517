"""What a budget left out, done in a thread while the program goes on: only where that was asked for."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from ..jit.capture import Captures
from ..jit.internals import internals
from ..jit.serial import Serial
from ..manifest.settings import LOGGER
from .ahead import Ahead
from .live import Form
from .outcome import Report, Result
from .plan import Planned

PATIENCE = 1.0
"""Seconds that `stop` waits for a compile under way; the thread ends after it, and keeps no process alive."""

Work = list[tuple[Planned, list[Form]]]


class Background:
    """Warms `work` one by one; `warm` makes one warm, whose result takes its place in `report`; `finish` ends it all.

    Nothing is done while a CUDA graph is captured, and a kernel is compiled by one thread at a time.
    """

    def __init__(
        self,
        work: Work,
        ahead: Ahead,
        warm: Callable[[Planned, list[Form]], Result],
        report: Report,
        finish: Callable[[], None],
    ) -> None:
        self._work, self._ahead, self._warm, self._report, self._finish = work, ahead, warm, report, finish
        self._captures, self._serial = Captures(), Serial()
        self._stopping = threading.Event()
        self._device = internals().driver.active.get_current_device()
        self._thread = threading.Thread(target=self._go, name="jitreplay-background", daemon=True)

    def start(self) -> None:
        """Begin. Captures are kept apart from now on."""
        self._captures.install()
        self._serial.install()
        atexit.register(self.stop)  # a compile that runs on while the interpreter ends would crash it
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it is still at work."""
        return self._thread.is_alive()

    def join(self, seconds: float | None = None) -> None:
        """Wait until it has ended, at most so long."""
        self._thread.join(seconds)

    def stop(self) -> None:
        """Begin nothing more, and end what compiles in other processes."""
        self._stopping.set()
        if self.alive and threading.current_thread() is not self._thread:
            self._captures.wake()
            self._ahead.abandon()
            self._thread.join(PATIENCE)

    def _go(self) -> None:
        done = 0
        try:
            internals().driver.active.set_current_device(self._device)  # the current device is the thread's own
            while self._work and not self._stopping.is_set():
                index = self._ahead.next(self._work)
                if self._stopping.is_set():
                    break
                with self._captures.apart(self._stopping.is_set):
                    if self._stopping.is_set():
                        break
                    planned, shapes = self._work.pop(index)
                    with self._serial.of(planned.fn):
                        self._replace(self._warm(planned, shapes))
                done += 1
        except Exception as error:
            LOGGER.warning("what was over budget is not finished: %s: %s", type(error).__name__, error)
        finally:
            self._captures.uninstall()
            self._serial.uninstall()
            atexit.unregister(self.stop)
            self._close()
        words = "in the background: %d variants, %d are left; in all, %s"
        LOGGER.info(words, done, len(self._work), self._report.summary())

    def _close(self) -> None:
        try:
            self._finish()
        except Exception as error:
            LOGGER.warning("the end of a replay in the background: %s: %s", type(error).__name__, error)

    def _replace(self, result: Result) -> None:
        results = self._report.results
        for at, before in enumerate(results):
            if before.variant is result.variant:
                results[at] = result
                return
