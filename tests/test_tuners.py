"""Autotuner choices: recorded as they are made, restored so that nothing is timed and only the winner compiles."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.manifest import file
from jitreplay.manifest.merge import merge_files
from jitreplay.manifest.model import Choice, Manifest
from jitreplay.manifest.values import Integer
from jitreplay.replayer.outcome import Report

from .helpers import merged
from .tuner_lab import Lab, blocks, held, lab, launch

__all__ = ["lab"]  # a fixture


class TestRecording:
    def test_each_choice_is_recorded_as_it_is_made(self, lab: Lab) -> None:
        from kernels.tuned import Clock, tuner

        manifest = lab.record(lambda: tuner(Clock(3, 1, 2, 1, 2, 3)))

        assert blocks(manifest) == [32, 16]
        first, _ = sorted(manifest.choices, key=lambda c: c.key[0].number != 5)  # type: ignore[union-attr]
        assert first.device == "NVIDIA H200 (headless)"
        assert [time for _, time in first.timings] == [1, 2, 3]
        assert first.timings[0][0].startswith("C: 32, num_warps: 4")

    def test_losers_that_no_key_chose_are_left_out(self, lab: Lab) -> None:
        from kernels.tuned import Clock, tuner

        found = lab.record(lambda: tuner(Clock(3, 1, 2)))

        assert [v.args[2].value for v in found.variants] == [Integer(32), Integer(32)]

    def test_a_loser_that_another_key_chose_stays(self, lab: Lab) -> None:
        from kernels.tuned import Clock, tuner

        # 5 and 7 have one key in Triton and two in the tuner: the second choice compiles nothing.
        found = lab.record(lambda: tuner(Clock(3, 1, 2, 1, 2, 3)), (5, 7))

        assert sorted(v.args[2].value.number for v in found.variants) == [16, 32]  # type: ignore[union-attr]

    @pytest.mark.parametrize("late", [False, True])
    def test_a_tuner_that_was_there_before_is_seen(self, lab: Lab, late: bool) -> None:
        from kernels.tuned import Clock, tuner

        with lab.boot() as folder:
            made = tuner(Clock(3, 1, 2))
            if late:
                launch(made, (5,))
            with jitreplay.Recorder(folder / "recording"):
                launch(made)
            assert type(made.cache) is dict and len(made.cache) == 2

        assert blocks(merged(folder / "recording")) == [32, 32]

    def test_a_subclass_with_a_dict_of_its_own_is_seen_and_keeps_it(self, lab: Lab) -> None:
        from kernels.tuned import Choices, Clock, Counted, tuner

        with lab.boot() as folder, jitreplay.Recorder(folder / "recording") as recorder:
            made = tuner(Clock(3, 1, 2), cls=Counted)
            launch(made)
            recorder.stop()
            assert type(made.cache) is Choices and len(made.cache) == 2

        assert blocks(merged(folder / "recording")) == [32, 32]

    def test_one_config_is_no_choice(self, lab: Lab) -> None:
        from kernels.tuned import Clock, config, tuner

        clock = Clock(1)
        found = lab.record(lambda: tuner(clock, [config(64)]))

        assert clock.calls == 0 and found.choices == () and len(found.variants) == 2

    def test_a_list_pruned_to_one_is_the_choice(self, lab: Lab) -> None:
        from kernels.tuned import Clock, tuner

        prune = {"early_config_prune": lambda configs, arguments, **_: configs[2:]}
        found = lab.record(lambda: tuner(Clock(1), prune_configs_by=prune))

        assert blocks(found) == [64, 64] and len(found.variants) == 2

    def test_what_tritons_own_cache_of_choices_answered_is_recorded(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from kernels.tuned import Clock, tuner

        clocks = [Clock(3, 1, 2), Clock(1, 2, 3)]
        with lab.boot() as folder:
            monkeypatch.setattr("triton.runtime.autotuner.Autotuner.check_disk_cache", check_disk_cache())
            launch(tuner(clocks[0], cache_results=True))
            with jitreplay.Recorder(folder / "recording"):
                launch(tuner(clocks[1], cache_results=True))
            monkeypatch.undo()

        assert [clock.calls for clock in clocks] == [6, 0]
        assert blocks(merged(folder / "recording")) == [32, 32]


def check_disk_cache() -> Any:
    """Return Triton's own method, which the headless driver puts aside."""
    from jitreplay.jit import headless

    driver = headless._installed
    assert driver is not None
    undone: list[Any] = [getattr(undo, "args", ()) for undo in driver._undo]
    return next(args[2] for args in undone if args[1:2] == ("check_disk_cache",))


