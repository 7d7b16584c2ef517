"""One compile helper for the processes of a host that want the same: who starts it, who joins, and when it ends."""

from pathlib import Path

import pytest

from .helpers import goods, program, save

SETUP = """
import time
from jitreplay import load
from jitreplay.replayer import prefetch
from jitreplay.replayer.children import Guest, Helper

manifest = load({path!r})

def begin():
    return prefetch.begin(manifest, allow=("kernels",), jobs=1)

def states(ahead):
    return [ahead.answer(v.kernel, v.digest).state.value for v in manifest.variants]

def until(true):
    for _ in range(600):
        if true():
            return True
        time.sleep(0.05)
    return False
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a manifest of three variants of one kernel."""
    folder = tmp_path_factory.mktemp("shared")
    return save(goods(folder, 3), folder / "kernels.jitreplay")


def run(folder: Path, path: Path, code: str, **variables: str) -> object:
    return program(folder, SETUP.format(path=str(path)) + code, **variables)


def test_the_second_joins_and_keeps_the_helper_that_the_first_leaves(tmp_path: Path, recorded: Path) -> None:
    code = """
first, second = begin(), begin()
kinds = [type(first.children) is Helper, type(second.children) is Guest]
process = first.children._process
until(lambda: second.children.ready_after)
first.close()
alone = states(second)
running = process.poll() is None
second.close()
answer([kinds, sorted(alone), running, until(lambda: process.poll() is not None)])
"""
    assert run(tmp_path, recorded, code) == [[True, True], ["compiled"] * 3, True, True]


@pytest.mark.parametrize("joined", [True, False])
def test_one_that_is_left_while_it_imports_goes_on_for_others_alone(
    tmp_path: Path, recorded: Path, joined: bool
) -> None:
    code = f"""
first = begin()
process = first.children._process
second = begin() if {joined} else None
first.close()
early = not first.children.ready_after
running = process.poll() is None
made = sorted(states(second)) if second else []
if second:
    second.close()
answer([early, running, made, until(lambda: process.poll() is not None)])
"""
    assert run(tmp_path, recorded, code) == [True, joined, ["compiled"] * 3 * joined, True]


def test_one_that_joins_as_the_owner_leaves_is_served(tmp_path: Path, recorded: Path) -> None:
    code = """
import signal, threading
first = begin()
states(first)
process = first.children._process
process.send_signal(signal.SIGSTOP)  # it hears both at once
leaving = threading.Thread(target=first.close)
leaving.start()
time.sleep(0.2)
second = begin()
process.send_signal(signal.SIGCONT)
made = states(second)
leaving.join()
second.close()
answer([type(second.children) is Guest, made, until(lambda: process.poll() is not None)])
"""
    assert run(tmp_path, recorded, code) == [True, ["cached"] * 3, True]


def test_what_was_compiled_for_one_is_found_by_the_other(tmp_path: Path, recorded: Path) -> None:
    code = """
first = begin()
made = states(first)
second = begin()
answer([made, states(second)])
"""
    assert run(tmp_path, recorded, code) == [["compiled"] * 3, ["cached"] * 3]


def test_a_helper_that_nobody_asks_ends_by_itself_and_another_goes_on(tmp_path: Path, recorded: Path) -> None:
    code = """
prefetch.LINGER = 0.5
first = begin()
made = states(first)
process = first.children._process
ended = until(lambda: process.poll() is not None) and first.children.ended
variant = manifest.variants[0]
asked = first.ask(variant, "another key")
again = first.answer(variant.kernel, "another key").state.value
answer([made, ended, asked, again, states(first), first.children.why_lost])
"""
    assert run(tmp_path, recorded, code) == [["compiled"] * 3, True, True, "cached", ["compiled"] * 3, ""]


def test_a_guest_goes_on_alone_when_the_helper_dies(tmp_path: Path, recorded: Path) -> None:
    code = """
first = begin()
prefetch.put(begin())
first.children._process.kill()
report = jitreplay.replay({path!r}, allow=("kernels",), jobs=1)
answer([sum(report.counts.values()), report.warm, report.stopped])
"""
    assert run(tmp_path, recorded, code.replace("{path!r}", repr(str(recorded)))) == [3, True, ""]


def test_a_socket_that_a_dead_helper_left_is_replaced(tmp_path: Path, recorded: Path) -> None:
    # The name of a socket is limited to 107 bytes, that of the folder is not.
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    code = """
from pathlib import Path
first, joined = begin(), begin()
kinds = [type(first.children) is Helper, type(joined.children) is Guest]
(left,) = Path(os.environ["TMPDIR"]).glob("jitreplay-*/*.sock")
first.children._process.kill()
first.children._process.wait()
kinds.append(left.exists())
second = begin()
answer([*kinds, type(second.children) is Helper, sorted(set(states(second)) - {"cached", "compiled"})])
"""
    assert run(tmp_path, recorded, code, TMPDIR=str(folder)) == [True, True, True, True, []]


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, recorded: Path) -> None:
    code = """
from pathlib import Path
folder = Path(os.environ["TMPDIR"]) / f"jitreplay-{os.getuid()}"
folder.mkdir()
folder.chmod(0o777)
first, second = begin(), begin()
answer([type(each.children) is Helper for each in (first, second)] + [list(map(str, folder.iterdir()))])
"""
    assert run(tmp_path, recorded, code, TMPDIR=str(tmp_path)) == [True, True, []]
