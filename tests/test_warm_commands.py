"""compile, verify, replay and demo, as commands: what they print, and with which code they end."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import triton
from msgspec import structs

from jitreplay.manifest import file
from jitreplay.manifest.merge import merge
from jitreplay.manifest.model import Argument, Manifest
from jitreplay.manifest.values import Tensor

from .helpers import as_json, jitreplay, merged, program, save

SHOP = """
import triton
import triton.language as tl

@triton.jit
def twice(value):
    return value + value

@triton.jit
def calls(x, n):
    tl.store(x, twice(n))

@triton.jit
def stores(x, n):
    tl.store(x, n)
"""


class Shop:
    """A package that no one has imported, a manifest of its kernels, and a cache that `compile` filled."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "prebuilt"
        self.source, self.path = folder / "shop.py", folder / "kernels.jitreplay"
        self.source.write_text(SHOP)
        traffic = """
            from shop import calls, stores
            x = torch.zeros(16)
            calls[(1,)](x, 5)
            stores[(1,)](x, 5)
            stores[(1,)](x, 16)
            answer(keys())
        """
        program(folder, traffic, record=folder / "recording")
        self.manifest: Manifest = merged(folder / "recording")
        save(self.manifest, self.path)
        self.compiled = self.run("compile")

    def run(self, command: str, *words: Any, target: str = "cuda:90", **variables: str) -> Any:
        place = ("--target", target, "--cache-dir", self.cache, "--allow", "shop")
        return jitreplay(self.folder, command, self.path, *place, "--json", *words, **variables)

    def digest(self, kernel: str) -> str:
        return next(v.digest for v in self.manifest.variants if v.kernel.qualname == kernel)

    def entry(self, kernel: str, pattern: str) -> Path:
        """Return a file of the cache entry of a kernel that has one variant."""
        (group,) = self.cache.glob(f"*/__grp__{kernel}.json")
        (found,) = group.parent.glob(pattern)
        return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def restored(shop: Shop, tmp_path: Path) -> Iterator[Shop]:
    """The shop, whose cache and source the test may spoil."""
    shutil.copytree(shop.cache, tmp_path / "kept")
    yield shop
    shutil.rmtree(shop.cache)
    shutil.copytree(tmp_path / "kept", shop.cache)
    shop.source.write_text(SHOP)


