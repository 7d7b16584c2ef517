"""Every entry kernel of vLLM 0.33.0, found by the name that jitreplay has for it."""

import os
from pathlib import Path

import pytest
from processes import run

VERSION = Path(os.environ.get("VLLM_ROOT", "")).name
pytestmark = pytest.mark.skipif(VERSION != "0.33.0", reason="the list of kernels is of 0.33.0")


@pytest.fixture(scope="module")
def inventory(tmp_path_factory):
    found, _ = run("inventory.py", cache=tmp_path_factory.mktemp("inventory") / "cache")
    return found


def test_each_kernel_that_exists_is_found_by_its_name(inventory):
    others = {name: entry["status"] for name, entry in inventory["kernels"].items() if entry["status"] != "found"}
    assert others == {}
    assert len(inventory["kernels"]) >= 600


def test_each_that_does_not_exist_has_a_reason(inventory):
    missing = inventory["missing"]
    assert len(missing) < 30
    for entry in missing:
        assert entry["why"]
        # Either its file needs what this machine has not, or the kernel is made by a function that has not run.
        assert entry["module"] in inventory["errors"] or entry["why"].startswith("not made")
