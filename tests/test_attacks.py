"""Ways to break a recording or a replay from outside: descriptors, look-ups, threads, programs, options by name."""

import sys
from pathlib import Path
from textwrap import dedent

from helpers import jitreplay, merged, program, run, save

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def put(x, n):
    tl.store(x, n)


@triton.jit
def staged(x, n, num_stages: tl.constexpr, warp_specialize: tl.constexpr = False):
    if warp_specialize:
        tl.store(x, n)


def make(number: tl.constexpr):
    constant = tl.constexpr(number)

    @triton.jit
    def inner(x):
        tl.store(x, constant)

    return inner
"""


def module(folder: Path, name: str = "shelf") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(KERNELS)
    return name


class TestDescriptors:
    def test_a_file_that_took_the_journals_number_is_left_alone(self, tmp_path: Path) -> None:
        module(tmp_path)
        found = program(
            tmp_path,
            """
            import shelf
            x = torch.zeros(4)
            shelf.put[(1,)](x, 5)
            os.closerange(3, 256)
            handle = os.open("precious", os.O_WRONLY | os.O_CREAT)
            os.write(handle, b"precious")
            shelf.put[(1,)](x, 16)
            shelf.put[(1,)](x, 1)
            recorder.stop()
            os.write(handle, b"!")
            answer([open("precious").read(), recorder.counts["variants"], recorder.counts["errors"]])
            """,
            record=tmp_path / "recording",
        )
        assert found == ["precious!", 3, 0]
        assert len(merged(tmp_path / "recording").variants) == 3

    def test_a_journal_never_takes_a_standard_stream(self, tmp_path: Path) -> None:
        module(tmp_path)
        (tmp_path / "closed.py").write_text(
            "import os\n"
            "os.close(0); os.close(1); os.close(2)\n"
            "import torch, jitreplay, shelf\n"
            "from jitreplay.jit.headless import install\n"
            "install('cuda:90')\n"
            "with jitreplay.Recorder('recording'):\n"
            "    shelf.put[(1,)](torch.zeros(4), 5)\n"
            "    os.write(2, b'noise') if os.path.exists('/proc/self/fd/2') else None\n"
            "    shelf.put[(1,)](torch.zeros(4), 16)\n"
        )
        run(tmp_path, sys.executable, tmp_path / "closed.py")
        assert len(merged(tmp_path / "recording").variants) == 2


def test_a_look_up_before_the_import_does_not_end_the_waiting(tmp_path: Path) -> None:
    module(tmp_path)
    (tmp_path / "server.py").write_text(
        "import importlib.util\n"
        "assert importlib.util.find_spec('triton') is not None\n"
        "import torch, shelf\n"
        "shelf.put[(1,)](torch.zeros(4), 5)\n"
    )
    done = jitreplay(
        tmp_path,
        "record",
        "-o",
        tmp_path / "recording",
        "--target",
        "cuda:90",
        "--",
        sys.executable,
        tmp_path / "server.py",
    )
    assert done.returncode == 0, done.stderr
    assert len(merged(tmp_path / "recording").variants) == 1


def test_threads_that_first_launch_made_kernels_after_a_replay_go_on(tmp_path: Path) -> None:
    module(tmp_path)
    code = """
        import threading
        import shelf
        x = torch.zeros(4)
        errors = []

        def one(number):
            try:
                shelf.make(number)[(1,)](x)
            except Exception as error:
                errors.append(repr(error))

        threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        answer([errors, sum(thread.is_alive() for thread in threads)])
        """
    program(tmp_path, code, record=tmp_path / "r")
    manifest = save(merged(tmp_path / "r"), tmp_path / "m.jitreplay")
    found = program(tmp_path, code, replay=manifest, allow=("shelf",))
    assert found == [[], 0]


def test_a_program_is_not_started_to_look_for_its_kernels(tmp_path: Path) -> None:
    package = tmp_path / "srv"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        KERNELS + "\nimport torch\nprint('STARTED', flush=True)\nput[(1,)](torch.zeros(4), 5)\n"
    )
    done = jitreplay(tmp_path, "record", "-o", "recording", "--target", "cuda:90", "--", sys.executable, "-m", "srv")
    assert done.stdout.count("STARTED") == 1
    jitreplay(tmp_path, "merge", "recording", "-o", "m.jitreplay")
    done = jitreplay(tmp_path, "compile", "m.jitreplay", "--target", "cuda:90", "--cache-dir", "cc", "--allow", "srv")
    assert "STARTED" not in done.stdout and done.returncode == 1
    assert "is a program" in done.stdout or "move it into a module" in done.stdout


def test_a_parameter_named_like_another_backends_option_keeps_its_value(tmp_path: Path) -> None:
    module(tmp_path)
    launch = """
        import shelf
        shelf.staged[(1,)](torch.zeros(4), 16, num_stages=3, warp_specialize=True)
        answer([happened("compile", "disk_hit"), keys()])
        """
    recorded = program(tmp_path, launch, record=tmp_path / "recording")
    manifest = save(merged(tmp_path / "recording"), tmp_path / "m.jitreplay")
    replayed = program(tmp_path, "happened()\n" + dedent(launch), replay=manifest, allow=("shelf",))
    assert replayed == [[], recorded[1]]
