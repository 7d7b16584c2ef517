"""What a kernel is: found wherever a program keeps it, by name and source, and never by its name alone."""

import importlib
import json
import linecache
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from jitreplay.manifest.model import Manifest, digest

from . import helpers
from .helpers import PRELUDE, by_kernel, merged, program, save, variants_of

STUB = "from kernels import uncompiled\nuncompiled.install()\nfrom kernels import shop\n"
REPLAY = """
report = jitreplay.replay({path!r}, allow=("kernels",))

def told(name):
    found = [[r.outcome.value, r.reason] for r in report.results if r.variant.kernel.qualname.endswith(name)]
    return sorted(found)

def numbers(kernel):
    found = []
    for caches in kernel.device_caches.values():
        found += [key.partition("]")[0] for key in caches[0]]
    return sorted(found)
"""
RECORD = (
    STUB
    + """
shop.launch_named()
for scale, numbers in ((1.0, (7,)), (2.0, (5, 16))):
    kernel = shop.make(scale)
    for n in numbers:
        kernel[(1,)](n, C=3)
shop.rewritten[(1,)](1)
for body, number in (("n + 1", 5), ("n + 2", 16)):
    shop.rewrite(body)[(1,)](number)
answer(keys())
"""
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recording of all kernels of `kernels.shop`, as a manifest and as a file."""
    folder = tmp_path_factory.mktemp("shop")
    keys = program(folder, RECORD, record=folder / "recording")
    manifest = merged(folder / "recording")
    return {"keys": keys, "manifest": manifest, "path": str(save(manifest, folder / "shop.jitreplay"))}


MADE = ("made", "rewritten")


def named(keys: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: found for name, found in keys.items() if not name.endswith(MADE)}


@pytest.fixture(scope="module")
def booted(shop: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A boot with that manifest, in which factories run only after the replay."""
    code = (
        STUB
        + REPLAY.format(path=shop["path"])
        + """
out = {"keys": keys(), "made": told("made"), "rewritten": told("rewritten")}
other, first, second = shop.make(3.0), shop.make(2.0), shop.make(2.0)
other[(1,)](5, C=3)
first[(1,)](5, C=3)
second[(1,)](99, C=4)
out["other"], out["first"], out["second"] = map(numbers, (other, first, second))
out["made later"] = told("made")
again = shop.rewrite("n + 2")
again[(1,)](99)
out["again"], out["original"] = numbers(again), numbers(shop.rewritten)
out["rewritten later"] = told("rewritten")
answer(out)
"""
    )
    return program(tmp_path_factory.mktemp("booted"), code)


def key(*parts: str) -> str:
    return f"[{', '.join(parts)}"


C3, C4 = "('constexpr', 3)", "('constexpr', 4)"
N5, N16 = "('i32', '')", "('i32', 'D')"


class TestNamed:
    def test_kernels_in_classes_and_wrappers_are_found(self, shop: dict[str, Any], booted: Any) -> None:
        recorded = by_kernel(shop["manifest"])

        assert len(named(shop["keys"])) == 8
        for name, keys in named(booted["keys"]).items():
            assert {digest(key) for key in keys} == recorded[name], name  # without an autotuner's losers
        assert set(named(booted["keys"])) == set(named(shop["keys"]))

    def test_the_recording_says_how_each_is_held(self, shop: dict[str, Any]) -> None:
        found = {kernel.qualname: kernel for kernel in shop["manifest"].kernels}

        assert found["both"].wrappers == (
            "triton.runtime.autotuner.Autotuner",
            "triton.runtime.autotuner.Heuristics",
        )
        assert found["wrapped"].wrappers == ("kernels.shop.Wrapper",)
        assert found["in_gluon"].gluon and not found["plain"].gluon
        assert {name for name, kernel in found.items() if not kernel.named} == {"make.<locals>.made", "rewritten"}


class TestMade:
    """Kernels that a function makes (CASES D1)."""

    def test_they_are_told_apart_by_what_they_hold(self, shop: dict[str, Any]) -> None:
        found = variants_of(shop["manifest"], "make.<locals>.made")

        assert len(found) == 3 and len({v.kernel.fingerprint for v in found}) == 2

    def test_one_that_is_not_there_is_waited_for(self, booted: Any) -> None:
        assert not [name for name in booted["keys"] if name.endswith("made")]
        assert {(outcome, reason.rpartition("; ")[2]) for outcome, reason in booted["made"]} == {
            ("skipped", "bound when it first appears")
        }

    def test_one_that_appears_is_bound_at_its_first_launch(self, booted: Any) -> None:
        assert booted["first"] == [key(N5, C3), key(N16, C3)]
        assert [outcome for outcome, _ in booted["made later"]] == ["compiled", "skipped", "warm"]

    def test_so_is_each_further_one_of_the_same_source(self, booted: Any) -> None:
        assert booted["second"] == [key(N5, C3), key(N5, C4), key(N16, C3)]

    def test_one_that_holds_something_else_is_not(self, booted: Any) -> None:
        assert booted["other"] == [key(N5, C3)]

    def test_those_that_are_there_are_bound_by_the_replay(self, shop: dict[str, Any], tmp_path: Path) -> None:
        code = "made = [shop.make(2.0), shop.make(2.0), shop.make(1.0), shop.make(4.0)]\n"
        code += "copies = [shop.rewrite('n + 1'), shop.rewrite('n + 3')]\n"
        code = STUB + code + REPLAY.format(path=shop["path"]) + "answer([list(map(numbers, [*made, *copies]))])"

        (found,) = program(tmp_path, code)

        both = [key(N5, C3), key(N16, C3)]
        assert found == [both, both, [key(N5, C3)], [], [key(N5)], []]


class TestRewritten:
    """One name, many bodies."""

    def test_the_one_that_has_the_name_gets_none_of_the_others(self, booted: Any) -> None:
        assert booted["original"] == [key("('constexpr', 1)")]
        assert sorted(outcome for outcome, _ in booted["rewritten"]) == ["compiled", "skipped", "skipped"]

    def test_one_that_appears_is_bound_by_its_source(self, booted: Any) -> None:
        assert booted["again"] == [key(N5), key(N16)]
        assert sorted(outcome for outcome, _ in booted["rewritten later"]) == ["compiled", "compiled", "skipped"]


SERVED = """
import sys
import triton
import triton.language as tl

SIZE = tl.constexpr(4)

@triton.jit
def serve(n):
    n + SIZE

def main():
{prelude}
    from kernels import uncompiled
    uncompiled.install()
{body}
"""


def served(folder: Path, body: str, *, run: bool, words: tuple[str, ...] = ("served.py",)) -> Any:
    """Write a program `served.py` and run it, or a program that imports it."""
    folder.mkdir(exist_ok=True)
    prelude = PRELUDE.format(target=helpers.TARGET, answer=str(folder / "answer.json"))
    prelude = "    global keys, happened, answer\n" + "".join(f"    {line}\n" for line in prelude.splitlines())
    text = SERVED.format(prelude=prelude, body="".join(f"    {line}\n" for line in dedent(body).splitlines()))
    (folder / "served.py").write_text(text + "\nif __name__ == '__main__':\n    main()\n")
    (folder / "runs.py").write_text("import served\nserved.main()\n")
    done = helpers.run(folder, sys.executable, *(words if run else ("runs.py",)), cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "answer.json").read_text())


