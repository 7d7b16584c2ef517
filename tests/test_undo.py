"""A recorder's end: Triton is as it was, whatever other tools did meanwhile."""

import gc
from pathlib import Path
from typing import Any

import pytest

import jitreplay


def state() -> dict[str, dict[str, Any]]:
    """Return the attributes of all that the recorder touches in Triton."""
    from kernels.basic import copy
    from triton import knobs
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    gc.collect()
    compiled = [kernel for cache in copy.device_caches.values() for kernel in cache[0].values()]
    things = [JITFunction, CompiledKernel, Autotuner, knobs.compilation, knobs.runtime, copy, *compiled]
    return {f"{index} {thing!r}": dict(vars(thing)) for index, thing in enumerate(things)}


class Tool:
    """Another tool, which wraps and listens where the recorder does, and puts back what it found."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def start(self) -> None:
        from triton import knobs
        from triton.runtime import jit

        cls: Any = jit.JITFunction
        self.found = vars(cls)["_do_compile"], knobs.compilation.listener
        compile, listener = self.found

        def _do_compile(fn: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen.append("compile")
            return compile(fn, *args, **kwargs)

        def listen(**event: Any) -> None:
            self.seen.append("listener")
            if listener is not None:
                listener(**event)

        self.own = _do_compile, listen
        cls._do_compile, knobs.compilation.listener = _do_compile, listen

    def stop(self) -> None:
        from triton import knobs
        from triton.runtime import jit

        cls: Any = jit.JITFunction
        cls._do_compile, knobs.compilation.listener = self.found
        if knobs.compilation.listener is None:
            del knobs.compilation.listener  # the class has it


class TestUndo:
    """What the recorder leaves behind."""

    @pytest.fixture
    def warmed(self, driver: Any) -> None:
        import torch
        from kernels.basic import copy
        from triton import knobs

        vars(knobs.compilation).pop("listener", None)  # as a fresh process has it
        copy[(1,)](torch.zeros(64), torch.zeros(64), 32, BLOCK=16)

    @staticmethod
    def compile(n: int) -> None:
        import torch
        from kernels.basic import biased

        biased.warmup(torch.float32, None, BLOCK=n, grid=(1,))
        biased[(1,)](torch.zeros(n), None, BLOCK=2 * n)

    def test_off_on_off_leaves_triton_as_it_was(self, warmed: None, tmp_path: Path) -> None:
        import torch
        from kernels.basic import copy

        # The kernel's own caches grow by what is launched, as they do without us.
        before = state()
        with jitreplay.Recorder(tmp_path / "recording"):
            copy[(1,)](torch.zeros(64), torch.zeros(64), 32, BLOCK=16)
        assert state() == before

        with jitreplay.Recorder(tmp_path / "recording"):
            self.compile(16)
            copy.warmup(torch.float16, torch.float16, 32, BLOCK=16, grid=(1,))
        after = state()
        new = after.keys() - before.keys()
        assert len(new) == 1
        assert {name: found for name, found in after.items() if name not in new} == before
        assert "_init_handles" not in after[new.pop()]

    @pytest.mark.parametrize(
        "order",
        [
            "tool on, ours on, ours off, tool off",
            "tool on, ours on, tool off, ours off",
            "ours on, tool on, tool off, ours off",
            "ours on, tool on, ours off, tool off",
        ],
    )
    def test_beside_another_tool(self, warmed: None, tmp_path: Path, order: str) -> None:
        before, tool = state(), Tool()
        recorder = jitreplay.Recorder(tmp_path / "recording")
        actions = {"tool on": tool.start, "tool off": tool.stop, "ours on": recorder.start, "ours off": recorder.stop}
        tools, ours = False, False
        for step, action in enumerate(order.split(", ")):
            actions[action]()
            tools, ours = {"tool on": (True, ours), "tool off": (False, ours)}.get(action, (tools, action == "ours on"))
            tool.seen.clear()
            count = recorder.counts["variants"]
            self.compile(16 << 2 * step)
            if tools:
                assert tool.seen.count("compile") == tool.seen.count("listener") == 2, action
            # A tool that puts back what it found drops what came after it.
            elif not ours:
                assert recorder.counts["variants"] == count, action
            if ours and (tools or "tool off, ours off" not in order or order.startswith("ours")):
                assert recorder.counts["variants"] == count + 2, action

        # Only where the other tool put our wrapper back after we were gone, one stays, inert, until the next recording.
        if order.endswith("ours off, tool off") and order.startswith("ours"):
            with jitreplay.Recorder(tmp_path / "recording"):
                pass
        assert state() == before

    @pytest.mark.parametrize("first", [0, 1])
    def test_beside_another_recorder(self, warmed: None, tmp_path: Path, first: int) -> None:
        before = state()
        recorders = [jitreplay.Recorder(tmp_path / name).start() for name in ("one", "two")]
        self.compile(16)
        # Each harvested the one that was there before.
        assert [recorder.counts["variants"] for recorder in recorders] == [3, 3]
        recorders[first].stop()
        self.compile(64)
        recorders[1 - first].stop()
        assert [recorders[first].counts["variants"], recorders[1 - first].counts["variants"]] == [3, 5]
        assert state() == before

    @pytest.mark.parametrize("order", [[], ["one", "two"], ["two", "one"]], ids=["alone", "two", "two, crossed"])
    def test_an_autotuner_has_its_own_dict_back_with_what_it_decided(
        self, warmed: None, tmp_path: Path, order: list[str]
    ) -> None:
        import torch
        from kernels.basic import tuned

        own, before = tuned.cache, state()
        recorders = {name: jitreplay.Recorder(tmp_path / name) for name in order or ["one"]}
        for recorder in recorders.values():
            recorder.start()
        tuned[(1,)](torch.zeros(64), 8)
        for recorder in (recorders[name] for name in order or ["one"]):
            recorder.stop()
            assert recorder.counts["choices"] == len(own.keys() or tuned.cache.keys()) == 1
        assert type(own) is dict and tuned.cache is own
        assert [config.kwargs for config in own.values()] == [{"BLOCK": 16}]
        assert state() == before

    def test_a_listener_that_was_there_is_called_and_comes_back(self, warmed: None, tmp_path: Path) -> None:
        from triton import knobs

        seen: list[bool] = []

        def listen(**event: Any) -> None:
            seen.append(event["cache_hit"])

        knobs.compilation.listener = listen
        try:
            with jitreplay.Recorder(tmp_path / "recording"):
                self.compile(16)
            assert knobs.compilation.listener is listen
        finally:
            del knobs.compilation.listener
        assert seen == [False, False]

    def test_a_listener_that_was_removed_meanwhile_is_not_revived(self, warmed: None, tmp_path: Path) -> None:
        from triton import knobs

        with jitreplay.Recorder(tmp_path / "recording"):
            knobs.compilation.listener = None
        assert knobs.compilation.listener is None
        del knobs.compilation.listener