def outcomes(report: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(variant["kernel"], variant["digest"]): variant["outcome"] for variant in report["variants"]}


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Return every file and folder below, with size and time of change."""
    stats = {str(path): path.stat() for path in sorted(folder.rglob("*"))}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


class TestCompile:
    def test_fills_a_cache_with_every_variant(self, shop: Shop) -> None:
        report = as_json(shop.compiled)

        assert report["counts"] == {"compiled": 3}
        assert outcomes(report) == {(v.kernel.name, v.digest): "compiled" for v in shop.manifest.variants}
        assert len(list(shop.cache.glob("*/*.cubin"))) == 3

    def test_json_has_its_documented_shape(self, shop: Shop) -> None:
        report = as_json(shop.compiled)

        built = {"launchers"} if triton.__version__.startswith("3.6.") else set()
        assert report.keys() == {"counts", "seconds", "variants", *built}
        assert report["seconds"].keys() == {"plan", "compile", "load", "total"}
        assert all(variant.keys() == {"kernel", "digest", "outcome", "reason"} for variant in report["variants"])

    def test_takes_several_targets(self, shop: Shop, tmp_path: Path) -> None:
        place = ("--target", "cuda:80", "--target", "hip:gfx942", "--cache-dir", tmp_path / "cache", "--allow", "shop")
        done = jitreplay(shop.folder, "compile", shop.path, *place, "--json")
        report = as_json(done, code=1)  # recorded on CUDA, so nothing is known for HIP

        assert report["counts"] == {"compiled": 3, "skipped": 3}
        assert {v["reason"] for v in report["variants"]} == {"", "recorded on cuda, this is hip"}

    def test_a_package_that_is_not_allowed_is_skipped_and_says_what_to_pass(self, shop: Shop, tmp_path: Path) -> None:
        place = ("--target", "cuda:90", "--cache-dir", tmp_path / "cache")
        done = jitreplay(shop.folder, "compile", shop.path, *place)

        assert done.returncode == 1
        assert "--allow shop" in done.stdout
        assert not list(tmp_path.glob("cache/*/*.cubin"))


class TestVerify:
    def test_exits_with_0_after_a_compile(self, shop: Shop) -> None:
        report = as_json(shop.run("verify"))

        assert report["counts"] == {"warm": 3}
        assert outcomes(report).keys() == {(v.kernel.name, v.digest) for v in shop.manifest.variants}

    def test_writes_nothing(self, shop: Shop) -> None:
        before = listing(shop.folder)
        missing = shop.folder / "missing"
        done = jitreplay(
            shop.folder, "verify", shop.path, "--target", "cuda:90", "--cache-dir", missing, "--allow", "shop"
        )

        assert done.returncode == 1
        assert listing(shop.folder) == before
        assert not missing.exists()

    def test_says_that_it_uses_the_recorded_values(self, shop: Shop) -> None:
        place = ("--target", "cuda:90", "--cache-dir", shop.cache, "--allow", "shop")
        done = jitreplay(shop.folder, "verify", shop.path, *place)

        assert done.returncode == 0
        assert "recorded values" in done.stdout

    def damaged(self, shop: Shop, kernels: set[str], reason: str, **variables: str) -> None:
        """Assert that verify fails, names these kernels' variants and says why; in JSON and in text."""
        report = as_json(shop.run("verify", **variables), code=1)
        bad = [v for v in report["variants"] if v["outcome"] == "would_compile"]
        named = {(v["kernel"], v["digest"]) for v in bad}
        expected = {(v.kernel.name, v.digest) for v in shop.manifest.variants if v.kernel.qualname in kernels}
        assert named == expected
        assert all(re.search(reason, v["reason"]) for v in bad), bad
        assert report["counts"].get("warm", 0) == len(shop.manifest.variants) - len(bad)

    def test_a_deleted_cubin(self, restored: Shop) -> None:
        restored.entry("calls", "*.cubin").unlink()
        self.damaged(restored, {"calls"}, "cubin is missing")

    def test_a_truncated_cubin(self, restored: Shop) -> None:
        cubin = restored.entry("calls", "*.cubin")
        os.truncate(cubin, cubin.stat().st_size - 1)
        self.damaged(restored, {"calls"}, "cubin is cut")

    def test_a_cut_group(self, restored: Shop) -> None:
        group = restored.entry("calls", "__grp__*.json")
        os.truncate(group, group.stat().st_size // 2)
        self.damaged(restored, {"calls"}, "cannot be read")

    def test_metadata_that_is_none_of_tritons(self, restored: Shop) -> None:
        for text in ("[]", "null", "{}", '{"target": "cuda:90"}'):
            restored.entry("calls", "calls.json").write_text(text)
            self.damaged(restored, {"calls"}, "none of Triton's")

    def test_metadata_of_another_kernel(self, restored: Shop) -> None:
        theirs = next(restored.cache.glob("*/stores.json")).read_text()
        restored.entry("calls", "calls.json").write_text(theirs)
        self.damaged(restored, {"calls"}, "another kernel's")

    def test_a_binary_of_another_kernel(self, restored: Shop) -> None:
        theirs = next(restored.cache.glob("*/stores.cubin")).read_bytes()
        restored.entry("calls", "*.cubin").write_bytes(theirs)
        self.damaged(restored, {"calls"}, "cubin is another kernel's")
        report = as_json(restored.run("compile"))
        assert {v["outcome"] for v in report["variants"] if v["kernel"].endswith(".calls")} == {"compiled"}
        assert as_json(restored.run("verify"))["counts"] == {"warm": len(restored.manifest.variants)}

    @pytest.mark.parametrize("text", ["[]", "{}", None])
    def test_a_replay_makes_such_an_entry_anew(self, restored: Shop, text: str | None) -> None:
        theirs = next(restored.cache.glob("*/stores.json")).read_text()
        restored.entry("calls", "calls.json").write_text(theirs if text is None else text)
        report = as_json(restored.run("compile"))
        found = {v["outcome"] for v in report["variants"] if v["kernel"].endswith(".calls")}
        assert found == {"compiled"}
        assert as_json(restored.run("verify"))["counts"] == {"warm": len(restored.manifest.variants)}

    def test_an_edited_callee(self, restored: Shop) -> None:
        restored.source.write_text(SHOP.replace("value + value", "value * 3"))
        self.damaged(restored, {"calls"}, "source changed")

    def test_a_line_above_the_kernels(self, restored: Shop) -> None:
        # The same kernels, but Triton's disk key holds the line (CASES D4).
        restored.source.write_text("# a comment\n" + SHOP)
        self.damaged(restored, {"calls", "stores"}, "^not in the cache$")

    @pytest.mark.parametrize("name", ["TRITON_DEBUG", "TRITON_DISABLE_LINE_INFO", "DISABLE_LLVM_OPT"])
    def test_a_variable_that_enters_the_key(self, shop: Shop, name: str) -> None:
        self.damaged(shop, {"calls", "stores"}, "not in the cache", **{name: "1"})

    def test_text_names_the_variant(self, restored: Shop) -> None:
        restored.entry("calls", "*.cubin").unlink()
        place = ("--target", "cuda:90", "--cache-dir", restored.cache, "--allow", "shop")
        done = jitreplay(restored.folder, "verify", restored.path, *place)

        assert done.returncode == 1
        (line,) = [line for line in done.stdout.splitlines() if "shop.calls" in line]
        assert restored.digest("calls")[:8] in line and "cubin is missing" in line


class TestReplay:
    def test_finds_all_in_a_prebuilt_cache(self, shop: Shop) -> None:
        report = as_json(shop.run("replay"))

        assert report["counts"] == {"cached": 3}
        assert report.keys() == {"counts", "seconds", "variants", "memory", "loaded", "cache"} and report["loaded"] == 3
        assert report["memory"].keys() == {"host"}  # no GPU here

    def test_mends_a_cut_entry(self, restored: Shop) -> None:
        cubin = restored.entry("calls", "*.cubin")
        size = cubin.stat().st_size
        os.truncate(cubin, 100)

        report = as_json(restored.run("compile"))
        assert report["counts"] == {"compiled": 1, "cached": 2}
        assert restored.entry("calls", "*.cubin").stat().st_size == size

    def test_strict_stops_with_the_variant_named(self, shop: Shop, tmp_path: Path) -> None:
        variant = shop.manifest.variants[0]
        args = (Argument(Tensor("float99"), "*fp32:D"), *variant.args[1:])
        path = tmp_path / "kernels.jitreplay"
        save(merge([Manifest(shop.manifest.environments, (structs.replace(variant, args=args),))]), path)
        words = ("--target", "cuda:90", "--cache-dir", tmp_path / "cache", "--allow", "shop")
        assert jitreplay(shop.folder, "replay", path, *words).returncode == 1

        done = jitreplay(shop.folder, "replay", path, *words, "--strict")
        assert done.returncode != 0
        assert len(done.stderr.splitlines()) == 1
        assert variant.kernel.name in done.stderr and variant.digest in done.stderr and "float99" in done.stderr


class TestUsage:
    @pytest.mark.parametrize("command", ["compile", "replay", "verify"])
    def test_an_unknown_target_exits_with_2_and_lists_the_known(self, shop: Shop, command: str) -> None:
        done = shop.run(command, target="cuda:91")

        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "cuda:91" in done.stderr and "cuda:90" in done.stderr

    @pytest.mark.skipif(os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd"), reason="there is a GPU here")
    @pytest.mark.parametrize("command", ["replay", "verify"])
    def test_no_gpu_and_no_target_exits_with_2_and_the_hint(self, shop: Shop, command: str) -> None:
        done = jitreplay(shop.folder, command, shop.path)

        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "--target cuda:90" in done.stderr

    @pytest.mark.parametrize("command", ["compile", "replay", "verify"])
    def test_a_missing_file_exits_with_2(self, tmp_path: Path, command: str) -> None:
        words = ("--target", "cuda:90", "--cache-dir", tmp_path / "cache")
        done = jitreplay(tmp_path, command, tmp_path / "missing.jitreplay", *words)

        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1 and "missing.jitreplay" in done.stderr


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What `demo` printed, and the folder that it kept."""
    folder = tmp_path_factory.mktemp("demo")
    done = jitreplay(folder, "demo", "--traffic", "chat", "--keep", folder / "kept", "--json")
    return as_json(done), folder / "kept"


class TestDemo:
    def test_shows_three_boots_of_which_only_the_first_compiles_in_requests(
        self, demo: tuple[dict[str, Any], Path]
    ) -> None:
        boots, folder = demo
        first, second, third = boots["no replay"], boots["replay"], boots["replay, prebuilt cache"]
        variants = len(file.load(folder / "kernels.jitreplay").variants)

        assert first["requests"] > 0 and first["boot"] + first["requests"] == variants
        assert (second["requests"], second["boot"]) == (0, variants)
        assert (third["requests"], third["boot"]) == (0, 0)

    def test_numbers_agree_with_each_other(self, demo: tuple[dict[str, Any], Path]) -> None:
        boots, _ = demo

        for boot in boots.values():
            assert boot["requests"] == sum(boot["kernels"].values())
            assert (boot["stalled"] == 0) == (boot["requests"] == 0) and boot["stalled"] <= boot["served"]
        assert len({boot["served"] for boot in boots.values()}) == 1

    def test_an_unknown_traffic_is_told(self, tmp_path: Path) -> None:
        done = jitreplay(tmp_path, "demo", "--traffic", "none")

        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert "none" in done.stderr


def test_json_is_all_that_goes_to_stdout(shop: Shop) -> None:
    done = shop.run("verify", TRITON_DEBUG="1")

    json.loads(done.stdout)