class TestRestoring:
    """After a replay no config is timed, and only the winner compiles."""

    def again(self, lab: Lab, manifest: Manifest, make: Callable[[], Any], target: str = "cuda:90/H200") -> Any:
        """Boot with a manifest; return the report, the tuner after its launches, and the keys that a replay made."""
        with lab.boot(target):
            made = make()
            report = jitreplay.replay(manifest)
            keys = held()
            launch(made)
            return report, made, keys, held()

    def test_the_winner_is_used_and_nothing_timed(self, lab: Lab) -> None:
        from kernels.tuned import Clock, tuner

        clock = Clock(1, 2, 3)
        manifest = lab.record(lambda: tuner(Clock(3, 1, 2)))

        report, made, before, after = self.again(lab, manifest, lambda: tuner(clock))

        assert clock.calls == 0 and made.best_config is made.configs[1]
        assert before == after == [(0, 32), (1, 32)]
        assert [(c.restored, c.reason) for c in report.choices] == [(True, "")] * 2
        assert "2 of 2 autotuner choices restored" in report.summary()

    def test_the_live_config_and_its_hook_are_used(self, lab: Lab) -> None:
        from kernels.tuned import CALLS, Clock, config, noting, tuner

        def make(clock: Clock) -> Any:
            return tuner(clock, [config(block, hook=noting(f"pre {block}")) for block in (16, 32)])

        manifest = lab.record(lambda: make(Clock(2, 1)))
        CALLS.clear()

        _, made, _, _ = self.again(lab, manifest, lambda: make(Clock(1, 2)))

        assert CALLS == ["pre 32", "pre 32"] and made.best_config is made.configs[1]

    def test_values_are_reset_and_restored_around_timing_only(self, lab: Lab) -> None:
        import torch
        from kernels.tuned import Clock, tuner

        options: Any = {"reset_to_zero": ["x"]}
        manifest = lab.record(lambda: tuner(Clock(3, 1, 2), reset_to_zero=["x"]))
        with lab.boot():
            made, x = tuner(Clock(1, 2, 3), **options), torch.ones(16)
            jitreplay.replay(manifest)
            assert x.sum() == 16
            made[(1,)](x, 5)

        # As any later call of plain Triton: it resets for its benchmark alone.
        assert x.sum() == 16

    def test_another_device_model_tunes_for_itself(self, lab: Lab) -> None:
        from kernels.tuned import Clock, tuner

        clock = Clock(1, 2, 3)
        manifest = lab.record(lambda: tuner(Clock(3, 1, 2)))

        report, made, _, _ = self.again(lab, manifest, lambda: tuner(clock), target="cuda:90/H100")

        assert clock.calls == 6 and made.best_config.kwargs == {"C": 16}
        assert {c.reason for c in report.choices} == {
            "timed on NVIDIA H200 (headless), this is NVIDIA H100 80GB HBM3 (headless)"
        }

    def test_a_winner_that_is_gone_is_not_forced(self, lab: Lab) -> None:
        from kernels.tuned import Clock, config, tuner

        clock = Clock(1, 2)
        manifest = lab.record(lambda: tuner(Clock(3, 1, 2)))

        report, _, _, _ = self.again(lab, manifest, lambda: tuner(clock, [config(16), config(64)]))

        assert clock.calls == 4
        assert {c.reason for c in report.choices} == {"the recorded winner is no longer among the configs"}

    @pytest.mark.parametrize(
        ("offered", "said"),
        [
            ((16, 32, 64, 128), "1 configs were added; the recorded winner stays"),
            ((32, 128), "the list of configs changed; the recorded winner is still in it"),
        ],
    )
    def test_a_list_that_changed_keeps_its_winner(self, lab: Lab, offered: tuple[int, ...], said: str) -> None:
        from kernels.tuned import Clock, config, tuner

        clock = Clock(1, 2, 3, 4)
        manifest = lab.record(lambda: tuner(Clock(3, 1, 2)))

        report, made, _, _ = self.again(lab, manifest, lambda: tuner(clock, [config(block) for block in offered]))

        assert clock.calls == 0 and made.best_config.kwargs == {"C": 32}
        assert {c.reason for c in report.choices} == {said}

    def test_pruning_is_not_asked_again(self, lab: Lab) -> None:
        from kernels.tuned import Clock, tuner

        asked: list[int] = []

        def prune(configs: list[Any], arguments: Any, **_: Any) -> list[Any]:
            asked.append(len(configs))
            return configs[:2]

        manifest = lab.record(lambda: tuner(Clock(2, 1), prune_configs_by={"early_config_prune": prune}))
        asked.clear()

        report, made, _, _ = self.again(
            lab, manifest, lambda: tuner(Clock(1), prune_configs_by={"early_config_prune": prune})
        )

        assert asked == [] and made.best_config.kwargs == {"C": 32}
        assert {c.reason for c in report.choices} == {""}

    def test_a_changed_kernel_tunes_anew(self, lab: Lab) -> None:
        from kernels import tuned
        from msgspec import structs

        manifest = lab.record(lambda: tuned.tuner(tuned.Clock(3, 1, 2)))
        old = structs.replace(manifest.choices[0].kernel, fingerprint="0" * 32)
        choices = tuple(structs.replace(choice, kernel=old) for choice in manifest.choices)
        clock = tuned.Clock(1, 2, 3)

        report, _, _, _ = self.again(lab, Manifest(manifest.environments, (), choices), lambda: tuned.tuner(clock))

        assert clock.calls == 6
        assert {c.reason for c in report.choices} == {"the kernel's source changed since it was tuned"}

    @pytest.mark.parametrize("cache", [False, True])
    def test_tritons_own_cache_of_choices_makes_no_difference(
        self, lab: Lab, cache: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from kernels.tuned import Clock, tuner

        monkeypatch.setenv("TRITON_CACHE_AUTOTUNING", "1" if cache else "0")
        clock = Clock(1, 2, 3)
        manifest = lab.record(lambda: tuner(Clock(3, 1, 2)))

        _, made, _, _ = self.again(lab, manifest, lambda: tuner(clock))

        assert made.cache_results is cache
        assert clock.calls == 0 and made.best_config.kwargs == {"C": 32}

    def test_a_choice_that_was_made_before_the_replay_stays(self, lab: Lab) -> None:
        from kernels.tuned import Clock, tuner

        manifest = lab.record(lambda: tuner(Clock(3, 1, 2)))
        with lab.boot():
            made = tuner(Clock(1, 2, 3))
            launch(made, (5,))
            report = jitreplay.replay(manifest)
            assert [config.kwargs["C"] for config in made.cache.values()] == [16, 32]

        assert sorted(c.reason for c in report.choices) == ["", "the live choice differs and was kept"]


class TestDatabase:
    """A tuner whose choices lie in no dict: they are recorded and restored, and the database is not written."""

    @pytest.fixture(autouse=True)
    def fresh(self) -> Iterator[None]:
        from kernels.tuned import Kept

        Kept.shared.clear()
        yield
        Kept.shared.clear()

    def test_choices_are_recorded_restored_and_kept_out_of_it(self, lab: Lab) -> None:
        from kernels.tuned import Clock, Kept, tuner

        manifest = lab.record(lambda: tuner(Clock(3, 1, 2), cls=Kept))
        assert blocks(manifest) == [32, 32] and Kept.shared.pop("database").rows() == 2
        for later in (False, True):
            clock = Clock(1, 2, 3)
            with lab.boot():
                early = None if later else tuner(clock, cls=Kept)
                report = jitreplay.replay(manifest)
                made = early or tuner(clock, cls=Kept)
                launch(made)
                assert made.cache.rows() == 0 and made.cache.get("nothing", 1) == 1
                launch(made, (7,))
                assert made.cache.rows() == 1  # its own
            assert clock.calls == 3 and all(c.restored for c in report.choices)
            Kept.shared.clear()

    def test_what_it_held_before_is_recorded_when_it_is_used(self, lab: Lab) -> None:
        from kernels.tuned import Clock, Kept, tuner

        with lab.boot():
            launch(tuner(Clock(3, 1, 2), cls=Kept))
        clock = Clock(1, 2, 3)
        manifest = lab.record(lambda: tuner(clock, cls=Kept))

        assert clock.calls == 0 and blocks(manifest) == [32, 32]

    def test_a_recorder_leaves_it_as_it_was(self, lab: Lab) -> None:
        from kernels.tuned import Clock, Database, Kept, tuner

        with lab.boot() as folder:
            made = tuner(Clock(3, 1, 2), cls=Kept)
            for number in range(2):
                with jitreplay.Recorder(folder / f"recording-{number}"):
                    launch(made)
                    assert type(made.cache) is not Database
                assert type(made.cache) is Database
            assert blocks(merged(folder / "recording-0")) == blocks(merged(folder / "recording-1")) == [32, 32]


class TestRanks:
    """Ranks that time for themselves choose differently (CASES E11)."""

    def manifest(self, lab: Lab) -> tuple[Manifest, list[str]]:
        from kernels.tuned import Clock, tuner

        folders = []
        for rank, times in enumerate([(3, 1, 2), (1, 2, 3), (3, 2, 0.5), (3, 1.5, 2)]):
            with lab.boot() as folder, jitreplay.Recorder(folder / "recording") as recorder:
                recorder.describe(rank=f"tp{rank}")
                launch(tuner(Clock(*times)), (5,))
            folders.append(folder / "recording")
        ways = [merge_files(folders), merge_files(folders[::-1])]
        assert ways[0].manifest == ways[1].manifest
        return ways[0].manifest, ways[0].notes

    def test_one_winner_stays_and_a_note_says_so(self, lab: Lab) -> None:
        manifest, notes = self.manifest(lab)

        assert blocks(manifest) == [64]
        assert manifest.choices[0].ranks == ("tp0", "tp1", "tp2", "tp3")
        assert notes == [
            "kernels.tuned.kernel: recordings differ in 1 autotuner choice; of each, the fastest stays for all ranks"
        ]


def test_four_generations_of_record_and_replay_give_the_same_manifest(lab: Lab) -> None:
    from kernels import shop
    from kernels.tuned import Clock, tuner

    def boot(manifest: Manifest | None) -> tuple[Path, Report | None]:
        with lab.boot() as folder, jitreplay.Recorder(folder / "recording"):
            made = tuner(Clock(3, 1, 2) if manifest is None else Clock(1, 2, 3))
            report = jitreplay.replay(manifest) if manifest is not None else None
            launch(made)
            shop.launch_named()
        return folder / "recording", report

    def content(manifest: Manifest) -> tuple[list[Any], list[Choice]]:
        return [(v.kernel, v.digest, v.args, v.options, v.grid, v.phase) for v in manifest.variants], list(
            manifest.choices
        )

    recording, _ = boot(None)
    manifest = merged(recording)
    first_content = content(manifest)
    path = lab.folder / "first.jitreplay"
    file.save(manifest, path)
    first = path.read_bytes()
    for generation in range(3):
        recording, report = boot(manifest)
        assert report is not None and report.warm, report
        assert content(merged(recording)) == first_content, generation
        # The variants of before, with what their launches showed now.
        manifest = merged(path, recording)
        file.save(manifest, path)
        assert path.read_bytes() == first, generation