LAUNCHED = """
with jitreplay.Recorder("recording"):
    for n in (1, 5, 16):
        serve[(1,)](n)
answer(keys())
"""
REPLAYED = """
report = jitreplay.replay("served.jitreplay", allow=("served",))
answer([keys(), report.counts, [r.reason for r in report.results], "served" in sys.modules])
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with a program, the manifest of a run of it as a script, and the keys that it had."""
    folder = tmp_path_factory.mktemp("main")
    keys = served(folder, LAUNCHED, run=True)
    save(merged(folder / "recording"), folder / "served.jitreplay")
    return folder, keys["__main__:serve"]


class TestMain:
    """A kernel of the program itself (CASES D5)."""

    def test_run_as_a_script_and_imported_later(self, scripts: tuple[Path, list[str]]) -> None:
        folder, recorded = scripts

        keys, counts, _, _ = served(folder, REPLAYED, run=False)

        assert keys == {"served:serve": recorded} and counts == {"compiled": 3}

    def test_another_program_has_another_main(self, scripts: tuple[Path, list[str]], tmp_path: Path) -> None:
        folder, _ = scripts
        shutil.copy(folder / "served.jitreplay", tmp_path)

        keys, counts, reasons, _ = served(tmp_path, "global SIZE\nSIZE = tl.constexpr(8)\n" + REPLAYED, run=True)

        assert keys == {} and counts == {"skipped": 3}
        assert all("recorded under __main__, and no kernel here has its source" in reason for reason in reasons)

    def test_imported_and_run_as_a_module_later(self, tmp_path: Path) -> None:
        recorded = served(tmp_path, LAUNCHED, run=False)["served:serve"]
        save(merged(tmp_path / "recording"), tmp_path / "served.jitreplay")

        keys, counts, _, imported = served(tmp_path, REPLAYED, run=True, words=("-m", "served"))

        assert keys == {"__main__:serve": recorded} and counts == {"compiled": 3}
        assert not imported


