"""The replay: plan, bind, compile, load, report. It never launches a kernel."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..jit.environment import live_target, variables
from ..jit.listener import Listener
from ..jit.load import load as load_kernel
from ..jit.resolve import Resolver, Unresolved
from ..manifest import file
from ..manifest.errors import JitreplayError
from ..manifest.model import Environment, Manifest
from ..manifest.settings import settings
from . import rebuild
from .outcome import NOT_WARM, Outcome, Report, Result
from .plan import Planned, make_plan

LOGGER = logging.getLogger("jitreplay")
Progress = Callable[[int, int, str], None]


class ReplayError(JitreplayError):
    """A strict replay met a variant that did not become warm; the text names it and says why."""


def replay(
    manifest: Manifest | str | os.PathLike[str] | None = None,
    *,
    allow: Iterable[str] = (),
    load: bool = True,
    strict: bool | None = None,
    progress: Progress | None = None,
) -> Report:
    """Make every variant of a manifest warm in this process, on its current device.

    Call it when the program's modules are imported and set up, before CUDA graphs are captured and before the first
    request. `manifest` is a Manifest, a path, or None for `JITREPLAY_MANIFEST`. `allow` names the top-level packages
    that may be imported to find kernels; what is imported already is allowed. `load` also builds the launcher
    and loads the binary. `progress` is called with (done, total, kernel).

    Returns a Report. A manifest that cannot be read, a Triton that lacks something, a variant that fails: each is told
    in the report and the log, and the program goes on. With `strict` (or `JITREPLAY_STRICT`) it raises JitreplayError.
    """
    chosen = settings()
    strict = chosen.strict if strict is None else strict
    if chosen.disabled:
        return Report(error="JITREPLAY_DISABLE is set")
    try:
        report = _replay(manifest or chosen.manifest, (*allow, *chosen.allow), load, strict, progress)
    except JitreplayError as error:
        if strict:
            raise
        report = Report(error=str(error))
    LOGGER.log(logging.INFO if report.warm else logging.WARNING, "%s", report.summary())
    return report


def _replay(manifest: Any, allow: tuple[str, ...], load: bool, strict: bool, progress: Progress | None) -> Report:
    if not manifest:
        raise ReplayError("no manifest: give one, or set JITREPLAY_MANIFEST")
    if not isinstance(manifest, Manifest):
        manifest = file.load(manifest)
    with _session(manifest, allow) as session:
        for done, planned in enumerate(session.todo):
            if progress is not None:
                progress(done, len(session.todo), planned.variant.kernel.name)
            result = session.warm(planned, load)
            session.report.results.append(result)
            if strict and result.outcome in NOT_WARM:
                raise ReplayError(f"{result.variant.kernel.name} {result.variant.digest}: {result.reason}")
        if progress is not None:
            progress(len(session.todo), len(session.todo), "")
    return session.report


def verify(manifest: Manifest, *, allow: Iterable[str] = (), progress: Progress | None = None) -> Report:
    """Check that nothing of a manifest would compile with the active target and Triton's cache directory.

    It compiles nothing and writes nothing. It uses the recorded values: what a deployment with another configuration
    would launch, it cannot know.
    """
    with _session(manifest, allow) as session:
        for done, planned in enumerate(session.todo):
            if progress is not None:
                progress(done, len(session.todo), planned.variant.kernel.name)
            session.report.results.append(session.check(planned))
    return session.report


class _Session:
    """One replay: its plan, its report, and how long each stage took."""

    def __init__(self, manifest: Manifest, allow: Iterable[str]) -> None:
        start = time.perf_counter()
        self.manifest = manifest
        self.report = Report(seconds={"plan": 0.0, "compile": 0.0, "load": 0.0, "total": 0.0})
        self.resolver = Resolver(allow)
        self.listener = Listener()
        backend, _, _ = live_target()
        plan = make_plan(manifest, backend, self.resolver)
        self.todo = plan.todo
        self.report.results.extend(plan.dropped)
        self.report.drift = drift(manifest.environments)
        self._spend("plan", start)

    def _spend(self, stage: str, start: float) -> None:
        self.report.seconds[stage] += time.perf_counter() - start

    def warm(self, planned: Planned, load: bool) -> Result:
        """Compile and load one variant; every failure is an outcome."""
        start = time.perf_counter()
        try:
            self.listener.take()
            bound = rebuild.bind(planned, self.resolver)
            hit = self.listener.take()
        except Unresolved as reason:
            return Result(planned.variant, Outcome.SKIPPED, str(reason))
        except Exception as error:
            return Result(planned.variant, Outcome.FAILED, _said(error))
        finally:
            self._spend("compile", start)
        if bound.kernel is None:
            return Result(planned.variant, Outcome.CANCELLED, "a jit_cache_hook of another tool cancelled the compile")
        found = Outcome.WARM if bound.in_memory else Outcome.CACHED if hit else Outcome.COMPILED
        outcome, reason = self._judge(planned, bound, found)
        if not load:
            return Result(planned.variant, outcome, reason)
        start = time.perf_counter()
        try:
            load_kernel(bound.kernel)
        except Exception as error:
            return Result(planned.variant, Outcome.FAILED, f"{found.value}, but it cannot be loaded: {_said(error)}")
        finally:
            self._spend("load", start)
        return Result(planned.variant, outcome, reason, loaded=True)

    def check(self, planned: Planned) -> Result:
        """Say whether one variant is whole in the disk cache."""
        from ..jit.disk import Entry, locate

        start = time.perf_counter()

        def probe(fn: Any, signature: Any, device: Any, constexprs: Any, options: Any, attrs: Any, warmup: Any) -> Entry:
            return locate(fn, signature, constexprs, options, attrs)

        try:
            bound = rebuild.bind(planned, self.resolver, probe)
        except Unresolved as reason:
            return Result(planned.variant, Outcome.WOULD_COMPILE, f"cannot be checked: {reason}")
        except Exception as error:
            return Result(planned.variant, Outcome.WOULD_COMPILE, f"cannot be checked: {_said(error)}")
        finally:
            self._spend("compile", start)
        _, reason = self._judge(planned, bound, Outcome.WARM)
        fault = getattr(bound.kernel, "fault", "")
        if fault:
            return Result(planned.variant, Outcome.WOULD_COMPILE, f"{fault}; {reason}" if reason else fault)
        return Result(planned.variant, Outcome.WARM, reason)

    def _judge(self, planned: Planned, bound: Any, found: Outcome) -> tuple[Outcome, str]:
        if planned.changed:
            return Outcome.CHANGED, f"the kernel's source changed since it was recorded; {found.value} from the present one"
        if rebuild.is_recorded(bound, planned.variant):
            return found, ""
        injected = self._injected(planned)
        return Outcome.DRIFTED, f"{found.value} with another key: " + "; ".join(
            rebuild.differences(bound, planned.variant, injected)
        )

    def _injected(self, planned: Planned) -> dict[str, str]:
        environments = planned.variant.environments
        return self.manifest.environments[environments[0]].injected if environments else {}


@contextmanager
def _session(manifest: Manifest, allow: Iterable[str]) -> Iterator[_Session]:
    start = time.perf_counter()
    session = _Session(manifest, allow)
    session.listener.install()
    try:
        yield session
    finally:
        session.listener.uninstall()
        session.report.seconds["total"] = time.perf_counter() - start


def drift(environments: Iterable[Environment]) -> list[str]:
    """Return what differs between the recording and here and enters keys or binaries: Triton, target, variables."""
    from ..jit.internals import internals

    backend, arch, _ = live_target()
    found: list[str] = []
    here = {"Triton": internals().version, "target": f"{backend}:{arch}", **variables()}
    for environment in environments:
        there = {"Triton": environment.triton, "target": environment.target, **environment.variables}
        for name in sorted({*here, *there}, key=lambda n: (n not in ("Triton", "target"), n)):
            if there.get(name) != here.get(name):
                found.append(f"{name}: {there.get(name, 'unset')} -> {here.get(name, 'unset')}")
    return list(dict.fromkeys(found))


def _said(error: BaseException) -> str:
    """Return an error in one line: its type and the first line of its text that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if type(error).__name__ == "CompilationError" and lines else lines[0] if lines else ""
    return f"{type(error).__name__}: {text}"[:400]
