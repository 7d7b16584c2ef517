"""The main job, end to end: what was recorded is there after a replay, no more, and a launch never notices."""

import gc
import json
import signal
import sys
import threading
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.manifest import file
from jitreplay.manifest.errors import ManifestError
from jitreplay.manifest.merge import merge_files
from jitreplay.manifest.model import Phase, digest
from jitreplay.manifest.values import Tensor

from . import helpers
from .helpers import by_kernel, headless, merged, program, save, variants_of

SERVER = ("-m", "jitreplay.examples.serving", "--target", "cuda:90")
QUIET = ("compiles", "disk_hits", "loads", "benches")


def digests(keys: dict[str, list[str]]) -> dict[str, set[str]]:
    """Return the digests of the keys that the counter saw."""
    return {kernel: {digest(key) for key in found} for kernel, found in keys.items()}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The example server, recorded under real traffic by the command, then booted with the manifest, cache empty."""
    folder = tmp_path_factory.mktemp("served")
    found: dict[str, Any] = {"manifest": folder / "kernels.jitreplay"}

    def boot(name: str, *before: str, after: tuple[str, ...] = ()) -> dict[str, Any]:
        out = folder / f"{name}.json"
        done = helpers.run(folder / name, sys.executable, *before, *SERVER, *after, "--json", out)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(out.read_text())

    recording = folder / "recording"
    record = ("-m", "jitreplay.cli", "record", "-o", str(recording), "--target", "cuda:90", "--", sys.executable)
    found["recorded"] = boot("recorded", *record)
    done = helpers.jitreplay(folder, "merge", recording, "-o", found["manifest"])
    assert done.returncode == 0, done.stderr
    manifest = ("--manifest", str(found["manifest"]))
    found["replayed"] = boot("replayed", after=manifest)
    found["ready"] = boot("replayed", after=(*manifest, "--requests", "0"))
    return found


class TestServer:
    def test_every_compile_without_replay_is_a_variant_of_the_manifest(self, served: dict[str, Any]) -> None:
        manifest, recorded = file.load(served["manifest"]), served["recorded"]
        compiled = [*recorded["boot"]["compiles"], *(k for r in recorded["requests"] for k in r["compiles"])]

        assert sum(map(len, (r["compiles"] for r in recorded["requests"]))) > 0
        assert Counter(v.kernel.qualname for v in manifest.variants) == Counter(compiled)
        assert by_kernel(manifest) == digests(recorded["keys"])

    def test_the_keys_at_ready_are_the_recorded_ones_and_no_more(self, served: dict[str, Any]) -> None:
        assert served["ready"]["keys"] == served["recorded"]["keys"]
        assert served["ready"]["boot"]["replay"]["counts"] == {"cached": len(file.load(served["manifest"]).variants)}

    def test_no_request_compiles_loads_or_tunes_anything(self, served: dict[str, Any]) -> None:
        replayed = served["replayed"]

        assert len(replayed["requests"]) == len(served["recorded"]["requests"])
        assert [r["name"] for r in replayed["requests"] if any(r[kind] for kind in QUIET)] == []
        assert replayed["keys"] == served["recorded"]["keys"]

    def test_the_variant_of_the_dummy_run_has_its_first_real_launch(self, served: dict[str, Any]) -> None:
        warmed, other = variants_of(file.load(served["manifest"]), "batch_memcpy_kernel")

        assert warmed.options == () and len(other.options) == 1
        assert warmed.real and warmed.phase is Phase.SERVING
        assert warmed.grid == (4, 1, 1)
        assert [a.value.shape for a in warmed.args if isinstance(a.value, Tensor)] == [(4,), (4,), (4,)]


TRAFFIC = """
from kernels.traffic import cases
told, held = {}, keys()
for name, launch in cases().items():
    launch()
    told[name] = happened()
