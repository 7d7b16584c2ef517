"""What is over budget goes on in a thread where that is asked for: apart from captures, one compile of a key once."""

import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from jitreplay.jit import capture
from jitreplay.jit.capture import Captures
from jitreplay.jit.serial import Serial
from jitreplay.manifest.model import Manifest

from .helpers import program, save
from .test_children import everything, only

__all__ = ["everything"]  # a fixture

GO = """
import threading
from kernels import faults
def thread():
    return [t for t in threading.enumerate() if t.name == "jitreplay-background"]
def rows():
    return [[r.variant.kernel.qualname, r.outcome.value, r.reason] for r in report.results]
"""
WAIT = 120.0
"""Seconds after which a thread that should have ended is taken to hang."""


def behind(folder: Path, manifest: Manifest, code: str, **variables: str) -> Any:
    """Return what a program says whose replay had no time and goes on in the background."""
    path = save(manifest, folder / "kernels.jitreplay")
    variables = {"JITREPLAY_BUDGET": "0s", "JITREPLAY_BACKGROUND": "1", "FAULTS": str(folder), **variables}
    return program(folder, GO + dedent(code), replay=path, **variables)


class TestReplay:
    @pytest.mark.parametrize("jobs", ["1", "0"])
    def test_all_is_warm_in_the_end(self, tmp_path: Path, everything: Manifest, jobs: str) -> None:
        code = """
        first = rows()
        for each in thread(): each.join()
        done, events = rows(), happened()
        for n in (r.variant.args[1].value.number for r in report.results):
            faults.good[(1,)](torch.zeros(16), N=n)
        answer([first, done, len(events), happened(), report.warm])
        """
        first, done, events, later, warm = behind(tmp_path, only(everything, "good", most=3), code, JITREPLAY_JOBS=jobs)

        assert {tuple(row[1:]) for row in first} <= {("skipped", "over budget"), ("compiled", "")}
        assert [row[1:] for row in done] == [["compiled", ""]] * 3
        assert events and later == [] and warm

    def test_nothing_goes_on_unasked(self, tmp_path: Path, everything: Manifest) -> None:
        code = "answer([len(thread()), rows()])"

        threads, left = behind(tmp_path, only(everything, "good", most=2), code, JITREPLAY_BACKGROUND="0")

        assert threads == 0
        assert [row[1:] for row in left] == [["skipped", "over budget"]] * 2

    def test_live_launches_and_it_compile_and_load_each_key_once(self, tmp_path: Path, everything: Manifest) -> None:
        code = """
        for n in reversed([r.variant.args[1].value.number for r in report.results]):
            faults.good[(1,)](torch.zeros(16), N=n)
        for each in thread(): each.join()
        answer([happened(), len({key for found in keys().values() for key in found}), rows()])
        """
        events, held, done = behind(tmp_path, only(everything, "good", most=12), code, JITREPLAY_JOBS="0")

        kinds = [kind for kind, _ in events]
        assert held == 12 and len(done) == 12
        # What the helper has made by then is found on disk.
        assert kinds.count("compile") + kinds.count("disk_hit") == 12 and kinds.count("load") == 12
        assert {row[1] for row in done} <= {"compiled", "warm"}

    def test_a_compile_that_breaks_its_process_costs_itself_alone(self, tmp_path: Path, everything: Manifest) -> None:
        code = "for each in thread(): each.join()\nanswer(rows())"

        done = behind(tmp_path, only(everything, "segfaults", "good", most=2), code, JITREPLAY_JOBS="2")

        assert {name: outcome for name, outcome, _ in done} == {"segfaults": "failed", "good": "compiled"}

    def test_a_program_that_ends_meanwhile_is_not_held_up(self, tmp_path: Path, everything: Manifest) -> None:
        code = "answer([len(thread()), rows()])"
        variables = {"JITREPLAY_JOBS": "1", "JITREPLAY_LIMIT": "60m"}

        threads, _ = behind(tmp_path, only(everything, "hangs"), code, **variables)

        assert threads == 1

    def test_nothing_of_it_stays_on_triton(self, tmp_path: Path, everything: Manifest) -> None:
        code = """
        from triton.runtime.jit import JITFunction
        from triton.compiler import CompiledKernel
        for each in thread(): each.join()
        found = [JITFunction._do_compile, CompiledKernel._init_handles, torch.cuda.CUDAGraph.capture_begin]
        answer([hasattr(each, "_jitreplay") for each in found])
        """
        assert behind(tmp_path, only(everything, "good", most=1), code) == [False] * 3


