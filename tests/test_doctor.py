"""`jitreplay doctor`: what keeps a replay from working is named, with what to do, and gives exit code 1."""

from pathlib import Path
from typing import Any

import pytest

from jitreplay.manifest.model import Manifest

from .helpers import as_json, jitreplay, save
from .test_children import everything, old_ptxas, only

__all__ = ["everything"]  # a fixture


def findings(folder: Path, *words: Any, code: int = 0, **variables: str) -> dict[str, dict[str, str]]:
    """Return the findings by check."""
    done = jitreplay(folder, "doctor", "--json", *words, **variables)
    return {found["check"]: found for found in as_json(done, code)}


def test_a_machine_that_can_compile_is_good(tmp_path: Path, everything: Manifest) -> None:
    path = save(only(everything, "good", most=2), tmp_path / "kernels.jitreplay")
    found = findings(tmp_path, path, "--allow", "kernels")

    assert {name for name, item in found.items() if item["health"] == "bad"} == set()
    assert found["boot"]["what"].startswith("a boot here would find 0 variants compiled, and compile 2")


@pytest.mark.parametrize(
    ("check", "variables", "do"),
    [
        ("compiler", {"CC": "/bin/false"}, "CC"),
        ("cache", {"TRITON_CACHE_DIR": "/proc/no/such"}, "TRITON_CACHE_DIR"),
        ("plugins", {"VLLM_PLUGINS": "lora"}, "VLLM_PLUGINS=lora,jitreplay"),
    ],
)
def test_what_would_fail_is_named(tmp_path: Path, check: str, variables: dict[str, str], do: str) -> None:
    found = findings(tmp_path, "--target", "cuda:80", code=1, **variables)

    assert found[check]["health"] == "bad"
    assert do in found[check]["do"]
    assert {name for name, item in found.items() if item["health"] == "bad"} == {check}


def test_a_ptxas_that_does_not_know_the_gpu_is_named(tmp_path: Path) -> None:
    found = findings(tmp_path, "--target", "cuda:80", code=1, TRITON_PTXAS_PATH=str(old_ptxas(tmp_path)))

    assert "is not defined" in found["ptxas"]["what"]
    assert "TRITON_PTXAS_PATH" in found["ptxas"]["do"]


def test_a_manifest_that_nothing_here_can_replay_is_bad(tmp_path: Path, everything: Manifest) -> None:
    path = save(only(everything, "good", most=2), tmp_path / "kernels.jitreplay")
    found = findings(tmp_path, path, code=1)  # the package of its kernels is not allowed

    assert found["boot"]["health"] == "bad"
    assert "not allowed" in found["boot"]["what"]


def test_a_manifest_that_is_none_is_bad(tmp_path: Path) -> None:
    (tmp_path / "kernels.jitreplay").write_text("no")
    assert findings(tmp_path, tmp_path / "kernels.jitreplay", code=1)["manifest"]["health"] == "bad"