answer({"told": told, "before": held, "after": keys(), "launches": driver.launches})
"""


@pytest.fixture(scope="module", params=["cuda:80", "hip:gfx942"])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The test kernels on a target: launched plainly, launched with the recorder on, launched after a replay."""
    folder, target = tmp_path_factory.mktemp("kernels"), request.param
    recording, path = folder / "recording", folder / "kernels.jitreplay"
    found: dict[str, Any] = {"plain": program(folder / "plain", TRAFFIC, target=target)}
    found["recorded"] = program(folder / "recorded", TRAFFIC, target=target, record=recording)
    found["manifest"] = merged(recording)
    save(found["manifest"], path)
    replaying = 'counts = report.counts\nat_boot = happened("compile")\nlaunched = driver.launches\n' + TRAFFIC.replace(
        "answer({", 'answer({"counts": counts, "boot": at_boot, "replay launches": launched, '
    )
    found["replayed"] = program(folder / "replayed", replaying, target=target, replay=path)
    return found


class TestKernels:
    def test_the_keys_after_a_replay_are_the_recorded_ones_and_no_more(self, kernels: dict[str, Any]) -> None:
        assert kernels["replayed"]["before"] == kernels["recorded"]["after"]
        assert by_kernel(kernels["manifest"]) == digests(kernels["recorded"]["after"])

    def test_without_replay_each_launch_compiles(self, kernels: dict[str, Any]) -> None:
        from kernels.traffic import SHARED

        for name, events in kernels["plain"]["told"].items():
            kinds = [kind for kind, _ in events]
            assert kinds == ["disk_hit" if name in SHARED else "compile", "load"], name

    def test_the_recorder_changes_nothing_that_is_counted(self, kernels: dict[str, Any]) -> None:
        assert kernels["recorded"] == kernels["plain"]

    def test_each_launch_is_a_variant_of_its_own(self, kernels: dict[str, Any]) -> None:
        assert len(kernels["manifest"].variants) == len(kernels["plain"]["told"])

    def test_each_launch_is_a_hit_after_a_replay(self, kernels: dict[str, Any]) -> None:
        told = kernels["replayed"]["told"]

        assert {name: events for name, events in told.items() if events} == {}
        assert kernels["replayed"]["after"] == kernels["recorded"]["after"]

    def test_the_replay_compiles_and_launches_nothing(self, kernels: dict[str, Any]) -> None:
        replayed = kernels["replayed"]

        assert replayed["counts"] == {"compiled": len(replayed["boot"]), "cached": 3}
        assert len(replayed["boot"]) == len(kernels["manifest"].variants) - 3
        assert replayed["replay launches"] == 0


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Any]:
    """Headless Triton in this process."""
    with headless(tmp_path) as found:
        yield found


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


