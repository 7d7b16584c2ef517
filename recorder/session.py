"""A recording: from the hooks in Triton to the journal of this process."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..manifest.errors import JitreplayError
from ..manifest.journal import VariantEvent
from ..manifest.model import Environment, Phase, digest
from ..manifest.settings import set_log_level, settings
from .phase import current, ready

if TYPE_CHECKING:
    from ..jit.look import Look
    from ..jit.miss import Miss, MissHook
    from ..jit.tuner import TunerHook
    from .buffers import BufferIndex
    from .capture import Scene
    from .journal import Writer

LOGGER = logging.getLogger("jitreplay")
MOST = 200_000
"""Variants that one process records at most; what comes after is counted as dropped."""

OUTSIDE = "kernels compiled outside of launches, as by torch.compile: outside the scope of a replay"
"""The count of what `triton.compile` was asked for directly, as by torch.compile: not recorded, never replayed."""

__all__ = ["Recorder", "ready", "start_from_environment"]


class Recorder:
    """Records each Triton kernel variant that this process, and what it forks, compiles or first launches.

        with Recorder("recording"):
            serve()

    It never raises into a launch, changes no argument or result and keeps no tensor. A warm launch runs Triton's own
    code. Spawned processes record too when `JITREPLAY_RECORD` is set for them (`jitreplay record` does that).

    `folder` gets one journal per process. `counts` says what was recorded, dropped, or went wrong.
    Raises JitreplayError from `start` when this Triton lacks something that it needs.
    """

    def __init__(self, folder: str | os.PathLike[str], *, most: int = MOST) -> None:
        self.folder = os.path.abspath(folder)
        self.counts = {"variants": 0, "launches": 0, "choices": 0, "dropped": 0, "errors": 0, "failed compiles": 0}
        self.rank = ""
        self._most = most
        self._hook: MissHook | None = None
        self._tuners: TunerHook | None = None
        self._buffers: BufferIndex | None = None
        self._writer: Writer | None = None
        self._looks: list[Look] = []
        self._seen: dict[tuple[int, str], bool] = {}
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._told = False
        self._engine = ""
        self._settings: dict[str, Any] = {}

    def start(self) -> Recorder:
        """Install the hooks. Returns itself. Starting twice is one start."""
        from ..jit.miss import MissHook
        from ..jit.tuner import TunerHook
        from .harvest import harvest_into
        from .journal import Writer

        if self._hook is not None:
            return self
        self._writer = Writer(self.folder)
        hook = MissHook(self._on_miss, self.trouble, self._on_failure)
        hook.install()
        self._hook = hook
        self._tuners = TunerHook(self._on_choice, self.trouble)
        self._tuners.install()
        _active.add(self)
        harvest_into(self)
        return self

    def stop(self, quiet: bool = False) -> None:
        """Take the hooks and looks off, write the closing counts and say them. Stopping twice is one stop."""
        if self._hook is None or self._writer is None:
            return
        hook, self._hook = self._hook, None
        hook.uninstall()
        if self._tuners is not None:
            self._tuners.uninstall()
            self._tuners = None
        for look in self._looks:
            look.remove()
        self._looks.clear()
        _active.discard(self)
        self.counts[OUTSIDE] = hook.outside
        told = ("dropped", "errors", "failed compiles", OUTSIDE)
        lost = {name: self.counts[name] for name in told if self.counts[name]}
        try:
            with self._writer.lock:
                if lost and self._writer.path is not None:
                    self._writer.write(b"S", lost)
                self._writer.close()
        except OSError as error:
            self.trouble(error)
        if not quiet:
            LOGGER.info("recorded %d variants to %s", self.counts["variants"], self._writer.path or "no file")

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def describe(self, engine: str = "", rank: str = "", settings: Mapping[str, Any] | None = None) -> None:
        """Give the engine, this process's rank and the engine's settings, before the first event or later."""
        self.rank = rank or self.rank
        self._engine = engine or self._engine
        self._settings.update(settings or {})
        if self._writer is not None and self._writer.path is not None:
            with self._writer.lock:
                self._writer.write(b"H", self._environment())

    def watch_buffers(self, find: Callable[[], Mapping[str, Any]]) -> int:
        """Know the runner's buffers by name from now on; return how many `find` gave."""
        from .buffers import BufferIndex

        self._buffers = BufferIndex(find)
        return self._buffers.refresh()

    def _environment(self) -> Environment:
        from ..jit.environment import environment

        return environment(self._engine, self._settings)

    def _scene(self) -> Scene:
        from .capture import Scene

        return Scene(self._settings, self._buffers, self.rank, current())

    @property
    def path(self) -> str | None:
        """The journal of this process, or None before its first event."""
        return os.fspath(self._writer.path) if self._writer is not None and self._writer.path is not None else None

    def _on_failure(self, fn: Any, error: BaseException | None) -> None:
        self.counts["failed compiles"] += 1

    def _on_miss(self, miss: Miss) -> None:
        from . import capture

        key = (id(miss.fn), digest(miss.key))
        if self.is_known(miss.fn, key[1], real=not miss.warmup):
            return
        texts = capture.specs(miss)
        event = None
        if not miss.replayed:
            if self.is_full:
                self.counts["dropped"] += 1
                return
            try:
                event = self._record(miss, key, texts)
            except BaseException:
                self._seen.pop(key, None)  # what was not written is to be written when it comes again
                raise
        if miss.warmup:
            self._watch(miss, texts, event)

    @property
    def is_full(self) -> bool:
        """Whether the cap is reached; what comes is dropped."""
        return self.counts["variants"] >= self._most

    def is_known(self, fn: Any, mark: str, real: bool) -> bool:
        """Whether this key of this very kernel was seen with as much: a failed launch or another device repeats it."""
        alive = self._alive.get(id(fn))
        if alive is None or alive() is not fn:
            self._alive[id(fn)] = weakref.ref(fn)
            for old in [k for k in self._seen if k[0] == id(fn)]:
                del self._seen[old]
        key = (id(fn), mark)
        if self._seen.get(key, False) or (key in self._seen and not real):
            return True
        self._seen[key] = real
        return False

    def _record(self, miss: Miss, key: tuple[int, str], texts: tuple[str, ...]) -> VariantEvent:
        """Describe the launch now, and write it once its kernel is compiled: at once, except in AsyncCompileMode."""
        from ..jit.look import when_compiled
        from . import capture

        fn, event = miss.fn, capture.of_miss(miss, texts, 0, self._scene(), 0)

        def write(_: Any) -> None:
            with self.open(fn) as (writer, event.kernel):
                event.order = self.counts["variants"]
                writer.write(b"V", event)
                self.counts["variants"] += 1

        def failed() -> None:
            self._seen.pop(key, None)
            self._on_failure(fn, None)

        when_compiled(miss.kernel, write, self.trouble, failed)
        return event

    def open(self, fn: Any) -> _Open:
        """Hold the journal for one event of a kernel; gives its writer and the kernel's id."""
        return _Open(self, fn)

    def _watch(self, miss: Miss, texts: tuple[str, ...], event: VariantEvent | None) -> None:
        """Look at the first real launch of what was compiled without one. Keeps nothing of the miss but its key."""
        from ..jit.look import when_compiled
        from . import capture

        fn, mark, names, replayed = weakref.ref(miss.fn), digest(miss.key), tuple(miss.bound), event is None
        options = event.options if event is not None else capture.of_miss(miss, texts, 0, self._scene(), 0).options

        def attach(kernel: Any) -> None:
            if (live := fn()) is not None:
                self.look(kernel, live, mark, names, texts, options, replayed)

        when_compiled(miss.kernel, attach, self.trouble)

    def look(
        self,
        kernel: Any,
        fn: Any,
        mark: str,
        names: tuple[str, ...],
        texts: tuple[str, ...],
        options: Any,
        replayed: bool,
    ) -> None:
        """Record the first real launch of a kernel that is there, and then let go of it."""
        from ..jit.look import Look
        from . import capture

        fn_ref = weakref.ref(fn)

        def noted(grid: tuple[int, ...], values: tuple[Any, ...]) -> None:
            kernel_fn = fn_ref()
            if kernel_fn is None or self._hook is None:
                return
            with self.open(kernel_fn) as (writer, index):
                # A replayed variant has a recorded order, which stays: it is less.
                order = MOST + self.counts["launches"] if replayed else self.counts["variants"]
                blank = VariantEvent(index, mark, (), options, None, Phase.NEVER, False, order=order)
                writer.write(b"V", capture.of_launch(blank, names, values, texts, grid, self._scene()))
                self.counts["launches"] += 1
            self._seen[(id(kernel_fn), mark)] = True

        self._looks = [look for look in self._looks if look.waiting]
        self._looks.append(Look(kernel, noted, self.trouble))

    def _on_choice(self, tuner: Any, key: Any, config: Any, timings: Mapping[Any, float]) -> None:
        from ..jit.environment import tuned_on
        from ..jit.tuner import innermost
        from . import capture

        fn = innermost(tuner)
        if fn is None or capture.of_choice(0, key, config, timings, "", "") is None:
            self.counts["dropped"] += 1
            return
        with self.open(fn) as (writer, kernel):
            writer.write(b"C", capture.of_choice(kernel, key, config, timings, tuned_on(), self.rank))
            self.counts["choices"] += 1

    def trouble(self, error: Exception) -> None:
        """Count what went wrong; say it once. The launch goes on."""
        self.counts["errors"] += 1
        if not self._told:
            self._told = True
            LOGGER.warning(
                "recording to %s is in trouble, launches go on: %s: %s", self.folder, type(error).__name__, error
            )

    def _after_fork(self) -> None:
        if self._writer is not None:
            self._writer.forget()
            if self._hook is not None:
                self._hook.forget()
            self.counts = dict.fromkeys(self.counts, 0)


