"""The main job, end to end: what was recorded is there after a replay, no more."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jitreplay.manifest import file
from jitreplay.manifest.model import Phase, digest
from jitreplay.manifest.values import Tensor

from . import helpers
from .helpers import SERVER, by_kernel, merged, program, save, variants_of

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


def test_the_counter_imports_nothing_of_jitreplay(tmp_path: Path) -> None:
    code = "import sys, counter; print([name for name in sys.modules if name.split('.')[0] == 'jitreplay'])"
    done = helpers.run(tmp_path, sys.executable, "-c", code, PYTHONPATH=str(helpers.ROOT / "examples"))
    assert done.stdout.strip() == "[]", done.stderr
