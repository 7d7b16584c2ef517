"""The compile helper: what it compiles, what may break it, and that nothing of it stays."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest

from jitreplay.manifest.model import Manifest

from .helpers import LIMIT, PRELUDE, TARGET, environment, merged, program, save

MANY = 22
"""Variants of the kernel that compiles."""
FAULTY = ("aborts", "segfaults", "hangs", "gorges", "ends")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Return the manifest of one launch of each kernel of `kernels.faults`, of `good` with many constants."""
    folder = tmp_path_factory.mktemp("faults")
    code = f"""
    from kernels import faults
    x = torch.zeros(16)
    for name in {(*FAULTY, "differs")!r}:
        getattr(faults, name)[(1,)](x)
    for n in range({MANY}):
        faults.good[(1,)](x, N=n)
    answer(None)
    """
    program(folder, code, record=folder / "journals")
    return merged(folder / "journals")


def only(manifest: Manifest, *names: str, most: int = 1000) -> Manifest:
    """Return a manifest with the variants of these kernels alone, so many of each at most."""
    kept: list[Any] = []
    for name in names:
        kept += [v for v in manifest.variants if v.kernel.qualname == name][:most]
    return Manifest(manifest.environments, tuple(v for v in manifest.variants if v in kept), ())


def old_ptxas(folder: Path) -> Path:
    """Return a ptxas that tells its version and knows no GPU."""
    stub = folder / "ptxas"
    stub.write_text(
        '#!/bin/sh\ncase "$1" in --version) echo "Cuda compilation tools, release 12.8, V12.8.93";; '
        "*) echo \"ptxas fatal: Value 'sm_90' is not defined for option 'gpu-name'\" >&2; exit 1;; esac\n"
    )
    stub.chmod(0o755)
    return stub


