"""On a real GPU: what is loaded, captured and computed, which no headless driver can show."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from jitreplay.manifest.model import Manifest, digest

from .helpers import LIMIT, as_json, by_kernel, environment, jitreplay, merged, program, save
from .test_keys import LAUNCH, replayable

pytestmark = pytest.mark.gpu

PRELUDE = """
import json, os, sys
import torch
import triton
import jitreplay
from jitreplay.examples import counter as counting
counter = counting.Counter().install()
torch.set_default_device("cuda")
driver = triton.runtime.driver.active

def happened(*kinds):
    return [event.kind for event in counter.take() if not kinds or event.kind in kinds]

def keys():
    return {{f"{{module}}:{{name}}": found for (module, name), found in counting.keys().items()}}

def answer(value):
    torch.cuda.synchronize()
    with open({answer!r}, "w") as file:
        json.dump(value, file)
"""
REPLAY = "report = jitreplay.replay({path!r}, allow=('kernels',))\nfrom kernels import on_gpu\n"
AUTOTUNED = """
x, _, out = on_gpu.inputs()
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
happened()
problem = ""
try:
    with torch.cuda.graph(graph):
        on_gpu.tuned[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, out, 1000)
except Exception as error:
    problem = type(error).__name__
"""


def on_gpu(folder: Path, code: str, **variables: str) -> Any:
    """Run a program on the GPU in a fresh process with its own Triton cache; return what it gave to `answer`."""
    folder.mkdir(parents=True, exist_ok=True)
    out, script = folder / "answer.json", folder / "program.py"
    script.write_text(PRELUDE.format(answer=str(out)) + dedent(code))
    words = [sys.executable, str(script)]
    env = environment(folder, **variables)
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


def after(path: Path, code: str) -> str:
    """Return a program that replays a manifest, then does this."""
    return REPLAY.format(path=str(path)) + dedent(code)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest, list[float]]:
    """Return a manifest of the traffic, recorded on this GPU, and its results."""
    folder = tmp_path_factory.mktemp("recorded")
    code = """
    from kernels import on_gpu
    with jitreplay.Recorder("journals"):
        sums = on_gpu.traffic(60)
    answer(sums)
    """
    sums = on_gpu(folder, code)
    manifest = merged(folder / "journals")
    return save(manifest, folder / "kernels.jitreplay"), manifest, sums


class TestTraffic:
    def test_after_a_replay_it_compiles_loads_and_tunes_nothing(self, tmp_path: Path, recorded: Any) -> None:
        path, manifest, sums = recorded
        code = """
        happened()
        sums = on_gpu.traffic(60)
        answer([report.counts, sum(r.loaded for r in report.results), [c.restored for c in report.choices], happened(),
                sums])
        """
        counts, loaded, choices, events, found = on_gpu(tmp_path, after(path, code))

        assert counts == {"compiled": len(manifest.variants)} and loaded == len(manifest.variants)
        assert choices == [True]
        assert events == [] and found == sums

    def test_without_one_it_does(self, tmp_path: Path, recorded: Any) -> None:
        _, manifest, sums = recorded
        events, found = on_gpu(
            tmp_path, "from kernels import on_gpu\nanswer([*[on_gpu.traffic(60)], happened()][::-1])"
        )

        assert events.count("compile") == len(manifest.variants) + 2  # and the two losers of the tuning
        assert events.count("bench") == 3 and events.count("load") >= len(manifest.variants)
        assert found == sums

    def test_each_device_that_is_named_is_warm(self, tmp_path: Path, recorded: Any) -> None:
        path, manifest, sums = recorded
        code = f"""
        told = []
        if torch.cuda.device_count() > 1:
            report = jitreplay.replay({str(path)!r}, allow=("kernels",), devices=(0, 1))
            from kernels import on_gpu
            now = torch.cuda.current_device()
            happened()
            for device in (1, 0):
                torch.cuda.set_device(device)
                torch.set_default_device(f"cuda:{{device}}")
                told.append([on_gpu.traffic(60), happened()])
            told.append([report.counts, report.notes, now])
        answer(told)
        """
        found = on_gpu(tmp_path, code)
        if not found:
            pytest.skip("one GPU here")

        assert found[:2] == [[sums, []], [sums, []]]
        counts, notes, now = found[2]
        assert counts == {"compiled": len(manifest.variants)} and now == 0
        (note,) = notes
        assert note.startswith("on device 1: ") and f"{len(manifest.variants)} loaded" in note

    def test_a_cache_built_without_the_gpu_is_hit_by_all(self, tmp_path: Path, recorded: Any) -> None:
        path, manifest, sums = recorded
        place = ("--target", f"cuda:{manifest.environments[0].arch}", "--cache-dir", tmp_path / "cache")
        words = ("compile", path, *place, "--allow", "kernels", "-j", str(os.cpu_count()), "--json")
        as_json(jitreplay(tmp_path, *words, CUDA_VISIBLE_DEVICES=""))

        code = "first = happened()\nanswer([report.counts, first, on_gpu.traffic(60), happened()])"
        counts, first, found, events = on_gpu(tmp_path, after(path, code))

        assert counts == {"cached": len(manifest.variants)} and "compile" not in first and "launcher" not in first
        assert events == [] and found == sums

    def test_what_was_recorded_for_another_architecture_is_derived_anew(self, tmp_path: Path, recorded: Any) -> None:
        sums = recorded[2]
        # Recorded headless for cuda:80, of the same traffic, with no GPU and no results.
        other = program(
            tmp_path / "other",
            """
            torch.Tensor.is_cuda = True
            for name in ("arange", "zeros_like"):
                setattr(torch, name, lambda *a, of=getattr(torch, name), **k: of(*a, **{**k, "device": "cpu"}))
            from kernels import on_gpu
            on_gpu.traffic(60)
            answer(0)
            """,
            target="cuda:80",
            record=tmp_path / "journals",
        )
        assert other == 0
        save(merged(tmp_path / "journals"), tmp_path / "other.jitreplay")

        code = "happened()\nanswer([report.drift, on_gpu.traffic(60), happened('compile', 'load')])"
        drift, found, events = on_gpu(tmp_path, after(tmp_path / "other.jitreplay", code))

        assert any(line.startswith("target: cuda:80 -> ") for line in drift)
        assert found == sums
        # The tuning was of another device model: it is made here, and compiles what was no winner there.
        assert events.count("compile") <= 3


class TestMemory:
    def test_a_replay_keeps_modules_and_no_tensors(self, tmp_path: Path, recorded: Any) -> None:
        path, manifest, _ = recorded
        code = f"""
        torch.zeros(1)
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        report = jitreplay.replay({str(path)!r}, allow=("kernels",))
        answer([before, [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()], report.memory])
        """
        before, now, memory = on_gpu(tmp_path, code)

        assert before == now
        assert 0 <= memory["device"] <= len(manifest.variants) * (1 << 20)
        print(f"{len(manifest.variants)} variants: {memory}")


class TestCapture:
    """CASES K1 and K3."""

    def test_an_autotuned_kernel_may_be_first_called_in_a_capture(self, tmp_path: Path, recorded: Any) -> None:
        code = AUTOTUNED + "graph.replay()\nanswer([problem, happened(), bool((out == x * 2).all())])"

        assert on_gpu(tmp_path, after(recorded[0], code)) == ["", [], True]

    def test_without_a_replay_it_cannot(self, tmp_path: Path) -> None:
        code = AUTOTUNED + "import os\nwith open('answer.json', 'w') as file: json.dump(problem, file)\nos._exit(0)"

        assert on_gpu(tmp_path, "from kernels import on_gpu\n" + code) != ""

    def test_a_replay_in_a_capture_does_nothing(self, tmp_path: Path, recorded: Any) -> None:
        code = f"""
        from jitreplay.jit.capture import capturing
        from kernels import on_gpu
        x = torch.zeros(16)
        graph, seen = torch.cuda.CUDAGraph(), [capturing()]
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            seen.append(capturing())
            report = jitreplay.replay({str(recorded[0])!r}, allow=("kernels",))
            x += 1
        graph.replay()
        answer([seen, report.counts, x.sum().item(), happened()])
        """
        skipped = {"skipped": len(recorded[1].variants)}
        assert on_gpu(tmp_path, code) == [[False, True], skipped, 16.0, []]

    def test_what_goes_on_in_the_background_keeps_out_of_captures(self, tmp_path: Path, recorded: Any) -> None:
        code = """
        import threading
        x = torch.zeros(16)
        def thread():
            return [t for t in threading.enumerate() if t.name == "jitreplay-background"]
        captures, events = 0, []
        torch.cuda.synchronize()
        happened()
        while thread() or not captures:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                before = happened()
                for _ in range(200):
                    x += 1
                events += happened()
            captures += 1
        graph.replay()
        done = [r.outcome.value for r in report.results]
        happened()
        on_gpu.traffic(60)
        answer([captures, events, sorted(set(done)), report.warm, happened("compile", "load"), x.sum().item()])
        """
        variables = {"JITREPLAY_BUDGET": "0s", "JITREPLAY_BACKGROUND": "1", "JITREPLAY_JOBS": "4"}
        captures, inside, done, warm, later, total = on_gpu(tmp_path, after(recorded[0], code), **variables)

        assert captures > 1 and inside == []
        assert done == ["compiled"] and warm and later == []
        assert total == 16 * 200.0


def test_every_kind_of_argument_makes_the_recorded_key(tmp_path: Path) -> None:
    """As tests/test_keys.py, with the GPU's own tensors and driver."""
    start = "recorder = jitreplay.Recorder('recording').start()\n"
    found = on_gpu(tmp_path / "recorded", start + LAUNCH.format(compiler="uncompiled.install()", recorder="recorder"))
    manifest = merged(tmp_path / "recorded" / "recording")
    path = save(manifest, tmp_path / "keys.jitreplay")
    code = f"""
    from kernels import uncompiled
    uncompiled.install()
    report = jitreplay.replay({str(path)!r}, allow=("kernels",))
    answer(keys())
    """
    held = found["keys"]

    assert sum(map(len, held.values())) > 150
    assert by_kernel(manifest) == {name: {digest(key) for key in each} for name, each in held.items()}
    assert on_gpu(tmp_path / "replayed", code) == replayable(held)


@pytest.mark.timeout(4 * LIMIT)
def test_liger_kernel_forward_and_backward(tmp_path: Path) -> None:
    """Every third operator, launched for real before and after the replay."""
    pytest.importorskip("liger_kernel")
    run = Path(__file__).resolve().parent / "libraries" / "run.py"
    found = {}
    for action in ("record", "replay"):
        env = environment(tmp_path, TRITON_CACHE_DIR=str(tmp_path / f"cache-{action}"))
        words = [sys.executable, str(run), "liger", action, str(tmp_path), "live", "compile", "third"]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=2 * LIMIT)
        assert done.returncode == 0, done.stdout + done.stderr
        found[action] = json.loads((tmp_path / f"{action}.json").read_text())
    print(found["record"]["failed"], found["record"]["events"], found["replay"]["events"])
    outcomes = [row[2] for row in found["replay"]["outcomes"]]

    assert len(outcomes) > 30 and set(outcomes) == {"compiled"}
    assert found["replay"]["again"] == {} and found["replay"]["benches"] == 0
