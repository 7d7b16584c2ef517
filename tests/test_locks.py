"""Locks on keys between processes: one has a key at a time, and a dead one has none."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitreplay.jit.lock import KeyLocks, own_folder

from .helpers import LIMIT, environment

OWNER = """
import sys
from jitreplay.jit.lock import KeyLocks
locks = KeyLocks(sys.argv[1])
print(*(locks.take(key) for key in sys.argv[2:]), flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(folder: Path, *keys: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Give another process that has tried to take these keys, and what it got."""
    words = [sys.executable, "-c", OWNER, str(folder), *keys]
    with subprocess.Popen(
        words, env=environment(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_killed_owner_has_none(tmp_path: Path) -> None:
    locks = KeyLocks(tmp_path)
    with owner(tmp_path, "a", "b") as (process, got):
        assert got == "True True"
        assert [locks.take(key) for key in "abc"] == [False, False, True]
        with owner(tmp_path, "a", "c") as (_, others):
            assert others == "False False"
        process.kill()
        process.wait(LIMIT)
        assert [locks.take(key) for key in "ab"] == [True, True]
    assert len(list(own_folder(tmp_path).iterdir())) == 1  # one file, however many keys


def test_what_is_given_back_is_free(tmp_path: Path) -> None:
    locks = KeyLocks(tmp_path)
    assert locks.take("a") and locks.take("b")
    locks.release("a")
    with owner(tmp_path, "a", "b") as (_, got):
        assert got == "True False"
    locks.close()
    with owner(tmp_path, "b") as (_, got):
        assert got == "True"


def test_where_there_can_be_no_file_every_key_is_free(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    locks = KeyLocks(tmp_path / "file")
    assert locks.take("a")
    locks.release("a")
    locks.close()
