"""What becomes of each variant in a replay, and what a replay leaves alone."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import jitreplay
from jitreplay.manifest.errors import JitreplayError
from jitreplay.manifest.merge import merge
from jitreplay.manifest.model import Argument, Kernel, Manifest, Phase, Variant
from jitreplay.manifest.values import Integer, Tensor
from jitreplay.recorder import phase
from jitreplay.replayer.outcome import Outcome, Report
from jitreplay.replayer.plan import order
from jitreplay.replayer.session import ReplayError

from .helpers import headless, merged, program, save


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Ten variants of the test kernels, and what made each: (kernel, number)."""
    folder = tmp_path_factory.mktemp("recorded")
    with headless(folder), jitreplay.Recorder(folder / "recording"):
        traffic()
    return merged(folder / "recording")


def traffic() -> None:
    import torch
    from kernels.basic import copy, not_for_one, plain

    x = torch.zeros(64)
    for n in (32, 5, 1, 2**31, 2**31 + 1):
        copy[(1,)](x, x, n, BLOCK=16)
    for n in (2, 2**40):
        plain[(1,)](x, n)
    for n in (5, 16, 2**31):
        not_for_one[(1,)](x, n)


def change(variant: Variant, index: int, argument: Argument) -> Variant:
    """Return a variant with another argument, under a digest that no key has."""
    args = (*variant.args[:index], argument, *variant.args[index + 1 :])
    return structs.replace(variant, args=args, digest="0" * 32)


def replace(manifest: Manifest, **fields: Any) -> Manifest:
    """Return a manifest with fields of every variant replaced."""
    return merge([Manifest(manifest.environments, tuple(structs.replace(v, **fields) for v in manifest.variants))])


def outcomes(report: Report) -> set[Outcome]:
    return {result.outcome for result in report.results}


def reasons(report: Report) -> set[str]:
    return {result.reason for result in report.results}