class _Open:
    """Holds the journal's lock for one event, with the file begun and the kernel written."""

    def __init__(self, recorder: Recorder, fn: Any) -> None:
        self._recorder, self._fn = recorder, fn

    def __enter__(self) -> tuple[Writer, int]:
        from ..jit.source import kernel

        writer = self._recorder._writer
        assert writer is not None
        described = kernel(self._fn)
        writer.lock.acquire()
        try:
            writer.check()
            if writer.path is None:
                writer.begin(self._recorder._environment())
            return writer, writer.kernel(described)
        except BaseException:
            writer.lock.release()
            raise

    def __exit__(self, *exc: object) -> None:
        writer = self._recorder._writer
        assert writer is not None
        writer.lock.release()


_active: set[Recorder] = set()
_from_environment: Recorder | None = None


def _after_fork() -> None:
    for recorder in list(_active):
        recorder._after_fork()


os.register_at_fork(after_in_child=_after_fork)


def start_from_environment() -> Recorder | None:
    """Start the recording that `JITREPLAY_RECORD` asks for, until the process ends; the second call returns the same.

    Called once Triton is imported.
    """
    global _from_environment
    chosen = settings()
    if not chosen.record or chosen.disabled:
        return None
    if _from_environment is not None:
        return _from_environment
    set_log_level(chosen.log)
    recorder = Recorder(chosen.record)
    try:
        recorder.start()
    except JitreplayError as error:
        LOGGER.warning("not recording: %s", error)
        return None
    atexit.register(recorder.stop)
    _from_environment = recorder
    return recorder


def stop_if_idle() -> None:
    """End the environment's recording where it has seen nothing yet; `start_from_environment` may begin it again."""
    global _from_environment
    recorder = _from_environment
    if recorder is None or any(recorder.counts.values()):
        return
    _from_environment = None
    atexit.unregister(recorder.stop)
    recorder.stop(quiet=True)
