"""Stalls of first requests, as they were met in the field: group A of the cases."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.examples.counter import COMPILE, DISK_HIT, LOAD, Counter
from jitreplay.manifest.merge import merge_files
from jitreplay.manifest.model import Manifest
from jitreplay.recorder import phase
from jitreplay.recorder.session import OUTSIDE
from jitreplay.recorder.watch import Watch

from .helpers import headless, merged, program, save


class Lab:
    """Fresh boots of a server in this process: each has its own Triton cache and its own kernels in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.boots = folder, 0

    def record(self, *traffic: Callable[[], object], target: str = "cuda:90") -> Manifest:
        """Return the manifest of a boot that serves this traffic."""
        with self.boot(target) as folder, jitreplay.Recorder(folder / "recording"):
            for launch in traffic:
                launch()
        return merged(folder / "recording")

    def boot(self, target: str = "cuda:90") -> Any:
        self.boots += 1
        return _Boot(self.folder / f"boot-{self.boots}", target)


class _Boot:
    def __init__(self, folder: Path, target: str) -> None:
        self.folder, self._headless = folder, headless(folder, target)

    def __enter__(self) -> Path:
        self.folder.mkdir()
        self._headless.__enter__()
        return self.folder

    def __exit__(self, *exc: Any) -> None:
        self._headless.__exit__(*exc)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def counter() -> Iterator[Counter]:
    counter = Counter().install()
    yield counter
    counter.remove()


def happened(counter: Counter) -> list[tuple[str, str]]:
    return [(event.kind, event.kernel) for event in counter.take()]


class TestKernelsThatNoDummyRunReaches:
    """A1: two kernels are launched by real requests only."""

    @staticmethod
    def dummy_run() -> None:
        import torch
        from kernels.basic import copy

        copy[(1,)](torch.zeros(64), torch.zeros(64), 32, BLOCK=16)

    @staticmethod
    def request() -> None:
        import torch
        from kernels.basic import plain, rows

        TestKernelsThatNoDummyRunReaches.dummy_run()
        plain[(1,)](torch.zeros(4), 3)
        rows[(1,)](torch.zeros(16, 8), 8, BLOCK=16)

    def test_compile_in_the_first_request_without_a_replay(self, lab: Lab, counter: Counter) -> None:
        with lab.boot():
            self.dummy_run()
            counter.take()
            self.request()
            assert [name for kind, name in happened(counter) if kind == COMPILE] == ["plain", "rows"]

    def test_are_ready_after_a_replay(self, lab: Lab, counter: Counter) -> None:
        manifest = lab.record(self.dummy_run, self.request)
        with lab.boot():
            jitreplay.replay(manifest)
            self.dummy_run()
            counter.take()
            self.request()
            assert happened(counter) == []


