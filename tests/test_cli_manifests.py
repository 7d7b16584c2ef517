"""`show`, `merge` and `diff`: what they print, how they end, and what they do without."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from jitreplay.cli.main import main
from jitreplay.manifest import file, merge
from jitreplay.manifest import values as V
from jitreplay.manifest.model import Choice, Kernel, Manifest

from .manifest.made import COPY, ENVIRONMENT, journal_bytes, manifest, variant, write

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = Kernel("engine.ops", "sample", "f1", COPY.params)
CHOICE = Choice(
    COPY,
    (V.Integer(8),),
    (("BLOCK", V.Integer(64)),),
    (("num_warps", V.Integer(4)),),
    (("a", 1.5), ("b", float("inf"))),
    environments=(0,),
)


def jitreplay(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


def saved(path: Path, made: Manifest) -> Path:
    file.save(made, path)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    made = manifest(variant(7), variant(32, options=(("num_warps", V.Integer(4)),)), choices=(CHOICE,))
    return saved(tmp_path / "good.jitreplay", made)


class TestShow:
    def test_counts_kernels_and_says_what_varies(self, good: Path) -> None:
        """A5: the arguments that vary are named."""
        done = jitreplay("show", good)

        assert done.exit_code == 0
        assert "2 variants of 1 kernel (2 serving)" in done.output
        assert "1 autotuner choice" in done.output
        (row,) = [line for line in done.output.splitlines() if line.startswith("engine.ops.copy")]
        assert row.split(maxsplit=3) == ["engine.ops.copy", "2", "2", "n_blocks (2), options (2)"]

    def test_a_kernel_by_name_prints_its_arguments(self, good: Path) -> None:
        done = jitreplay("show", good, "-k", "copy")

        assert "n_blocks = 32  i32:D  multiple of 16" in done.output
        assert "option num_warps = 4" in done.output
        assert "0 variants" in jitreplay("show", good, "-k", "nothing").output

    def test_a_journal_or_a_folder_is_shown_too(self, tmp_path: Path) -> None:
        path = write(tmp_path / "1.journal", journal_bytes(variant(7), variant(1)))

        assert "2 variants" in jitreplay("show", path).output
        assert "2 variants" in jitreplay("show", tmp_path).output

    def test_json_has_the_shape_of_the_documentation(self, good: Path) -> None:
        data = json.loads(jitreplay("show", good, "--json").stdout)

        assert list(data) == ["header", "kernels", "choices"]
        assert (data["header"]["format"], data["header"]["kernels"], data["header"]["variants"]) == (1, 1, 2)
        assert data["header"]["environments"][0]["target"] == "cuda:90"
        (kernel,) = data["kernels"]
        assert (kernel["module"], kernel["name"], kernel["fingerprint"]) == ("engine.ops", "copy", "f1")
        by_n = {v["args"][1]["value"]: v for v in kernel["variants"]}
        assert by_n[32]["options"] == [["num_warps", 4]]
        assert (by_n[7]["options"], by_n[7]["phase"]) == ([], "serving")
        assert [(arg["name"], arg["kind"]) for arg in by_n[7]["args"]] == [
            ("x", "tensor"),
            ("n_blocks", "integer"),
            ("BLOCK", "constexpr"),
        ]
        assert all(len(v["digest"]) == 32 for v in kernel["variants"])
        (choice,) = data["choices"]
        assert choice["config"] == [["BLOCK", 64], ["num_warps", 4]]
        assert choice["timings"] == [["a", 1.5], ["b", "inf"]]

    def test_numbers_that_json_lacks_are_text(self, tmp_path: Path) -> None:
        environment = msgspec.structs.replace(ENVIRONMENT, settings={"ratio": float("nan"), "most": float("-inf")})
        blocks = [V.Float.of(float("nan")), V.Integer.of(1 << 20000), V.Float.of(float("inf"))]
        path = saved(tmp_path / "m", manifest(*(variant(block=b) for b in blocks), environment=environment))

        data = json.loads(jitreplay("show", path, "--json").stdout)

        assert data["header"]["environments"][0]["settings"] == {"ratio": "nan", "most": "-inf"}
        assert jitreplay("show", path, "-k", "copy").exit_code == 0

    def test_a_constant_without_end_is_told(self, tmp_path: Path) -> None:
        """A9, A10: each request brought another value."""
        parts = [manifest(variant(block=1000 + step)) for step in range(100)]
        path = saved(tmp_path / "m", merge.merge(parts))

        output = jitreplay("show", path).output

        assert "engine.ops.copy: argument BLOCK has 100 distinct constexpr values" in output
        assert "will not converge" in output
        assert "will not converge" not in jitreplay("show", saved(tmp_path / "n", merge.merge(parts[:4]))).output

    def test_what_cannot_be_replayed_is_told(self, tmp_path: Path) -> None:
        path = saved(tmp_path / "m", manifest(variant(block=V.Opaque("builtins.function", "holds an address"))))

        assert "1 variant cannot be replayed: argument BLOCK: holds an address" in jitreplay("show", path).output

    @pytest.mark.parametrize(("a", "b"), [(V.Float.of(0.0), V.Float.of(-0.0)), (V.Integer(1), V.Bool(True))])
    def test_variants_that_share_a_slot_in_memory_are_told(self, tmp_path: Path, a: V.Value, b: V.Value) -> None:
        """C4: the one launched first serves both."""
        alike = saved(tmp_path / "m", manifest(variant(block=a), variant(block=b)))
        other = saved(tmp_path / "n", manifest(variant(7, block=a), variant(32, block=b)))

        assert "differ only by constants" in jitreplay("show", alike).output
        assert "differ only by constants" not in jitreplay("show", other).output

    def test_names_cannot_act_on_a_terminal(self, tmp_path: Path) -> None:
        evil = Kernel("m\x1b[2J", "k\n\ud800", "f", COPY.params)
        path = saved(tmp_path / "m", manifest(variant(kernel=evil), variant(7, kernel=evil)))

        for done in (
            jitreplay("show", path),
            jitreplay("show", path, "-k", "m"),
            jitreplay("diff", path, saved(tmp_path / "n", manifest())),
            jitreplay("show", path, "--json"),
        ):
            assert done.exit_code in (0, 1)
            assert "\x1b" not in done.output


class TestMerge:
    def test_writes_the_same_bytes_in_any_order(self, tmp_path: Path) -> None:
        a = write(tmp_path / "a.journal", journal_bytes(variant(7), variant(1)))
        b = write(tmp_path / "b.journal", journal_bytes(variant(1), variant(32)))

        done = jitreplay("merge", a, b, "-o", tmp_path / "ab")
        jitreplay("merge", b, a, b, "-o", tmp_path / "ba")
        jitreplay("merge", tmp_path / "ab", a, "-o", tmp_path / "again")

        size = (tmp_path / "ab").stat().st_size
        counts = f"3 variants of 1 kernel, {size} bytes, from 2 journals and 0 manifests"
        assert done.output == f"{tmp_path / 'ab'}: {counts}\n"
        assert (tmp_path / "ab").read_bytes() == (tmp_path / "ba").read_bytes() == (tmp_path / "again").read_bytes()

    def test_json_has_the_shape_of_the_documentation(self, tmp_path: Path) -> None:
        cut = write(tmp_path / "1.journal", journal_bytes(variant(7), variant(1))[:-3])

        done = jitreplay("merge", cut, "-o", tmp_path / "m", "--json")
        data = json.loads(done.stdout)

        assert list(data) == ["journals", "manifests", "kernels", "variants", "choices", "bytes", "notes"]
        assert (data["journals"], data["kernels"], data["variants"]) == (1, 1, 1)
        assert data["bytes"] == (tmp_path / "m").stat().st_size
        assert data["notes"][0].endswith("1 events before it were kept")

    def test_a_cut_journal_is_told_beside_the_result(self, tmp_path: Path) -> None:
        cut = write(tmp_path / "1.journal", journal_bytes(variant(7), variant(1))[:-3])

        done = jitreplay("merge", cut, "-o", tmp_path / "m")

        assert done.exit_code == 0
        assert "is cut at byte" in done.stderr
        assert "is cut" not in done.stdout

    def test_a_place_that_cannot_be_written_is_told(self, tmp_path: Path, good: Path) -> None:
        done = jitreplay("merge", good, "-o", tmp_path / "no" / "m")

        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1


class TestDiff:
    def test_no_difference_ends_with_0(self, good: Path) -> None:
        done = jitreplay("diff", good, good)

        assert (done.exit_code, done.output) == (0, "no differences\n")

    def test_a_difference_ends_with_1_and_is_told_in_words(self, tmp_path: Path) -> None:
        a = saved(tmp_path / "a", manifest(variant(32), environment=ENVIRONMENT))
        b = saved(
            tmp_path / "b",
            manifest(
                variant(7), variant(7, kernel=SAMPLE), environment=msgspec.structs.replace(ENVIRONMENT, triton="3.7.1")
            ),
        )

        done = jitreplay("diff", a, b)

        assert done.exit_code == 1
        lines = done.output.splitlines()
        assert lines[0] == "header triton: 3.6.0 -> 3.7.1"
        assert lines[1] == "+ kernel engine.ops.sample (new)"
        assert "    n_blocks: multiple of 16 -> other (32 -> 7)" in lines
        assert lines[-1].startswith("+ engine.ops.sample ")

    def test_json_has_the_shape_of_the_documentation(self, tmp_path: Path) -> None:
        a, b = saved(tmp_path / "a", manifest(variant(32))), saved(tmp_path / "b", manifest(variant(7)))

        done = jitreplay("diff", a, b, "--json")
        data = json.loads(done.stdout)

        assert done.exit_code == 1
        assert list(data) == ["header", "kernels", "variants", "choices"]
        assert list(data["kernels"]) == list(data["variants"]) == ["added", "removed", "changed"]
        assert list(data["variants"]["changed"][0]) == ["kernel", "from", "to", "args"]

    def test_another_winner_of_an_autotuner_is_a_difference(self, tmp_path: Path) -> None:
        def choice(block: int, device: str = "NVIDIA H200", time: float = 0.1) -> Choice:
            winner = ("BLOCK", V.Integer(block))
            return Choice(COPY, (V.Integer(5),), (winner,), timings=(("BLOCK: 32", time),), device=device)

        made = {
            "a": (choice(32),),
            "timed again": (choice(32, time=0.2),),
            "b": (choice(64), choice(32, "NVIDIA A100")),
            "none": (),
        }
        paths = {name: saved(tmp_path / name, manifest(variant(7), choices=found)) for name, found in made.items()}

        assert jitreplay("diff", paths["a"], paths["timed again"]).exit_code == 0
        done = jitreplay("diff", paths["a"], paths["b"])
        gone = jitreplay("diff", paths["a"], paths["none"], "--json")

        assert (done.exit_code, gone.exit_code) == (1, 1)
        assert done.output.splitlines() == [
            "+ choice of engine.ops.copy for (5) on NVIDIA A100: none -> BLOCK=32",
            "~ choice of engine.ops.copy for (5) on NVIDIA H200: BLOCK=32 -> BLOCK=64",
        ]
        other = msgspec.structs.replace(COPY, fingerprint="other")
        two = [
            (choice(32), msgspec.structs.replace(choice(block), kernel=other))  # two sources of one name
            for block in (64, 128)
        ]
        a, b = (saved(tmp_path / f"two {n}", manifest(variant(7), choices=found)) for n, found in enumerate(two))
        assert "BLOCK=64 -> BLOCK=128" in jitreplay("diff", a, b).output
        assert json.loads(gone.stdout)["choices"] == [
            {"kernel": "engine.ops.copy", "key": [5], "device": "NVIDIA H200", "from": "BLOCK=32", "to": None}
        ]


def broken(good: bytes) -> dict[str, bytes]:
    return {
        "empty": b"",
        "json": b'{"kernels": []}',
        "cut": good[: len(good) // 2],
        "cut at its end": good[:-1],
        "trailing": good + b"\0",
        "flipped": good[:40] + bytes([good[40] ^ 1]) + good[41:],
        "newer": good[:8] + b"\0\x09\0\x09" + good[12:],
        "folder": b"",
        "missing": b"",
    }


class TestUnusable:
    @pytest.mark.parametrize("what", list(broken(b"x" * 99)))
    @pytest.mark.parametrize("command", ["show", "merge", "diff", "diff-second"])
    def test_a_bad_file_ends_with_2_and_one_line(self, tmp_path: Path, good: Path, command: str, what: str) -> None:
        bad = tmp_path / "bad"
        if what == "folder":
            bad.mkdir()
        elif what != "missing":
            write(bad, broken(good.read_bytes())[what])
        out = tmp_path / "out"
        words: dict[str, list[Any]] = {
            "show": ["show", bad],
            "merge": ["merge", good, bad, "-o", out],
            "diff": ["diff", bad, good],
            "diff-second": ["diff", good, bad],
        }

        done = jitreplay(*words[command])

        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"jitreplay: {bad}")
        assert done.stderr.count("\n") == 1
        assert not out.exists()

    def test_a_cut_at_any_byte_ends_with_2(self, tmp_path: Path, good: Path) -> None:
        data = good.read_bytes()
        for size in range(0, len(data), 7):
            assert jitreplay("show", write(tmp_path / "bad", data[:size])).exit_code == 2

    @pytest.mark.parametrize(
        "words", [["show"], ["merge", "x"], ["diff", "x"], ["show", "x", "--no-such"], ["nothing"]]
    )
    def test_wrong_usage_ends_with_2(self, words: list[str]) -> None:
        assert jitreplay(*words).exit_code == 2


BLOCKED = """
import sys
for name in ("torch", "triton"):
    sys.modules[name] = None
