"""Every kind of argument: recorded in one process, replayed in a fresh one, and the keys that Triton holds compared."""

from pathlib import Path
from typing import Any

import pytest

from jitreplay.manifest.model import digest
from jitreplay.manifest.values import Opaque

from .helpers import by_kernel, merged, program, save

TARGETS = ("cuda:90", "hip:gfx942")
NOT_REPLAYED = ("kernels.odd:opaque", "kernels.odd:optioned")

# The compiler is left out (see `kernels.uncompiled`): a key is made before it runs.
LAUNCH = """
from kernels import uncompiled
{compiler}
from kernels import arguments
backend = driver.get_current_target().backend
from kernels.odd import constant, constant_too

def constants():
    return sum(len(caches[0]) for kernel in (constant, constant_too) for caches in kernel.device_caches.values())

raised, made, held = {{}}, {{}}, 0
groups = [arguments.launches(backend), arguments.hopeless(), arguments.refused_options(backend), arguments.refusals()]
for group in groups:
    for name, launch in group.items():
        try:
            launch()
        except Exception as error:
            raised[name] = [type(error).__name__, str(error).partition(" at 0x")[0]]
        made[name], held = constants() - held, constants()
names = [list(group) for group in groups]
counts = getattr({recorder}, "counts", None)
answer({{"keys": keys(), "raised": raised, "made": made, "names": names, "counts": counts}})
"""
REPLAY = """
from kernels import uncompiled
{compiler}
report = jitreplay.replay({path!r}, allow=("kernels",))
told = [[r.variant.kernel.qualname, r.outcome.value, r.reason] for r in report.results]
answer({{"keys": keys(), "told": told, "drift": report.drift, "launches": driver.launches}})
"""


def run(folder: Path, target: str, compiler: str = "uncompiled.install()") -> dict[str, Any]:
    """Launch all kinds plainly, launch them with the recorder on, replay what it recorded."""
    recording, path = folder / "recording", folder / "keys.jitreplay"
    found: dict[str, Any] = {}
    plain = LAUNCH.format(compiler=compiler, recorder=None)
    found["plain"] = program(folder / "plain", plain, target=target)
    recorded = LAUNCH.format(compiler=compiler, recorder="recorder")
    found["recorded"] = program(folder / "recorded", recorded, target=target, record=recording)
    found["manifest"] = merged(recording)
    save(found["manifest"], path)
    replayed = REPLAY.format(compiler=compiler, path=str(path))
    found["replayed"] = program(folder / "replayed", replayed, target=target)
    return found


@pytest.fixture(scope="module", params=TARGETS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("keys"), request.param)


def replayable(keys: dict[str, list[str]]) -> dict[str, list[str]]:
    return {kernel: held for kernel, held in keys.items() if kernel not in NOT_REPLAYED}


class TestKeys:
    def test_a_replay_makes_the_recorded_keys_and_no_more(self, found: dict[str, Any]) -> None:
        assert found["replayed"]["keys"] == replayable(found["recorded"]["keys"])
        assert found["replayed"]["launches"] == 0 and found["replayed"]["drift"] == []

    def test_the_recorder_changes_no_key_and_no_error(self, found: dict[str, Any]) -> None:
        plain, recorded = found["plain"], found["recorded"]

        assert replayable(recorded["keys"]) == replayable(plain["keys"])
        assert recorded["raised"] == plain["raised"]
        assert recorded["counts"]["errors"] == recorded["counts"]["dropped"] == 0

    def test_the_manifest_holds_each_key_once(self, found: dict[str, Any]) -> None:
        held = found["recorded"]["keys"]

        assert by_kernel(found["manifest"]) == {name: {digest(key) for key in keys} for name, keys in held.items()}

    def test_each_constant_has_a_key_of_its_own(self, found: dict[str, Any]) -> None:
        made = {name: n for name, n in found["recorded"]["made"].items() if name.startswith("constants")}

        assert {name: n for name, n in made.items() if n != 1} == {}

    def test_what_triton_refuses_is_not_recorded(self, found: dict[str, Any]) -> None:
        _, hopeless, options, refusals = found["recorded"]["names"]

        assert set(refusals) <= set(found["recorded"]["raised"])
        assert not {*hopeless, *options} & set(found["recorded"]["raised"])

    def test_what_no_process_can_rebuild_is_recorded_and_told(self, found: dict[str, Any]) -> None:
        opaque = [v.opaque() for v in found["manifest"].variants if v.kernel.qualname == "opaque"]
        told = [reason for name, outcome, reason in found["replayed"]["told"] if name == "opaque"]

        assert sorted(value.type for _, value in opaque) == sorted(
            name.replace("hopeless.", "") for name in found["recorded"]["names"][1]
        )
        assert len(told) == len(opaque) and all("cannot be rebuilt" in reason for reason in told)

    def test_an_option_off_the_list_is_recorded_and_told(self, found: dict[str, Any]) -> None:
        options = found["recorded"]["names"][2]
        told = [(outcome, reason) for name, outcome, reason in found["replayed"]["told"] if name == "optioned"]

        assert {outcome for outcome, _ in told} == {"skipped"}
        assert sorted(reason.split()[1] for _, reason in told) == sorted(options)

    def test_nothing_of_a_value_that_is_not_on_the_list_is_written(self, found: dict[str, Any]) -> None:
        (tensor,) = [
            value
            for v in found["manifest"].variants
            for value in [v.args[0].value]
            if isinstance(value, Opaque) and value.type == "torch.Tensor"
        ]

        assert "0x" not in tensor.why and "tensor(" not in tensor.why


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_keys_are_the_same_with_the_compiler(target: str, tmp_path: Path) -> None:
    found = run(tmp_path, target, compiler="")

    held = replayable(found["recorded"]["keys"])
    assert sum(map(len, held.values())) > 150
    assert found["replayed"]["keys"] == held


SAME = """
from kernels import uncompiled
uncompiled.install()
from kernels import odd
for each in range(5):
    odd.opaque[(1,)](float("nan"))
for kernel, values in zip([odd.constant, odd.constant_too, odd.listed_constant, odd.one_more], {values}):
    for value in values:
        kernel[(1,)](value)
found = {{name: [key.partition(")]")[0] for key in held] for name, held in keys().items()}}
answer([found, recorder.counts["variants"]])
"""


def test_constants_that_python_takes_for_one_are_recorded_as_the_first(tmp_path: Path) -> None:
    values = [(1, True, 1.0), (True, 1.0, 1), (0.0, -0.0), (-0.0, 0, False)]

    keys, variants = program(tmp_path, SAME.format(values=values), record=tmp_path / "recording")

    firsts = [[f"[('constexpr', {first}"] for first, *_ in values]
    names = [f"kernels.odd:{name}" for name in ("constant", "constant_too", "listed_constant", "one_more", "opaque")]
    assert keys == dict(zip(names, [*firsts, ["[('constexpr', nan"]], strict=True))
    assert variants == 5
