"""What was compiled before the recorder came is read from Triton's own caches."""

from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.manifest.model import Phase, digest
from jitreplay.manifest.values import Integer, Tensor

from .helpers import by_kernel, headless, merged, program, save, variants_of
from .test_keys import NOT_REPLAYED, REPLAY, TARGETS

LATE = """
from kernels import uncompiled
uncompiled.install()
from kernels import arguments, shop
for name, launch in arguments.launches(driver.get_current_target().backend).items():
    try:
        launch()
    except Exception:
        pass
shop.launch_named()
recorder = jitreplay.Recorder({folder!r}).start()
counts, held = dict(recorder.counts), keys()
recorder.stop()
answer({{"keys": held, "counts": counts}})
"""


@pytest.fixture(scope="module", params=TARGETS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recorder that comes after all launches, and a replay of what it found."""
    folder = tmp_path_factory.mktemp("harvest")
    late = program(folder, LATE.format(folder=str(folder / "recording")), target=request.param)
    manifest = merged(folder / "recording")
    path = save(manifest, folder / "harvested.jitreplay")
    code = REPLAY.format(compiler="uncompiled.install()", path=str(path))
    return {"late": late, "manifest": manifest, "replayed": program(folder / "again", code, target=request.param)}


class TestHarvest:
    def test_every_key_is_found_once(self, found: dict[str, Any]) -> None:
        held = {name: set(map(digest, keys)) for name, keys in found["late"]["keys"].items()}
        tuned = {"kernels.shop:tuned", "kernels.shop:both"}

        recorded = by_kernel(found["manifest"])
        assert found["late"]["counts"]["errors"] == 0
        assert set(recorded) == set(held)
        assert {name for name in held if recorded[name] != held[name]} == tuned  # less the losers
        assert all(recorded[name] < held[name] for name in tuned)

    def test_a_replay_makes_the_same_keys(self, found: dict[str, Any]) -> None:
        again = {name: set(map(digest, keys)) for name, keys in found["replayed"]["keys"].items()}
        variants = [v for v in found["manifest"].variants if v.opaque() is not None]
        opaque = {(f"{v.kernel.module}:{v.kernel.qualname}", v.digest): v.opaque() for v in variants}

        for name, digests in by_kernel(found["manifest"]).items():
            if name not in NOT_REPLAYED:
                assert again.get(name, set()) == {each for each in digests if (name, each) not in opaque}, name
        # Functions within a tuple stand in a key by their hash, and a Gluon descriptor's layout by its text.
        assert {value.type for _, value in filter(None, opaque.values())} <= {
            "triton.runtime.jit.JITCallable",
            "TensorDescriptor",
        }
        assert len(opaque) <= 4

    def test_they_are_marked(self, found: dict[str, Any]) -> None:
        assert all(v.harvested and not v.real and v.grid is None for v in found["manifest"].variants)
        assert {v.phase for v in found["manifest"].variants} == {Phase.STARTUP}


def test_the_next_launch_tells_the_rest(tmp_path: Path) -> None:
    import torch
    from kernels.basic import plain

    x = torch.zeros(64)[1:]
    with headless(tmp_path):
        plain[(1,)](x, 7)
        with jitreplay.Recorder(tmp_path / "recording"):
            before = merged(tmp_path / "recording")
            plain[(3, 2)](x, 9)
            after = merged(tmp_path / "recording")
            plain[(1,)](x, 7)
            last = merged(tmp_path / "recording")

    (old,), (new,) = variants_of(before, "plain"), variants_of(after, "plain")
    assert old.harvested and old.args[0].value == Tensor("float32", (1,), (1,), 1, 4)
    assert new.real and not new.harvested and new.grid == (3, 2, 1)
    assert isinstance(new.args[0].value, Tensor) and new.args[0].value.shape == (63,)
    assert new.args[1].value == Integer(9) and new.digest == old.digest
    assert last == after
