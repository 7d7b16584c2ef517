"""Triton's hash of itself: kept for the next boot, never trusted for another Triton's files, checked behind."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from jitreplay.jit.triton_hash import KEPT, MONTH, MOST, note, read, write

from .helpers import goods, jitreplay, program, save

BOOT = """
import functools, logging, threading
logging.basicConfig(level=logging.WARNING, stream=open("log", "w"), format="%(message)s", force=True)
import triton.runtime.cache as cache
own, may, asked = cache.triton_key, threading.Event(), []

@functools.lru_cache
def slow():
    asked.append(threading.current_thread() is threading.main_thread())
    may.wait({wait})
    return own()

cache.triton_key = slow
import jitreplay.jit.triton_hash as taken
report = jitreplay.replay({manifest!r}, allow=("kernels",))
early = not may.is_set() and {wait} > 1
stood_in = cache.triton_key is not slow
{then}
may.set()
taken.settle()
answer([report.counts, early and stood_in, asked, cache.triton_key is slow, open("log").read()])
"""


class Boots:
    """Boots of a server whose Triton takes long for its hash, on a cache that is full."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.notes = folder, folder / "cache" / ".jitreplay" / "triton"
        self.manifest = save(goods(folder, 2), folder / "kernels.jitreplay")

    def boot(self, wait: float = 0, then: str = "") -> Any:
        """Boot with a hash that comes `wait` seconds late, or when `then` is done, where that is sooner."""
        return program(self.folder, BOOT.format(wait=wait, manifest=str(self.manifest), then=then))

    @property
    def noted(self) -> Path:
        """The one note that there is."""
        (found,) = self.notes.iterdir()
        return found


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Boots:
    return Boots(tmp_path_factory.mktemp("boots"))


@pytest.fixture
def boots(full: Boots) -> Boots:
    shutil.rmtree(full.notes.parent, ignore_errors=True)
    return full


def test_the_second_boot_does_not_wait_for_it(boots: Boots) -> None:
    assert boots.boot() == [{"cached": 2}, False, [False], True, ""]
    noted = boots.noted.read_text()
    os.utime(boots.noted, (1, 1))

    counts, stood_in, asked, restored, log = boots.boot(wait=200)

    assert counts == {"cached": 2} and stood_in and asked == [False] and restored and log == ""
    assert boots.noted.read_text() == noted
    assert boots.noted.stat().st_mtime > 1  # it is in use, and not dropped for its age


def test_who_got_what_stood_in_has_the_true_one_later(boots: Boots) -> None:
    boots.boot()
    then = "from triton.runtime.cache import triton_key; kept = triton_key(); may.set(); taken.settle()\n"
    then += "assert kept == own() and triton_key is not slow and triton_key() == slow()\n"

    assert boots.boot(wait=200, then=then)[1:4] == [True, [False], True]


def test_a_forked_child_takes_its_own(boots: Boots) -> None:
    boots.boot()
    then = """
if os.fork() == 0:
    may.set()
    good = cache.triton_key is slow and taken._begun.found is None
    taken.begin(os.environ["TRITON_CACHE_DIR"])
    taken.settle()
    os._exit(0 if good and cache.triton_key is slow and slow() == own() else 1)
code = os.wait()[1]
assert code == 0, code
"""
    assert boots.boot(wait=200, then=then)[1:4] == [True, [False], True]


def test_threads_that_begin_at_once_leave_nothing(boots: Boots) -> None:
    boots.boot()
    code = """
    import sys, threading
    import triton.runtime.cache as cache
    import jitreplay.jit.triton_hash as taken
    sys.setswitchinterval(1e-5)
    own = cache.triton_key
    threads = [threading.Thread(target=taken.begin, args=(os.environ["TRITON_CACHE_DIR"],)) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    names = [thread.name for thread in threading.enumerate()]
    taken.settle()
    answer([names.count("jitreplay-hash"), cache.triton_key is own])
    """
    assert program(boots.folder, code) in ([1, True], [0, True])


@pytest.mark.parametrize("broken", ["del cache.triton_key", "threading.Thread.start = None", "triton.__file__ = None"])
def test_what_it_cannot_do_reaches_nobody(boots: Boots, broken: str) -> None:
    boots.boot()
    code = f"""
    import threading
    import triton.runtime.cache as cache
    import jitreplay.jit.triton_hash as taken
    own = cache.triton_key
    {broken}
    taken.begin(os.environ["TRITON_CACHE_DIR"])
    taken.wait()
    answer(getattr(cache, "triton_key", own) is own or "jitreplay-hash" in [t.name for t in threading.enumerate()])
    """
    assert program(boots.folder, code) is True


def test_a_hash_that_was_taken_before_is_not_kept(boots: Boots) -> None:
    # The files may have been replaced since.
    code = f"""
    import triton.runtime.cache as cache
    cache.triton_key()
    report = jitreplay.replay({str(boots.manifest)!r}, allow=("kernels",))
    answer(report.counts)
    """
    assert program(boots.folder, code) == {"cached": 2} and not boots.notes.exists()


