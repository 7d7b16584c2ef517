"""What became of each variant in a replay."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from subprocess import CalledProcessError
from typing import Any

import msgspec

from ..manifest import words
from ..manifest.model import Choice, Variant
from ..manifest.words import many
from .failures import advice


class Outcome(str, Enum):
    """An outcome. The reason beside it says why, or what is worth knowing."""

    COMPILED = "compiled"
    """The compiler ran; the key is the recorded one."""
    CACHED = "cached"
    """Found in Triton's disk cache; the key is the recorded one."""
    WARM = "warm"
    """Nothing to do: in memory already or, for `verify`, whole in the disk cache."""
    CHANGED = "changed"
    """The kernel's source is another than recorded; compiled from the present one."""
    DRIFTED = "drifted"
    """The key is another than recorded; what the live program will launch was compiled."""
    DIFFERS_HEADLESS = "differs_headless"
    """A compile helper has the kernel otherwise than this process, so it was compiled here."""
    AMBIGUOUS = "ambiguous"
    """The recorded key was compiled, and those that this configuration may launch in its place."""
    WOULD_COMPILE = "would_compile"
    """`verify` only: a launch would have to compile it."""
    SKIPPED = "skipped"
    """Does not apply here, or cannot be rebuilt."""
    CANCELLED = "cancelled"
    """Another tool's cache hook cancelled the compile."""
    FAILED = "failed"
    """Triton raised while binding, compiling or loading it."""


NOT_WARM = frozenset({Outcome.WOULD_COMPILE, Outcome.SKIPPED, Outcome.CANCELLED, Outcome.FAILED})
"""Outcomes after which the variant's first launch would compile."""


class Result(msgspec.Struct, frozen=True):
    """One variant's outcome. `loaded` says that its binary and launcher are ready on this device."""

    variant: Variant
    outcome: Outcome
    reason: str = ""
    loaded: bool = False


class ChoiceResult(msgspec.Struct, frozen=True):
    """Whether an autotuner's choice was restored, and why not, or what is worth knowing."""

    choice: Choice
    restored: bool
    reason: str = ""


class Report(msgspec.Struct):
    """The outcome of every variant, seconds by stage (`plan`, `compile`, `load`, `total`), and drift in general.

    `error` is not empty when there was no replay at all: no manifest, or one that cannot be read. `stopped` is not
    when it ended before its time: too many equal failures. `notes` tell what else is worth knowing. `memory` is by how
    many bytes what this process uses grew meanwhile: `host`, and `device` where it runs on a GPU. `launchers` is how
    many the C compiler built, where Triton has one for each signature; `cache` the Triton cache directory.
    """

    results: list[Result] = []
    seconds: dict[str, float] = {}
    choices: list[ChoiceResult] = []
    drift: list[str] = []
    error: str = ""
    stopped: str = ""
    notes: list[str] = []
    memory: dict[str, int] = {}
    launchers: int = 0
    cache: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """How many variants had each outcome, those that occurred, in the order of `Outcome`."""
        found = Counter(result.outcome for result in self.results)
        return {outcome.value: found[outcome] for outcome in Outcome if found[outcome]}

    @property
    def warm(self) -> bool:
        """Whether every variant is warm: its first launch will not compile."""
        return not self.error and not any(result.outcome in NOT_WARM for result in self.results)

    @property
    def loaded(self) -> int:
        """How many variants have their binary and launcher ready."""
        return sum(result.loaded for result in self.results)

    def add_work(self, found: Report) -> None:
        """Add what the work of another report took, and that it was stopped."""
        self.stopped = self.stopped or found.stopped
        self.launchers += found.launchers
        for stage, spent in found.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent

    @property
    def remarks(self) -> list[str]:
        """What is worth knowing of the whole, a line each: drift, then notes."""
        return [*(f"differs from the recording: {line}" for line in self.drift), *self.notes]

    def summary(self) -> str:
        """Return one line for a log."""
        if self.error:
            return f"no replay: {self.error}"
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.counts.items()) or "no variants"
        tail = f"; {many(self.launchers, 'launcher')} built" if self.launchers else ""
        tail += f"; {self.loaded} loaded" if self.loaded else ""
        if self.choices:
            tail += f"; {sum(c.restored for c in self.choices)} of {len(self.choices)} autotuner choices restored"
        failed = Counter(result.reason for result in self.results if result.outcome is Outcome.FAILED)
        if self.stopped:
            tail += f"; stopped: {self.stopped}"
        elif failed:
            reason = failed.most_common(1)[0][0]
            tail += f"; failed, {'such as' if len(failed) > 1 else 'by'} {reason} ({advice(reason)})"
        return (
            f"replayed {many(len(self.results), 'variant')} in {self.seconds.get('total', 0.0):.1f} s: {counts}{tail}"
        )

    def as_data(self) -> dict[str, Any]:
        """Return the report as `--json` prints it; `choices` is there only where the manifest has some."""
        data: dict[str, Any] = {
            "counts": self.counts,
            "seconds": {stage: round(value, 3) for stage, value in self.seconds.items()},
            "variants": [
                {
                    "kernel": result.variant.kernel.name,
                    "digest": result.variant.digest,
                    "outcome": result.outcome.value,
                    "reason": result.reason,
                }
                for result in self.results
            ],
        }
        for name, number in (("loaded", self.loaded), ("launchers", self.launchers)):
            if number:
                data[name] = number
        if self.cache:
            data["cache"] = self.cache
        if self.stopped:
            data["stopped"] = self.stopped
        if self.memory:
            data["memory"] = self.memory
        if self.notes:
            data["notes"] = self.notes
        if self.choices:
            data["choices"] = [
                {
                    "kernel": found.choice.kernel.name,
                    "key": [words.plain(value) for value in found.choice.key],
                    "restored": found.restored,
                    "reason": found.reason,
                }
                for found in self.choices
            ]
        return data


def said(error: BaseException) -> str:
    """Return an error in one line: its type and the line of its text that says most."""
    if isinstance(error, CalledProcessError):  # its text has the names of scratch files, another each time
        name = error.cmd[0] if isinstance(error.cmd, (list, tuple)) and error.cmd else error.cmd
        return f"CalledProcessError: {name} gave exit code {error.returncode}"[:400]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if type(error).__name__ == "CompilationError" and lines else lines[0] if lines else ""
    return f"{type(error).__name__}: {text}"[:400]
