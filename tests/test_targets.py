"""A manifest of one GPU on another: everything is derived anew there, so no binary of another target is under a key."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.jit import tools
from jitreplay.jit.devices import DEVICES
from jitreplay.jit.live_device import recorded_device
from jitreplay.manifest.model import Device as Recorded
from jitreplay.manifest.model import Environment, Manifest, Variant
from jitreplay.replayer.outcome import Outcome, Report

from .helpers import headless, merged

ARCHS = ("cuda:80", "cuda:100", "cuda:120")


def traffic() -> None:
    import torch
    from kernels.basic import Holder, biased, copy

    x, y = torch.zeros(64), torch.zeros(64)
    copy[(1,)](x, y, 32, BLOCK=16)
    copy[(1,)](x[1:], y, 5, BLOCK=32, num_warps=2)
    biased[(1,)](x, None, BLOCK=16)
    Holder.held[(1,)](x, 16)


def held() -> dict[tuple[str, str], tuple[str, str, bytes]]:
    """Return, by kernel and key, what Triton would launch: its target, the hash of its disk entry, its binary."""
    from kernels import basic

    found = {}
    for fn in (basic.copy, basic.biased, basic.Holder.held):
        for caches in fn.device_caches.values():
            for key, kernel in caches[0].items():
                target = kernel.metadata.target
                found[fn.fn.__qualname__, key] = (f"{target.backend}:{target.arch}", kernel.hash, kernel.kernel)
    return found


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """A recording on an H100."""
    folder = tmp_path_factory.mktemp("recorded")
    with headless(folder, "cuda:90"), jitreplay.Recorder(folder / "recording"):
        traffic()
    return merged(folder / "recording")


def replayed(folder: Path, target: str, manifest: Manifest) -> tuple[Report, Any]:
    with headless(folder, target):
        return jitreplay.replay(manifest), held()


@pytest.mark.parametrize("target", ARCHS)
def test_every_binary_is_the_one_that_a_launch_there_makes(target: str, recording: Manifest, tmp_path: Path) -> None:
    report, found = replayed(tmp_path / "replayed", target, recording)
    with headless(tmp_path / "native", target):
        traffic()
        native = held()
    # On the cache directory of a recording too, whose entries have other hashes.
    with headless(tmp_path / "shared", "cuda:90"):
        traffic()
        there = held()
    again, shared = replayed(tmp_path / "shared", target, recording)

    assert len(native) == len(recording.variants) == 4
    assert found == native == shared
    assert {binary_target for binary_target, _, _ in found.values()} == {target}
    # The key does not hold the target, the hash of the entry does.
    assert set(there) == set(native)
    assert not {digest for _, digest, _ in there.values()} & {digest for _, digest, _ in native.values()}
    for each in (report, again):
        assert each.drift == [f"target: cuda:90 -> {target}"]
        assert each.counts == {"compiled": 4}


def test_each_variant_says_whether_it_carries_over_to_another_backend(recording: Manifest, tmp_path: Path) -> None:
    report, found = replayed(tmp_path, "hip:gfx942", recording)

    assert found == {}
    assert {(r.outcome, r.reason) for r in report.results} == {(Outcome.SKIPPED, "recorded on cuda, this is hip")}


def test_a_key_in_memory_is_never_replaced(recording: Manifest, tmp_path: Path) -> None:
    with headless(tmp_path, "cuda:80"):
        traffic()
        before = {key: id(kernel) for key, kernel in kernels_in_memory().items()}
        report = jitreplay.replay(recording)
        after = {key: id(kernel) for key, kernel in kernels_in_memory().items()}

    assert report.counts == {"warm": 4} and before == after


def kernels_in_memory() -> dict[str, Any]:
    from kernels import basic

    return {
        f"{fn.fn.__qualname__} {key}": kernel
        for fn in (basic.copy, basic.biased, basic.Holder.held)
        for caches in fn.device_caches.values()
        for key, kernel in caches[0].items()
    }


def test_a_forged_digest_gains_nothing(recording: Manifest, tmp_path: Path) -> None:
    """A manifest that gives one variant the key of another: what is stored is what the arguments make."""
    from msgspec import structs

    first, second = [v for v in recording.variants if v.kernel.qualname == "copy"]
    forged: list[Variant] = [structs.replace(first, digest=second.digest), *recording.variants[2:]]

    report, found = replayed(tmp_path / "forged", "cuda:90", Manifest(recording.environments, tuple(forged)))
    _, honest = replayed(tmp_path / "honest", "cuda:90", Manifest(recording.environments, (first, *forged[1:])))

    assert found == honest
    assert Outcome.DRIFTED in {r.outcome for r in report.results}


def test_no_code_of_ours_stores_a_key() -> None:
    """The caches of kernels are read and cleared, and only Triton writes to them."""
    from .helpers import ROOT

    for room in ("jit", "recorder", "replayer", "engines", "cli"):
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text()
            assert "preload(" not in text.replace(".preload()", ""), path
            assert "kernel_cache[" not in text and "device_caches[device][0][" not in text, path


class TestMayHave:
    """Whether this host may have a GPU, asked of no driver."""

    @pytest.fixture
    def boards(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        for name in ("KFD", "NVIDIA", "BOARDS"):
            monkeypatch.setattr(tools, name, tmp_path / name)
        (tmp_path / "NVIDIA").touch()
        return tmp_path / "BOARDS"

    @pytest.mark.parametrize(
        ("models", "there"),
        [
            ([], True),  # a container without that part of /proc
            (["NVIDIA H200"], True),
            (["NVIDIA H200", "NVIDIA H200"], True),
            (["NVIDIA H100 80GB HBM3"], False),
            (["NVIDIA H200", "NVIDIA L4"], False),
        ],
    )
    def test_boards_are_told_by_their_models(self, boards: Path, models: list[str], there: bool) -> None:
        for number, model in enumerate(models):
            (boards / str(number)).mkdir(parents=True)
            (boards / str(number) / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 18\n")
        assert tools.may_have(DEVICES["H200"]) is there
        assert not tools.may_have(DEVICES["MI300X"])

    def test_none_is_there_without_its_file(self, boards: Path, tmp_path: Path) -> None:
        (tmp_path / "NVIDIA").rename(tmp_path / "KFD")
        assert not tools.may_have(DEVICES["H200"])
        assert tools.may_have(DEVICES["MI300X"])

    @pytest.mark.parametrize("value", ["", "-1"])
    def test_none_is_there_that_this_process_may_not_see(
        self, boards: Path, monkeypatch: pytest.MonkeyPatch, value: str
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        assert tools.may_have(DEVICES["H200"])
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert not tools.may_have(DEVICES["H200"])


def test_a_recorded_device_has_the_recorded_facts() -> None:
    """As where a board is partitioned: the table has the whole one."""
    whole = DEVICES["MI300X"]
    part = Recorded(name=whole.name, shared_memory=whole.max_shared_mem, multiprocessors=38, memory=1 << 34)
    found = recorded_device(Environment("hip", "gfx942", 64, part))
    assert found is not None
    assert (found.name, found.multiprocessors, found.total_memory) == (whole.name, 38, 1 << 34)
    assert not found.is_like(whole) and replace(found, multiprocessors=whole.multiprocessors).is_like(whole)
