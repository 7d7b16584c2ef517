"""One vLLM worker under jitreplay: its recorder, its two replays, its watch and its report."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..jit import triton_hash
from ..manifest import file
from ..manifest.errors import JitreplayError
from ..manifest.model import Manifest
from ..manifest.settings import LOGGER, Settings
from ..recorder.phase import ready, starting
from ..recorder.session import Recorder, start_from_environment
from ..recorder.watch import Watch
from ..replayer import prefetch
from ..replayer.live import Live
from ..replayer.outcome import Report
from ..replayer.session import ReplayError, Session
from . import vllm_ahead, vllm_config


class WorkerSession:
    """What jitreplay does for one worker, from before its device is initialised until it shuts down."""

    def __init__(self, chosen: Settings, wrapper: Any) -> None:
        self._chosen, self._wrapper = chosen, wrapper
        self._recorder: Recorder | None = start_from_environment() if chosen.record else None
        self._replay: Session | None = None
        self._manifest: Manifest | None = None
        self._watch: Watch | None = None
        self._early_done = False
        self._reported = False
        self._prepared = os.environ.get("TRITON_CACHE_DIR", "")
        self._ahead: prefetch.Prefetch | None = None
        self._closed = False
        atexit.register(self.close)  # not every executor shuts its worker down (0.26.0, in process)
        if chosen.manifest:
            self._guarded(self._begin)

    def _begin(self) -> None:
        """Compile what was recorded in another process, while this one initialises its device and loads weights."""
        ahead = vllm_ahead.take()
        try:
            manifest = ahead.manifest if ahead is not None else file.load(self._chosen.manifest)
        except JitreplayError:
            return  # told when it is replayed
        if vllm_ahead.mismatch(manifest, self._wrapper):
            if ahead is not None:
                ahead.close()
            return
        self._manifest = manifest
        self._ahead = ahead or vllm_ahead.begin_for(self._chosen, manifest, self._wrapper)
        self._prepared = os.environ.get("TRITON_CACHE_DIR", "")  # now perhaps a layer over one that cannot be written

    @property
    def worker(self) -> Any:
        return self._wrapper.worker

    def device_ready(self) -> None:
        """The ranks are known and the runner exists: name them, and hook this worker's own next steps."""
        if self._chosen.manifest:
            triton_hash.begin(prefetch.usable_cache())  # while weights load
        self._describe()
        worker = self.worker
        self._around(worker, "determine_available_memory", before=self.early)
        self._around(worker, "compile_or_warm_up_model", before=self.late, after=self.ready)

    def _around(
        self, worker: Any, name: str, before: Callable[[], None], after: Callable[[], None] | None = None
    ) -> None:
        original = getattr(worker, name, None)
        if original is None:
            LOGGER.warning("this vLLM's worker has no %s; what hangs on it is skipped", name)
            return

        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            self._guarded(before)
            result = original(*args, **kwargs)
            if after is not None:
                self._guarded(after)
            return result

        setattr(worker, name, step)

    def _guarded(self, call: Callable[[], None]) -> None:
        from .vllm import _guarded

        _guarded(call)

    def _describe(self, numbers: dict[str, int] | None = None) -> None:
        if self._recorder is not None:
            found = vllm_config.settings(self.worker) | (numbers or {})
            self._recorder.describe(vllm_config.version(), vllm_config.rank(self.worker), found)

    def tables_ready(self) -> None:
        """The KV cache and the tables are there: the recorder learns the buffers and the number of blocks."""
        if self._recorder is not None:
            self._describe(vllm_config.tables(self.worker).settings)
            self._watch_buffers()

    def early(self) -> None:
        """Before memory is profiled: autotuner choices, and every variant that needs none of the runner's tables."""
        if self._early_done or not self._chosen.manifest:
            return
        self._early_done = True
        session = self._open()
        if session is None:
            return
        session.live = Live({}, vllm_config.settings(self.worker))
        with self._context():
            session.restore_choices()
            session.early(self._progress("early"))

    def late(self) -> None:
        """Before warm-up, graph capture and vLLM's JIT monitor: the rest, from the runner's own tables."""
        if self._reported:
            self._begin_again()
        self.early()
        if self._replay is None:
            return
        session = self._replay
        self._bring_cache()
        tables = vllm_config.tables(self.worker)
        session.live = Live(tables.buffers, vllm_config.settings(self.worker) | tables.settings)
        self._reported = True
        try:
            with self._context():
                session.late(self._progress("late"))
        finally:
            session.close()
        self._report()

    def _begin_again(self) -> None:
        """vLLM warms up once more, because its groups changed (elastic expert parallelism): replay for the new ones."""
        starting()
        assert self._replay is not None
        self._replay.stop()
        self._replay, self._ahead, self._early_done, self._reported = None, None, False, False
        self._describe(vllm_config.tables(self.worker).settings)

    def ready(self) -> None:
        """Warm-up is over: from now on a compile is one that a request waits for."""
        ready()
        if self._watch is None:
            self._watch = Watch(self._manifest.variants if self._manifest is not None else ())
            self._watch.start()
        self._watch_buffers()

    def _watch_buffers(self) -> None:
        if self._recorder is not None:
            self._recorder.watch_buffers(lambda: vllm_config.tables(self.worker).buffers)

    def close(self) -> None:
        """Say what was compiled while serving, and end the journal and what still compiles ahead. Once."""
        if self._closed:
            return
        self._closed = True
        # A late replay has ended what compiled ahead.
        unfinished = None if self._reported else self._replay or self._ahead
        if unfinished is not None:
            unfinished.close()
        if self._replay is not None:
            self._replay.stop()
        if self._watch is not None:
            self._watch.stop()
            if self._watch.compiles:
                LOGGER.warning("%s", self._watch.summary())
        if self._recorder is not None:
            self._recorder.stop()

    def _open(self) -> Session | None:
        try:
            if self._manifest is None:
                self._manifest = file.load(self._chosen.manifest)
            if reason := vllm_ahead.mismatch(self._manifest, self.worker):
                raise JitreplayError(f"{self._chosen.manifest}: {reason}")
            self._replay = Session(
                self._manifest,
                (*vllm_ahead.ALLOW, *self._chosen.allow),
                rank=vllm_config.rank(self.worker),
                strict=self._chosen.strict,
                jobs=self._chosen.jobs,
                budget=self._chosen.budget,
                background=self._chosen.background,
                limit=self._chosen.limit,
                prefetch=self._ahead,
            )
            session = self._replay
            session.on_background_end = lambda: self._write(session.report)
        except ReplayError:
            raise
        except JitreplayError as error:
            if self._chosen.strict:
                raise ReplayError(str(error)) from None
            LOGGER.warning("no replay: %s", error)
        return self._replay

    @contextlib.contextmanager
    def _context(self) -> Any:
        """vLLM's configuration and inference mode, as its own warm-up has them."""
        import torch

        config = sys.modules.get("vllm.config")
        current = getattr(config, "set_current_vllm_config", None)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if current is not None:
                stack.enter_context(current(self.worker.vllm_config))
            yield

    def _progress(self, stage: str) -> Any:
        """Tell the log of a long replay every 25 variants, on the first rank alone."""
        if not vllm_config.is_first_rank(self.worker):
            return None

        def update(done: int, total: int, kernel: str) -> None:
            if done and done % 25 == 0 and done < total:
                LOGGER.info("%s replay: %d of %d variants, next %s", stage, done, total, kernel)

        return update

    def _bring_cache(self) -> None:
        """Where vLLM moved Triton's cache in mid-boot (0.26.0), let the new place see what was prepared in the old."""
        now = os.environ.get("TRITON_CACHE_DIR", "")
        if not self._prepared or not now or os.path.abspath(now) == os.path.abspath(self._prepared):
            return
        linked = link_entries(Path(self._prepared), Path(now))
        LOGGER.info("vLLM moved TRITON_CACHE_DIR to %s; %d prepared entries were linked there", now, linked)

    def _report(self) -> None:
        assert self._replay is not None
        report = self._replay.report
        for line in report.remarks:
            LOGGER.info("%s", line)
        LOGGER.log(20 if report.warm else 30, "%s", report.summary())
        for result in report.results:
            if result.reason:
                LOGGER.debug("%s %s: %s", result.outcome.value, result.variant.kernel.name, result.reason)
        self._write(report)

    def _write(self, report: Report) -> None:
        if self._chosen.report:
            path = Path(self._chosen.report)
            tag = vllm_config.rank(self.worker).replace(":", "-")
            world = getattr(getattr(self.worker, "parallel_config", None), "world_size_across_dp", 1)
            if world != 1:
                path = path.with_name(f"{path.stem}.{tag}{path.suffix}")
            path.write_text(json.dumps(report.as_data(), indent=1))


def link_entries(source: Path, target: Path) -> int:
    """Link each entry of one Triton cache directory into another that lacks it; return how many were."""
    if not source.is_dir():
        return 0
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    for entry in source.iterdir():
        there = target / entry.name
        if entry.is_dir() and not entry.name.startswith(("tmp.", ".")) and not there.exists():
            there.symlink_to(entry.absolute(), target_is_directory=True)
            count += 1
    return count
