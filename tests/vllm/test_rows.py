"""Each row of real vLLM code, three times: cold, after a replay, and after a replay beside vLLM's own warm-up."""

import os

import pytest
from processes import kinds, merge, run

# The autotuned GDN kernels with few of their configs: the benchmark's rules do not depend on how many there are.
CONFIGS = os.environ.get("VLLM_ROWS_CONFIGS", "2")
ROWS = [
    "zeroer",
    "v1_slot_mapping",
    "v2_block_tables",
    "v2_decode",
    "v2_mamba_align",
    "mamba_memcpy",
    "mamba_memcpy_i64",
    "mrope",
    "vision",
    "gdn_norm",
    "gdn_conv",
    "gdn_post_conv",
    "gdn_decode",
    "gdn_chunk",
    "moe",
    "attention",
    "sampler",
    "rejection",
    "eagle",
    "lora",
]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The three runs, and the manifest of the first. One cache, so that the later ones need not compile again."""
    folder = tmp_path_factory.mktemp("rows")
    words = ("--params", f"configs={CONFIGS}")
    cold, _ = run("batch.py", "--record", folder / "recording", *words, cache=folder / "cache")
    manifest = merge(folder / "recording", folder / "kernels.jitreplay")
    replayed, _ = run("batch.py", "--manifest", manifest, *words, cache=folder / "cache")
    warmed, _ = run("batch.py", "--manifest", manifest, "--warm", *words, cache=folder / "cache")
    return {"cold": cold, "replayed": replayed, "warmed": warmed}


@pytest.mark.parametrize("row", ROWS)
class TestRow:
    def test_it_compiles_while_serving_without_a_replay(self, runs, row):
        found = runs["cold"]["rows"][row]
        assert "error" not in found
        assert kinds(found["serve"], "compile", "disk_hit")

    def test_it_compiles_nothing_after_a_replay(self, runs, row):
        found = runs["replayed"]["rows"][row]
        assert "error" not in found
        assert found["serve"] == []

    def test_it_compiles_nothing_after_a_replay_and_vllms_own_warm_up(self, runs, row):
        found = runs["warmed"]["rows"][row]
        assert "error" not in found
        assert found["serve"] == []


def test_a_replay_makes_the_recorded_keys_and_no_more(runs):
    recorded = runs["cold"]["counts"]["variants"]
    benched = len(kinds(runs["cold"]["rows"]["gdn_chunk"]["serve"], "bench"))
    report = runs["replayed"]["replay"]
    assert set(report["counts"]) <= {"compiled", "cached"}
    # Of what the autotuners timed, only the winners are kept.
    assert recorded - benched < len(report["variants"]) <= recorded
    assert len(kinds(report["events"], "compile", "disk_hit")) == len(report["variants"])


def test_replay_and_vllms_own_warm_up_compile_nothing_twice(runs):
    found = runs["warmed"]
    misses = kinds(found["replay"]["events"], "compile", "disk_hit")
    for row in found["rows"].values():
        misses += kinds(row.get("warm", []), "compile", "disk_hit")
    assert len(misses) == found["keys"]


def test_choices_are_restored_and_nothing_is_benchmarked(runs):
    report = runs["replayed"]["replay"]
    assert report["choices"] and all(restored for _, restored, _ in report["choices"])
    assert kinds(report["events"], "bench") == []
    assert kinds(runs["cold"]["rows"]["gdn_chunk"]["serve"], "bench")


def test_sizes_of_32_and_of_64_bits_are_two_variants(runs):
    digests = [
        v["digest"] for v in runs["replayed"]["replay"]["variants"] if v["kernel"].endswith(".batch_memcpy_kernel")
    ]
    assert len(set(digests)) == 2
