"""The compile helper's early start: before what takes the server long, and only where it is wanted."""

import json
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest

from jitreplay.jit.devices import parse_target
from jitreplay.manifest.model import Manifest

from .helpers import goods, merged, program, save
from .test_children import REPLAYED, STARTED

UNASKED = """
import jitreplay.replayer.early as early
early.running_device = lambda: None
"""
"""As before a driver is asked."""
GONE = "from kernels import faults\nfaults.good.fn.__qualname__ = ''\ndel faults.good\n"
GPU = "early.may_have = lambda device: True\n"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The manifest of two variants of the kernel that compiles."""
    return goods(tmp_path_factory.mktemp("good"), 2)


def test_it_is_started_before_tritons_hash_is_there(tmp_path: Path, good: Manifest) -> None:
    save(good, tmp_path / "kernels.jitreplay")
    code = """
    import jitreplay.jit.triton_hash as taken
    seen, wait = [], taken.wait
    taken.wait = lambda: (seen.append(len(started)), wait())
    """
    code = STARTED + dedent(code) + REPLAYED + "answer([seen, report.counts])"
    assert program(tmp_path, code, JITREPLAY_JOBS="2") == [[1], {"compiled": 2}]


def test_it_is_started_before_the_device_is_asked(tmp_path: Path, good: Manifest) -> None:
    save(good, tmp_path / "kernels.jitreplay")
    code = """
    import jitreplay.replayer.session as sessions
    seen, ask = [], sessions.live_target
    sessions.live_target = lambda: (seen.append(len(started)), ask())[1]
    """
    code = STARTED + dedent(code) + REPLAYED + "answer([seen, len(started), report.counts, report.notes])"
    assert program(tmp_path, code, JITREPLAY_JOBS="2") == [[1], 1, {"compiled": 2}, []]


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90/H200"])
def test_one_for_the_gpu_of_the_recording_is_not_used_on_another(tmp_path: Path, good: Manifest, target: str) -> None:
    save(good, tmp_path / "kernels.jitreplay")
    code = STARTED + UNASKED + GPU + REPLAYED
    code += "answer([[args[0].device.name for args in started], report.counts])"
    names, counts = program(tmp_path, code, target=target, JITREPLAY_JOBS="2")
    here = parse_target(target)[1]
    assert names == [good.environments[0].device.name, here.name]
    assert counts == {"compiled": 2}
    targets = [json.loads(path.read_text())["target"]["arch"] for path in (tmp_path / "cache").glob("*/good.json")]
    assert targets == [here.arch] * 2


@pytest.mark.parametrize(
    ("code", "variables", "count"),
    [
        ("", {}, 0),  # this machine has none
        (GPU, {}, 1),
        (GPU + GONE, {}, 0),
        (GPU + "allow = ()\n", {}, 0),
        (GPU, {"TRITON_INTERPRET": "1"}, 0),
    ],
    ids=["no GPU", "one that all is there for", "a kernel is gone", "a package is not allowed", "the interpreter"],
)
def test_it_is_started_early_for_what_is_there_alone(
    tmp_path: Path, good: Manifest, code: str, variables: dict[str, str], count: int
) -> None:
    save(good, tmp_path / "kernels.jitreplay")
    before = """
    import jitreplay.replayer.session as sessions
    sessions.live_target = lambda: 1 / 0
    allow = ("kernels",)
    """
    after = """
    try:
        jitreplay.replay("kernels.jitreplay", allow=allow)
    except ZeroDivisionError:
        answer(len(started))
    """
    code = STARTED + UNASKED + dedent(before) + code + dedent(after)
    assert program(tmp_path, code, JITREPLAY_JOBS="2", **variables) == count


def test_a_stamp_decides_however_often_a_kernel_changed(tmp_path: Path, good: Manifest) -> None:
    prints = [good.variants[0].kernel.fingerprint[n:] + "0" * n for n in (1, 2, 3)]
    before = tuple(
        msgspec.structs.replace(v, kernel=msgspec.structs.replace(v.kernel, fingerprint=text))
        for v in good.variants
        for text in prints
    )
    save(Manifest(good.environments, good.variants + before), tmp_path / "kernels.jitreplay")
    code = STARTED + REPLAYED + "answer([report.counts, len(started)])"
    assert program(tmp_path, code, JITREPLAY_JOBS="2") == [{"compiled": 2, "changed": 6}, 1]
    assert program(tmp_path, code, JITREPLAY_JOBS="2") == [{"cached": 2, "changed": 6}, 0]


def test_it_fills_the_cache_that_a_kernels_module_sets(tmp_path: Path, good: Manifest) -> None:
    (tmp_path / "sets_cache.py").write_text(
        f"import os\nos.environ['TRITON_CACHE_DIR'] = {str(tmp_path / 'other')!r}\nfrom kernels.faults import *\n"
    )
    variants = tuple(
        msgspec.structs.replace(v, kernel=msgspec.structs.replace(v.kernel, module="sets_cache")) for v in good.variants
    )
    save(Manifest(good.environments, variants), tmp_path / "kernels.jitreplay")
    code = STARTED + REPLAYED.replace('"kernels",', '"kernels", "sets_cache"')
    code += "answer([report.counts, len(started)])"
    assert program(tmp_path, code, JITREPLAY_JOBS="2") == [{"compiled": 2}, 1]
    assert len(list((tmp_path / "other").glob("*/good.cubin"))) == 2
    assert program(tmp_path, code, JITREPLAY_JOBS="2") == [{"cached": 2}, 0]


def test_one_that_is_left_before_it_is_there_imports_nothing(tmp_path: Path, good: Manifest) -> None:
    save(good, tmp_path / "kernels.jitreplay")
    code = """
    import subprocess
    from jitreplay.replayer.children import MODULE
    from jitreplay.replayer.wire import Leave, pack
    report = jitreplay.replay("kernels.jitreplay", allow=("kernels",))
    process = subprocess.Popen([sys.executable, "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(pack(started[0][0]) + pack(Leave()))
    process.stdin.flush()
    answer([process.stdout.read().decode(errors="replace"), process.wait()])
    """
    assert program(tmp_path, STARTED + dedent(code), JITREPLAY_JOBS="2") == ["", 0]


def test_none_stays_where_a_replay_cannot_begin(tmp_path: Path, good: Manifest) -> None:
    save(good, tmp_path / "kernels.jitreplay")
    code = """
    import jitreplay.replayer.session as sessions
    from jitreplay.manifest.errors import JitreplayError
    helpers = []
    prefetching.Helper = lambda *args: (helpers.append(helper(*args)), helpers[-1])[1]
    def no_gpu():
        raise JitreplayError("no GPU")
    sessions.live_target = no_gpu
    """
    code = STARTED + dedent(code) + REPLAYED + "answer([report.error, [h._process.poll() for h in helpers]])"
    assert program(tmp_path, code, JITREPLAY_JOBS="2") == ["no GPU", [0]]


def test_it_compiles_what_a_configuration_will_launch(tmp_path: Path) -> None:
    """Recorded under two batch sizes; a third makes one key of the two."""
    for size in (16, 8):
        code = f"""
        from kernels.basic import copy
        recorder.describe("toy", settings={{"max_num_seqs": {size}}})
        copy[(1,)](torch.zeros(64), torch.zeros(64), {size}, BLOCK=32)
        answer(None)
        """
        program(tmp_path / str(size), code, record=tmp_path / "journals" / str(size))
    path = save(merged(tmp_path / "journals" / "16", tmp_path / "journals" / "8"), tmp_path / "kernels.jitreplay")
    code = f"""
    from pathlib import Path
    from jitreplay.replayer import prefetch
    manifest = jitreplay.load({str(path)!r})

    def compiled(cache, settings, held=False):
        os.environ["TRITON_CACHE_DIR"] = cache
        ahead = prefetch.begin(manifest, allow=("kernels",), jobs=1, ask=False)
        before = len(ahead._numbers), ahead.children is not None
        if held:
            ahead.quarantine.add(manifest.variants[0].kernel, "0" * 32, "it hung")
        asked = ahead.ask_all(settings)
        states = [ahead.children.wait(number).state.value for number in ahead._numbers.values()]
        ahead.close()
        keys = [json.loads(path.read_text())["hash"] for path in Path(cache).glob("*/copy.json")]
        return [before, asked, states, keys]

    answer([len(manifest.variants), compiled({str(tmp_path / "a")!r}, {{}}),
            compiled({str(tmp_path / "b")!r}, {{"max_num_seqs": 7}}),
            compiled({str(tmp_path / "c")!r}, {{"max_num_seqs": 16}}),
            compiled({str(tmp_path / "d")!r}, {{"max_num_seqs": 7}}, held=True)])
    """
    count, recorded, changed, equal, held = program(tmp_path, code)
    assert count == 2
    assert recorded[:3] == [[0, True], 2, ["compiled", "compiled"]] and len(recorded[3]) == 2
    assert changed[0] == [0, True] and set(changed[2]) <= {"compiled", "cached"} and len(changed[3]) == 1
    assert set(changed[3]) < set(recorded[3])
    assert held[1:] == [0, [], []]  # the replay knows which of its keys it was
    assert len(equal[3]) == 1 and {*equal[3], *changed[3]} == set(recorded[3])
