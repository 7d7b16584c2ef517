"""A manifest of one GPU on another: everything is derived anew there, so no binary of another target is under a key."""

from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.manifest.model import Manifest, Variant
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
