"""`jitreplay record` runs any Python program, unedited, with its children, and gives back its exit code."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from jitreplay.manifest import journal

from .helpers import LIMIT, environment, jitreplay, merged, number

Family = tuple[Path, subprocess.CompletedProcess[str]]

WARM = """
    import torch
    from kernels.basic import copy

    def launch(n):
        copy[(1,)](torch.zeros(64), torch.zeros(64), n, BLOCK=16)
"""


def write(folder: Path, name: str, code: str) -> Path:
    path = folder / name
    path.write_text(dedent(code))
    return path


def record(
    folder: Path, *words: object, output: str = "recording", **variables: str
) -> subprocess.CompletedProcess[str]:
    return jitreplay(folder, "record", "-o", output, *words, **variables)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """A program that knows nothing of jitreplay, moves to another folder, and starts children in three ways."""
    folder = tmp_path_factory.mktemp("family")
    write(folder, "warm.py", WARM)
    write(folder, "child.py", "from warm import launch; launch(5)")
    program = """
        import os
        os.makedirs("elsewhere")
        os.chdir("elsewhere")
        import multiprocessing, subprocess, sys
        from warm import launch

        if __name__ == "__main__":
            launch(32)
            subprocess.run([sys.executable, "../child.py"], check=True)
            for method, n in (("spawn", 1), ("fork", 2**31)):
                child = multiprocessing.get_context(method).Process(target=launch, args=(n,))
                child.start()
                child.join()
                assert child.exitcode == 0
            print("served", "jitreplay" in sys.argv[0])
            print("a word on stderr", file=sys.stderr)
            sys.exit(7)
    """
    write(folder, "server.py", program)
    return folder, record(folder, "--target", "cuda:90", "--", sys.executable, "server.py")


class TestProgram:
    def test_its_exit_code_and_output_come_through(self, family: Family) -> None:
        _, done = family

        assert done.returncode == 7, done.stderr
        assert done.stdout == "served False\n"
        assert "a word on stderr" in done.stderr

    def test_each_of_its_processes_writes_a_journal(self, family: Family) -> None:
        folder, _ = family
        found = [journal.read(path) for path in (folder / "recording").iterdir()]

        numbers = [[number(v, 2) for v in each.variants] for each in found]
        assert sorted(numbers) == [[1], [5], [32], [2**31]]
        assert {each.environment.target for each in found if each.environment is not None} == {"cuda:90"}
        assert not (folder / "elsewhere" / "recording").exists()

    def test_it_says_what_was_recorded_and_what_comes_next(self, family: Family) -> None:
        _, done = family

        (line,) = [line for line in done.stderr.splitlines() if line.startswith("jitreplay: ")]
        assert "4 variants of 1 kernel in 4 journals" in line
        assert "jitreplay merge recording" in line

    def test_triton_first_and_torch_after_it(self, tmp_path: Path) -> None:
        code = """
            import triton.language
            import torch
            from kernels.basic import plain
            plain[(1,)](torch.zeros(4), 3)
        """
        write(tmp_path, "server.py", code)
        done = record(tmp_path, "--target", "cuda:90", "--", sys.executable, "server.py")

        assert done.returncode == 0, done.stderr
        assert len(merged(tmp_path / "recording").variants) == 1

    def test_a_module_by_its_name(self, tmp_path: Path) -> None:
        (tmp_path / "shop").mkdir()
        write(tmp_path / "shop", "kernels.py", WARM.replace("kernels.basic", "kernels.basic"))
        write(tmp_path / "shop", "__main__.py", "from .kernels import launch; launch(32)")
        done = record(tmp_path, "--target", "cuda:90", "--", sys.executable, "-m", "shop")

        assert done.returncode == 0, done.stderr
        assert len(merged(tmp_path / "recording").variants) == 1

    def test_a_shell_script_that_starts_it(self, tmp_path: Path) -> None:
        write(tmp_path, "warm.py", WARM)
        write(tmp_path, "server.py", "import warm; warm.launch(32); raise SystemExit(3)")
        script = write(tmp_path, "serve.sh", f'#!/bin/sh\ncd /\n"{sys.executable}" "{tmp_path}/server.py"\n')
        script.chmod(0o755)
        done = record(tmp_path, "--target", "cuda:90", "--", script)

        assert done.returncode == 3, done.stderr
        assert len(merged(tmp_path / "recording").variants) == 1

    def test_a_signal_reaches_it_and_the_journal_is_whole(self, tmp_path: Path) -> None:
        code = """
            import signal, sys, time
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
            from warm import launch
            launch(32)
            launch(5)
            open("serving", "w").close()
            while True:
                time.sleep(0.05)
        """
        write(tmp_path, "warm.py", WARM)
        write(tmp_path, "server.py", code)
        words = ("-m", "jitreplay.cli", "record", "-o", "recording", "--target", "cuda:90", "--")
        running = subprocess.Popen(
            [sys.executable, *words, sys.executable, "server.py"], cwd=tmp_path, env=environment(tmp_path)
        )
        try:
            limit = time.monotonic() + LIMIT
            while not (tmp_path / "serving").exists():
                assert running.poll() is None and time.monotonic() < limit
                time.sleep(0.05)
            running.send_signal(signal.SIGTERM)
            assert running.wait(LIMIT) == 5
        finally:
            running.kill()
        (path,) = (tmp_path / "recording").iterdir()
        found = journal.read(path)
        assert not found.damage and len(found.variants) == 2


class TestWithoutTriton:
    """What needs no torch: quick."""

    def test_a_program_without_triton_is_told(self, tmp_path: Path) -> None:
        done = record(tmp_path, "--", sys.executable, "-c", "print(1)")

        assert (done.returncode, done.stdout) == (0, "1\n")
        assert "1 Python processes ran, none imported Triton" in done.stderr

    def test_a_command_that_is_no_python_is_told(self, tmp_path: Path) -> None:
        done = record(tmp_path, "--", "true")

        assert done.returncode == 0
        assert "no Python process loaded the recorder" in done.stderr

    def test_a_command_that_is_not_there_exits_with_2(self, tmp_path: Path) -> None:
        done = record(tmp_path, "--", "no-such-program", "-x")

        assert done.returncode == 2
        assert done.stderr == "jitreplay: no-such-program: no such program\n"
        assert not (tmp_path / "recording").exists()

    def test_a_wrong_target_exits_with_2(self, tmp_path: Path) -> None:
        done = record(tmp_path, "--target", "cuda:91", "--", "true")

        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1 and "cuda:90" in done.stderr

    @pytest.mark.parametrize("flags", [["-I"], ["-E"], ["-S"], ["-uS"], ["-W", "ignore", "-E"], ["-X", "utf8", "-bI"]])
    def test_a_flag_that_defeats_the_recorder_is_told(self, tmp_path: Path, flags: list[str]) -> None:
        done = record(tmp_path, "--", sys.executable, *flags, "-c", "print(1)")

        assert (done.returncode, done.stdout) == (2, "")
        letter = next(letter for letter in "IES" if letter in flags[-1])
        assert f"-{letter}" in done.stderr and len(done.stderr.splitlines()) == 1

    def test_the_programs_own_arguments_are_not_its_flags(self, tmp_path: Path) -> None:
        write(tmp_path, "server.py", "import sys; print(sys.argv[1:])")
        done = record(tmp_path, "--", sys.executable, "-u", "server.py", "-I", "-E", "--target", "x")

        assert done.returncode == 0
        assert done.stdout == "['-I', '-E', '--target', 'x']\n"

    def test_a_flag_in_a_shebang_is_told(self, tmp_path: Path) -> None:
        python = tmp_path / "python3"  # a name without spaces, of any length
        python.symlink_to(sys.executable)
        script = write(tmp_path, "serve", f"#!{python} -I\nprint(1)\n")
        script.chmod(0o755)
        done = record(tmp_path, "--", script)

        assert done.returncode == 2 and "-I" in done.stderr

    def test_a_python_that_a_script_starts_isolated_is_told(self, tmp_path: Path) -> None:
        script = write(tmp_path, "serve.sh", f'#!/bin/sh\n"{sys.executable}" -I -c "print(1)"\n')
        script.chmod(0o755)
        done = record(tmp_path, "--", script)

        assert (done.returncode, done.stdout) == (0, "1\n")
        assert "-I, -E" in done.stderr

    def test_a_signal_that_ends_the_program_is_its_exit_code(self, tmp_path: Path) -> None:
        done = record(tmp_path, "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")

        assert done.returncode == 128 + signal.SIGKILL

    def test_the_users_settings_reach_the_program(self, tmp_path: Path) -> None:
        code = "import os; print(os.environ['JITREPLAY_RECORD'], os.environ['JITREPLAY_LOG'], os.environ['OWN'])"
        done = record(tmp_path, "--", sys.executable, "-c", code, JITREPLAY_LOG="warning", OWN="kept")

        assert done.stdout == f"{tmp_path / 'recording'} warning kept\n"

    def test_disable_wins(self, tmp_path: Path) -> None:
        done = record(
            tmp_path, "--", sys.executable, "-c", "import sys; print('jitreplay' in sys.modules)", JITREPLAY_DISABLE="1"
        )

        assert (done.returncode, done.stdout) == (0, "False\n")


class TestSitecustomize:
    """The one that ours shadows runs as if ours were not there."""

    def record(self, tmp_path: Path, code: str, program: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "site").mkdir()
        write(tmp_path / "site", "sitecustomize.py", code)
        paths = os.pathsep.join([str(tmp_path / "site"), environment(tmp_path)["PYTHONPATH"]])
        return record(tmp_path, "--", sys.executable, "-c", program, PYTHONPATH=paths)

    def test_runs_and_is_the_module_of_that_name(self, tmp_path: Path) -> None:
        code = "import sys; sys.own = __file__"
        done = self.record(tmp_path, code, "import sys, sitecustomize; print(sys.own, sitecustomize.__file__)")

        path = str(tmp_path / "site" / "sitecustomize.py")
        assert done.stdout.split() == [path, path], done.stderr
        assert "1 Python processes ran" in done.stderr  # ours ran as well

    def test_an_error_in_it_is_told_as_python_tells_it(self, tmp_path: Path) -> None:
        done = self.record(tmp_path, "raise ValueError('of the user')", "print(1)")

        assert (done.returncode, done.stdout) == (0, "1\n")
        assert "of the user" in done.stderr
        assert "1 Python processes ran" in done.stderr
