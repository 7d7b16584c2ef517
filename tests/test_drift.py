"""What else is in a key or a binary: knobs, environment variables, and constants that Python takes for one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.manifest.merge import merge_files
from jitreplay.manifest.model import Manifest
from jitreplay.replayer.outcome import Outcome, Report

from .helpers import headless, merged


class Lab:
    """Boots in this process, without the compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.boots = folder, 0

    def record(self, launch: Callable[[], object]) -> Path:
        self.boots += 1
        folder = self.folder / str(self.boots)
        with headless(folder), jitreplay.Recorder(folder / "recording"):
            launch()
        return folder / "recording"

    def replay(self, manifest: Manifest) -> Report:
        self.boots += 1
        with headless(self.folder / str(self.boots)):
            return jitreplay.replay(manifest)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    import triton.compiler
    from kernels import uncompiled

    monkeypatch.setattr(triton.compiler, "compile", uncompiled.compile)
    from jitreplay.replayer import worth

    monkeypatch.setattr(worth, "free_cores", lambda: 1)
    yield Lab(tmp_path)


def one() -> None:
    from kernels import odd

    odd.takes[(1,)](5)


class TestEnvironment:
    @pytest.mark.parametrize(
        ("name", "value", "line"),
        [
            ("TRITON_DEFAULT_FP_FUSION", "0", "TRITON_DEFAULT_FP_FUSION: unset -> false"),
            # Unset and 0 are two to Triton's disk key.
            ("TRITON_DISABLE_LINE_INFO", "0", "TRITON_DISABLE_LINE_INFO: unset -> false"),
            ("TRITON_DISABLE_LINE_INFO", "1", "TRITON_DISABLE_LINE_INFO: unset -> true"),
        ],
    )
    def test_a_variable_that_changes_binaries_only_is_listed(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str
    ) -> None:
        monkeypatch.delenv(name, raising=False)
        manifest = merged(lab.record(one))
        monkeypatch.setenv(name, value)

        report = lab.replay(manifest)

        assert report.drift == [line]
        assert report.counts == {"compiled": 1}

    def test_one_that_changes_nothing_is_not(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        manifest = merged(lab.record(one))
        monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")
        monkeypatch.setenv("HOSTNAME", "elsewhere")

        assert lab.replay(manifest).drift == []

    def test_debug_makes_other_keys_and_is_told_for_each(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        from triton import knobs

        manifest = merged(lab.record(one))
        monkeypatch.setattr(knobs.runtime, "debug", True)  # TRITON_DEBUG is read at import

        report = lab.replay(manifest)

        assert report.drift == ["option debug: False -> True"]
        (result,) = report.results
        assert result.outcome is Outcome.DRIFTED
        assert result.reason == "compiled with another key: option debug: False -> True"

    def test_a_recording_in_debug_is_replayed_as_the_program_launches_now(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from triton import knobs

        with monkeypatch.context() as patch:
            patch.setattr(knobs.runtime, "debug", True)
            manifest = merged(lab.record(one))

        report = lab.replay(manifest)

        assert report.drift == ["option debug: True -> False"]
        assert [r.outcome for r in report.results] == [Outcome.DRIFTED]


class TestLookAlikes:
    """Constants that are equal to Python and not to the compiler."""

    @pytest.mark.parametrize(
        ("first", "second"), [(1, True), (1.0, 1), (0.0, -0.0), ((1, "a"), (True, "a")), (0, False)], ids=repr
    )
    def test_two_that_share_a_slot_are_warned_of(self, lab: Lab, first: Any, second: Any) -> None:
        from kernels import odd

        folders = [lab.record(lambda value=value: odd.constant[(1,)](value)) for value in (first, second)]
        found = merge_files(folders)

        report = lab.replay(found.manifest)

        assert len(found.manifest.variants) == 2
        (note,) = found.notes
        assert "the one launched first serves both" in note
        outcomes = [(r.outcome, r.reason.partition("(")[2]) for r in report.results]
        assert outcomes[0] == (Outcome.COMPILED, "")
        assert outcomes[1] == (Outcome.DRIFTED, "as 1 and True, or 0.0 and -0.0): the one launched first serves both")

    @pytest.mark.parametrize(("first", "second"), [(1, 2), ("1", 1), (float("nan"), 0.5), ((1,), (1, 1))], ids=repr)
    def test_others_are_not(self, lab: Lab, first: Any, second: Any) -> None:
        from kernels import odd

        folders = [lab.record(lambda value=value: odd.constant[(1,)](value)) for value in (first, second)]
        found = merge_files(folders)

        assert found.notes == []
        assert lab.replay(found.manifest).counts == {"compiled": 2}