class TestMost:
    @pytest.mark.parametrize("strict", [False, True])
    def test_the_most_needed_alone_are_replayed(
        self, driver: Any, recording: Manifest, monkeypatch: pytest.MonkeyPatch, strict: bool
    ) -> None:
        monkeypatch.setenv("JITREPLAY_MOST", "4")
        report = jitreplay.replay(recording, strict=strict)

        assert report.counts == {"compiled": 4, "skipped": 6} and driver.loads == 4
        assert [r.variant for r in report.results if r.loaded] == order(recording.variants)[:4]
        assert {r.reason for r in report.results if not r.loaded} == {"beyond JITREPLAY_MOST=4"}

    def test_one_that_takes_much_memory_says_so(
        self, driver: Any, recording: Manifest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from jitreplay.replayer import session

        assert jitreplay.replay(recording).notes == []
        monkeypatch.setattr(session, "HEAVY", -(1 << 40))
        (note,) = jitreplay.replay(recording).notes
        assert "GiB" in note and "JITREPLAY_MOST" in note and "10 variants" in note


class TestWarm:
    def test_compiles_and_loads_all_and_launches_nothing(self, driver: Any, recording: Manifest) -> None:
        report = jitreplay.replay(recording)

        assert report.counts == {"compiled": 10} and report.warm
        assert all(result.loaded and not result.reason for result in report.results)
        assert driver.launches == 0 and driver.loads == 10
        traffic()
        assert driver.launches == 10 and driver.loads == 10

    def test_a_second_replay_has_nothing_to_do(self, driver: Any, recording: Manifest) -> None:
        jitreplay.replay(recording)
        report = jitreplay.replay(recording)

        assert report.counts == {"warm": 10}
        assert driver.loads == 10

    def test_after_traffic_and_replay_again(self, driver: Any, recording: Manifest) -> None:
        traffic()
        assert jitreplay.replay(recording).counts == {"warm": 10}
        traffic()
        assert driver.loads == 10 and driver.launches == 20

    def test_without_load_only_compiles(self, driver: Any, recording: Manifest) -> None:
        report = jitreplay.replay(recording, load=False)

        assert report.counts == {"compiled": 10}
        assert driver.loads == 0 and not any(result.loaded for result in report.results)

    def test_a_filled_cache_is_only_read(self, tmp_path: Path, recording: Manifest) -> None:
        for expected in ({"compiled": 10}, {"cached": 10}):
            with headless(tmp_path):
                assert jitreplay.replay(recording).counts == expected

    def test_serving_comes_first_and_dearest_before_that(self, driver: Any, recording: Manifest) -> None:
        costs, phases = (5, 9, 1, 7, 3), (Phase.STARTUP, Phase.SERVING, Phase.SERVING, Phase.NEVER, Phase.STARTUP)
        variants = [
            structs.replace(variant, compile_ms=cost, phase=when)
            for variant, cost, when in zip(recording.variants, costs, phases, strict=False)
        ]
        report = jitreplay.replay(merge([Manifest(recording.environments, tuple(variants))]))

        assert [result.variant.compile_ms for result in report.results] == [9, 1, 5, 3, 7]

    def test_progress_counts_to_the_end(self, driver: Any, recording: Manifest) -> None:
        seen: list[tuple[int, int, str]] = []

        jitreplay.replay(recording, progress=lambda *step: seen.append(step))
        assert [done for done, _, _ in seen] == list(range(11))
        assert {total for _, total, _ in seen} == {10}
        assert seen[0][2].startswith("kernels.basic.")

    def test_pre_run_hooks_are_not_called(self, driver: Any, recording: Manifest) -> None:
        from kernels.basic import copy

        def hook(*_: Any, **__: Any) -> None:
            raise RuntimeError("not for stand-ins")

        copy.add_pre_run_hook(hook)
        try:
            assert jitreplay.replay(recording).counts == {"compiled": 10}
            assert copy.pre_run_hooks == [hook]
        finally:
            copy.pre_run_hooks.clear()

    def test_a_listener_of_another_tool_hears_of_it_and_stays(self, driver: Any, recording: Manifest) -> None:
        from triton import knobs

        seen = []
        knobs.compilation.listener = lambda **event: seen.append(event["cache_hit"])
        try:
            listener = knobs.compilation.listener
            jitreplay.replay(recording)
            assert knobs.compilation.listener is listener
        finally:
            del knobs.compilation.listener
        assert seen == [False] * 10


class TestTrouble:
    def test_one_of_ten_fails_and_the_others_go_on(self, driver: Any, recording: Manifest) -> None:
        # An integer that is 1 is a constant, for which this kernel does not compile (CASES B7).
        bad = next(v for v in recording.variants if v.kernel.qualname == "not_for_one")
        broken = change(bad, 1, Argument(Integer(1), "constexpr"))
        variants = (broken, *(v for v in recording.variants if v is not bad))
        report = jitreplay.replay(merge([Manifest(recording.environments, variants)]))

        assert report.counts == {"compiled": 9, "failed": 1} and not report.warm
        (failed,) = [result for result in report.results if result.outcome is Outcome.FAILED]
        assert failed.variant == broken
        assert "CompilationError" in failed.reason and "\n" not in failed.reason

    def test_strict_stops_at_the_first(self, driver: Any, recording: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
        bad = next(v for v in recording.variants if v.kernel.qualname == "not_for_one")
        broken = Manifest(recording.environments, (change(bad, 1, Argument(Integer(1), "constexpr")),))

        with pytest.raises(ReplayError, match=r"kernels\.basic\.not_for_one 0{32}: CompilationError"):
            jitreplay.replay(broken, strict=True)
        monkeypatch.setenv("JITREPLAY_STRICT", "1")
        with pytest.raises(JitreplayError):
            jitreplay.replay(broken)
        assert not jitreplay.replay(broken, strict=False).warm

    def test_a_binary_that_the_device_refuses(self, driver: Any, recording: Manifest) -> None:
        def refuse(*_: Any) -> None:
            raise RuntimeError("device kernel image is invalid")

        driver.utils.load_binary = refuse
        report = jitreplay.replay(recording)

        assert report.counts == {"failed": 10}
        assert reasons(report) == {"compiled, but it cannot be loaded: RuntimeError: device kernel image is invalid"}

    def test_a_cache_hook_of_another_tool_cancels(self, driver: Any, recording: Manifest) -> None:
        from triton import knobs

        knobs.runtime.jit_cache_hook = lambda **event: True
        try:
            report = jitreplay.replay(recording)
        finally:
            del knobs.runtime.jit_cache_hook
        assert report.counts == {"cancelled": 10} and not report.warm
        assert all("hook" in reason for reason in reasons(report))
        assert jitreplay.replay(recording).counts == {"compiled": 10}

    def test_another_backend(self, tmp_path: Path, recording: Manifest) -> None:
        with headless(tmp_path, "hip:gfx942"):
            report = jitreplay.replay(recording)
        assert outcomes(report) == {Outcome.SKIPPED}
        assert reasons(report) == {"recorded on cuda, this is hip"}

    def test_another_architecture_is_compiled_for_and_told(self, tmp_path: Path, recording: Manifest) -> None:
        with headless(tmp_path, "cuda:80"):
            report = jitreplay.replay(recording)
        assert report.counts == {"compiled": 10}
        assert report.drift == ["target: cuda:90 -> cuda:80"]

    def test_a_module_that_is_not_allowed_is_not_imported(
        self, driver: Any, recording: Manifest, tmp_path: Path
    ) -> None:
        (tmp_path / "stranger.py").write_text("raise SystemExit('imported')")
        kernel = structs.replace(recording.variants[0].kernel, module="stranger")
        report = jitreplay.replay(replace(recording, kernel=kernel))

        assert outcomes(report) == {Outcome.SKIPPED}
        assert all("--allow stranger" in reason for reason in reasons(report))

    @pytest.mark.parametrize(
        ("source", "said"),
        [(None, "No module named"), ("raise SystemExit('gone')", "SystemExit"), ("x = (", "SyntaxError")],
    )
    def test_a_module_that_cannot_be_imported(
        self,
        driver: Any,
        recording: Manifest,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        source: str | None,
        said: str,
    ) -> None:
        if source is not None:
            (tmp_path / "stranger.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        kernel = structs.replace(recording.variants[0].kernel, module="stranger")
        report = jitreplay.replay(replace(recording, kernel=kernel), allow=["stranger"])

        assert outcomes(report) == {Outcome.SKIPPED}
        assert all("stranger cannot be imported" in r and said in r for r in reasons(report))

    @pytest.mark.parametrize("module", ["os.path", "kernels.basic", "not a module", "jitreplay.cli.main", ""])
    def test_a_name_that_is_no_kernel_is_refused(self, driver: Any, recording: Manifest, module: str) -> None:
        first = recording.variants[0]
        for name in ("join", "triton", "FACTOR", "copy.fn", "copy.run", "__builtins__", "main"):
            kernel = Kernel(module, name, "0" * 32, first.kernel.params)
            report = jitreplay.replay(Manifest(recording.environments, (structs.replace(first, kernel=kernel),)))
            assert outcomes(report) == {Outcome.SKIPPED}, name

    def test_a_tensor_that_no_torch_can_make(self, driver: Any, recording: Manifest) -> None:
        first = recording.variants[0]
        bad = [Tensor("float99"), Tensor("float32", (1,), (1, 2)), Tensor("float32", (-1,), (1,))]
        bad.append(Tensor("float32", (1 << 61,), (1,)))
        for tensor in bad:
            variant = change(first, 0, Argument(tensor, "*fp32:D"))
            report = jitreplay.replay(Manifest(recording.environments, (variant,)))
            assert outcomes(report) == {Outcome.SKIPPED} and reasons(report) != {""}

    def test_an_option_that_names_a_path_is_refused(self, driver: Any, recording: Manifest) -> None:
        from jitreplay.manifest.values import Text

        for name in ("ir_override", "extern_libs", "ptx_options", "arch", "warmup", "grid"):
            report = jitreplay.replay(replace(recording, options=((name, Text("/etc/passwd")),)))
            assert outcomes(report) == {Outcome.SKIPPED}
            assert all(name in reason for reason in reasons(report))

    def test_an_interrupt_ends_it_and_leaves_nothing_installed(self, driver: Any, recording: Manifest) -> None:
        from triton import knobs

        def interrupt(done: int, total: int, kernel: str) -> None:
            if done == 2:
                raise KeyboardInterrupt

        vars(knobs.compilation).pop("listener", None)
        with pytest.raises(KeyboardInterrupt):
            jitreplay.replay(recording, progress=interrupt)
        assert "listener" not in vars(knobs.compilation)
        assert jitreplay.replay(recording).counts == {"compiled": 8, "warm": 2}

    def test_no_manifest(self, driver: Any, tmp_path: Path) -> None:
        assert "JITREPLAY_MANIFEST" in jitreplay.replay().error
        assert "missing" in jitreplay.replay(tmp_path / "missing").error
        assert not jitreplay.replay().warm
        with pytest.raises(JitreplayError):
            jitreplay.replay(tmp_path / "missing", strict=True)

    def test_a_setting_that_cannot_be_used(
        self, driver: Any, recording: Manifest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JITREPLAY_STRICT", "perhaps")
        report = jitreplay.replay(recording)
        assert "JITREPLAY_STRICT=perhaps" in report.error


class TestSettings:
    def test_the_manifest_may_come_by_variable(
        self, driver: Any, recording: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JITREPLAY_MANIFEST", str(save(recording, tmp_path / "kernels.jitreplay")))
        assert jitreplay.replay().counts == {"compiled": 10}

    def test_one_line_in_the_log_sums_up(
        self, driver: Any, recording: Manifest, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "jitreplay"):
            report = jitreplay.replay(recording)
        assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("INFO", report.summary())]
        assert report.summary().startswith("replayed 10 variants in ")
        assert report.summary().endswith(" s: 10 compiled; 10 loaded")

    def test_what_is_not_warm_makes_it_a_warning(
        self, tmp_path: Path, recording: Manifest, caplog: pytest.LogCaptureFixture
    ) -> None:
        with headless(tmp_path, "hip:gfx942"), caplog.at_level(logging.INFO, "jitreplay"):
            jitreplay.replay(recording)
        *told, last = [(r.levelname, r.getMessage()) for r in caplog.records]
        assert last[0] == "WARNING" and "10 skipped" in last[1]
        assert told == [("INFO", "differs from the recording: target: cuda:90 -> hip:gfx942")]

    def test_data_holds_what_happened(self, driver: Any, recording: Manifest) -> None:
        report = jitreplay.replay(recording)
        data = report.as_data()

        assert data["counts"] == report.counts
        assert [v["digest"] for v in data["variants"]] == [r.variant.digest for r in report.results]
        assert data["seconds"]["total"] >= data["seconds"]["compile"] > 0


class TestBesideARecorder:
    def test_replayed_variants_are_not_new_but_their_first_launch_is_noted(
        self, driver: Any, recording: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch
        from kernels.basic import copy

        monkeypatch.setattr(phase, "_ready", threading.Event())
        with jitreplay.Recorder(tmp_path / "recording") as recorder:
            jitreplay.replay(recording)
            assert recorder.counts["variants"] == 0 and recorder.path is None
            jitreplay.ready()
            copy[(3,)](torch.zeros(7), torch.zeros(7), 5, BLOCK=16)
            copy[(3,)](torch.zeros(7), torch.zeros(7), 5, BLOCK=16)
            assert recorder.counts == {**recorder.counts, "variants": 0, "launches": 1, "errors": 0}
        (variant,) = merged(tmp_path / "recording").variants
        (same,) = [v for v in recording.variants if v.digest == variant.digest]
        assert variant.real and variant.grid == (3, 1, 1) and variant.phase is Phase.SERVING
        assert isinstance(variant.args[0].value, Tensor) and variant.args[0].value.shape == (7,)
        assert merge([recording, merged(tmp_path / "recording")]).variants and same.kernel == variant.kernel


OLD = """
import triton
import triton.language as tl

FACTOR = tl.constexpr(3)

@triton.jit
def twice(value):
    return value + value

@triton.jit
def same(x, n):
    tl.store(x, n)

@triton.jit
def source(x, n):
    tl.store(x, n)

@triton.jit
def callee(x, n):
    tl.store(x, twice(n))

@triton.jit
def constant(x, n):
    tl.store(x, n * FACTOR)

@triton.jit
def parameters(x, n):
    tl.store(x, n)

@triton.jit
def gone(x, n):
    tl.store(x, n)

@triton.jit
def opaque(x, KIND: tl.constexpr):
    tl.store(x, 1)

def make(number):
    @triton.jit
    def closure(x, n):
        tl.store(x, number)
    return closure
"""
EDITS = {
    "return value + value": "return value * 4",
    "def source(x, n):\n    tl.store(x, n)": "def source(x, n):\n    tl.store(x, n + 1)",
    "def parameters(x, n):": "def parameters(x, m, n):",
    "def gone(": "def moved(",
    "FACTOR = tl.constexpr(3)": "FACTOR = tl.constexpr(4)",
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one release recorded, replayed in the next: its module was edited, and another is gone."""
    folder = tmp_path_factory.mktemp("release")
    module = folder / "shop.py"
    module.write_text(OLD)
    (folder / "removed.py").write_text("import triton\n@triton.jit\ndef kernel(x, n):\n    pass\n")
    record = """
        import removed, shop
        x = torch.zeros(16)
        for name in ("same", "source", "callee", "constant", "parameters", "gone"):
            getattr(shop, name)[(1,)](x, 5)
        removed.kernel[(1,)](x, 5)
        shop.opaque[(1,)](x, lambda: 1)
        shop.make(tl.constexpr(2))[(1,)](x, 5)
        answer(keys())
    """
    program(folder, record, record=folder / "recording")
    path = save(merged(folder / "recording"), folder / "kernels.jitreplay")
    text = OLD
    for before, after in EDITS.items():
        assert before in text
        text = text.replace(before, after)
    module.write_text(text)
    (folder / "removed.py").unlink()
    replay = """
        import shop
        held = keys()
        told = {r.variant.kernel.qualname: [r.outcome.value, r.reason] for r in report.results}
        told["removed"] = told.pop("kernel")
        for name in ("same", "source", "callee", "constant"):
            happened()
            getattr(shop, name)[(1,)](torch.zeros(16), 5)
            assert not happened(), name
        again = jitreplay.replay({path!r}, allow=("shop",)).counts
        late = ""
        shop.FACTOR = tl.constexpr(5)
        try:
            shop.constant[(1,)](torch.zeros(16), 5)
        except RuntimeError as error:
            late = str(error)
        answer(dict(told=told, held=sorted(held), again=again, late=late))
    """
    return program(folder, replay.replace("{path!r}", repr(str(path))), replay=path, allow=("shop", "removed"))


class TestChangedProgram:
    """A manifest of one release, replayed in the next."""

    @pytest.mark.parametrize(
        ("kernel", "outcome", "said"),
        [
            ("same", "cached", ""),
            ("source", "changed", "source changed"),
            ("callee", "changed", "source changed"),
            ("constant", "changed", "source changed"),
            ("parameters", "skipped", "parameters changed: recorded (x, n), now (x, m, n)"),
            ("gone", "skipped", "has no gone any more"),
            ("removed", "skipped", "removed cannot be imported"),
            ("opaque", "skipped", "argument KIND (builtins.function) cannot be rebuilt"),
            ("make.<locals>.closure", "skipped", "made inside a function that has not run here"),
        ],
    )
    def test_each_variant_has_its_outcome(self, release: dict[str, Any], kernel: str, outcome: str, said: str) -> None:
        found, reason = release["told"][kernel]

        assert found == outcome, reason
        assert said in reason and "\n" not in reason

    def test_what_changed_was_compiled_from_the_present_source(self, release: dict[str, Any]) -> None:
        # Its first launches were hits: see the program.
        assert release["held"] == [f"shop:{name}" for name in ("callee", "constant", "same", "source")]
        assert release["again"] == {"warm": 1, "changed": 3, "skipped": 5}

    def test_a_global_that_changes_after_the_replay_is_refused_by_triton(self, release: dict[str, Any]) -> None:
        # So a replay belongs behind the program's own set-up (CASES D3).
        assert "FACTOR has changed since we compiled this kernel" in release["late"]