def test_a_note_of_another_triton_is_told_and_removed(boots: Boots) -> None:
    boots.boot()
    write(boots.noted, "3.6.0-another")

    for words in (("verify",), ("compile", "--cache-dir", boots.folder / "cache")):
        done = jitreplay(boots.folder, *words, boots.manifest, "--target", "cuda:90", "--allow", "kernels", "--json")
        assert json.loads(done.stdout)["counts"] in ({"warm": 2}, {"cached": 2})  # for a verdict it is not asked
    counts, _, _, restored, log = boots.boot()

    assert counts == {"compiled": 2} and restored and "start this process again" in log
    assert list(boots.notes.iterdir()) == []
    assert boots.boot()[0] == {"cached": 2} and boots.noted


def test_a_program_that_ends_at_once_checks_it_too(boots: Boots) -> None:
    boots.boot()
    write(boots.noted, "3.6.0-another")

    program(boots.folder, f"jitreplay.replay({str(boots.manifest)!r}, allow=('kernels',))\nanswer(0)")

    assert list(boots.notes.iterdir()) == []


def test_one_that_cannot_be_kept_is_taken_at_each_boot(boots: Boots) -> None:
    boots.notes.parent.mkdir()
    boots.notes.write_text("in the way")
    try:
        for _ in range(2):
            assert boots.boot() == [{"cached": 2}, False, [False], True, ""]
    finally:
        boots.notes.unlink()


@pytest.mark.parametrize("text", ["", "3.6.0", "a\nb", "\n", "\xff\x00" * 50])
def test_a_note_that_is_not_whole_holds_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path / "note", "3.6.0-and-more")
    assert read(tmp_path / "note") == "3.6.0-and-more"

    (tmp_path / "note").write_bytes((tmp_path / "note").read_bytes()[:-1])
    assert read(tmp_path / "note") == ""
    (tmp_path / "note").write_bytes(text.encode("latin1"))
    assert read(tmp_path / "note") == ""


def test_verify_notes_nothing(boots: Boots) -> None:
    done = jitreplay(boots.folder, "verify", boots.manifest, "--target", "cuda:90", "--allow", "kernels")

    assert done.returncode == 0, done.stdout + done.stderr
    assert not boots.notes.exists()


def test_any_change_of_tritons_files_makes_it_another(tmp_path: Path) -> None:
    home = tmp_path / "triton"
    (home / "_C").mkdir(parents=True)
    library, module = home / "_C" / "libtriton.so", home / "compiler.py"
    library.write_bytes(b"old")
    module.write_text("x = 1")
    seen = [note(home, tmp_path)]
    assert note(home, tmp_path) == seen[0]

    def now() -> None:
        found = note(home, tmp_path)
        assert found not in seen and found.parent == seen[0].parent
        seen.append(found)

    before = library.stat()
    library.write_bytes(b"new")  # as long as before, and as old, for whoever looks no closer
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
    now()
    (home / "more.py").write_text("")
    now()
    (home / "more.py").unlink()
    module.rename(home / "other.py")
    now()
    backend = tmp_path / "sources"  # an editable install has its backends by link
    backend.mkdir()
    (home / "backends").symlink_to(backend, target_is_directory=True)
    (backend / "loop").symlink_to(home, target_is_directory=True)
    (backend / "compiler.py").write_text("x = 2")
    now()
    (backend / "compiler.py").write_text("x = 3")
    now()
    home.rename(tmp_path / "elsewhere")
    assert note(tmp_path / "elsewhere", tmp_path) not in seen


def test_the_notes_of_hosts_that_are_gone_are_dropped(tmp_path: Path) -> None:
    folder, now = tmp_path / "triton", time.time()
    for number in range(KEPT + 3):  # as many hosts, all alive
        write(folder / str(number), f"3.6.0-{number}")
    assert len(list(folder.iterdir())) == KEPT + 3

    for path in folder.iterdir():
        os.utime(path, (now, now - MONTH - 60 if path.name in ("0", "1") else now - 60))
    write(folder / "new", "3.6.0-new")
    assert {str(number) for number in range(2, KEPT + 3)} | {"new"} == {path.name for path in folder.iterdir()}
    assert read(folder / "new") == "3.6.0-new"

    for path in folder.iterdir():
        os.utime(path, (now, now - MONTH - 60))
    write(folder / "newer", "3.6.0-newer")
    assert len(list(folder.iterdir())) == KEPT

    for number in range(MOST):
        (folder / f"pod.{number}").touch()
    write(folder / "newest", "3.6.0-newest")
    assert len(list(folder.iterdir())) == MOST
    assert read(folder / "newest") == "3.6.0-newest"
