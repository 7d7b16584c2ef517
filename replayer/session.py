"""One replay in one process: its plan, its stages, and what became of each variant."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ..jit import triton_hash
from ..jit.capture import capturing
from ..jit.entry import Entries
from ..jit.environment import live_target, tuned_on
from ..jit.listener import Listener
from ..jit.memory import used
from ..jit.resolve import Absent, Resolver, Unresolved
from ..manifest.derivation import Survivors
from ..manifest.errors import JitreplayError
from ..manifest.model import Choice, Manifest
from ..manifest.settings import settings
from ..manifest.words import many
from .ahead import OVER, Ahead
from .background import Background
from .choices import may_come_again, restore, restore_in
from .drift import drift
from .early import Early
from .live import Form, Live, forms, needs_late
from .outcome import NOT_WARM, ChoiceResult, Outcome, Report, Result, said
from .plan import ELSEWHERE, Planned, cut, make_plan
from .plan import planned as plan_one
from .prebuilt import differences, kept, settle
from .prefetch import Prefetch, usable_cache
from .progress import Progress
from .waiting import WAITS, Waiting
from .warm import Warmer
from .worth import Worth

HEAVY = 1 << 30
"""Bytes of a process's memory that a replay takes without a word."""


class ReplayError(JitreplayError):
    """A strict replay met a variant that did not become warm; the text names it and says why."""


