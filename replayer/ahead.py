"""What a replay leaves to the compile helper, and what it does by itself: form by form, within a budget."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import nullcontext

from ..jit import disk
from ..jit.live_device import live_device
from ..manifest.model import Manifest, digest
from ..manifest.settings import LOGGER
from .failures import Tally
from .live import Form, is_recorded_form
from .outcome import NOT_WARM, Outcome, Report, Result
from .plan import Planned
from .prefetch import BROKEN, Prefetch, may_be_sent, usable_cache
from .warm import Warmer, as_variant
from .wire import Answer, State
from .worth import Worth

OVER = "over budget"
"""Why a variant was left out when time was up."""
SUSPECT = "an earlier boot ended while it compiled this one, and no other process can try it; left out this time"


class Ahead:
    """Warms forms: those that a helper was asked for when it has answered, the others at once.

    `prefetch` is what was begun before; without it a helper is started when that is worth its start.
    """

    def __init__(
        self,
        manifest: Manifest,
        warmer: Warmer,
        prefetch: Prefetch | None,
        allow: Iterable[str],
        rank: str,
        worth: Worth,
        limit: float | None,
        launchers: bool,
    ) -> None:
        self._warmer, self._worth = warmer, worth
        device = live_device()
        self._early = ""
        if prefetch is not None and not prefetch.suits(device):
            if prefetch.children is not None:
                found = f"{prefetch.device.name} ({prefetch.device.target})"
                self._early = (
                    f"a compile helper was begun for {found}, this is {device.name} ({device.target}): not used"
                )
            prefetch.close()
            prefetch = None
        self._prefetch = prefetch or Prefetch(
            *(manifest, device, usable_cache()),
            allow=allow,
            rank=rank,
            jobs=worth.jobs,
            limit=limit,
            launchers=launchers,
        )
        self._tally = Tally()
        self._stamped = self._prefetch.stamp.whole()
        self._waits: dict[int, str] = {}
        self._alone: dict[int, str] = {}
        self._kept: list[list[Form]] = []  # `_waits` knows forms by their id
        self._broken: list[tuple[Planned, str, str]] = []

    def begin(self, work: list[tuple[Planned, list[Form]]]) -> None:
        """Start the helper while nothing else can be done yet, where it is sure to be wanted.

        What is not bound as it was recorded does not count: two of those may have one key here.
        """
        if self._stamped or self._tally.stopped:
            return
        self._prefetch.discard_mixed()
        sure = [p.variant for p, shapes in work if not p.changed and is_recorded_form(shapes[0])]
        self._prefetch.start_for(sure, self._worth)

    def prepare(self, work: list[tuple[Planned, list[Form]]]) -> None:
        """Ask the helper for the forms that are missing on disk, if there is one or it is worth starting."""
        missing: list[tuple[Planned, Form, str]] = []
        for planned, shapes in work:
            self._kept.append(shapes)
            for form in shapes:
                if (found := self._missing(planned, form)) is not None:
                    missing.append((planned, form, found))
                    self._alone[id(form)] = found
        sent = [planned.variant for planned, _, _ in missing if may_be_sent(planned.variant.kernel)]
        suspect = any((planned.variant.kernel, key) in self._prefetch.suspects for planned, _, key in missing)
        ahead = self._prefetch
        if ahead.children is None and sent and (suspect or self._worth.of(sent, ahead.device.backend)):
            ahead.start(sent)
        if ahead.children is None:
            return
        for planned, form, key in missing:
            if self._prefetch.ask(as_variant(planned, form), key):
                self._waits[id(form)] = key
                self._alone.pop(id(form), None)

    def _missing(self, planned: Planned, form: Form) -> str | None:
        """Return the digest of a form's key if it is neither in memory nor whole on disk nor asked for."""
        kernel, recorded = planned.variant.kernel, is_recorded_form(form)
        if recorded and self._prefetch.asked(kernel, planned.variant.digest):
            self._waits[id(form)] = planned.variant.digest
            return None
        if recorded and self._stamped:
            return None
        try:
            bound = self._warmer.probe(planned, form)
        except Exception:
            return None  # told when it is warmed
        entry = bound.kernel
        if not isinstance(entry, disk.Entry) or not entry.fault:
            return None
        key = digest(bound.key)
        if self._prefetch.asked(kernel, key):
            self._waits[id(form)] = key
            return None
        if self._prefetch.quarantine.why(kernel, key):
            self._waits[id(form)] = key
            return None
        return key

    def next(self, work: list[tuple[Planned, list[Form]]], deadline: float | None = None) -> int:
        """Return which of the work to do next: the first that the helper need not be waited for.

        Where there is none, it waits until there is, or until `deadline` (of `time.monotonic`).
        """
        children = self._prefetch.children
        if children is None or self._tally.stopped:
            return 0
        waited: list[int] = []
        for index, (planned, shapes) in enumerate(work):
            numbers = [self._prefetch.number(planned.variant.kernel, self._waits.get(id(form))) for form in shapes]
            open_ones = [number for number in numbers if number is not None and not children.answered(number)]
            if not open_ones:
                return index
            waited.append(open_ones[0])
        children.wait_any(waited, None if deadline is None else max(0.0, deadline - time.monotonic()))
        if deadline is not None and time.monotonic() >= deadline:
            return 0
        return self.next(work, deadline)

    def warm(self, planned: Planned, form: Form, deadline: float | None = None) -> Result:
        """Make a form warm; every failure is an outcome. Past `deadline` (of `time.monotonic`) it is skipped."""
        variant = planned.variant
        if self._tally.stopped:
            return Result(variant, Outcome.SKIPPED, "left out after too many equal failures")
        if deadline is not None and time.monotonic() >= deadline:
            return Result(variant, Outcome.SKIPPED, OVER)
        key = self._waits.get(id(form))
        if key is None and is_recorded_form(form):
            key = variant.digest
        why = self._prefetch.quarantine.why(variant.kernel, key) if key is not None else ""
        if why and self._is_missing(planned, form):
            text = f"in quarantine: {why}; delete {self._prefetch.quarantine.path} to try it again"
            return Result(variant, Outcome.SKIPPED, text)
        answer: Answer | None = None
        if key is not None and id(form) in self._waits and self._prefetch.asked(variant.kernel, key):
            left = None if deadline is None else deadline - time.monotonic()
            answer = self._prefetch.answer(variant.kernel, key, left)
            if answer is None:
                return Result(variant, Outcome.SKIPPED, OVER)
        if answer is not None and self._is_final(planned, answer):
            return self._broke(planned, key or "", answer)
        if answer is not None and answer.hash:
            disk.link(answer.hash, self._prefetch.cache)  # the program may have moved its cache directory since
        made = answer is not None and answer.state in (State.COMPILED, State.CACHED)
        alone = self._alone.get(id(form)) if answer is None else None if made else key
        if alone is not None and (variant.kernel, alone) in self._prefetch.suspects:
            self._prefetch.suspects.clear(variant.kernel, alone)  # the next boot may try
            return Result(variant, Outcome.SKIPPED, SUSPECT)
        if made and key is not None:
            self._prefetch.suspects.clear(variant.kernel, key)
        note = nullcontext() if alone is None else self._prefetch.suspects.compiling(variant.kernel, alone)
        with note:
            result = self._warmer.warm(planned, form, answer)
        if result.outcome is Outcome.FAILED:
            self._tally.bad(result.reason)
        elif result.outcome not in NOT_WARM:
            self._tally.good()
        return result

    def _is_missing(self, planned: Planned, form: Form) -> bool:
        try:
            entry = self._warmer.probe(planned, form).kernel
        except Exception:
            return True
        return isinstance(entry, disk.Entry) and bool(entry.fault)

    def _is_final(self, planned: Planned, answer: Answer) -> bool:
        """Whether this process need not try what a helper failed at: it failed with the same source."""
        return answer.state in BROKEN and answer.fingerprint in ("", self._warmer.fingerprint(planned))

    def _broke(self, planned: Planned, key: str, answer: Answer) -> Result:
        self._tally.bad(answer.reason)
        self._prefetch.suspects.clear(planned.variant.kernel, key)
        if answer.state is not State.FAILED or "ptxas" in answer.reason.lower():
            self._broken.append((planned, key, answer.reason))
        return Result(planned.variant, Outcome.FAILED, answer.reason)

    def abandon(self) -> None:
        """Let nobody wait for the helper any longer."""
        self._prefetch.close()

    def close(self, report: Report, complete: bool) -> None:
        """End the helper; quarantine what broke it, and stamp the cache of a replay that is complete and warm."""
        self._prefetch.close()
        if self._tally.stopped and not report.stopped:
            report.stopped = self._tally.stopped
            LOGGER.error("the replay stopped: %s", report.stopped)
        elif not self._tally.stopped:
            # What stopped the whole work is the machine's fault, and no variant's.
            for planned, key, why in self._broken:
                self._prefetch.quarantine.add(planned.variant.kernel, key, why)
        if complete and report.warm and not self._stamped:
            self._prefetch.stamp.write(self._warmer.files)
            self._stamped = True
        children = self._prefetch.children
        notes = [self._early]
        if children is not None:
            notes += [children.why_lost, *(f"compile helper: {note}" for note in children.notes)]
            report.seconds["helper_start"] = children.ready_after
        report.notes = list(dict.fromkeys(filter(None, notes)))
