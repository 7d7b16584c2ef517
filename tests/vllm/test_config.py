"""Recorded under one configuration, booted under another: the live keys are warm, and the drift is listed."""

import pytest
from processes import kinds, merge, run

ROWS = "zeroer,v1_slot_mapping,v2_block_tables,v2_decode,eagle,gdn_conv,attention"

CONFIGURATIONS = {
    "the recorded one": {},
    "a row stride that is no multiple of 16": {"max_model_len": 4097},
    "a padded table": {"max_model_len": 5000},
    "long contexts": {"max_model_len": 131000},
    "block size 32": {"block_size": 32},
    "block size 528": {"block_size": 528},
    "block size 544": {"block_size": 544},
    "fewer requests": {"max_num_seqs": 7},
    "more requests": {"max_num_seqs": 33},
    "another number of blocks": {"num_blocks": 49},
    "one block": {"num_blocks": 1, "counts": "(1,)"},
    "no block": {"num_blocks": 0, "counts": "()"},
    "another KV dtype": {"kv_dtype": "float16"},
}


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("config")
    run("batch.py", "--record", folder / "recording", "--rows", ROWS, cache=folder / "cache")
    return merge(folder / "recording", folder / "kernels.jitreplay"), folder / "cache"


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_live_keys_are_warm(recorded, name):
    manifest, cache = recorded
    params = [f"{key}={value}" for key, value in CONFIGURATIONS[name].items()]
    rows = ROWS.removeprefix("zeroer,") if name == "no block" else ROWS  # vLLM's own zeroer divides by their number
    found, _ = run("batch.py", "--manifest", manifest, "--rows", rows, "--params", *params, cache=cache)
    late = {row: kinds(events["serve"], "compile", "disk_hit") for row, events in found["rows"].items()}
    assert {row: kernels for row, kernels in late.items() if kernels} == {}
    assert [row for row, events in found["rows"].items() if "error" in events] == []
    outcomes = set(found["replay"]["counts"])
    if params:
        assert outcomes <= {"compiled", "cached", "warm", "drifted", "ambiguous"}
    else:
        assert outcomes <= {"compiled", "cached"}
    for variant in found["replay"]["variants"]:
        if variant["outcome"] in ("drifted", "ambiguous"):
            assert "->" in variant["reason"]


def test_another_rank_of_context_parallelism(tmp_path):
    """The slot mappings take the rank as a constexpr: recorded by rank 0 alone, rank 1 compiles nothing."""
    rows = ("--rows", "v1_slot_mapping,v2_block_tables")

    def rank(number):
        ranks = (f"{name}={number}" for name in ("dcp_rank", "tp_rank", "rank"))
        return ("--params", "decode_context_parallel_size=2", "dp_rank=0", "pp_rank=0", *ranks)

    cache = tmp_path / "cache"
    run("batch.py", "--record", tmp_path / "recording", *rows, *rank(0), cache=cache)
    manifest = merge(tmp_path / "recording", tmp_path / "kernels.jitreplay")
    found, _ = run("batch.py", "--manifest", manifest, *rows, *rank(1), cache=cache)
    late = {row: kinds(events["serve"], "compile", "disk_hit") for row, events in found["rows"].items()}
    assert {row: kernels for row, kernels in late.items() if kernels} == {}
    changed = [v["reason"] for v in found["replay"]["variants"] if v["outcome"] in ("drifted", "ambiguous")]
    assert any("RANK: 0 -> 1 (dcp_rank" in reason or "CP_RANK: 0 -> 1" in reason for reason in changed)