class Session:
    """Plans a replay, then does it in one go or in stages; `report` grows with each.

    `rank` is this process's among several, `live` what the runner's tables and settings are so far. `jobs` is how many
    workers compile ahead, 0 for as many as there is room and reason for; `limit` the seconds that one compile may
    take; `budget` the seconds that the stages may take together; `prefetch` what was begun before. `launchers` are
    built even where nothing is loaded, for a cache that ships. With `background`, what is over budget is done after
    `late`, in a thread. `cache` is the directory to use as it is; without it, Triton's is made usable.
    `on_background_end` is called in that thread. Without `trust`, nothing that an earlier process noted of Triton's own
    files is used: for what is shipped, and for a verdict. With `early`, a helper may be started before the device is
    asked.
    """

    def __init__(
        self,
        manifest: Manifest,
        allow: Iterable[str] = (),
        *,
        rank: str = "",
        load: bool = True,
        strict: bool = False,
        jobs: int = 0,
        budget: float | None = None,
        limit: float | None = None,
        prefetch: Prefetch | None = None,
        launchers: bool = False,
        background: bool = False,
        cache: str = "",
        trust: bool = True,
        early: bool = False,
    ) -> None:
        self.manifest, self.live = manifest, Live()
        self.report = Report(seconds=dict.fromkeys(("plan", "compile", "load", "total"), 0.0))
        self._strict, self._budget, self._shipped = strict, budget, launchers
        self._background: Background | None = None
        self.on_background_end: Callable[[], None] = lambda: None
        self._left: list[tuple[Planned, list[Form]]] | None = [] if background else None
        self._listener = Listener()
        with self._stage("plan"), self._stage("total"), ExitStack() as undo:
            allow = tuple(allow)
            self._cache = self.report.cache = cache or settle(usable_cache())
            triton_hash.begin(self._cache if trust else None, busy=True)
            self._resolver = resolver = Resolver(allow)
            worth, plan, soon = Worth(jobs, budget, background), None, None
            if early and prefetch is None:
                soon = Early(manifest, resolver, worth, allow, rank, limit)
                prefetch = soon.prefetch
            if prefetch is not None:
                undo.callback(prefetch.close)
            backend, _, _ = live_target()
            if soon is not None:
                plan = soon.plan_for(backend)
            plan = plan or make_plan(manifest, backend, resolver, rank)
            if load:
                cut(plan, settings().most)
            self._survivors = Survivors(manifest.variants, manifest.environments)
            self.todo = plan.todo
            self.report.results.extend(plan.dropped)
            self.report.drift = drift(manifest.environments)
            self._warmer = Warmer(manifest, resolver, self._listener, self._stage, load, launchers)
            self._absent = plan.absent
            self.waiting = Waiting(resolver, self.report, self._warm_late, self._restore_late)
            self._ahead = Ahead(manifest, self._warmer, prefetch, allow, rank, worth, limit, launchers)
            undo.pop_all()

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.report.seconds[name] += time.perf_counter() - start

    def restore_choices(self) -> None:
        """Put the recorded winners where the live autotuners look, so that nothing is benchmarked."""
        name = tuned_on() if self.manifest.choices else ""
        with self._stage("plan"), self._stage("total"):
            self.report.choices = [self._restore(choice, name) for choice in self.manifest.choices]

    def _restore(self, choice: Choice, name: str) -> ChoiceResult:
        """Restore a choice; where its kernel may yet come, or come again, it is also restored then."""
        try:
            found = restore(choice, name, self._resolver)
        except Absent as reason:
            found = ChoiceResult(choice, False, str(reason) + WAITS)
        else:
            if not found.restored or not may_come_again(choice, self._resolver):
                return found
        self.waiting.watch_choice(choice)
        return found

    def early(self, progress: Progress | None = None) -> None:
        """Replay what needs none of the runner's tables; the rest stays planned."""
        self._look_again()
        now = [p for p in self.todo if not needs_late(p.variant, self._survivors, self.live)]
        self._run(now, progress)
        done = set(map(id, now))
        self.todo = [planned for planned in self.todo if id(planned) not in done]

    def late(self, progress: Progress | None = None) -> None:
        """Replay what is still planned. What then has no kernel is bound when one appears, until `waiting.stop()`."""
        self._look_again()
        self._run(self.todo, progress)
        self.todo = []
        for variant, reason in self._absent:
            self.report.results.append(Result(variant, Outcome.SKIPPED, reason + WAITS))
            self.waiting.watch(variant)
        self._absent = []
        self.waiting.start()
        if self._left:
            self.report.notes.append(f"{many(len(self._left), 'variant')} over budget, made warm in the background")
            self._background = Background(self._left, self._ahead, self.warm, self.report, self._end)
            self._background.start()

    @property
    def pending(self) -> bool:
        """Whether there is anything left for `late`."""
        return bool(self.todo or self._absent)

    def _look_again(self) -> None:
        """Plan what had no kernel when it was looked for last."""
        waiting = [at for at, found in enumerate(self.report.choices) if found.reason.endswith(WAITS)]
        if not self._absent and not waiting:
            return
        with self._stage("plan"), self._stage("total"):
            self._resolver.refresh()
            for at in waiting:
                self.report.choices[at] = self._restore(self.report.choices[at].choice, tuned_on())
            absent, self._absent = self._absent, []
            for variant, _ in absent:
                try:
                    self.todo.append(plan_one(variant, self._resolver))
                except Absent as reason:
                    self._absent.append((variant, str(reason)))
                except Unresolved as reason:
                    self.report.results.append(Result(variant, Outcome.SKIPPED, str(reason)))

    def _warm_late(self, planned: Planned) -> Result:
        """Warm a variant whose kernel appeared after the replay, in the thread that launches it."""
        self._listener.install()
        try:
            return self._all_forms(planned, [self._warmer.warm(planned, form) for form in self._forms(planned)])
        finally:
            self._listener.uninstall()

    def _restore_late(self, choice: Choice, tuner: Any) -> ChoiceResult:
        return restore_in(choice, tuned_on(), self._resolver, tuner)

    def _forms(self, planned: Planned) -> list[Form]:
        return forms(planned.variant, self._survivors, self.live)

    def _refuse_dropped(self) -> None:
        """Raise ReplayError for what the plan dropped, unless it is for another process or its kernel may yet come."""
        for result in self.report.results:
            if result.outcome is Outcome.SKIPPED and not result.reason.startswith(ELSEWHERE):
                raise ReplayError(f"{result.variant.kernel.name} {result.variant.digest}: {result.reason}")

    def _run(self, todo: list[Planned], progress: Progress | None) -> None:
        if self._strict:
            self._refuse_dropped()
        if capturing():
            reason = "a CUDA graph is being captured: replay before it"
            if self._strict and todo:
                raise ReplayError(reason)
            self.report.results.extend(Result(planned.variant, Outcome.SKIPPED, reason) for planned in todo)
            return
        self._listener.install()
        before = used()
        deadline = None
        if self._budget is not None:
            deadline = time.monotonic() + self._budget - self.report.seconds["total"]
        try:
            with self._stage("total"), Entries():
                work = self._work(todo)
                self._ahead.begin(work)
                with self._stage("compile"):
                    triton_hash.wait()
                total = len(work)
                self._ahead.prepare(work)
                for done in range(total):
                    if progress is not None:
                        progress(done, total, work[0][0].variant.kernel.name)
                    planned, shapes = work.pop(self._ahead.next(work, deadline))
                    result = self.warm(planned, shapes, deadline)
                    self.report.results.append(result)
                    if self._left is not None and result.outcome is Outcome.SKIPPED and result.reason == OVER:
                        self._left.append((planned, shapes))
                    if self._strict and result.outcome in NOT_WARM:
                        raise ReplayError(f"{planned.variant.kernel.name} {planned.variant.digest}: {result.reason}")
                if progress is not None:
                    progress(total, total, "")
        except BaseException:
            self._finish()
            raise
        finally:
            self._listener.uninstall()
            now, sums = used(), self.report.memory
            self.report.memory = {name: sums.get(name, 0) + now[name] - before[name] for name in before if name in now}

    def _work(self, todo: list[Planned]) -> list[tuple[Planned, list[Form]]]:
        """Return the variants with their forms here; one whose arguments cannot be made costs itself alone."""
        work = []
        for planned in todo:
            try:
                work.append((planned, self._forms(planned)))
            except Exception as error:
                reason = f"its arguments cannot be made here: {said(error)}"
                if self._strict:
                    raise ReplayError(f"{planned.variant.kernel.name} {planned.variant.digest}: {reason}") from None
                self.report.results.append(Result(planned.variant, Outcome.FAILED, reason))
        return work

    def close(self) -> None:
        """End what compiles ahead, and stamp the cache if all is warm. The report is complete then.

        Where a background thread goes on, it does so when it is done.
        """
        if self._background is None or not self._background.alive:
            self._finish()

    def stop(self) -> None:
        """End a background thread, and wait for no kernel any more."""
        if self._background is not None:
            self._background.stop()
        self.waiting.stop()

    def _end(self) -> None:
        self._finish()
        self.on_background_end()

    def _finish(self) -> None:
        self._ahead.close(self.report, complete=not self.todo)
        triton_hash.check()
        self.report.launchers = self._warmer.built
        if (host := self.report.memory.get("host", 0)) > HEAVY:
            words = (
                f"the replay took {host / 2**30:.1f} GiB of this process's memory; JITREPLAY_MOST=N replays only the N"
            )
            self.report.notes.append(f"{words} most needed of {many(len(self.report.results), 'variant')}")
        if not self._shipped and (told := differences(self._cache)):
            self.report.notes.append(told)
        if any(result.outcome is Outcome.COMPILED for result in self.report.results) and (told := kept(self._cache)):
            self.report.notes.append(told)

    def verify(self, progress: Progress | None = None) -> None:
        """Check that each variant is whole in the disk cache; compile and write nothing."""
        with self._stage("total"):
            triton_hash.wait()
            for done, planned in enumerate(self.todo):
                if progress is not None:
                    progress(done, len(self.todo), planned.variant.kernel.name)
                self.report.results.append(self._warmer.check(planned, self._forms(planned)[0]))
            for variant, reason in self._absent:
                self.report.results.append(Result(variant, Outcome.SKIPPED, reason))
            self.todo = []
            if told := differences(self._cache):
                self.report.notes.append(told)
            if not os.path.isdir(self._cache):
                self.report.notes.append(f"there is no cache directory {self._cache}")

    def warm(self, planned: Planned, shapes: list[Form], deadline: float | None = None) -> Result:
        """Compile and load every form of one variant; every failure is an outcome."""
        self._listener.install()
        try:
            return self._warm(planned, shapes, deadline)
        finally:
            self._listener.uninstall()

    def _warm(self, planned: Planned, shapes: list[Form], deadline: float | None) -> Result:
        result = self._all_forms(planned, [self._ahead.warm(planned, form, deadline) for form in shapes])
        if not planned.variant.kernel.named:
            self.waiting.watch(planned.variant, planned.fn)
        for fn in planned.twins:
            twin = Planned(planned.variant, fn, planned.changed)
            for form in shapes:
                self._warmer.warm(twin, form)
            self.waiting.watch(planned.variant, fn)
        return result

    def _all_forms(self, planned: Planned, results: list[Result]) -> Result:
        first = results[0]
        if len(results) == 1 or first.outcome in NOT_WARM:
            return first
        # A guess that does not compile was a coincidence of numbers: nothing launches it.
        held = [result for result in results[1:] if result.outcome not in NOT_WARM]
        if not held:
            return first
        also = "; ".join(f"{r.outcome.value} {r.reason}".strip() for r in held)
        reason = f"{first.outcome.value} {first.reason}".strip() + f"; and, as this configuration may launch it: {also}"
        return Result(planned.variant, Outcome.AMBIGUOUS, reason, loaded=all(r.loaded for r in (first, *held)))