PACKAGE = """
import triton
import triton.language as tl
from {package}.helpers import helper, constant, LIMIT
{above}
SIZE = tl.constexpr(4)
VALUES = (1, 2)

@triton.jit
def kernel(x, n, C: tl.constexpr = constant(3)):
    # a comment
    y = helper(n) + SIZE + LIMIT + constant(2) + tl.cdiv(n, 4)
    tl.store(x, y)
"""
HELPERS = """
import triton
import triton.language as tl
LIMIT = tl.constexpr(16)

@triton.jit
def deeper(n):
    return n + 1

@triton.jit
def helper(n):
    return deeper(n)

def plain(n):
    return n * 2

@triton.constexpr_function
def constant(n):
    return plain(n)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Write a package of the given name and return its kernel's fingerprint: `package(name, old, new, ...)`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def fingerprint(name: str = "parcel", *changes: str, above: str = "") -> str:
        from jitreplay.jit.source import fingerprint

        folder = tmp_path / name.replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        texts = {"kernels.py": PACKAGE.format(package=name, above=above), "helpers.py": HELPERS}
        for old, new in zip(changes[::2], changes[1::2], strict=True):
            assert any(old in text for text in texts.values())
            texts = {file: text.replace(old, new) for file, text in texts.items()}
        for file, text in texts.items():
            (folder / file).write_text(text)
        for module in [module for module in sys.modules if module.startswith(name.partition(".")[0])]:
            del sys.modules[module]
        importlib.invalidate_caches()
        linecache.clearcache()
        return fingerprint(importlib.import_module(f"{name}.kernels").kernel)

    yield fingerprint
    for module in [module for module in sys.modules if module.partition(".")[0] in ("parcel", "other", "my")]:
        del sys.modules[module]


class TestFingerprint:
    def test_a_kernel_that_moved_is_the_same(self, package: Any) -> None:
        before = package()

        assert package(above="\n\n# a line above") == before
        assert package("other") == before
        assert package("parcel", "VALUES = (1, 2)", "VALUES = (3,)") == before

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("tl.store(x, y)", "tl.store(x, y + 1)"),
            ("SIZE = tl.constexpr(4)", "SIZE = tl.constexpr(5)"),
            ("SIZE = tl.constexpr(4)", "SIZE = tl.constexpr(4.0)"),
            ("LIMIT = tl.constexpr(16)", "LIMIT = tl.constexpr(32)"),
            ("return n + 1", "return n + 2"),
            ("return plain(n)", "return plain(n) + 1"),
            ("return n * 2", "return n * 3"),
            ("def kernel(x, n,", "def kernel(x, n: tl.int64,"),
            ("@triton.jit\ndef kernel", "@triton.jit(do_not_specialize=['n'])\ndef kernel"),
        ],
    )
    def test_what_a_kernel_says_calls_or_holds_is_part_of_it(self, package: Any, old: str, new: str) -> None:
        before = package()

        assert package("parcel", old, new) != before

    def test_a_folder_named_triton_is_looked_into(self, package: Any) -> None:
        before = package("my.triton")

        assert package("my.triton", "return n + 1", "return n + 2") != before

    def test_tritons_own_functions_count_by_name(self, package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        import triton.language as tl

        before = package()
        monkeypatch.setattr(tl.cdiv, "_src", "def cdiv(x, div):\n    return 0\n")

        assert package() == before


CHANGED = """
from kernels import uncompiled
uncompiled.install()
from {package}.kernels import kernel
{rest}
"""


def test_a_changed_kernel_is_compiled_from_its_present_source(package: Any, tmp_path: Path) -> None:
    package("parcel")
    launches = "x = torch.zeros(4)\nfor n in (1, 5):\n    kernel[(1,)](x, n)\nanswer(keys())"
    code = CHANGED.format(package="parcel", rest=launches)
    recorded = program(tmp_path, code, record=tmp_path / "recording")
    path = save(merged(tmp_path / "recording"), tmp_path / "parcel.jitreplay")
    package("parcel", "return n + 1", "return n + 2")
    rest = f"report = jitreplay.replay({str(path)!r}, allow=('parcel',))\n"
    rest += "answer([keys(), [[r.outcome.value, r.reason] for r in report.results]])"

    keys, told = program(tmp_path, CHANGED.format(package="parcel", rest=rest))

    assert keys == recorded and len(told) == 2
    for outcome, reason in told:
        assert outcome == "changed" and reason.startswith("the kernel's source changed since it was recorded")


def test_kernels_of_one_name_in_two_packages_are_two(package: Any, tmp_path: Path) -> None:
    package("parcel")
    package("other", "tl.store(x, y)", "tl.store(x, y + 1)")
    manifests: list[Manifest] = []
    for name in ("parcel", "other"):
        code = CHANGED.format(package=name, rest="kernel[(1,)](torch.zeros(4), 5)\nanswer(0)")
        folder = tmp_path / "runs" / name
        program(folder, code, record=folder / "recording", PYTHONPATH=_paths(tmp_path))
        manifests.append(merged(folder / "recording"))

    found = merged(tmp_path / "runs")

    assert [len(manifest.kernels) for manifest in manifests] == [1, 1]
    assert [kernel.name for kernel in found.kernels] == ["other.kernels.kernel", "parcel.kernels.kernel"]


def _paths(folder: Path) -> str:
    return ":".join(map(str, (folder, helpers.ROOT, helpers.TESTS)))
