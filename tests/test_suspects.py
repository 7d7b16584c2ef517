"""A compile in the server itself that ends the server does so once: the next boot has it tried in another process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jitreplay.manifest.model import Kernel, Manifest
from jitreplay.replayer.suspects import Suspects

from .helpers import LIMIT, PRELUDE, TARGET, environment, program, run, save
from .test_children import OUTCOMES, everything, only, outcomes

__all__ = ["everything"]  # a fixture

FEW = {"JITREPLAY_LIMIT": "20s", "FAULTS_EVERYWHERE": "1"}
"""So few variants are compiled in the server."""


def boot(folder: Path, manifest: Manifest) -> list[Any]:
    """Return the words that run a server which replays a manifest, and its variables."""
    path = save(manifest, folder / "kernels.jitreplay")
    script = folder / "server.py"
    text = PRELUDE.format(target=TARGET, answer=str(folder / "answer.json"))
    script.write_text(f"{text}report = jitreplay.replay({str(path)!r}, allow=('kernels',))\n{OUTCOMES}")
    return [sys.executable, str(script)]


def answered(folder: Path, words: list[Any]) -> dict[str, list[list[str]]]:
    """Run a server that must live; return the outcomes."""
    done = run(folder, *words, FAULTS=str(folder), **FEW)
    assert done.returncode == 0, done.stdout + done.stderr
    return outcomes(json.loads((folder / "answer.json").read_text()))


def notes(folder: Path) -> list[Path]:
    return list((folder / "cache" / ".jitreplay" / "compiling").glob("*"))


@pytest.mark.parametrize("name", ["aborts", "segfaults"])
def test_a_crash_costs_one_boot_then_one_variant(tmp_path: Path, everything: Manifest, name: str) -> None:
    words = boot(tmp_path, only(everything, name, "good", most=2))

    first = run(tmp_path, *words, FAULTS=str(tmp_path), **FEW)
    assert first.returncode in (-signal.SIGABRT, -signal.SIGSEGV)
    assert len(notes(tmp_path)) == 1

    second = answered(tmp_path, words)
    assert [outcome for outcome, _ in second[name]] == ["failed"]
    assert {outcome for outcome, _ in second["good"]} <= {"compiled", "cached"}
    assert notes(tmp_path) == []

    ((outcome, why),) = answered(tmp_path, words)[name]
    assert outcome == "skipped" and why.startswith("in quarantine")


def test_so_does_a_hang_that_somebody_ends(tmp_path: Path, everything: Manifest) -> None:
    words = boot(tmp_path, only(everything, "hangs", "good", most=1))
    variables = environment(tmp_path, FAULTS=str(tmp_path), **FEW)
    with subprocess.Popen(words, env=variables, cwd=tmp_path) as server:
        end = time.monotonic() + LIMIT
        while not list(tmp_path.glob("hangs.*")) and time.monotonic() < end:
            time.sleep(0.05)
        server.kill()

    ((outcome, why),) = answered(tmp_path, words)["hangs"]
    assert outcome == "failed" and "20" in why
    ((outcome, why),) = answered(tmp_path, words)["hangs"]
    assert outcome == "skipped" and why.startswith("in quarantine")


def test_one_that_was_merely_interrupted_is_compiled_and_forgotten(tmp_path: Path, everything: Manifest) -> None:
    manifest = only(everything, "good", most=1)
    words = boot(tmp_path, manifest)
    program(tmp_path, "answer(0)")  # a process that is gone
    leave(tmp_path, manifest)

    assert answered(tmp_path, words) == {"good": [["compiled", ""]]}
    assert notes(tmp_path) == []
    assert not (tmp_path / "cache" / ".jitreplay" / "quarantine.jsonl").exists()


def test_one_that_no_other_process_can_try_is_left_out_once(tmp_path: Path) -> None:
    """The kernel is the main program's own."""
    script = tmp_path / "main.py"
    script.write_text(
        PRELUDE.format(target=TARGET, answer=str(tmp_path / "answer.json"))
        + "@triton.jit\ndef own(x):\n    tl.store(x, 1)\n"
        + "if sys.argv[1:] == ['record']:\n"
        + "    with jitreplay.Recorder('journals'):\n        own[(1,)](torch.zeros(16))\n"
        + "else:\n    report = jitreplay.replay('kernels.jitreplay')\n"
        + "    "
        + "\n    ".join(OUTCOMES.strip().splitlines())
    )
    assert run(tmp_path, sys.executable, script, "record").returncode == 0
    words = [sys.executable, script]
    from .helpers import merged

    manifest = merged(tmp_path / "journals")
    save(manifest, tmp_path / "kernels.jitreplay")
    (tmp_path / "cache").rename(tmp_path / "recorded")
    leave(tmp_path, manifest)

    ((outcome, why),) = answered(tmp_path, words)["own"]
    assert outcome == "skipped" and "an earlier boot ended" in why
    assert answered(tmp_path, words)["own"] == [["compiled", ""]]