class TestKilled:
    CODE = """
        import kernels.traffic, signal
        launches = list(kernels.traffic.cases().values())
        for launch in launches[:5]:
            launch()
        write = os.write
        def cut(handle, data):
            write(handle, bytes(data)[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        os.write = cut
        launches[5]()
    """

    def test_in_the_middle_of_a_record_loses_that_record_alone(self, tmp_path: Path) -> None:
        script, recording = tmp_path / "program.py", tmp_path / "recording"
        text = helpers.PRELUDE.format(target="cuda:90", answer="") + f"jitreplay.Recorder({str(recording)!r}).start()\n"
        script.write_text(text + helpers.dedent(self.CODE))
        assert helpers.run(tmp_path, sys.executable, script).returncode == -signal.SIGKILL

        found = merge_files([recording])
        assert [v.order for v in variants_of(found.manifest, "copy")] == [0, 1, 2, 3, 4]
        assert len(found.notes) == 1 and "cut" in found.notes[0]
        done = helpers.jitreplay(tmp_path, "merge", recording, "-o", tmp_path / "kernels.jitreplay")
        assert done.returncode == 0
        assert file.load(tmp_path / "kernels.jitreplay") == found.manifest


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a manifest of a few kernels."""
    folder = tmp_path_factory.mktemp("whole")
    with headless(folder):
        from kernels.traffic import cases

        with jitreplay.Recorder(folder / "recording"):
            for launch in list(cases().values())[::3]:
                launch()
    return file.dumps(merged(folder / "recording"))


def test_loading_a_manifest_brings_in_no_triton(whole: bytes, tmp_path: Path) -> None:
    # A parent that looks into a manifest must not start a driver before it forks (CASES J6).
    (tmp_path / "kernels.jitreplay").write_bytes(whole)
    code = "import sys, jitreplay; jitreplay.load('kernels.jitreplay'); print({'torch', 'triton'} & {*sys.modules})"
    done = helpers.run(tmp_path, sys.executable, "-c", code)
    assert done.stdout.strip() == "set()", done.stderr


class TestCutManifest:
    @pytest.fixture
    def cut(self, whole: bytes, tmp_path: Path) -> Callable[[int], Path]:
        def cut(at: int) -> Path:
            path = tmp_path / f"cut-{at}.jitreplay"
            path.write_bytes(whole[:at])
            return path

        return cut

    def test_at_any_byte_is_an_error_of_one_line(self, whole: bytes) -> None:
        for at in range(len(whole)):
            with pytest.raises(ManifestError) as caught:
                file.loads(whole[:at])
            assert "\n" not in str(caught.value)
        assert file.loads(whole)

    def test_commands_exit_with_2_and_one_line(self, whole: bytes, cut: Callable[[int], Path], tmp_path: Path) -> None:
        target = ("--target", "cuda:90", "--cache-dir", tmp_path / "cache")
        commands: list[tuple[Any, ...]] = [
            ("show", "FILE"),
            ("diff", "FILE", "FILE"),
            ("merge", "FILE", "-o", tmp_path / "out"),
            ("compile", "FILE", *target),
            ("replay", "FILE", *target),
            ("verify", "FILE", *target),
        ]
        for index in range(12):
            path = cut(len(whole) * index // 12 + index % 2)
            words = [path if word == "FILE" else word for word in commands[index % len(commands)]]
            done = helpers.jitreplay(tmp_path, *words)
            assert done.returncode == 2, words
            assert done.stdout == ""
            assert len(done.stderr.splitlines()) == 1, done.stderr
            assert path.name in done.stderr and done.stderr.startswith("jitreplay: ")

    def test_a_boot_goes_on_without_replay(self, whole: bytes, cut: Callable[[int], Path], tmp_path: Path) -> None:
        out = tmp_path / "boot.json"
        manifest = ("--manifest", cut(len(whole) - 7), "--requests", "0", "--json", out)
        done = helpers.run(tmp_path, sys.executable, *SERVER, *manifest)

        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout.splitlines()[0].startswith("no replay: ")
        assert json.loads(out.read_text())["boot"]["replay"]["counts"] == {}

    def test_replay_reports_and_does_not_raise(self, driver: Any, whole: bytes, cut: Callable[[int], Path]) -> None:
        for at in (0, 1, 11, 12, 40, len(whole) // 2, len(whole) - 1):
            report = jitreplay.replay(cut(at))
            assert report.results == [] and not report.warm
            assert f"cut-{at}.jitreplay" in report.error and "\n" not in report.summary()


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

        sys.settrace(trace)
        sys.setprofile(profile)
        try:
            self.launch()
        finally:
            sys.setprofile(None)
            sys.settrace(None)
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


def test_the_counter_imports_nothing_of_jitreplay(tmp_path: Path) -> None:
    code = "import sys, counter; print([name for name in sys.modules if name.split('.')[0] == 'jitreplay'])"
    done = helpers.run(tmp_path, sys.executable, "-c", code, PYTHONPATH=str(helpers.ROOT / "examples"))
    assert done.stdout.strip() == "[]", done.stderr
