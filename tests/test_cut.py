"""Journals and manifests that were cut short: what is whole is used, and the rest told in one line."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.manifest import file
from jitreplay.manifest.errors import ManifestError
from jitreplay.manifest.merge import merge_files

from . import helpers
from .helpers import SERVER, headless, merged, variants_of


class TestKilled:
    CODE = """
        import kernels.traffic, signal
        launches = list(kernels.traffic.cases().values())
        for launch in launches[:5]:
            launch()
        write = os.write
        def cut(handle, data):
            write(handle, bytes(data)[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        os.write = cut
        launches[5]()
    """

    def test_in_the_middle_of_a_record_loses_that_record_alone(self, tmp_path: Path) -> None:
        script, recording = tmp_path / "program.py", tmp_path / "recording"
        text = helpers.PRELUDE.format(target="cuda:90", answer="") + f"jitreplay.Recorder({str(recording)!r}).start()\n"
        script.write_text(text + helpers.dedent(self.CODE))
        assert helpers.run(tmp_path, sys.executable, script).returncode == -signal.SIGKILL

        found = merge_files([recording])
        assert [v.order for v in variants_of(found.manifest, "copy")] == [0, 1, 2, 3, 4]
        assert len(found.notes) == 1 and "cut" in found.notes[0]
        done = helpers.jitreplay(tmp_path, "merge", recording, "-o", tmp_path / "kernels.jitreplay")
        assert done.returncode == 0
        assert file.load(tmp_path / "kernels.jitreplay") == found.manifest


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a manifest of a few kernels."""
    folder = tmp_path_factory.mktemp("whole")
    with headless(folder):
        from kernels.traffic import cases

        with jitreplay.Recorder(folder / "recording"):
            for launch in list(cases().values())[::3]:
                launch()
    return file.dumps(merged(folder / "recording"))


def test_loading_a_manifest_brings_in_no_triton(whole: bytes, tmp_path: Path) -> None:
    # A parent that looks into a manifest must not start a driver before it forks (CASES J6).
    (tmp_path / "kernels.jitreplay").write_bytes(whole)
    code = "import sys, jitreplay; jitreplay.load('kernels.jitreplay'); print({'torch', 'triton'} & {*sys.modules})"
    done = helpers.run(tmp_path, sys.executable, "-c", code)
    assert done.stdout.strip() == "set()", done.stderr


class TestCutManifest:
    @pytest.fixture
    def cut(self, whole: bytes, tmp_path: Path) -> Callable[[int], Path]:
        def cut(at: int) -> Path:
            path = tmp_path / f"cut-{at}.jitreplay"
            path.write_bytes(whole[:at])
            return path

        return cut

    def test_at_any_byte_is_an_error_of_one_line(self, whole: bytes) -> None:
        for at in range(len(whole)):
            with pytest.raises(ManifestError) as caught:
                file.loads(whole[:at])
            assert "\n" not in str(caught.value)
        assert file.loads(whole)

    def test_commands_exit_with_2_and_one_line(self, whole: bytes, cut: Callable[[int], Path], tmp_path: Path) -> None:
        target = ("--target", "cuda:90", "--cache-dir", tmp_path / "cache")
        commands: list[tuple[Any, ...]] = [
            ("show", "FILE"),
            ("diff", "FILE", "FILE"),
            ("merge", "FILE", "-o", tmp_path / "out"),
            ("compile", "FILE", *target),
            ("replay", "FILE", *target),
            ("verify", "FILE", *target),
        ]
        for index in range(12):
            path = cut(len(whole) * index // 12 + index % 2)
            words = [path if word == "FILE" else word for word in commands[index % len(commands)]]
            done = helpers.jitreplay(tmp_path, *words)
            assert done.returncode == 2, words
            assert done.stdout == ""
            assert len(done.stderr.splitlines()) == 1, done.stderr
            assert path.name in done.stderr and done.stderr.startswith("jitreplay: ")

    def test_a_boot_goes_on_without_replay(self, whole: bytes, cut: Callable[[int], Path], tmp_path: Path) -> None:
        out = tmp_path / "boot.json"
        manifest = ("--manifest", cut(len(whole) - 7), "--requests", "0", "--json", out)
        done = helpers.run(tmp_path, sys.executable, *SERVER, *manifest)

        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout.splitlines()[0].startswith("no replay: ")
        assert json.loads(out.read_text())["boot"]["replay"]["counts"] == {}

    def test_replay_reports_and_does_not_raise(self, driver: Any, whole: bytes, cut: Callable[[int], Path]) -> None:
        for at in (0, 1, 11, 12, 40, len(whole) // 2, len(whole) - 1):
            report = jitreplay.replay(cut(at))
            assert report.results == [] and not report.warm
            assert f"cut-{at}.jitreplay" in report.error and "\n" not in report.summary()