def leave(folder: Path, manifest: Manifest) -> None:
    """Leave the note of a process that is gone and was compiling a manifest's only variant."""
    from jitreplay.replayer.prefetch import toolchain

    (variant,) = manifest.variants
    suspects = Suspects(folder / "cache", toolchain(TARGET))
    with suspects.compiling(variant.kernel, variant.digest):
        (note,) = notes(folder)
        kept = json.loads(note.read_text())
    note.with_name("gone.json").write_text(json.dumps(kept))


class TestNotes:
    KERNEL = Kernel("module", "name", "f" * 32)

    def test_a_process_that_lives_is_not_suspected(self, tmp_path: Path) -> None:
        with Suspects(tmp_path, "tools").compiling(self.KERNEL, "d"):
            assert (self.KERNEL, "d") not in Suspects(tmp_path, "tools")
        assert not list((tmp_path / ".jitreplay" / "compiling").iterdir())

    def left(self, folder: Path) -> Path:
        """Return the note that a process of this kernel left behind."""
        with Suspects(folder, "tools").compiling(self.KERNEL, "d"):
            (note,) = (folder / ".jitreplay" / "compiling").iterdir()
            text = note.read_text()
        note.write_text(text)
        return note

    def test_one_that_nobody_keeps_is_suspected_of_its_key_and_toolchain(self, tmp_path: Path) -> None:
        self.left(tmp_path)

        assert (self.KERNEL, "d") in Suspects(tmp_path, "tools")
        assert (self.KERNEL, "e") not in Suspects(tmp_path, "tools")
        assert (self.KERNEL, "d") not in Suspects(tmp_path, "other tools")

    def test_one_that_is_old_is_removed(self, tmp_path: Path) -> None:
        note = self.left(tmp_path)
        os.utime(note, (0, 0))

        assert (self.KERNEL, "d") not in Suspects(tmp_path, "tools") and not note.exists()

    def test_one_that_cannot_be_removed_is_no_trouble(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left(tmp_path)

        def refuse(*_: Any, **__: Any) -> None:
            raise PermissionError("another user's")

        suspects = Suspects(tmp_path, "tools")
        monkeypatch.setattr(Path, "unlink", refuse)
        suspects.clear(self.KERNEL, "d")
        assert (self.KERNEL, "d") not in suspects

    def test_a_process_that_ends_by_itself_leaves_none(self, tmp_path: Path) -> None:
        code = f"""
        import threading, time
        from jitreplay.manifest.model import Kernel
        from jitreplay.replayer.suspects import Suspects
        begun = threading.Event()
        def compile():
            with Suspects({str(tmp_path)!r}, "tools").compiling(Kernel("module", "name", "f"), "d"):
                begun.set()
                time.sleep(1000)
        threading.Thread(target=compile, daemon=True).start()
        begun.wait()
        answer(len(list(Suspects({str(tmp_path)!r}, "tools")._folder.iterdir())))
        """
        assert program(tmp_path, code) == 1
        assert not list((tmp_path / ".jitreplay" / "compiling").iterdir())

    def test_a_note_that_is_cut_or_foreign_says_nothing(self, tmp_path: Path) -> None:
        folder = tmp_path / ".jitreplay" / "compiling"
        folder.mkdir(parents=True)
        for name, text in {"1.json": "", "2.json": "{", "3.json": "[]", "4.json": '{"kernel": 1}'}.items():
            (folder / name).write_text(text)
        (folder / "5.json").mkdir()

        assert (self.KERNEL, "d") not in Suspects(tmp_path, "tools")

    def test_where_nothing_can_be_written_nothing_is_noted(self, tmp_path: Path) -> None:
        (tmp_path / ".jitreplay").write_text("a file in the way")
        with Suspects(tmp_path, "tools").compiling(self.KERNEL, "d"):
            pass
        assert os.listdir(tmp_path) == [".jitreplay"]
