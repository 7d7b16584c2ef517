"""The replay as a program calls it. It never launches a kernel."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from typing import Any

from ..jit import place
from ..manifest import file
from ..manifest.errors import JitreplayError
from ..manifest.model import Manifest
from ..manifest.settings import settings
from . import filled, several
from . import prefetch as prefetching
from .failures import advice
from .outcome import Report, said
from .prebuilt import read_only
from .prefetch import usable_cache
from .progress import Progress
from .session import ReplayError, Session
from .shard import split

LOGGER = logging.getLogger("jitreplay")


def replay(
    manifest: Manifest | str | os.PathLike[str] | None = None,
    *,
    allow: Iterable[str] = (),
    load: bool = True,
    strict: bool | None = None,
    jobs: int | None = None,
    budget: float | None = None,
    background: bool | None = None,
    devices: Iterable[int] = (),
    progress: Progress | None = None,
) -> Report:
    """Make every variant of a manifest warm in this process, on its current device or on `devices`.

    Call it when the program's modules are imported and set up, before CUDA graphs are captured and before the first
    request. `manifest` is a Manifest, a path, or None for `JITREPLAY_MANIFEST`. `allow` names the top-level packages
    that may be imported to find kernels; what is imported already is allowed. `load` also builds the launcher
    and loads the binary. `jobs` is how many processes may compile (0: by free cores, and none where there is little to
    do; `JITREPLAY_JOBS`), `budget` the seconds that it may take (`JITREPLAY_BUDGET`): what is left then is listed and,
    with `background` (`JITREPLAY_BACKGROUND`), made warm in a thread, not while a CUDA graph is captured.
    `devices` are numbers of GPUs as this process counts them, for one that launches on several; what differs on those
    after the first is told in the notes. `progress` is called with (done, total, kernel).

    Returns a Report. A manifest that cannot be read, a Triton that lacks something, a variant that fails: each is told
    in the report and the log, and the program goes on. With `strict` (or `JITREPLAY_STRICT`) it raises JitreplayError.
    """
    strictly = bool(strict)
    try:
        chosen = settings()
        if chosen.disabled:
            return Report(error="JITREPLAY_DISABLE is set")
        strictly = chosen.strict if strict is None else strict
        report = _replay(
            manifest or chosen.manifest,
            (*allow, *chosen.allow),
            load,
            strictly,
            chosen.jobs if jobs is None else jobs,
            chosen.budget if budget is None else budget,
            chosen.background if background is None else background,
            chosen.limit,
            tuple(devices) or (None,),
            progress,
        )
    except JitreplayError as error:
        if strictly:
            raise
        report = Report(error=str(error))
    for line in report.remarks:
        LOGGER.info("%s", line)
    LOGGER.log(logging.INFO if report.warm else logging.WARNING, "%s", report.summary())
    return report


def _replay(
    manifest: Any,
    allow: tuple[str, ...],
    load: bool,
    strict: bool,
    jobs: int,
    budget: float | None,
    background: bool,
    limit: float | None,
    devices: tuple[int | None, ...],
    progress: Progress | None,
) -> Report:
    found = _manifest(manifest)
    moved = filled.moved()
    ahead = prefetching.take(found)
    report: Report | None = None
    start = time.monotonic()
    for device in devices:
        with several.current(device):
            session = Session(
                *(found, allow),
                load=load,
                strict=strict,
                jobs=jobs,
                budget=None if budget is None else max(0.0, budget - (time.monotonic() - start)),
                limit=limit,
                prefetch=ahead,
                background=background,
                early=True,
            )
            try:
                session.restore_choices()
                session.late(progress)
            finally:
                session.close()
        ahead = None
        if report is None:
            report = session.report
        elif device is not None:
            several.join(report, session.report, device)
    assert report is not None
    if moved:
        report.notes.append(moved)
    filled.note(report.cache)
    return report


def _manifest(manifest: Any) -> Manifest:
    if not manifest:
        raise ReplayError("no manifest: give one, or set JITREPLAY_MANIFEST")
    return manifest if isinstance(manifest, Manifest) else file.load(manifest)


def prefetch(
    manifest: Manifest | str | os.PathLike[str] | None = None, *, allow: Iterable[str] = (), jobs: int | None = None
) -> bool:
    """Begin to compile a manifest in another process, and return at once; `replay` of the same manifest joins it.

    Call it as early as possible, before models load. It fills Triton's disk cache and asks no GPU driver: it compiles
    for the device that this process uses already, else for the one that was recorded. Takes what `replay` takes.

    Returns whether something is being compiled: not when all was warm at the last boot and still is, nor when the
    device is not known, nor when something fails, which the log tells.
    """
    try:
        chosen = settings()
        if chosen.disabled:
            return False
        found = _manifest(manifest or chosen.manifest)
        ahead = prefetching.begin(
            found, allow=(*allow, *chosen.allow), jobs=chosen.jobs if jobs is None else jobs, limit=chosen.limit
        )
    except Exception as error:
        text = error if isinstance(error, (JitreplayError, OSError)) else said(error)
        LOGGER.warning("nothing is compiled ahead: %s", text)
        return False
    prefetching.put(ahead)
    return ahead is not None and ahead.children is not None


def fill(
    manifest: Manifest,
    *,
    allow: Iterable[str] = (),
    jobs: int = 0,
    shard: tuple[int, int] = (1, 1),
    progress: Progress | None = None,
) -> Report:
    """Fill Triton's cache directory with a manifest for the active target, to be shipped: binaries and launchers.

    `shard` (i, n) does the i-th of n parts. What is there already is kept, so that it can be called again.
    """
    part, parts = shard
    share = split(manifest, parts)[part - 1]
    session = Session(share, allow, load=False, jobs=jobs, limit=settings().limit, launchers=True, trust=False)
    try:
        session.late(progress)
    finally:
        session.close()
    try:
        place.note(usable_cache())
    except OSError as error:
        why = f"the cache cannot be marked as good for this toolchain: {error}; {advice(str(error))}"
        session.report.stopped = session.report.stopped or why
    return session.report


def verify(manifest: Manifest, *, allow: Iterable[str] = (), progress: Progress | None = None) -> Report:
    """Check that nothing of a manifest would compile with the active target and Triton's cache directory.

    It compiles nothing and writes nothing. It uses the recorded values: what a deployment with another configuration
    would launch, it cannot know.
    """
    cache = usable_cache()
    with read_only(cache) as usable:
        session = Session(manifest, allow, cache=usable, trust=False)
        session.verify(progress)
    session.report.cache = cache
    return session.report
