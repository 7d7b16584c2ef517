"""Several devices in one process: recorded once, warmed on each that is named, never on another (J3, J4)."""

from pathlib import Path

import pytest

from .helpers import goods, merged, program, save

CODE = """
from kernels.faults import good
def held():
    return {str(device): sorted(k.module is not None for k in caches[0].values())
            for device, caches in good.device_caches.items() if caches[0]}
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    return save(goods(folder, 2), folder / "kernels.jitreplay")


def test_a_key_that_two_devices_launch_is_recorded_once(tmp_path: Path) -> None:
    code = """
    from kernels.faults import good
    for device in (1, 0, 3):
        driver.set_current_device(device)
        good[(1,)](torch.zeros(16), N=1)
    answer([sorted(d for d, caches in good.device_caches.items() if caches[0]), driver.get_current_device()])
    """
    assert program(tmp_path, code, record=tmp_path / "journals") == [[0, 1, 3], 3]
    assert len(merged(tmp_path / "journals").variants) == 1


def test_it_is_warmed_on_the_current_device_alone(tmp_path: Path, recorded: Path) -> None:
    code = f"""{CODE}
driver.set_current_device(2)
report = jitreplay.replay({str(recorded)!r}, allow=("kernels",))
answer([held(), report.counts, driver.get_current_device()])
"""
    assert program(tmp_path, code) == [{"2": [True, True]}, {"compiled": 2}, 2]


def test_it_is_warmed_on_each_that_is_named(tmp_path: Path, recorded: Path) -> None:
    code = f"""{CODE}
report = jitreplay.replay({str(recorded)!r}, allow=("kernels",), devices=(1, 0, 3))
boot, now = happened(), driver.get_current_device()
for device in (3, 1, 0):
    driver.set_current_device(device)
    for n in range(2):
        good[(1,)](torch.zeros(16), N=n)
kinds = [kind for kind, _ in boot]
answer([held(), report.counts, report.warm, kinds.count("compile"), kinds.count("load"), happened(), now, report.notes])
"""
    held, counts, warm, compiles, loads, later, now, notes = program(tmp_path, code)

    assert held == {"0": [True] * 2, "1": [True] * 2, "3": [True] * 2}
    assert (counts, warm, compiles, loads, later, now) == ({"compiled": 2}, True, 2, 6, [], 0)
    assert [note.partition(": replayed 2 variants")[0] for note in notes] == ["on device 0", "on device 3"]
    assert all("2 cached; 2 loaded" in note for note in notes)


def test_what_fails_on_another_is_told_by_name(tmp_path: Path, recorded: Path) -> None:
    code = f"""{CODE}
load = driver.utils.load_binary
def failing(name, kernel, shared, device):
    if device == 1:
        raise RuntimeError("no kernel image")
    return load(name, kernel, shared, device)
driver.utils.load_binary = failing
report = jitreplay.replay({str(recorded)!r}, allow=("kernels",), devices=(0, 1))
answer([report.counts, report.warm, sorted(r.reason for r in report.results if r.reason), driver.get_current_device()])
"""
    counts, warm, reasons, now = program(tmp_path, code)

    assert counts == {"compiled": 2, "failed": 2} and not warm and now == 0
    assert all(reason.startswith("on device 1: ") and "no kernel image" in reason for reason in reasons)


def test_a_strict_replay_leaves_the_current_device(tmp_path: Path, recorded: Path) -> None:
    code = f"""
driver.utils.load_binary = None
try:
    jitreplay.replay({str(recorded)!r}, allow=("kernels",), devices=(4, 5), strict=True)
except Exception as error:
    answer([type(error).__name__, driver.get_current_device()])
"""
    assert program(tmp_path, code) == ["ReplayError", 0]