from jitreplay.cli.main import main
try:
    main(sys.argv[1:])
finally:
    loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
    assert not loaded & {"torch", "triton"}, loaded
    print("ran without", file=sys.stderr)
"""


class TestProcess:
    """What only a process of its own shows."""

    def run(self, *words: object, code: str | None = None, **extra: Any) -> subprocess.CompletedProcess[str]:
        start = ["-c", code] if code else ["-m", "jitreplay.cli"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, *start, *map(str, words)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, **extra)

    def test_torch_and_triton_are_not_needed(self, tmp_path: Path, good: Path) -> None:
        free = BLOCKED.replace("sys.modules[name] = None", "pass")
        for code in (BLOCKED, free):
            for words, exit_code in (
                (("show", good), 0),
                (("merge", good, "-o", tmp_path / "m"), 0),
                (("diff", good, tmp_path / "m"), 0),
            ):
                done = self.run(*words, code=code)
                assert done.returncode == exit_code, done.stderr
                assert "ran without" in done.stderr

    def test_a_pipe_gets_plain_text(self, good: Path) -> None:
        for words in (("show", good), ("show", good, "-k", "copy"), ("diff", good, good)):
            done = self.run(*words)
            assert "\x1b" not in done.stdout
            assert not any(0x2500 <= ord(c) < 0x25A0 for c in done.stdout)

    def test_a_bad_file_gives_no_traceback(self, tmp_path: Path) -> None:
        done = self.run("show", write(tmp_path / "bad", b"\x89JRM"))

        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert done.stderr.count("\n") == 1

    def test_a_terminal_gets_a_table(self, good: Path) -> None:
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
        env.pop("NO_COLOR", None)
        command = [sys.executable, "-m", "jitreplay.cli", "show", str(good)]
        with subprocess.Popen(command, env=env, stdout=child, stderr=child, stdin=child) as process:
            os.close(child)
            out = b""
            while True:
                try:
                    piece = os.read(parent, 65536)
                except OSError:  # EIO: the other end is closed
                    break
                if not piece:
                    break
                out += piece
        os.close(parent)

        assert process.returncode == 0
        assert b"\x1b[1m" in out
        assert b"engine.ops.copy" in out


def test_the_documentation_lists_every_outcome() -> None:
    from jitreplay.replayer.outcome import Outcome

    text = (ROOT / "docs" / "json.md").read_text()

    assert [outcome.value for outcome in Outcome if f"`{outcome.value}`" not in text] == []