def ptxas(path: Path) -> dict[str, str]:
    """Return the variables that name a ptxas: Triton 3.9 takes the one for Blackwell for other architectures too."""
    return {name: str(path) for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")}


STARTED = """
import jitreplay.replayer.prefetch as prefetching
started, helper = [], prefetching.Helper
prefetching.Helper = lambda *args: (started.append(args), helper(*args))[1]
"""
REPLAYED = 'report = jitreplay.replay("kernels.jitreplay", allow=("kernels",))\n'
OUTCOMES = """
outcomes = [[r.variant.kernel.qualname, r.outcome.value, r.reason] for r in report.results]
answer({"outcomes": outcomes, "events": happened(), "stopped": report.stopped, "notes": report.notes,
        "loaded": sum(r.loaded for r in report.results)})
"""


def replayed(folder: Path, manifest: Manifest, code: str = OUTCOMES, **variables: str) -> Any:
    """Replay in a fresh process with two compile workers, faults armed; return what it says."""
    folder.mkdir(parents=True, exist_ok=True)
    path = save(manifest, folder / "kernels.jitreplay")
    variables = {"JITREPLAY_JOBS": "2", "JITREPLAY_LIMIT": "60s", "FAULTS": str(folder), **variables}
    return program(folder, code, replay=path, **variables)


def outcomes(found: Any) -> dict[str, list[list[str]]]:
    """Return the (outcome, reason) pairs of each kernel."""
    by_name: dict[str, list[list[str]]] = {}
    for name, outcome, reason in found["outcomes"]:
        by_name.setdefault(name, []).append([outcome, reason])
    return by_name


class TestCompiling:
    def test_the_server_compiles_nothing_that_the_helper_did(self, tmp_path: Path, everything: Manifest) -> None:
        found = replayed(tmp_path, only(everything, "good", most=4))

        assert outcomes(found) == {"good": [["compiled", ""]] * 4}
        assert sorted(kind for kind, _ in found["events"]) == ["disk_hit"] * 4 + ["load"] * 4
        assert found["loaded"] == 4
        assert found["notes"] == []

    def test_a_second_boot_starts_no_helper(self, tmp_path: Path, everything: Manifest) -> None:
        manifest = only(everything, "good", most=2)
        replayed(tmp_path, manifest)
        begun = 'begun = jitreplay.prefetch("kernels.jitreplay", allow=("kernels",))\n'
        code = STARTED + begun + REPLAYED + "answer([begun, report.counts, len(started)])"
        assert program(tmp_path, code, FAULTS=str(tmp_path), JITREPLAY_JOBS="2") == [False, {"cached": 2}, 0]

        # A file that is cut since then is seen, and made anew.
        cubin = next((tmp_path / "cache").glob("*/*.cubin"))
        cubin.write_bytes(cubin.read_bytes()[:-100])
        found = outcomes(replayed(tmp_path, manifest))
        assert sorted(pair[0] for pair in found["good"]) == ["cached", "compiled"]

    @pytest.mark.parametrize("how", ["swapped", "another build's"])
    def test_a_binary_that_is_another_variants_is_made_anew(
        self, tmp_path: Path, everything: Manifest, how: str
    ) -> None:
        """Of the same kernel and as long: nothing in the entry tells, but what was stamped does. One that was merely
        built elsewhere, where line information differs, is as good, and stays.
        """
        manifest = only(everything, "good", most=3)
        replayed(tmp_path, manifest)
        paths = sorted((tmp_path / "cache").glob("*/good.cubin"))[:2]
        mine, other = (path.read_bytes() for path in paths)
        assert mine != other and len(mine) == len(other)
        if how == "swapped":
            paths[0].write_bytes(other)
            paths[1].write_bytes(mine)
        else:
            paths[0].write_bytes(mine[:-1] + bytes([mine[-1] ^ 1]))
        now = paths[0].read_bytes()
        found = outcomes(replayed(tmp_path, manifest))
        made = 2 if how == "swapped" else 0
        assert sorted(pair[0] for pair in found["good"]) == ["cached"] * (3 - made) + ["compiled"] * made
        assert [path.read_bytes() for path in paths] == [mine if made else now, other]
        code = STARTED + REPLAYED + "answer([report.counts, len(started)])"
        assert program(tmp_path, code, JITREPLAY_JOBS="2") == [{"cached": 3}, 0]

    def test_a_stamp_without_the_groups_decides_nothing(self, tmp_path: Path, everything: Manifest) -> None:
        manifest = only(everything, "good", most=3)
        replayed(tmp_path, manifest)
        for group in (tmp_path / "cache").glob("*/__grp__good.json"):
            group.unlink()
        code = STARTED + REPLAYED + "answer([report.counts, len(started)])"
        assert program(tmp_path, code, JITREPLAY_JOBS="2") == [{"compiled": 3}, 1]

    def test_a_full_cache_of_a_changed_program_needs_none_either(self, tmp_path: Path, everything: Manifest) -> None:
        """Recorded before and after a change, a kernel is there twice, and its entries in the cache once."""
        now = only(everything, "good", most=3)
        before = tuple(
            msgspec.structs.replace(v, kernel=msgspec.structs.replace(v.kernel, fingerprint=v.kernel.fingerprint[::-1]))
            for v in now.variants
        )
        save(Manifest(now.environments, now.variants + before), tmp_path / "kernels.jitreplay")
        full = STARTED + REPLAYED + "answer([report.counts, len(started)])"
        found = program(tmp_path, full, JITREPLAY_JOBS="2")
        assert found == [{"compiled": 3, "changed": 3}, 1]

        shutil.rmtree(tmp_path / "cache" / ".jitreplay")  # as in a cache that was shipped
        found = program(tmp_path, full, JITREPLAY_JOBS="2")
        assert found == [{"cached": 3, "changed": 3}, 0]

    def test_a_kernel_that_differs_in_the_helper_is_compiled_here(self, tmp_path: Path, everything: Manifest) -> None:
        found = replayed(tmp_path, only(everything, "differs", "good", most=1))

        by_name = outcomes(found)
        assert by_name["good"] == [["compiled", ""]]
        assert by_name["differs"] == [["differs_headless", "the helper's source of this kernel is another"]]
        assert ["compile", "differs"] in found["events"]

    def test_it_works_in_a_daemonic_process(self, tmp_path: Path, everything: Manifest) -> None:
        # The program has no `__name__` guard: whatever imported it again would start over.
        path = save(only(everything, "good", most=2), tmp_path / "kernels.jitreplay")
        code = f"""
        import multiprocessing
        def boot():
            report = jitreplay.replay({str(path)!r}, allow=("kernels",))
            answer([report.counts, report.notes, happened("compile")])
        process = multiprocessing.get_context("fork").Process(target=boot, daemon=True)
        process.start()
        process.join()
        """
        assert program(tmp_path, code, JITREPLAY_JOBS="2") == [{"compiled": 2}, [], []]

    def test_prefetch_returns_at_once_and_replay_joins_it(self, tmp_path: Path, everything: Manifest) -> None:
        path = save(only(everything, "good", most=3), tmp_path / "kernels.jitreplay")
        code = f"""
        begun = jitreplay.prefetch({str(path)!r}, allow=("kernels",))
        known = "kernels.faults" in sys.modules
        report = jitreplay.replay({str(path)!r}, allow=("kernels",))
        answer([begun, known, report.counts, happened("compile")])
        """
        assert program(tmp_path, code) == [True, False, {"compiled": 3}, []]

    def test_two_ranks_compile_each_key_once(self, tmp_path: Path, everything: Manifest) -> None:
        path = save(only(everything, "good", most=6), tmp_path / "kernels.jitreplay")
        processes = []
        for rank in range(2):
            folder = tmp_path / str(rank)
            folder.mkdir()
            text = PRELUDE.format(target=TARGET, answer=str(folder / "answer.json"))
            text += f"report = jitreplay.replay({str(path)!r}, allow=('kernels',))\nanswer(report.counts)\n"
            (folder / "program.py").write_text(text)
            env = environment(folder, TRITON_CACHE_DIR=str(tmp_path / "cache"), JITREPLAY_JOBS="1")
            processes.append(subprocess.Popen([sys.executable, str(folder / "program.py")], env=env))
        assert [process.wait(LIMIT) for process in processes] == [0, 0]

        counts = [json.loads((tmp_path / str(rank) / "answer.json").read_text()) for rank in range(2)]
        assert sum(count.get("compiled", 0) for count in counts) == 6
        assert sum(count.get("cached", 0) for count in counts) == 6


class TestFaults:
    def test_each_costs_one_variant_and_is_left_alone_at_the_next_boot(
        self, tmp_path: Path, everything: Manifest
    ) -> None:
        manifest = only(everything, *FAULTY, "good", most=3)
        found = outcomes(replayed(tmp_path, manifest, JITREPLAY_LIMIT="15s"))

        assert found["good"] == [["compiled", ""]] * 3
        assert {name: pairs[0][0] for name, pairs in found.items() if name != "good"} == dict.fromkeys(FAULTY, "failed")
        reasons = {name: found[name][0][1] for name in FAULTY}
        assert "SIGABRT" in reasons["aborts"]
        assert "SIGSEGV" in reasons["segfaults"]
        assert "longer than 15 s" in reasons["hangs"]
        assert "memory" in reasons["gorges"]
        assert "exit code" in reasons["ends"]

        again = replayed(tmp_path, manifest)
        for name in FAULTY:
            outcome, reason = outcomes(again)[name][0]
            assert outcome == "skipped"
            assert reason.startswith("in quarantine: ") and "quarantine.jsonl" in reason
        assert [event for event in again["events"] if event[0] == "compile"] == []

        # Another toolchain knows nothing of it.
        other = outcomes(replayed(tmp_path, only(manifest, "aborts"), TRITON_DISABLE_LINE_INFO="1"))
        assert other["aborts"][0][0] == "failed"

    def test_many_equal_failures_stop_the_work(self, tmp_path: Path, everything: Manifest) -> None:
        found = replayed(tmp_path, only(everything, "good"), **ptxas(old_ptxas(tmp_path)))

        counts = [outcome for _, outcome, _ in found["outcomes"]]
        assert (counts.count("failed"), counts.count("skipped")) == (20, MANY - 20)
        assert "TRITON_PTXAS_PATH" in found["stopped"]
        assert not (tmp_path / "cache" / ".jitreplay" / "quarantine.jsonl").exists()

    def test_a_helper_that_cannot_start_costs_nothing_but_time(self, tmp_path: Path, everything: Manifest) -> None:
        code = """
        import jitreplay.replayer.children as children
        children.MODULE = "jitreplay.no_such_module"
        report = jitreplay.replay("kernels.jitreplay", allow=("kernels",))
        answer([report.counts, report.notes])
        """
        save(only(everything, "good", most=2), tmp_path / "kernels.jitreplay")
        counts, notes = program(tmp_path, code, JITREPLAY_JOBS="2")
        assert counts == {"compiled": 2}
        assert "no_such_module" in notes[0]


@pytest.fixture
def hanging(tmp_path: Path, everything: Manifest) -> Iterator[tuple[Any, list[int]]]:
    """Give a server in mid-replay, and the processes of its helper: a worker that hangs, and its parent."""
    path = save(only(everything, "hangs", "good", most=1), tmp_path / "kernels.jitreplay")
    text = PRELUDE.format(target=TARGET, answer=str(tmp_path / "answer.json"))
    text += dedent(f"""
    import signal
    import sys
    import time
    from triton import knobs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    if os.environ.get("FORK") and os.fork() == 0:
        time.sleep(300)
    try:
        jitreplay.prefetch({str(path)!r}, allow=("kernels",))
        if os.environ.get("FORK") and os.fork() == 0:
            time.sleep(300)
        jitreplay.replay({str(path)!r}, allow=("kernels",))
    except KeyboardInterrupt:
        answer(knobs.compilation.listener is None)
        sys.exit()  # else, where it came inside an exec() of text, CPython ends by SIGINT though it was handled
    """)
    (tmp_path / "program.py").write_text(text)
    env = environment(tmp_path, FAULTS=str(tmp_path), FORK="1", JITREPLAY_JOBS="2")
    server = subprocess.Popen([sys.executable, str(tmp_path / "program.py")], env=env, start_new_session=True)
    try:
        yield server, _pids(tmp_path)
    finally:
        try:
            os.killpg(server.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        server.wait()


def _pids(folder: Path) -> list[int]:
    end = time.monotonic() + LIMIT / 2
    while time.monotonic() < end:
        texts = [file.read_text() for file in folder.glob("hangs.*")]
        if texts and len(texts[0].split()) == 2:
            return list(map(int, texts[0].split()))
        time.sleep(0.1)
    raise AssertionError("no worker hangs")


def _gone(pids: list[int]) -> bool:
    """Wait until processes are gone (or wait to be reaped by a parent that is not ours)."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if not any(_lives(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestSignals:
    def test_ctrl_c_ends_the_helper_and_restores_the_hooks(self, tmp_path: Path, hanging: Any) -> None:
        server, pids = hanging
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
        assert json.loads((tmp_path / "answer.json").read_text()) is True
        assert _gone(pids)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
    def test_a_killed_server_leaves_no_process(self, hanging: Any, number: signal.Signals) -> None:
        # Also where the server has forked, and the child lives on with what it inherited.
        server, pids = hanging
        server.send_signal(number)
        assert server.wait(60) == -number
        assert _gone(pids)

    def test_workers_end_with_a_killed_helper(self, hanging: Any) -> None:
        _, (worker, helper) = hanging
        os.kill(helper, signal.SIGKILL)
        assert _gone([worker, helper])
