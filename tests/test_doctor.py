"""`jitreplay doctor`: what keeps a replay from working is named, with what to do, and gives exit code 1."""

import ctypes
import importlib.metadata
import shutil
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from jitreplay.jit import tools
from jitreplay.manifest.model import Manifest
from jitreplay.replayer.doctor import Health, examine

from .helpers import as_json, jitreplay, save
from .test_children import everything, old_ptxas, only, ptxas

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


def test_a_manifest_of_two_gpus_is_checked_for_each(tmp_path: Path, everything: Manifest) -> None:
    """Whatever the commands would compile for, where no target is given."""
    one = only(everything, "good", most=2)
    both = (one.environments[0], structs.replace(one.environments[0], arch=80))
    path = save(Manifest(both, one.variants, ()), tmp_path / "kernels.jitreplay")
    found = findings(tmp_path, path, "--allow", "kernels")
    assert {name for name in found if name.startswith(("ptxas", "boot"))} == {
        *("ptxas cuda:80", "ptxas cuda:90", "boot cuda:80", "boot cuda:90")
    }
    assert all("compile 2" in found[f"boot cuda:{arch}"]["what"] for arch in (80, 90))

    found = findings(tmp_path, path, "--allow", "kernels", code=1, **ptxas(old_ptxas(tmp_path)))
    assert {name for name, item in found.items() if item["health"] == "bad"} == {"ptxas cuda:80", "ptxas cuda:90"}


def test_without_a_gpu_to_check_for_it_says_what_is_left_out(tmp_path: Path) -> None:
    found = findings(tmp_path)
    assert found["ptxas"]["health"] == "note" and "--target" in found["ptxas"]["do"]


class TestMachines:
    """Machines that are not this one: each lacks one thing."""

    def found(self, folder: Path) -> dict[str, Any]:
        return {item.check: item for item in examine(str(folder), (), None, (), lambda target: None)}

    def test_without_pythons_headers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sysconfig, "get_paths", lambda **_: {"include": str(tmp_path)})
        found = self.found(tmp_path)["compiler"]
        assert found.health is Health.BAD and "Python.h" in found.what and "python3-dev" in found.do

    def test_with_a_cache_that_programs_cannot_be_loaded_from(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: str) -> None:
            raise OSError(f"{path}: failed to map segment from shared object")

        monkeypatch.setattr(ctypes, "CDLL", refuse)
        found = self.found(tmp_path)["compiler"]
        assert found.health is Health.BAD and "cannot be loaded" in found.what and "noexec" in found.do

    def test_with_a_gpu_and_no_library_of_its_driver(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tools, "NVIDIA", tmp_path)
        monkeypatch.setattr(tools, "KFD", tmp_path / "none")
        monkeypatch.setattr(tools, "_libraries", lambda: iter(()))
        real = Path("/dev/nvidiactl")
        monkeypatch.setattr("os.path.exists", lambda path: True if str(path) == str(real) else Path(path).exists())
        found = self.found(tmp_path)["driver"]
        assert found.health is Health.BAD and "libcuda.so.1" in found.what and "ldconfig" in found.do

    @pytest.mark.parametrize("usage", [SimpleNamespace(free=1 << 20), SimpleNamespace(free=1 << 40)])
    def test_with_little_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usage: Any) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        found = self.found(tmp_path)["cache"]
        assert found.health is (Health.NOTE if usage.free == 1 << 20 else Health.GOOD)
        assert ("make room" in found.do) is (usage.free == 1 << 20)

    @pytest.mark.parametrize(
        ("version", "prefixes", "told"),
        [("0.26.0", "", True), ("0.26.0", "JITREPLAY_,TRITON_", False), ("0.33.0", "", False)],
    )
    def test_with_a_vllm_that_hands_no_variables_on_to_ray(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, prefixes: str, told: bool
    ) -> None:
        monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "vllm" else "2.50.0")
        monkeypatch.setenv("VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY", prefixes)
        found = self.found(tmp_path)
        assert ("ray" in found) is told
        assert not told or "JITREPLAY_" in found["ray"].do

    @pytest.mark.parametrize("model", ["NVIDIA A100-SXM4-80GB", "NVIDIA H200"])
    def test_with_another_board_than_recorded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything: Manifest, model: str
    ) -> None:
        (environment,) = everything.environments
        h200 = structs.replace(environment, device=structs.replace(environment.device, name="NVIDIA H200"))
        path = save(Manifest((h200,), everything.variants, ()), tmp_path / "kernels.jitreplay")
        board = tmp_path / "boards" / "0000:01:00.0"
        board.mkdir(parents=True)
        (board / "information").write_text(f"Model: \t\t {model}\nIRQ: 1\n")
        monkeypatch.setattr(tools, "BOARDS", tmp_path / "boards")
        found = {item.check: item for item in examine(str(tmp_path), (), path, (), lambda target: None)}
        assert ("board" in found) is (model != "NVIDIA H200")


def test_a_manifest_that_nothing_here_can_replay_is_bad(tmp_path: Path, everything: Manifest) -> None:
    path = save(only(everything, "good", most=2), tmp_path / "kernels.jitreplay")
    found = findings(tmp_path, path, code=1)  # the package of its kernels is not allowed

    assert found["boot"]["health"] == "bad"
    assert "not allowed" in found["boot"]["what"]


def test_a_manifest_that_is_none_is_bad(tmp_path: Path) -> None:
    (tmp_path / "kernels.jitreplay").write_text("no")
    assert findings(tmp_path, tmp_path / "kernels.jitreplay", code=1)["manifest"]["health"] == "bad"
