"""A launch that Triton has the kernel for meets nothing of the recorder; its tensors are freed at once."""

import gc
import sys
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import pytest

import jitreplay


class TestWarmLaunch:
    """A launch whose kernel Triton has: the recorder is not on its path."""

    @pytest.fixture(autouse=True)
    def own_driver(self, driver: Any) -> None:
        import torch
        from kernels.basic import copy

        self.x, self.y = torch.zeros(64), torch.zeros(64)
        self.kernel, self.driver = copy, driver
        self.launch()

    def launch(self) -> None:
        self.kernel[(1,)](self.x, self.y, 32, BLOCK=16)

    def frames(self) -> list[tuple[str, str, Any]]:
        """Return every call of a warm launch, Python's and C's, in order, and the lines that ran."""
        found: list[tuple[str, str, Any]] = []

        def profile(frame: Any, event: str, arg: Any) -> None:
            called = getattr(arg, "__qualname__", "") if event.startswith("c_") else ""
            found.append((event, frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else "", called))

        def trace(frame: Any, event: str, arg: Any) -> Any:
            found.append((event, frame.f_code.co_filename, frame.f_lineno))
            return trace

        collects = gc.isenabled()
        gc.disable()  # other tools have it call them, in the middle of anything
        sys.settrace(trace)
        sys.setprofile(profile)
        try:
            self.launch()
        finally:
            sys.setprofile(None)
            sys.settrace(None)
            if collects:
                gc.enable()
        return found

    def allocations(self) -> tuple[int, int]:
        """Return the bytes that a warm launch keeps, and those that it holds at most."""
        seen = []
        tracemalloc.start()
        try:
            for _ in range(30):
                before = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                self.launch()
                after, peak = tracemalloc.get_traced_memory()
                seen.append((after - before, peak - before))
        finally:
            tracemalloc.stop()
        return min(seen)

    @pytest.mark.parametrize("look", [False, True], ids=["plain", "after a look"])
    def test_runs_the_same_code(self, tmp_path: Path, look: bool) -> None:
        self.launch()
        frames, allocations = self.frames(), self.allocations()
        with jitreplay.Recorder(tmp_path / "recording"):
            if look:
                self.kernel.device_caches.clear()
                self.kernel.warmup(self.x, self.y, 32, BLOCK=16, grid=(1,))
            self.launch()
            assert self.frames() == frames
            assert self.allocations() == allocations
        assert self.frames() == frames
        assert len(frames) > 20
        assert not [f for f in frames if "/recorder/" in str(f[1]) or f[1].endswith(("/miss.py", "/look.py"))]


class TestTensors:
    def test_are_freed_at_once_on_miss_look_and_hit(self, driver: Any, tmp_path: Path) -> None:
        import torch
        from kernels.basic import copy

        def launch(n: int) -> weakref.ref[Any]:
            x = torch.zeros(64)
            copy[(1,)](x, x, n, BLOCK=16)
            return weakref.ref(x)

        gc.disable()
        try:
            with jitreplay.Recorder(tmp_path / "recording") as recorder:
                assert launch(32)() is None  # a miss
                assert launch(32)() is None  # a hit
                copy.warmup(torch.float32, torch.float32, 7, BLOCK=16, grid=(1,))
                assert launch(7)() is None  # a look
                assert launch(7)() is None
                assert recorder.counts == {**recorder.counts, "variants": 2, "launches": 1, "errors": 0}
        finally:
            gc.enable()

    def test_are_freed_when_the_compile_fails(self, driver: Any, tmp_path: Path) -> None:
        import torch
        from kernels.basic import not_for_one
        from triton.compiler.errors import CompilationError

        with jitreplay.Recorder(tmp_path / "recording") as recorder:
            x = torch.zeros(64)
            with pytest.raises(CompilationError):
                not_for_one[(1,)](x, 1)
            freed = weakref.ref(x)
            del x
            gc.collect()  # the error's traceback is a cycle of Triton's own
            assert freed() is None
            assert recorder.counts["failed compiles"] == 1
