"""A replay with a budget ends in time, and lists what it left out."""

from pathlib import Path

import msgspec
import pytest

from jitreplay.manifest.model import Manifest, Phase

from .helpers import program, save
from .test_children import OUTCOMES, REPLAYED, everything, only, outcomes, replayed

__all__ = ["everything"]  # a fixture

LEFT = ["skipped", "over budget"]


def test_with_no_time_everything_is_left_and_listed(tmp_path: Path, everything: Manifest) -> None:
    found = replayed(tmp_path, only(everything, "good", most=3), JITREPLAY_BUDGET="0s")

    assert outcomes(found) == {"good": [LEFT] * 3}
    assert found["events"] == []


@pytest.mark.parametrize("recorded", [60_000, 1], ids=["a dear one", "one that was cheap when it was recorded"])
def test_a_compile_that_never_ends_costs_the_others_nothing(
    tmp_path: Path, everything: Manifest, recorded: int
) -> None:
    found = only(everything, "hangs", "good", most=3)
    dear = tuple(
        msgspec.structs.replace(v, compile_ms=recorded if v.kernel.qualname == "hangs" else 1) for v in found.variants
    )
    save(Manifest(found.environments, dear), tmp_path / "kernels.jitreplay")
    # Far more than the others take; without a budget the replay would wait for an hour.
    variables = {"JITREPLAY_BUDGET": "30s", "JITREPLAY_LIMIT": "60m", "FAULTS": str(tmp_path)}
    two = "import jitreplay.replayer.prefetch as prefetching\nprefetching.free_cores = lambda: 2\n"
    result = program(tmp_path, two + REPLAYED + OUTCOMES, **variables)

    assert outcomes(result) == {"hangs": [LEFT], "good": [["compiled", ""]] * 3}


def test_what_is_most_needed_comes_first(tmp_path: Path, everything: Manifest) -> None:
    found = only(everything, "good", most=4)
    facts = [(5, Phase.STARTUP), (50, Phase.STARTUP), (5, Phase.SERVING), (50, Phase.SERVING)]
    variants = tuple(
        msgspec.structs.replace(v, compile_ms=cost, phase=phase)
        for v, (cost, phase) in zip(found.variants, facts, strict=True)
    )
    code = """
    import jitreplay.replayer.ahead as ahead
    class Clock:  # time is up after the second variant
        def __init__(self): self.asked = 0
        def monotonic(self):
            self.asked += 1
            return 0.0 if self.asked <= 2 else 1e9
    ahead.time = Clock()
    report = jitreplay.replay("kernels.jitreplay", allow=("kernels",), budget=4.0)
    answer([[r.variant.phase.value, r.variant.compile_ms, r.outcome.value] for r in report.results])
    """
    save(Manifest(found.environments, variants), tmp_path / "kernels.jitreplay")
    outcome = program(tmp_path, code)
    assert [row[:2] for row in outcome] == [["serving", 50], ["serving", 5], ["startup", 50], ["startup", 5]]
    assert [row[2] for row in outcome] == ["compiled", "compiled", "skipped", "skipped"]