class Graph:
    """Stands for torch's class of CUDA graphs; a capture that `fails` does not begin."""

    fails = False

    def capture_begin(self) -> None:
        if self.fails:
            raise RuntimeError("no capture")

    def capture_end(self) -> None:
        pass


@pytest.fixture
def captures() -> Iterator[Captures]:
    found = Captures(Graph)
    found.install()
    yield found
    found.uninstall()


class TestCaptures:
    def test_work_waits_for_the_end_of_a_capture(self, captures: Captures) -> None:
        done: list[str] = []

        def work() -> None:
            with captures.apart():
                done.append("work")

        Graph().capture_begin()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(0.2)
        assert done == []
        Graph().capture_end()
        thread.join(WAIT)
        assert done == ["work"]

    def test_a_capture_waits_for_the_end_of_work(self, captures: Captures) -> None:
        done: list[str] = []

        def capture() -> None:
            Graph().capture_begin()
            done.append("capture")
            Graph().capture_end()

        with captures.apart():
            thread = threading.Thread(target=capture)
            thread.start()
            thread.join(0.2)
            assert done == []
        thread.join(WAIT)
        assert done == ["capture"]

    def test_one_that_does_not_begin_holds_nothing_up(
        self, captures: Captures, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Graph, "fails", True)
        with pytest.raises(RuntimeError, match="no capture"):
            Graph().capture_begin()

        with captures.apart():
            pass

    def test_it_leaves_the_class_as_it_was(self) -> None:
        before = dict(vars(Graph))
        found = Captures(Graph)
        found.install()
        assert vars(Graph)["capture_begin"] is not before["capture_begin"]
        found.uninstall()

        assert dict(vars(Graph)) == before

    def test_a_replay_during_one_does_nothing_and_says_so(self, tmp_path: Path, everything: Manifest) -> None:
        path = save(only(everything, "good", most=2), tmp_path / "kernels.jitreplay")
        code = f"""
        import jitreplay.replayer.session as session
        session.capturing = lambda: True
        report = jitreplay.replay({str(path)!r}, allow=("kernels",))
        answer([happened(), [[r.outcome.value, r.reason] for r in report.results]])
        """
        events, rows = program(tmp_path, code)

        assert events == []
        assert rows == [["skipped", "a CUDA graph is being captured: replay before it"]] * 2

    def test_a_strict_one_raises(self, tmp_path: Path, everything: Manifest) -> None:
        path = save(only(everything, "good", most=2), tmp_path / "kernels.jitreplay")
        code = f"""
        import jitreplay.replayer.session as session
        session.capturing = lambda: True
        try:
            jitreplay.replay({str(path)!r}, allow=("kernels",), strict=True)
        except session.ReplayError as error:
            answer(str(error))
        """
        assert program(tmp_path, code) == "a CUDA graph is being captured: replay before it"

    def test_a_thread_that_waits_for_the_end_of_one_can_be_stopped(self, captures: Captures) -> None:
        stopping, found = threading.Event(), []

        def work() -> None:
            with captures.apart(stopping.is_set):
                found.append(stopping.is_set())

        Graph().capture_begin()
        thread = threading.Thread(target=work)
        thread.start()
        stopping.set()
        captures.wake()
        thread.join(WAIT)
        assert found == [True]
        Graph().capture_end()

    def test_without_a_gpu_nothing_is_captured(self) -> None:
        assert not capture.capturing()


class TestSerial:
    def test_a_launch_takes_what_another_thread_compiled_meanwhile(self) -> None:
        """Both missed the key; the second finds the first's kernel."""
        serial, compiled = Serial(), []

        class Kernel:
            device_caches: Any = {0: [{}]}

        def compile(fn: Any, key: str, signature: Any, device: int) -> str:
            compiled.append(key)
            fn.device_caches[device][0][key] = f"kernel {len(compiled)}"
            return fn.device_caches[device][0][key]

        wrapped, fn, found = serial._wrap_compile(compile), Kernel(), []
        serial._on = True
        with serial.of(fn):
            thread = threading.Thread(target=lambda: found.append(wrapped(fn, "key", None, 0)))
            thread.start()
            found.append(wrapped(fn, "key", None, 0))
        thread.join(WAIT)

        assert compiled == ["key"] and found == ["kernel 1"] * 2
