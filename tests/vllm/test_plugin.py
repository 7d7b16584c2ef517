"""The plugin's hooks on vLLM's own classes; each is taken away in turn."""

import os

import pytest
from processes import run


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugin")
    found, _ = run(
        "plugin_probe.py", cache=folder / "cache", TRITON_CACHE_DIR=None, VLLM_CACHE_ROOT=str(folder / "root")
    )
    return folder, found


def test_register_picks_no_platform_and_loads_no_worker(probe):
    _, found = probe
    assert found["platform picked by register"] == []
    assert not found["worker modules loaded by register"]


def test_the_workers_class_is_hooked_once(probe):
    _, found = probe
    assert found["hooked"] == ["init_device", "initialize_from_config", "shutdown"]


def test_a_cache_directory_below_vllms_root_is_set(probe):
    folder, found = probe
    assert found["triton cache set"] == os.path.join(folder, "root", "jitreplay", "triton")


@pytest.mark.parametrize("gone", ["init_device", "initialize_from_config"])
def test_without_a_hook_point_it_says_so_once_and_hooks_nothing(probe, gone):
    _, found = probe
    case = found["missing"][gone]
    assert len(case["said"]) == 1 and gone in case["said"][0] and "as without jitreplay" in case["said"][0]
    assert case["hooked"] == []


def test_without_shutdown_it_goes_on(probe):
    _, found = probe
    assert found["missing"]["shutdown"] == {"said": [], "hooked": ["init_device", "initialize_from_config"]}


def test_a_worker_without_its_steps_is_told_each(probe):
    _, found = probe
    for step in ("determine_available_memory", "compile_or_warm_up_model"):
        assert sum(step in line for line in found["a worker without its steps"]) == 1
