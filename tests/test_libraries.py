"""Real kernel libraries, where they are installed (`make coverage` does it), and the table that was made of them."""

import importlib
import importlib.util
import re

import pytest

from .helpers import ROOT

LEAST = {"liger": 88, "conch": 25, "gluon": 8, "linear_attention": 325, "gems": 100}
"""Kernels that each launches, as of the versions in the Makefile."""


@pytest.mark.parametrize(
    "library",
    [pytest.param(name, marks=[pytest.mark.slow, pytest.mark.timeout(1800)] * (name != "conch")) for name in LEAST],
)
def test_a_replay_makes_the_recorded_keys_of_a_library_and_the_same_traffic_no_more(library):
    report = importlib.import_module("libraries.report")
    module = importlib.import_module(f"libraries.{library}")
    if importlib.util.find_spec(module.PACKAGE) is None:
        pytest.skip(f"{module.DISTRIBUTION} is not installed")
    found = report.run(library, module.TARGET, compile=False)
    rows = report.rows(found)
    assert [row for row in rows if not row[2].startswith("equal keys")] == []
    assert len(rows) >= LEAST[library]
    assert found["replay"]["again"] == {} and found["replay"]["benches"] == 0
    assert all(restored for _, restored, _ in found["replay"]["choices"])


def test_the_table_states_its_kernels_and_none_differs():
    table = (ROOT / "docs" / "coverage.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| \d+ \| (.*) \|$", table, re.MULTILINE)
    assert len({name for name, _ in rows}) == len(rows) >= sum(LEAST.values())
    assert f"{len(rows)} distinct kernels" in table
    assert [name for name, outcome in rows if not outcome.startswith("equal keys")] == []
