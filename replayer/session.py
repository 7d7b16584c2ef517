"""One replay in one process: its plan, its stages, and what became of each variant."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ..jit import disk
from ..jit.bind import Bound
from ..jit.environment import device, live_target, variables
from ..jit.internals import internals
from ..jit.listener import Listener
from ..jit.load import load as load_kernel
from ..jit.resolve import Resolver, Unresolved
from ..manifest.derivation import Survivors
from ..manifest.errors import JitreplayError
from ..manifest.model import Environment, Manifest
from . import rebuild
from .choices import restore
from .live import Form, Live, forms, needs_late
from .outcome import NOT_WARM, Outcome, Report, Result
from .plan import Planned, make_plan
from .progress import Progress


class ReplayError(JitreplayError):
    """A strict replay met a variant that did not become warm; the text names it and says why."""


class Session:
    """Plans a replay, then does it in one go or in stages; `report` grows with each.

    `rank` is this process's among several, `live` what the runner's tables and settings are so far.
    """

    def __init__(
        self, manifest: Manifest, allow: Iterable[str] = (), *, rank: str = "", load: bool = True, strict: bool = False
    ) -> None:
        self.manifest, self.live = manifest, Live()
        self.report = Report(seconds=dict.fromkeys(("plan", "compile", "load", "total"), 0.0))
        self._load, self._strict = load, strict
        self._listener = Listener()
        with self._stage("plan"), self._stage("total"):
            self._resolver = Resolver(allow)
            backend, _, _ = live_target()
            plan = make_plan(manifest, backend, self._resolver, rank)
            self._survivors = Survivors(manifest.variants, manifest.environments)
            self.todo = plan.todo
            self.report.results.extend(plan.dropped)
            self.report.drift = drift(manifest.environments)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.report.seconds[name] += time.perf_counter() - start

    def restore_choices(self) -> None:
        """Put the recorded winners where the live autotuners look, so that nothing is benchmarked."""
        name = device().name if self.manifest.choices else ""
        with self._stage("plan"), self._stage("total"):
            self.report.choices = [restore(choice, name, self._resolver) for choice in self.manifest.choices]

    def early(self, progress: Progress | None = None) -> None:
        """Replay what needs none of the runner's tables; the rest stays planned."""
        now = [p for p in self.todo if not needs_late(p.variant, self._survivors, self.live)]
        self._run(now, progress)
        done = set(map(id, now))
        self.todo = [planned for planned in self.todo if id(planned) not in done]

    def late(self, progress: Progress | None = None) -> None:
        """Replay what is still planned."""
        self._run(self.todo, progress)
        self.todo = []

    def _run(self, todo: list[Planned], progress: Progress | None) -> None:
        self._listener.install()
        try:
            with self._stage("total"):
                for done, planned in enumerate(todo):
                    if progress is not None:
                        progress(done, len(todo), planned.variant.kernel.name)
                    result = self.warm(planned)
                    self.report.results.append(result)
                    if self._strict and result.outcome in NOT_WARM:
                        raise ReplayError(f"{planned.variant.kernel.name} {planned.variant.digest}: {result.reason}")
                if progress is not None:
                    progress(len(todo), len(todo), "")
        finally:
            self._listener.uninstall()

    def verify(self, progress: Progress | None = None) -> None:
        """Check that each variant is whole in the disk cache; compile and write nothing."""
        with self._stage("total"):
            for done, planned in enumerate(self.todo):
                if progress is not None:
                    progress(done, len(self.todo), planned.variant.kernel.name)
                self.report.results.append(self._check(planned))
            self.todo = []

    def warm(self, planned: Planned) -> Result:
        """Compile and load every form of one variant; every failure is an outcome."""
        results = [self._warm_form(planned, form) for form in forms(planned.variant, self._survivors, self.live)]
        first = results[0]
        if len(results) == 1 or first.outcome in NOT_WARM:
            return first
        also = "; ".join(f"{r.outcome.value} {r.reason}".strip() for r in results[1:])
        reason = f"{first.outcome.value} {first.reason}".strip() + f"; and, as this configuration may launch it: {also}"
        return Result(planned.variant, Outcome.AMBIGUOUS, reason, loaded=all(r.loaded for r in results))

    def _warm_form(self, planned: Planned, form: Form) -> Result:
        try:
            with self._stage("compile"):
                bound, found = self._compile(planned, form)
        except Unresolved as reason:
            return Result(planned.variant, Outcome.SKIPPED, str(reason))
        except Exception as error:
            return Result(planned.variant, Outcome.FAILED, said(error))
        if bound.kernel is None:
            return Result(planned.variant, Outcome.CANCELLED, "a jit_cache_hook of another tool cancelled the compile")
        outcome, reason = self._judge(planned, form, bound, found)
        if not self._load:
            return Result(planned.variant, outcome, reason)
        try:
            with self._stage("load"):
                load_kernel(bound.kernel)
        except Exception as error:
            return Result(planned.variant, Outcome.FAILED, f"{found.value}, but it cannot be loaded: {said(error)}")
        return Result(planned.variant, outcome, reason, loaded=True)

    def _compile(self, planned: Planned, form: Form) -> tuple[Bound, Outcome]:
        """Bind a form. An entry of the disk cache that is cut is dropped first, and compiled anew."""
        self._listener.take()
        try:
            bound = rebuild.bind(planned, form, self._resolver)
        except (KeyError, ValueError, StopIteration, OSError):
            if not self._drop_entry(planned, form):
                raise
            bound = rebuild.bind(planned, form, self._resolver)
        hit = self._listener.take()
        if hit and not bound.in_memory and not disk.whole_binary(bound.kernel):
            disk.forget(planned.fn, bound.key)
            self._drop_entry(planned, form)
            bound = rebuild.bind(planned, form, self._resolver)
            hit = self._listener.take()
        return bound, Outcome.WARM if bound.in_memory else Outcome.CACHED if hit else Outcome.COMPILED

    def _drop_entry(self, planned: Planned, form: Form) -> bool:
        """Drop a form's entry of the disk cache if it is there and cut; return whether it was."""
        entry = rebuild.bind(planned, form, self._resolver, disk.probe).kernel
        return isinstance(entry, disk.Entry) and disk.drop(entry)

    def _check(self, planned: Planned) -> Result:
        form = forms(planned.variant, self._survivors, self.live)[0]
        try:
            with self._stage("compile"):
                bound = rebuild.bind(planned, form, self._resolver, disk.probe)
        except Unresolved as reason:
            return Result(planned.variant, Outcome.WOULD_COMPILE, f"cannot be checked: {reason}")
        except Exception as error:
            return Result(planned.variant, Outcome.WOULD_COMPILE, f"cannot be checked: {said(error)}")
        _, reason = self._judge(planned, form, bound, Outcome.WARM)
        if fault := getattr(bound.kernel, "fault", ""):
            return Result(planned.variant, Outcome.WOULD_COMPILE, f"{fault}; {reason}" if reason else fault)
        return Result(planned.variant, Outcome.WARM, reason)

    def _judge(self, planned: Planned, form: Form, bound: Bound, found: Outcome) -> tuple[Outcome, str]:
        if planned.changed:
            return (
                Outcome.CHANGED,
                f"the kernel's source changed since it was recorded; {found.value} from the present one",
            )
        if rebuild.is_recorded(bound, planned.variant):
            return found, ""
        environments = planned.variant.environments
        injected = self.manifest.environments[environments[0]].injected if environments else {}
        told = form.replaced or rebuild.differences(bound, planned.variant, injected)
        return Outcome.DRIFTED, f"{found.value} with another key: " + "; ".join(told)


def drift(environments: Iterable[Environment]) -> list[str]:
    """Return what differs between the recording and here and enters keys or binaries: Triton, target, variables."""
    backend, arch, _ = live_target()
    found: list[str] = []
    here = {"Triton": internals().version, "target": f"{backend}:{arch}", **variables()}
    for environment in environments:
        there = {"Triton": environment.triton, "target": environment.target, **environment.variables}
        for name in sorted({*here, *there}, key=lambda n: (n not in ("Triton", "target"), n)):
            if there.get(name) != here.get(name):
                found.append(f"{name}: {there.get(name, 'unset')} -> {here.get(name, 'unset')}")
    return list(dict.fromkeys(found))


def said(error: BaseException) -> str:
    """Return an error in one line: its type and the line of its text that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if type(error).__name__ == "CompilationError" and lines else lines[0] if lines else ""
    return f"{type(error).__name__}: {text}"[:400]
