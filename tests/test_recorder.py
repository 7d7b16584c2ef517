"""The recorder keeps out of the way of launches, whatever happens, and loses nothing that it was given."""

import errno
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.manifest import journal
from jitreplay.manifest.merge import merge_files
from jitreplay.manifest.model import Phase
from jitreplay.manifest.values import Function, Integer, Opaque, Text
from jitreplay.recorder import phase
from jitreplay.recorder.session import OUTSIDE, start_from_environment

from .helpers import merged, number, program, run, variants_of


@pytest.fixture
def recorder(driver: Any, tmp_path: Path) -> Iterator[jitreplay.Recorder]:
    with jitreplay.Recorder(tmp_path / "recording") as found:
        yield found


def launch(n: int = 32, block: int = 16, **options: Any) -> Any:
    import torch
    from kernels.basic import copy

    return copy[(1,)](torch.zeros(64), torch.zeros(64), n, BLOCK=block, **options)


def recorded(recorder: jitreplay.Recorder) -> Any:
    """Return what the journals of a recording hold."""
    return merged(Path(recorder.folder))


class TestTrouble:
    """What goes wrong in recording is counted and told once; launches do not notice."""

    def failing(self, recorder: jitreplay.Recorder, driver: Any, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "jitreplay"):
            assert launch(32) is not None
            launch(5)
        assert driver.launches == 2
        assert recorder.counts["errors"] == 2 and recorder.counts["variants"] == 0
        (said,) = [entry for entry in caplog.records if entry.name == "jitreplay"]
        assert "launches go on" in said.getMessage() and "\n" not in said.getMessage()

    def test_a_full_disk(
        self,
        recorder: jitreplay.Recorder,
        driver: Any,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def full(handle: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        launch(2**31)  # the journal is there
        driver.launches = recorder.counts["variants"] = 0
        write = os.write
        monkeypatch.setattr("jitreplay.recorder.journal.os.write", full)
        self.failing(recorder, driver, caplog)

        monkeypatch.setattr("jitreplay.recorder.journal.os.write", write)
        launch(1)
        recorder.stop()
        found = merge_files([recorder.folder])
        assert sorted(number(v, 2) for v in found.manifest.variants) == [1, 2**31]
        assert found.notes == [f"{recorder.path}: 2 errors"]

    def test_a_disk_that_takes_half_a_record(
        self,
        recorder: jitreplay.Recorder,
        driver: Any,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        write = os.write
        launch(2**31)
        driver.launches = recorder.counts["variants"] = 0
        monkeypatch.setattr(
            "jitreplay.recorder.journal.os.write", lambda handle, data: write(handle, data[: len(data) // 2])
        )
        self.failing(recorder, driver, caplog)

        monkeypatch.setattr("jitreplay.recorder.journal.os.write", write)
        launch(1)
        recorder.stop()
        assert recorder.path is not None and not journal.read(recorder.path).damage
        assert sorted(number(v, 2) for v in recorded(recorder).variants) == [1, 2**31]

    def test_a_folder_that_cannot_be_made(self, driver: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / "file").write_text("")
        with jitreplay.Recorder(tmp_path / "file" / "recording") as recorder:
            self.failing(recorder, driver, caplog)
        assert recorder.path is None

    def test_a_fault_of_our_own(
        self,
        recorder: jitreplay.Recorder,
        driver: Any,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fault(*_: Any) -> None:
            raise RuntimeError("a fault")

        monkeypatch.setattr("jitreplay.recorder.capture.of_miss", fault)
        self.failing(recorder, driver, caplog)

    def test_a_fault_in_the_look(
        self, recorder: jitreplay.Recorder, driver: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch
        from kernels.basic import copy

        def fault(*_: Any) -> None:
            raise RuntimeError("a fault")

        kernel = copy.warmup(torch.float32, torch.float32, 32, BLOCK=16, grid=(1,))
        monkeypatch.setattr("jitreplay.recorder.capture.of_launch", fault)
        assert launch() is kernel
        launch()
        assert driver.launches == 2
        assert recorder.counts["errors"] == 1

    def test_an_argument_that_does_not_answer(self, recorder: jitreplay.Recorder, driver: Any) -> None:
        import torch
        from kernels.basic import plain

        class Odd(torch.Tensor):
            def storage_offset(self) -> int:
                raise RuntimeError("ask me not")

        plain[(1,)](torch.zeros(4).as_subclass(Odd), 3)
        (variant,) = recorded(recorder).variants
        assert driver.launches == 1 and recorder.counts["errors"] == 0
        assert variant.opaque()[0] == "x"

    def test_nothing_is_asked_for_its_text(self, driver: Any, tmp_path: Path) -> None:
        import torch
        from kernels.basic import kept

        asked = []

        class Shy:
            def __repr__(self) -> str:
                asked.append(1)
                return "shy"

        def count() -> int:
            asked.clear()
            kept.device_caches.clear()
            kept[(1,)](torch.zeros(4), Shy())
            return len(asked)

        count()  # to fill Triton's disk cache
        without = count()
        with jitreplay.Recorder(tmp_path / "recording") as recorder:
            assert count() == without > 0
        (variant,) = recorded(recorder).variants
        assert isinstance(variant.args[1].value, Opaque)
        assert variant.args[1].value.type == f"{Shy.__module__}.{Shy.__qualname__}"

    def test_a_triton_that_lacks_a_name_is_told_and_left_alone(
        self, driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        from triton.runtime.jit import JITFunction

        from jitreplay.jit.internals import internals

        internals.cache_clear()
        monkeypatch.setenv("JITREPLAY_RECORD", str(tmp_path / "recording"))
        try:
            with monkeypatch.context() as patch:
                patch.delattr(JITFunction, "_pack_args")
                with caplog.at_level(logging.WARNING, "jitreplay"):
                    assert start_from_environment() is None
        finally:
            internals.cache_clear()
        (said,) = caplog.records
        assert "_pack_args" in said.getMessage() and "\n" not in said.getMessage()
        launch()
        assert driver.launches == 1
        assert not (tmp_path / "recording").exists()


class TestCounts:
    def test_a_failing_compile_is_counted_and_not_recorded(self, recorder: jitreplay.Recorder) -> None:
        import torch
        from kernels.basic import not_for_one
        from triton.compiler.errors import CompilationError

        for _ in range(2):
            with pytest.raises(CompilationError):
                not_for_one[(1,)](torch.zeros(4), 1)
        not_for_one[(1,)](torch.zeros(4), 5)
        recorder.stop()
        assert recorder.counts["failed compiles"] == 2
        assert [v.args[1].value for v in recorded(recorder).variants] == [Integer(5)]
        assert merge_files([recorder.folder]).notes == [f"{recorder.path}: 2 failed compiles"]

    def test_what_comes_after_the_cap_is_counted(self, driver: Any, tmp_path: Path) -> None:
        with jitreplay.Recorder(tmp_path / "recording", most=2) as recorder:
            for n in (32, 5, 1, 2**31):
                launch(n)
        assert driver.launches == 4
        assert recorder.counts == {**recorder.counts, "variants": 2, "dropped": 2, "errors": 0}
        assert len(recorded(recorder).variants) == 2
        assert merge_files([recorder.folder]).notes == [f"{recorder.path}: 2 dropped"]

    def test_a_key_is_recorded_once(self, recorder: jitreplay.Recorder) -> None:
        from kernels.basic import copy

        for _ in range(3):
            launch(32)
            launch(48)  # the same class
        copy.device_caches.clear()  # as programs do that free memory (CASES L4)
        launch(32)
        assert recorder.counts["variants"] == 1

    def test_what_no_launch_asked_for_is_counted_and_not_claimed(self, recorder: jitreplay.Recorder) -> None:
        import triton
        from kernels.basic import copy
        from triton.compiler import ASTSource

        launch()
        signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
        triton.compile(ASTSource(copy, signature, {(3,): 64}))
        recorder.stop()
        assert recorder.counts[OUTSIDE] == 1
        assert len(recorded(recorder).variants) == 1
        assert merge_files([recorder.folder]).notes == [f"{recorder.path}: 1 {OUTSIDE}"]

    def test_nothing_launched_leaves_no_file(self, driver: Any, tmp_path: Path) -> None:
        with jitreplay.Recorder(tmp_path / "recording") as recorder:
            pass
        assert recorder.path is None
        assert not (tmp_path / "recording").exists()

    def test_starting_and_stopping_twice_is_once(self, driver: Any, tmp_path: Path) -> None:
        recorder = jitreplay.Recorder(tmp_path / "recording")
        assert recorder.start() is recorder.start()
        launch()
        recorder.stop()
        recorder.stop()
        launch(5)
        assert recorder.counts["variants"] == 1 and len(recorded(recorder).variants) == 1


class TestPhases:
    def test_what_is_launched_after_ready_is_serving(
        self, recorder: jitreplay.Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch
        from kernels.basic import copy

        monkeypatch.setattr(phase, "_ready", threading.Event())
        launch(32)
        copy.warmup(torch.float32, torch.float32, 7, BLOCK=16, grid=(1,))
        copy.warmup(torch.float32, torch.float32, 1, BLOCK=16, grid=(1,))
        jitreplay.ready()
        launch(7)
        launch(2**31)
        phases = {number(v, 2): v.phase for v in recorded(recorder).variants}
        assert phases == {32: Phase.STARTUP, 7: Phase.SERVING, 1: Phase.NEVER, 2**31: Phase.SERVING}


class TestThreads:
    def test_lose_no_variant(self, recorder: jitreplay.Recorder, driver: Any) -> None:
        import torch
        from kernels.basic import kept

        threads, each, errors = 6, 5, []
        barrier, interval = threading.Barrier(threads), sys.getswitchinterval()

        def work(index: int) -> None:
            barrier.wait()
            try:
                for number in range(each):
                    kept[(1,)](torch.zeros(4), f"{index} {number}")
                    kept[(1,)](torch.zeros(4), f"shared {number}")
            except BaseException as error:
                errors.append(error)

        sys.setswitchinterval(1e-5)
        try:
            running = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        recorder.stop()
        assert errors == []
        assert driver.launches == 2 * threads * each
        kinds = {v.args[1].value.value for v in recorded(recorder).variants if isinstance(v.args[1].value, Text)}
        own = {f"{index} {number}" for index in range(threads) for number in range(each)}
        assert kinds == own | {f"shared {number}" for number in range(each)}
        assert recorder.counts["errors"] == 0
        assert recorder.path is not None and not journal.read(recorder.path).damage


class TestAsyncCompileMode:
    def test_warm_ups_are_recorded_once_compiled(self, recorder: jitreplay.Recorder) -> None:
        import torch
        import triton
        from kernels.basic import copy

        with ThreadPoolExecutor(2) as pool, triton.AsyncCompileMode(pool):
            for _ in range(3):
                copy.warmup(torch.float32, torch.float32, 32, BLOCK=16, grid=(1,))
            copy.warmup(torch.float32, torch.float32, 5, BLOCK=16, grid=(1,))
        assert recorder.counts["variants"] == 2
        launch(32)
        recorder.stop()
        # In the order in which they were compiled.
        assert sorted((number(v, 2), v.real) for v in variants_of(recorded(recorder), "copy")) == [
            (5, False),
            (32, True),
        ]
        assert recorder.counts == {**recorder.counts, "launches": 1, "errors": 0, OUTSIDE: 0}

    def test_a_failing_compile_is_counted_and_not_recorded(self, recorder: jitreplay.Recorder) -> None:
        import torch
        import triton
        from kernels.basic import not_for_one
        from triton.compiler.errors import CompilationError

        def fail() -> None:
            with ThreadPoolExecutor(1) as pool, triton.AsyncCompileMode(pool):
                not_for_one.warmup(torch.float32, 1, grid=(1,))

        with pytest.raises(CompilationError):
            copy_context().run(fail)  # Triton leaves the mode on when it ends by an error
        recorder.stop()
        assert recorder.counts == {**recorder.counts, "variants": 0, "failed compiles": 1, "errors": 0}


class TestHooksOfOthers:
    @pytest.fixture(autouse=True)
    def knobs(self, driver: Any) -> Iterator[Any]:
        from triton import knobs

        self.runtime = knobs.runtime
        yield
        for name in ("jit_cache_hook", "jit_post_compile_hook"):
            vars(knobs.runtime).pop(name, None)

    @pytest.mark.parametrize("name", ["jit_cache_hook", "jit_post_compile_hook"])
    def test_stay_and_are_called(self, recorder: jitreplay.Recorder, name: str) -> None:
        seen: list[str] = []

        def hook(**event: Any) -> None:
            seen.append(event["fn"].name)

        setattr(self.runtime, name, hook)
        launch(32)
        launch(32)
        recorder.stop()
        assert getattr(self.runtime, name) is hook
        assert seen == ["copy"]
        assert len(recorded(recorder).variants) == 1

    def test_one_that_cancels_a_compile_leaves_nothing_to_record(
        self, recorder: jitreplay.Recorder, driver: Any
    ) -> None:
        self.runtime.jit_cache_hook = lambda **event: True
        assert launch() is None
        assert recorder.counts == {**recorder.counts, "variants": 0, "errors": 0} and driver.launches == 0

        self.runtime.jit_cache_hook = None
        launch()
        assert recorder.counts["variants"] == 1 and driver.launches == 1

    def test_none_is_set_so_a_function_as_constant_launches_as_without_us(
        self, recorder: jitreplay.Recorder, driver: Any
    ) -> None:
        import torch
        from kernels.basic import applied, twice

        assert self.runtime.jit_cache_hook is None and self.runtime.jit_post_compile_hook is None
        applied[(1,)](torch.zeros(4), twice)
        assert driver.launches == 1
        (variant,) = recorded(recorder).variants
        assert isinstance(variant.args[1].value, Function) and variant.opaque() is None

    def test_one_that_raises_raises_as_without_us(self, recorder: jitreplay.Recorder, driver: Any) -> None:
        def hook(**event: Any) -> None:
            raise ValueError("of the hook")

        self.runtime.jit_cache_hook = hook
        with pytest.raises(ValueError, match="of the hook"):
            launch()
        assert recorder.counts["variants"] == 0


CHILDREN = """
import multiprocessing, os, sys
import jitreplay
import torch
from kernels.basic import copy

def launch(n):
    copy[(1,)](torch.zeros(64), torch.zeros(64), n, BLOCK=16)

if __name__ == "__main__":
    launch(32)
    pid = os.fork()
    if pid == 0:
        launch(32)
        launch(5)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    child = multiprocessing.get_context("spawn").Process(target=launch, args=(1,))
    child.start()
    child.join()
    assert child.exitcode == 0
    launch(2**31)
"""


class TestProcesses:
    """A program that imports jitreplay, with JITREPLAY_RECORD set."""

    def start(self, folder: Path, **variables: str) -> Path:
        (folder / "server.py").write_text(CHILDREN)
        settings = {
            "JITREPLAY_RECORD": "recording",
            "JITREPLAY_TARGET": "cuda:90",
            "PYTHONWARNINGS": "ignore",
            **variables,
        }
        done = run(folder, sys.executable, folder / "server.py", **settings)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return folder / "recording"

    def test_children_record_in_journals_of_their_own(self, tmp_path: Path) -> None:
        recording = self.start(tmp_path)

        found = [journal.read(path) for path in recording.iterdir()]
        numbers = [[number(v, 2) for v in each.variants] for each in found]
        assert sorted(numbers) == [[1], [5], [32, 2**31]]
        assert all(each.environment is not None and not each.damage for each in found)
        pids = [Path(each.path).name.partition("-")[0] for each in found]
        assert len(set(pids)) == 3
        assert Counter(v.kernel.name for v in merged(recording).variants) == {"kernels.basic.copy": 4}

    def test_disable_turns_all_off(self, tmp_path: Path) -> None:
        code = """
            from kernels.basic import copy
            from triton.runtime.jit import JITFunction
            copy[(1,)](torch.zeros(64), torch.zeros(64), 32, BLOCK=16)
            answer([vars(JITFunction)["_do_compile"].__module__, jitreplay.replay("missing").error])
        """
        recording = str(tmp_path / "recording")

        found = program(tmp_path, code, JITREPLAY_RECORD=recording, JITREPLAY_DISABLE="1", JITREPLAY_STRICT="1")
        assert found == ["triton.runtime.jit", "JITREPLAY_DISABLE is set"]
        assert not (tmp_path / "recording").exists()

    def test_the_interpreter_has_nothing_to_record(self, tmp_path: Path) -> None:
        code = """
            import sys
            import jitreplay, torch
            recorder = jitreplay.Recorder(sys.argv[1]).start()
            from kernels.basic import copy
            x, y = torch.arange(16.0), torch.zeros(16)
            copy[(1,)](x, y, 16, BLOCK=16)
            assert torch.equal(x, y)
            recorder.stop()
            print(recorder.counts["variants"], recorder.counts["errors"])
        """
        script = tmp_path / "program.py"
        script.write_text("\n".join(line.strip() for line in code.splitlines()))

        done = run(tmp_path, sys.executable, script, tmp_path / "recording", TRITON_INTERPRET="1")
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["0", "0"]
        assert not (tmp_path / "recording").exists()
