"""A replay on several devices of one process: Triton keeps its kernels by device (3.6.0 to 3.9.0: `device_caches`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ..jit.internals import internals
from .outcome import NOT_WARM, Report


@contextmanager
def current(device: int | None) -> Iterator[None]:
    """Make a device, by its number in this process, the current one of this thread meanwhile; None changes nothing."""
    if device is None:
        yield
        return
    active = internals().driver.active
    before = active.get_current_device()
    active.set_current_device(device)
    try:
        yield
    finally:
        active.set_current_device(before)


def join(report: Report, found: Report, device: int) -> None:
    """Add to the report of a first device what became of the same variants on another.

    A variant that is warm on the first alone is told by name; the rest is a note.
    """
    warm = {result.variant.identity for result in report.results if result.outcome not in NOT_WARM}
    report.results += [
        msgspec.structs.replace(result, reason=f"on device {device}: {result.reason}")
        for result in found.results
        if result.outcome in NOT_WARM and result.variant.identity in warm
    ]
    report.notes.append(f"on device {device}: {found.summary()}")
    report.notes += [f"on device {device}: {note}" for note in found.notes if note not in report.notes]
    report.add_work(found)
    for name, size in found.memory.items():
        report.memory[name] = report.memory.get(name, 0) + size
