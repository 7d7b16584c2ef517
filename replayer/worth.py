"""Whether a compile helper is worth its start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..jit.launcher import is_per_signature
from ..manifest.model import Variant
from .width import free_cores

START = 5.0
"""Seconds that a helper is taken to need before its first answer."""
COMPILE_MS = 400
"""What a compile is taken to cost where the recording does not say."""
LAUNCHER_MS = 300
"""What a launcher costs where Triton builds one per signature."""


@dataclass(frozen=True)
class Worth:
    """What a replay was told that decides it: the workers asked for, the seconds it may take, a thread for the rest."""

    jobs: int = 0
    budget: float | None = None
    background: bool = False

    def of(self, missing: Iterable[Variant], backend: str) -> bool:
        """Whether a helper would be done with these before this process alone."""
        if self.jobs or self.background:
            return True  # a program that serves is not to wait for a compile in it
        per_launcher = LAUNCHER_MS if is_per_signature(backend) else 0
        alone = sum(cost_ms(variant) + per_launcher for variant in missing) / 1000
        if self.budget is not None and (self.budget >= 2 * START or alone > self.budget / 2):
            return True  # only a compile in another process can be left when time is up
        return START + alone / free_cores() < alone


def cost_ms(variant: Variant) -> float:
    """Return the milliseconds that a compile is taken to cost."""
    return variant.compile_ms or COMPILE_MS
