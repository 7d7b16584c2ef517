"""Whole engines with the plugin, as vLLM itself loads it: record, replay, the monitor, the cache directory."""

import json
import os
from pathlib import Path

import pytest
from processes import kinds, merge, run

VERSION = Path(os.environ.get("VLLM_ROOT", "")).name


def serve(folder, cache, *params, fails=False, warm=False, **variables):
    words = ("engine", *(["--warm"] if warm else []), "--params", *params)
    return run("run_row.py", *words, cache=folder / cache, fails=fails, **variables)


@pytest.fixture(scope="session", params=["dense v2", "dense v1", "gdn v2"])
def engine(request, tmp_path_factory):
    """An engine recorded cold: (folder, its parameters, manifest, what the witness counted)."""
    model, runner = request.param.split()
    folder = tmp_path_factory.mktemp("engine")
    params = (f"model={model}", f"runner={runner}")
    found, printed = serve(folder, "cold", *params, JITREPLAY_RECORD=str(folder / "recording"))
    return folder, params, merge(folder / "recording", folder / "kernels.jitreplay"), found, printed


def decoding(manifest):
    """The kernels of a manifest that only a decoding step of a gated delta net launches."""
    from jitreplay import load

    names = {variant.kernel.qualname for variant in load(manifest).variants}
    return {name for name in names if "conv1d_update" in name or "gating_delta_rule" in name}


def misses(found, phase):
    return kinds([(e["kind"], e["kernel"]) for e in found["phases"][phase]], "compile", "disk_hit")


def test_a_cold_engine_compiles_while_it_serves(engine):
    *_, found, printed = engine
    assert misses(found, "serve")
    assert "compiles after startup" in printed


def test_after_a_replay_it_compiles_nothing_and_tunes_nothing(engine):
    folder, params, manifest, cold, _ = engine
    report = folder / "report.json"
    found, printed = serve(folder, "replayed", *params, JITREPLAY_MANIFEST=str(manifest), JITREPLAY_REPORT=str(report))
    assert misses(found, "serve") == []
    assert [e for phase in found["phases"].values() for e in phase if e["kind"] == "bench"] == []
    assert "jitreplay: replayed" in printed and "compiled while serving" not in printed
    written = json.loads(report.read_text())
    assert set(written["counts"]) <= {"compiled", "cached", "warm"}
    assert len(misses(found, "build")) <= len(misses(cold, "build")) + len(misses(cold, "serve"))


def test_record_and_replay_together_journal_nothing_new(engine):
    folder, params, manifest, *_ = engine
    both = folder / "both"
    serve(folder, "replayed", *params, JITREPLAY_MANIFEST=str(manifest), JITREPLAY_RECORD=str(both))
    again = merge(both, folder / "again.jitreplay")
    from jitreplay import load

    before, after = load(manifest), load(again)
    assert {v.identity for v in after.variants} <= {v.identity for v in before.variants}


@pytest.mark.skipif(VERSION == "0.26.0", reason="0.26.0 has no error mode")
class TestMonitor:
    """vLLM's own JIT monitor in its error mode, armed once warm-up is over: any compile then raises."""

    PARAMS = ("model=dense", "runner=v2", "monitor=error")

    @pytest.fixture(scope="class")
    def recording(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("monitor")
        serve(folder, "cache", "model=dense", "runner=v2", "monitor=warn", JITREPLAY_RECORD=str(folder / "recording"))
        return folder, merge(folder / "recording", folder / "kernels.jitreplay")

    def test_it_raises_without_a_replay(self, recording):
        folder, _ = recording
        found, _ = serve(folder, "cache", *self.PARAMS, fails=True)
        assert "RuntimeError" in found["error"]

    def test_recorded_traffic_serves(self, recording):
        folder, manifest = recording
        found, _ = serve(folder, "cache", *self.PARAMS, JITREPLAY_MANIFEST=str(manifest))
        assert misses(found, "serve") == []

    def test_an_unrecorded_request_raises(self, recording, tmp_path):
        folder, manifest = recording
        from jitreplay import load
        from jitreplay.manifest.file import save

        whole = load(manifest)
        whole.variants = tuple(v for v in whole.variants if not v.kernel.qualname.endswith("_topk_topp_kernel"))
        save(whole, tmp_path / "less.jitreplay")
        found, _ = serve(folder, "cache", *self.PARAMS, fails=True, JITREPLAY_MANIFEST=str(tmp_path / "less.jitreplay"))
        assert "_topk_topp_kernel" in found["error"] or "RuntimeError" in found["error"]


def test_a_manifest_of_decoding_has_its_kernels(engine):
    _, params, manifest, *_ = engine
    assert bool(decoding(manifest)) == ("model=gdn" in params)


def test_a_pooling_manifest_has_no_decode_kernels(tmp_path):
    words = ("model=gdn", "runner=v1", "pooling=True", "configs=2")
    serve(tmp_path, "cache", *words, JITREPLAY_RECORD=str(tmp_path / "recording"))
    manifest = merge(tmp_path / "recording", tmp_path / "kernels.jitreplay")
    found, _ = serve(tmp_path, "cache", *words, JITREPLAY_MANIFEST=str(manifest))
    assert misses(found, "serve") == [] and decoding(manifest) == set()


def test_a_second_warm_up_replays_again(engine):
    """Elastic expert parallelism warms up once more when its groups changed."""
    folder, params, manifest, *_ = engine
    found, printed = serve(folder, "cold", *params, warm=True, JITREPLAY_MANIFEST=str(manifest))
    assert printed.count("jitreplay: replayed") == 2
    assert misses(found, "warm") == misses(found, "serve") == []
    assert "compiled while serving" not in printed


def test_offloaded_weights_are_no_error(engine):
    folder, params, manifest, *_ = engine
    found, printed = serve(folder, "cold", *params, "cpu_offload_gb=1", JITREPLAY_MANIFEST=str(manifest))
    assert misses(found, "serve") == []
    assert "jitreplay: replayed" in printed


def test_a_cache_directory_is_set_where_the_user_set_none(tmp_path):
    found, _ = serve(
        tmp_path,
        "none",
        "model=dense",
        "runner=v2",
        TRITON_CACHE_DIR=None,
        VLLM_CACHE_ROOT=str(tmp_path / "vllm"),
        JITREPLAY_RECORD=str(tmp_path / "recording"),
    )
    assert misses(found, "serve")
    assert any((tmp_path / "vllm" / "jitreplay" / "triton").iterdir())


def test_an_unreadable_manifest_is_one_line_and_the_server_runs(tmp_path):
    (tmp_path / "cut.jitreplay").write_bytes(b"\x89JRM\r\n")
    found, printed = serve(
        tmp_path, "cache", "model=dense", "runner=v2", JITREPLAY_MANIFEST=str(tmp_path / "cut.jitreplay")
    )
    assert misses(found, "serve")
    assert printed.count("jitreplay: no replay:") == 1 and "Traceback" not in printed.partition("jitreplay:")[2][:500]


def test_dormant_without_a_variable(tmp_path):
    _, printed = serve(tmp_path, "cache", "model=dense", "runner=v2")
    assert "jitreplay" not in printed.replace("jitreplay.examples", "").replace("/jitreplay", "")
    assert list(tmp_path.glob("**/*.journal")) == []