class TestFlagsAndClasses:
    """A2: pairs of flags and classes of an integer; one pair was never seen."""

    SEEN = [(True, True, 16), (True, False, 15), (False, True, 1), (True, True, 15), (True, False, 16)]
    UNSEEN = (False, False, 16)

    @staticmethod
    def sample(top_k: bool, top_p: bool, n: int) -> None:
        import torch
        from kernels.basic import sampler

        sampler[(1,)](torch.zeros(4), n, TOP_K=top_k, TOP_P=top_p)

    def test_what_was_seen_is_warm_and_what_was_not_is_told_by_name(
        self, lab: Lab, counter: Counter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manifest = lab.record(*(lambda case=case: self.sample(*case) for case in self.SEEN))
        monkeypatch.setattr(phase, "_ready", threading.Event())
        with lab.boot():
            report = jitreplay.replay(manifest)
            watch = Watch(manifest.variants).start()
            try:
                jitreplay.ready()
                counter.take()
                for case in self.SEEN:
                    self.sample(*case)
                assert happened(counter) == [] and not watch.compiles
                with caplog.at_level(logging.WARNING, "jitreplay"):
                    self.sample(*self.UNSEEN)
            finally:
                watch.stop()
            assert (COMPILE, "sampler") in happened(counter)
        assert report.counts == {"compiled": len(self.SEEN)}
        assert watch.compiles == {"kernels.basic.sampler": 1}
        (said,) = [entry.getMessage() for entry in caplog.records]
        assert "kernels.basic.sampler" in said and "TOP_" in said

    @pytest.mark.parametrize("lost", ["over budget", "cleared by the program"])
    def test_what_is_recorded_and_yet_not_warm_is_told_as_such(
        self, lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, lost: str
    ) -> None:
        """CASES L4: a program that empties Triton's caches after the replay."""
        manifest = lab.record(lambda: self.sample(*self.SEEN[0]))
        monkeypatch.setattr(phase, "_ready", threading.Event())
        with lab.boot():
            jitreplay.replay(manifest, budget=0.0 if lost == "over budget" else None)
            if lost != "over budget":
                from kernels.basic import sampler

                sampler.device_caches.clear()
            with caplog.at_level(logging.WARNING, "jitreplay"):
                caplog.clear()
                watch = Watch(manifest.variants).start()
                jitreplay.ready()
                self.sample(*self.SEEN[0])
                watch.stop()
        (said,) = [entry.getMessage() for entry in caplog.records]
        assert "it is in the manifest, but it is not warm" in said


class TestAnotherConfiguration:
    """A3: a stride follows max_model_len, so another deployment launches another variant."""

    @staticmethod
    def fill(width: int) -> None:
        import torch
        from kernels.basic import rows

        table = torch.zeros(16, width)
        rows[(1,)](table, table.stride(0), BLOCK=16)

    def test_is_never_told_to_be_warm(
        self, lab: Lab, counter: Counter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manifest = lab.record(lambda: self.fill(1))
        monkeypatch.setattr(phase, "_ready", threading.Event())
        with lab.boot():
            report = jitreplay.replay(manifest)
            with caplog.at_level(logging.WARNING, "jitreplay"):
                watch = Watch(manifest.variants).start()
                jitreplay.ready()
                counter.take()
                self.fill(64)
                watch.stop()
            assert (COMPILE, "rows") in happened(counter)
        # The report speaks of the recorded variants, and the watch of what was missing.
        assert report.counts == {"compiled": 1}
        assert "fully" not in report.summary() and "1 variant in" in report.summary()
        assert watch.summary() == "1 compile after startup: rows x1"
        (said,) = [entry.getMessage() for entry in caplog.records]
        assert "stride" in said and "1" in said and "64" in said


class TestHelpersOfTorchCompile:
    """A4: the first call also builds what Inductor generated. It is counted, and never claimed."""

    def test_are_listed_as_outside_of_the_recording(self, lab: Lab, tmp_path: Path) -> None:
        import torch
        import triton
        from kernels.basic import copy, plain
        from triton.compiler import ASTSource

        with lab.boot() as folder, jitreplay.Recorder(folder / "recording") as recorder:
            plain[(1,)](torch.zeros(4), 3)
            signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
            for block in (16, 32):  # as Inductor's async_compile does
                triton.compile(ASTSource(copy, signature, {(3,): block}))
        found = merge_files([folder / "recording"])
        assert [v.kernel.qualname for v in found.manifest.variants] == ["plain"]
        assert recorder.counts[OUTSIDE] == 2
        assert [note.partition(": ")[2] for note in found.notes] == [f"2 {OUTSIDE}"]


TWELVE = "import triton\nimport triton.language as tl\n" + "".join(
    f"\n@triton.jit\ndef kernel_{i}(x, n):\n    tl.store(x, n + {i})\n" for i in range(12)
)


class TestTwelveKernels:
    """A7: twelve kernels used to compile after boot."""

    def test_are_compiled_before_ready_and_told_in_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "twelve.py").write_text(TWELVE)
        traffic = """
            import twelve
            def request():
                for i in range(12):
                    getattr(twelve, f"kernel_{i}")[(1,)](torch.zeros(4), 5)
                return [kind for kind, _ in happened()]
        """
        cold = program(
            tmp_path / "cold",
            traffic + "    answer(request())",
            record=tmp_path / "recording",
            PYTHONPATH=self.path(tmp_path),
        )
        path = save(merged(tmp_path / "recording"), tmp_path / "kernels.jitreplay")
        replay = f"""
            import contextlib, io
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                from jitreplay.manifest.settings import set_log_level
                set_log_level("info")
                report = jitreplay.replay({str(path)!r}, allow=["twelve"])
            at_boot = [kind for kind, _ in happened()]
            answer([at_boot, request(), said.getvalue(), report.summary()])
        """
        boot, request, said, summary = program(tmp_path / "warm", traffic + replay, PYTHONPATH=self.path(tmp_path))

        assert cold == [COMPILE, LOAD] * 12
        assert boot == [COMPILE, LOAD] * 12 and request == []
        assert said == f"jitreplay: {summary}\n"
        assert "12 variants" in summary and "12 compiled" in summary

    @staticmethod
    def path(folder: Path) -> str:
        from .helpers import environment

        return environment(folder)["PYTHONPATH"]


class TestAnotherMode:
    """A8: recorded while generating; the pooling server has other modules."""

    def test_warms_what_is_there_and_says_why_the_rest_was_skipped(self, tmp_path: Path) -> None:
        (tmp_path / "prefill.py").write_text(TWELVE)
        (tmp_path / "decode.py").write_text(TWELVE)
        record = """
            import decode, prefill
            recorder.describe("toy", settings={"runner": "generate"})
            for module in (decode, prefill):
                module.kernel_0[(1,)](torch.zeros(4), 5)
            answer(None)
        """
        program(tmp_path, record, record=tmp_path / "recording")
        path = save(merged(tmp_path / "recording"), tmp_path / "kernels.jitreplay")
        (tmp_path / "decode.py").unlink()
        replay = """
            import prefill
            happened()
            prefill.kernel_0[(1,)](torch.zeros(4), 5)
            told = {r.variant.kernel.name: [r.outcome.value, r.reason] for r in report.results}
            answer([told, happened(), report.summary(), report.warm])
        """
        told, request, summary, warm = program(tmp_path, replay, replay=path, allow=("prefill", "decode"))

        assert told["prefill.kernel_0"][0] in (COMPILE + "d", "cached") and request == []
        assert told["decode.kernel_0"][0] == "skipped"
        assert "decode cannot be imported" in told["decode.kernel_0"][1]
        assert "1 skipped" in summary and not warm
        assert [e.settings for e in jitreplay.load(path).environments] == [{"runner": "generate"}]


def test_the_counter_tells_a_disk_hit_from_a_compile(lab: Lab, counter: Counter) -> None:
    with lab.boot():
        TestKernelsThatNoDummyRunReaches.dummy_run()
        assert happened(counter) == [(COMPILE, "copy"), (LOAD, "copy")]
        from kernels.basic import copy

        copy.device_caches.clear()
        TestKernelsThatNoDummyRunReaches.dummy_run()
        assert happened(counter) == [(DISK_HIT, "copy"), (LOAD, "copy")]
