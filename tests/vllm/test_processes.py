"""vLLM's workers in processes of their own: forked, spawned, under Ray and torchrun; ranks, killed workers."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import HERE, environment, kinds, merge, run

from jitreplay import load


def serve(folder, cache, *words, **variables):
    return run("multi.py", *words, cache=folder / cache, **variables)


def misses(found, phase, rank):
    return kinds(found["phases"][phase][rank], "compile", "disk_hit")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two ranks in forked processes, recorded cold: (folder, manifest, what they counted, what was printed)."""
    folder = tmp_path_factory.mktemp("ranks")
    found, printed = serve(folder, "cache", "--tp", 2, JITREPLAY_RECORD=str(folder / "recording"))
    return folder, merge(folder / "recording", folder / "kernels.jitreplay"), found, printed


class TestRecording:
    def test_workers_are_daemonic_and_each_rank_compiles_while_it_serves(self, recorded):
        *_, found, _ = recorded
        assert [worker["daemon"] for worker in found["workers"]] == [True, True]
        assert misses(found, "serve", 0) and misses(found, "serve", 1)

    def test_each_rank_has_a_journal_and_the_frontend_has_none(self, recorded):
        folder, _, found, printed = recorded
        pids = {path.name.partition("-")[0] for path in (folder / "recording").glob("*.journal")}
        assert pids == {str(worker["pid"]) for worker in found["workers"]}
        assert "recorded 0 variants" not in printed

    def test_the_manifest_names_both_ranks(self, recorded):
        _, manifest, *_ = recorded
        assert {rank for v in load(manifest).variants for rank in v.ranks} == {"dp0:pp0:pcp0:tp0", "dp0:pp0:pcp0:tp1"}


def assert_warm(found, report, ranks=2):
    for rank in range(ranks):
        assert misses(found, "serve", rank) == []
    reports = sorted(report.parent.glob(f"{report.stem}.*"))
    assert len(reports) == ranks
    for path in reports:
        assert set(json.loads(path.read_text())["counts"]) <= {"compiled", "cached", "warm"}


@pytest.mark.parametrize("words", [(), ("--spawn", "--core")], ids=["forked", "spawned behind an engine core"])
def test_after_a_replay_no_rank_compiles(recorded, words):
    folder, manifest, *_ = recorded
    report = folder / f"report{len(words)}.json"
    variables = {"JITREPLAY_MANIFEST": str(manifest), "JITREPLAY_REPORT": str(report)}
    found, printed = serve(folder, f"cold{len(words)}", "--tp", 2, *words, **variables)
    assert_warm(found, report)
    assert printed.count("jitreplay: replayed") == 2
    # Of what both ranks need, each key was compiled in one process alone, and the other found it on disk.
    compiled = [kinds(found["phases"]["build"][rank], "compile") for rank in (0, 1)]
    assert sum(map(len, compiled)) <= len(load(manifest).variants)


def test_a_rank_that_was_never_recorded_is_warm_too(recorded):
    """The values that come from the rank are recomputed: the journal of rank 0 alone serves rank 1."""
    folder, _, found, _ = recorded
    first = found["workers"][0]["pid"]
    journal = next((folder / "recording").glob(f"{first}-*.journal"))
    manifest = merge(journal, folder / "first.jitreplay")
    assert {rank for v in load(manifest).variants for rank in v.ranks} == {"dp0:pp0:pcp0:tp0"}
    found, _ = serve(folder, "cache", "--tp", 2, JITREPLAY_MANIFEST=str(manifest))
    assert misses(found, "serve", 0) == misses(found, "serve", 1) == []


def test_torchrun_starts_the_ranks(recorded):
    """vLLM's external launcher: each rank is a program of its own, with the engine in the worker's process."""
    folder, manifest, *_ = recorded
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    report = folder / "torchrun.json"
    programs = []
    for rank in (0, 1):
        env = environment(folder / "cache") | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
            "JITREPLAY_MANIFEST": str(manifest),
            "JITREPLAY_REPORT": str(report),
        }
        words = ["--executor", "external_launcher", "--tp", "2", "--json", str(folder / f"torchrun-{rank}.out")]
        programs.append(subprocess.Popen([sys.executable, str(HERE / "multi.py"), *words], env=env))
    assert [program.wait(900) for program in programs] == [0, 0]
    for rank in (0, 1):
        found = json.loads((folder / f"torchrun-{rank}.out").read_text())
        assert misses(found, "serve", 0) == []
    assert len(list(folder.glob("torchrun.dp0*.json"))) == 2


def test_ray_starts_the_ranks(recorded):
    pytest.importorskip("ray")
    folder, manifest, *_ = recorded
    report = folder / "ray.json"
    variables = {"JITREPLAY_MANIFEST": str(manifest), "JITREPLAY_REPORT": str(report)}
    found, _ = serve(folder, "cache", "--executor", "ray", "--tp", 2, **variables)
    assert_warm(found, report)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_the_journal_of_a_killed_worker_is_whole(recorded, how):
    folder, manifest, *_ = recorded
    recording = folder / f"killed-{how.name}"
    env = environment(folder / "cache") | {"JITREPLAY_RECORD": str(recording)}
    words = ["--tp", "2", "--wait", "--json", str(folder / f"killed-{how.name}.out")]
    program = subprocess.Popen(
        [sys.executable, str(HERE / "multi.py"), *words], env=env, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    try:
        line = next(line for line in program.stdout if line.startswith("serving"))
        parent, *workers = map(int, line.split()[1:])
        for pid in workers if how is signal.SIGKILL else [*workers, parent]:
            os.kill(pid, how)
        if how is signal.SIGTERM:
            program.wait(60)
        gone(workers)
    finally:
        program.kill()
        program.wait()
    again = merge(recording, folder / f"killed-{how.name}.jitreplay")
    assert {v.identity for v in load(again).variants} == {v.identity for v in load(manifest).variants}


def gone(pids):
    """Wait until these processes have ended."""
    for _ in range(600):
        if not any(Path(f"/proc/{pid}").exists() and "Z" not in state(pid) for pid in pids):
            return
        time.sleep(0.1)
    raise AssertionError(f"still there: {pids}")


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
