"""Autotuners that a function makes after the replay: their choices are restored at their first run."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import jitreplay
from jitreplay.jit.first_run import FirstRun
from jitreplay.jit.hook import live
from jitreplay.jit.tuner import TunerHook

from .helpers import merged
from .tuner_lab import Lab, blocks, lab, launch

__all__ = ["lab"]  # a fixture


class TestMadeLater:
    """A function makes the autotuner after the replay: its choices are restored before it first looks for one."""

    @pytest.mark.parametrize("cls", [None, "Counted"])
    def test_each_one_has_its_choices_at_its_first_run(self, lab: Lab, cls: str | None) -> None:
        from kernels import tuned

        manifest = lab.record(lambda: tuned.tuner(tuned.Clock(3, 1, 2)))
        clock, kind = tuned.Clock(1, 2, 3), cls and getattr(tuned, cls)
        with lab.boot():
            report = jitreplay.replay(manifest)
            assert {(c.restored, c.reason.rpartition("; ")[2]) for c in report.choices} == {
                (False, "bound when it first appears")
            }
            for _ in range(2):
                made = tuned.tuner(clock, cls=kind)
                launch(made)
                assert "run" not in vars(made) and [c.kwargs["C"] for c in made.cache.values()] == [32, 32]

        assert clock.calls == 0
        assert [(c.restored, c.reason) for c in report.choices] == [(True, "")] * 2

    def test_one_that_is_made_with_its_kernel(self, lab: Lab) -> None:
        from kernels.tuned import Clock, made

        manifest = lab.record(lambda: made(Clock(3, 1, 2)))
        same, other = Clock(1, 2, 3), Clock(1, 2, 3)
        with lab.boot():
            before = made(same)
            report = jitreplay.replay(manifest)
            launch(before)
            launch(made(same))
            launch(made(other, step=2))

        assert same.calls == 0 and other.calls == 6  # another source tunes for itself
        assert all(c.restored for c in report.choices)

    def test_a_run_that_was_taken_from_one_works_as_ever(self, lab: Lab) -> None:
        import copy
        import inspect
        from functools import partial

        import torch
        from kernels.tuned import Clock, tuner
        from triton.runtime.autotuner import Autotuner

        signature = inspect.signature(Autotuner.__init__)
        manifest = lab.record(lambda: tuner(Clock(3, 1, 2)))
        clock = Clock(1, 2, 3)
        with lab.boot():
            jitreplay.replay(manifest)
            assert inspect.signature(Autotuner.__init__) == signature
            run = tuner(clock).run  # nothing else holds the tuner
            held = partial(run, grid=(1,), warmup=False)
            for _ in range(2):
                held(torch.zeros(16), 5)
                run(torch.zeros(16), 16, grid=(1,), warmup=False)
            made = tuner(clock)
            twin = copy.copy(made)
            launch(made)
            launch(twin)

        assert clock.calls == 0

    def test_a_kernel_without_a_tuner_keeps_the_others_from_nothing(self, lab: Lab) -> None:
        """Two kernels of one source, one of them bare."""
        from kernels import tuned

        manifest = lab.record(lambda: tuned.made(tuned.Clock(3, 1, 2)))
        for bare_first in (True, False):
            clock = tuned.Clock(1, 2, 3)
            with lab.boot():
                before = tuned.bare() if bare_first else None
                made = tuned.made(clock)
                after = None if bare_first else tuned.bare()
                report = jitreplay.replay(manifest)
                launch(made)
                assert before or after
            assert clock.calls == 0 and all(c.restored for c in report.choices)

    @pytest.mark.parametrize("recorder_first", [False, True])
    def test_beside_a_recorder(self, lab: Lab, recorder_first: bool) -> None:
        from kernels.tuned import Clock, tuner

        manifest = lab.record(lambda: tuner(Clock(3, 1, 2)))
        clock = Clock(1, 2, 3)
        with lab.boot() as folder:
            recorder = jitreplay.Recorder(folder / "recording")
            if recorder_first:
                recorder.start()
            jitreplay.replay(manifest)
            if not recorder_first:
                recorder.start()
            launch(tuner(clock))
            recorder.stop()

        assert clock.calls == 0
        assert blocks(merged(folder / "recording")) == blocks(manifest) == [32, 32]

    def test_one_that_comes_between_two_stages(self, lab: Lab) -> None:
        from kernels.tuned import Clock, tuner

        from jitreplay.replayer.session import Session

        manifest = lab.record(lambda: tuner(Clock(3, 1, 2)))
        with lab.boot():
            session = Session(manifest)
            session.restore_choices()
            made = tuner(Clock(1, 2, 3))
            session.late()
            session.close()

            assert "run" in vars(made)  # it has not run
            assert [c.kwargs["C"] for c in made.cache.values()] == [32, 32]
            assert all(c.restored for c in session.report.choices)

    @pytest.mark.parametrize("comes", list(itertools.permutations(range(3))), ids=str)
    def test_hooks_of_making_come_and_go_in_any_order(self, lab: Lab, comes: tuple[int, ...]) -> None:
        from kernels.tuned import Clock, tuner
        from triton.runtime.autotuner import Autotuner

        plain, seen = Autotuner.__init__, {"first": 0, "choices": 0, "theirs": 0}

        class Theirs:
            def install(self) -> None:
                self.before, self.on = Autotuner.__init__, True

                def init(tuner: Any, *args: Any, **kwargs: Any) -> None:
                    seen["theirs"] += self.on
                    self.before(tuner, *args, **kwargs)

                self.wrapper = Autotuner.__init__ = init  # type: ignore[method-assign]

            def uninstall(self) -> None:
                self.on = False
                if Autotuner.__init__ is self.wrapper:
                    Autotuner.__init__ = self.before  # type: ignore[method-assign]

        def count(name: str) -> Callable[..., None]:
            return lambda *_: seen.update({name: seen[name] + 1})

        def fail(error: Exception) -> None:
            raise error

        for goes in itertools.permutations(range(3)):
            tools = [FirstRun(count("first"), fail), TunerHook(count("choices"), fail), Theirs()]
            seen.update(first=0, choices=0, theirs=0)
            with lab.boot():
                for index in comes:
                    tools[index].install()
                launch(tuner(Clock(1, 2, 3)), (5,))
                assert seen == {"first": 1, "choices": 1, "theirs": 1}
                early = tuner(Clock(1, 2, 3))
                for index in goes:
                    tools[index].uninstall()
                launch(early, (5,))
                launch(tuner(Clock(1, 2, 3)), (5,))
                assert seen == {"first": 1, "choices": 1, "theirs": 2}
                assert "run" not in vars(early) and type(early.cache) is dict
            if Autotuner.__init__ is not plain:  # theirs was on top of ours when ours left
                assert live(tools[2].before) is plain
                Autotuner.__init__ = plain  # type: ignore[method-assign]

    def test_one_on_another_device_model_tunes_for_itself(self, lab: Lab) -> None:
        from kernels.tuned import Clock, tuner

        manifest = lab.record(lambda: tuner(Clock(3, 1, 2)))
        clock = Clock(1, 2, 3)
        with lab.boot("cuda:80/A100"):
            report = jitreplay.replay(manifest)
            launch(tuner(clock))

        assert clock.calls == 6 and not any(c.restored for c in report.choices)
