"""A kernel that was compiled by a warm-up: the first real launch of it is noted, once, and nothing stays."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.manifest.model import Phase
from jitreplay.manifest.values import Tensor

from .helpers import merged


class TestWarmedVariant:
    """A kernel that was compiled by `kernel.warmup`, and its first real launch."""

    @pytest.fixture
    def recorder(self, driver: Any, tmp_path: Path) -> Iterator[jitreplay.Recorder]:
        with jitreplay.Recorder(tmp_path / "recording") as recorder:
            yield recorder

    @staticmethod
    def warm_up() -> Any:
        import torch
        from kernels.basic import copy

        return copy.warmup(torch.float32, torch.float32, 32, BLOCK=16, grid=(1,))

    @staticmethod
    def launch(**options: Any) -> Any:
        import torch
        from kernels.basic import copy

        return copy[(2, 3)](torch.zeros(8, 4), torch.zeros(32), 32, BLOCK=16, **options)

    @staticmethod
    def check(kernel: Any, recorder: jitreplay.Recorder) -> None:
        """Assert that the launch was noted once, and that the launcher is Triton's own."""
        from jitreplay.jit.headless import Launcher

        recorder.stop()
        (variant,) = merged(Path(recorder.folder)).variants
        assert variant.real and variant.grid == (2, 3, 1) and variant.phase is Phase.STARTUP
        assert [a.value.shape for a in variant.args[:2] if isinstance(a.value, Tensor)] == [(8, 4), (32,)]
        assert recorder.counts == {**recorder.counts, "variants": 1, "launches": 1, "errors": 0}
        assert type(kernel._run) is Launcher
        assert "_init_handles" not in vars(kernel)

    def test_is_not_real_before_it_is_launched(self, recorder: jitreplay.Recorder) -> None:
        self.warm_up()

        (variant,) = merged(Path(recorder.folder)).variants
        assert not variant.real and variant.grid is None and variant.phase is Phase.NEVER

    def test_has_shapes_and_grid_of_its_first_launch(self, recorder: jitreplay.Recorder) -> None:
        kernel = self.warm_up()
        assert self.launch() is kernel
        assert vars(kernel)["_run"].__class__.__name__ == "Launcher"
        self.launch()
        self.check(kernel, recorder)

    def test_with_launch_hooks_set(self, recorder: jitreplay.Recorder) -> None:
        from triton import knobs

        seen: list[str] = []
        kernel = self.warm_up()

        def enter(metadata: Any) -> None:
            seen.append(metadata.get()["name"])

        knobs.runtime.launch_enter_hook.add(enter)
        try:
            self.launch()
        finally:
            knobs.runtime.launch_enter_hook.remove(enter)
        assert seen == ["copy"]
        self.check(kernel, recorder)

    def test_when_another_thread_launches(self, recorder: jitreplay.Recorder) -> None:
        kernel = self.warm_up()
        thread = threading.Thread(target=self.launch)
        thread.start()
        thread.join()
        self.check(kernel, recorder)

    def test_when_many_threads_launch_at_once(self, driver: Any, recorder: jitreplay.Recorder) -> None:
        kernel, barrier, errors = self.warm_up(), threading.Barrier(8), []

        def launch() -> None:
            barrier.wait()
            try:
                self.launch()
            except BaseException as error:
                errors.append(error)

        load, slow = driver.utils.load_binary, threading.Event()

        def slowly(*args: Any) -> Any:
            slow.wait(0.05)  # so that others come while one loads
            return load(*args)

        driver.utils.load_binary = slowly
        threads = [threading.Thread(target=launch) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert driver.launches == 8
        self.check(kernel, recorder)

    def test_when_two_threads_came_to_load_it(self, recorder: jitreplay.Recorder) -> None:
        kernel = self.warm_up()
        load = kernel._init_handles  # as both have it, before either has called it
        load()
        load()
        self.launch()
        self.check(kernel, recorder)

    def test_when_the_launch_raises(self, driver: Any, recorder: jitreplay.Recorder) -> None:
        kernel = self.warm_up()

        def refuse(*_: Any) -> None:
            raise RuntimeError("the device is lost")

        driver.on_launch.append(refuse)
        with pytest.raises(RuntimeError, match="the device is lost"):
            self.launch()
        driver.on_launch.clear()
        self.check(kernel, recorder)

    def test_when_it_was_loaded_before(self, recorder: jitreplay.Recorder) -> None:
        kernel = self.warm_up()
        kernel._init_handles()
        self.launch()
        self.check(kernel, recorder)

    def test_when_the_compiled_kernel_is_launched_itself(self, recorder: jitreplay.Recorder) -> None:
        import torch

        kernel = self.warm_up()
        kernel[(2, 3, 1)](torch.zeros(8, 4), torch.zeros(32), 32, 16)
        self.check(kernel, recorder)

    def test_that_cannot_be_loaded_fails_as_without_us(self, driver: Any, recorder: jitreplay.Recorder) -> None:
        def refuse(*_: Any) -> None:
            raise RuntimeError("no room on the device")

        kernel = self.warm_up()
        load, driver.utils.load_binary = driver.utils.load_binary, refuse
        with pytest.raises(RuntimeError, match="no room"):
            self.launch()
        driver.utils.load_binary = load
        assert "_init_handles" not in vars(kernel)

    def test_is_left_alone_when_the_recorder_stops(self, recorder: jitreplay.Recorder) -> None:
        kernel = self.warm_up()
        recorder.stop()
        assert "_init_handles" not in vars(kernel) and kernel._run is None
        self.launch()
        assert not merged(Path(recorder.folder)).variants[0].real
