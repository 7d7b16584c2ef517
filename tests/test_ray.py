"""`jitreplay compile --ray` on a real cluster of two nodes of one CPU each, which run on this machine."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from jitreplay.manifest.model import Manifest

from .helpers import LIMIT, environment, goods, jitreplay, merged, program, run, save

pytest.importorskip("ray")

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of four variants, two in each of two shards."""
    folder = tmp_path_factory.mktemp("recorded")
    found = goods(folder, 16)
    even, odd = ([v for v in found.variants if int(v.digest[:8], 16) % 2 == part][:2] for part in (0, 1))
    kept = tuple(v for v in found.variants if v in even + odd)
    return save(Manifest(found.environments, kept, ()), folder / "kernels.jitreplay")


def words(manifest: Path, cache: Path, *more: Any) -> list[Any]:
    return ["compile", manifest, "--target", "cuda:90", "--cache-dir", cache, "--allow", "kernels", *more]


@contextmanager
def started(folder: Path, *words: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a jitreplay command, and see it end."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "jitreplay.cli", *map(str, words)]
    with subprocess.Popen(
        command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def begun(
    tmp_path_factory: pytest.TempPathFactory, manifest: Path
) -> Iterator[tuple[Path, list[subprocess.Popen[str]]]]:
    """Start what `local` waits for, all at once, so that the cluster starts meanwhile."""
    folder = tmp_path_factory.mktemp("local")
    ways = [
        ("whole", "--archive", folder / "whole.tgz"),
        ("jobs", "-j", "2"),
        ("parts", "--shard", "1/2"),
        ("parts", "--shard", "2/2"),
    ]
    with ExitStack() as stack:
        yield (
            folder,
            [
                stack.enter_context(started(folder / name, *words(manifest, folder / name, *more)))
                for name, *more in ways
            ],
        )


@pytest.fixture(scope="module")
def cluster(begun: Any) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("FAULTS", os.devnull)  # in the nodes' compile helpers
        found = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        try:
            found.add_node(**NODE)
            yield found
        finally:
            found.shutdown()


@pytest.fixture(scope="module")
def local(begun: tuple[Path, list[Any]], cluster: Any) -> Path:
    """Return the folder of the caches that the command fills here: in one process, in two, and in two shards."""
    folder, running = begun
    for process in running:
        said, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, said
    return folder


def content(cache: Path) -> dict[str, bytes]:
    """Return the files of a cache's entries, without the group files, which hold paths."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in cache.glob("[!.]*/*")
        if not path.name.startswith("__grp__") and path.name != "lock"
    }


def shards_running(folder: Path) -> int:
    """Return how many processes compile a shard for a command that was started with this folder."""
    found = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            found += b"\0jitreplay.replayer.shard\0" in (path / "cmdline").read_bytes() and (
                os.fsencode(folder) in (path / "environ").read_bytes()
            )
        except OSError:
            continue  # it ended
    return found


def test_two_nodes_make_what_one_machine_makes(tmp_path: Path, manifest: Path, local: Path, cluster: Any) -> None:
    more = ("--ray", cluster.address, "--archive", tmp_path / "ray.tgz")
    done = jitreplay(tmp_path, *words(manifest, tmp_path / "ray", *more), JITREPLAY_LOG="info")
    assert done.returncode == 0, done.stderr
    assert ": 4 compiled" in done.stdout
    ran = dict(re.findall(r"shard (\d)/2: 2 variants on node \S+ \((\w+)\)", done.stderr))
    assert sorted(ran) == ["1", "2"] and len(set(ran.values())) == 2

    found = content(tmp_path / "ray")
    assert sum(name.endswith(".cubin") for name in found) == 4
    for name in ("whole", "jobs", "parts"):
        assert content(local / name) == found
    for name, archive in {"a": tmp_path / "ray.tgz", "b": local / "whole.tgz"}.items():
        done = jitreplay(tmp_path, "unpack", archive, "--cache-dir", tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert content(tmp_path / name) == found


def seen_on_a_terminal(folder: Path, *words: Any) -> tuple[int, str]:
    """Run a jitreplay command whose stderr is a terminal; return its exit code, and all that it printed."""
    ours, its = pty.openpty()
    folder.mkdir()
    command = [sys.executable, "-m", "jitreplay.cli", *map(str, words)]
    with subprocess.Popen(command, env=environment(folder, COLUMNS="200"), stdout=its, stderr=its) as process:
        os.close(its)
        said = b""
        with suppress(OSError):  # the terminal's end
            while more := os.read(ours, 1 << 16):
                said += more
        os.close(ours)
    return process.returncode, said.decode()


def test_what_breaks_a_node_s_compiler_is_tried_once(tmp_path: Path, cluster: Any) -> None:
    code = (
        "from kernels.faults import aborts, good\nx = torch.zeros(16)\ngood[(1,)](x, 3), aborts[(1,)](x)\nanswer(None)"
    )
    program(tmp_path / "recorded", code, record=tmp_path / "journals")
    path = save(merged(tmp_path / "journals"), tmp_path / "kernels.jitreplay")

    line = words(path, tmp_path / "cache", "--ray", cluster.address, "-j", 1)
    found, said = seen_on_a_terminal(tmp_path / "a", *line)
    assert found == 1 and "aborts" in said and "SIGABRT" in said
    assert re.search(r"(good|aborts); 1 of 1 shard to go", said)

    done = jitreplay(tmp_path / "b", *line, "--json")
    results = {each["kernel"].rpartition(".")[2]: each for each in json.loads(done.stdout)["variants"]}
    assert (results["good"]["outcome"], results["aborts"]["outcome"]) == ("cached", "skipped")
    assert results["aborts"]["reason"].startswith("in quarantine: ")


def test_nodes_with_another_version_are_told_in_one_line(tmp_path: Path, manifest: Path, cluster: Any) -> None:
    info = tmp_path / "jitreplay-99.0.dist-info"  # in the command's own folder, which no node looks into
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jitreplay\nVersion: 99.0\n")
    command = (sys.executable, "-m", "jitreplay.cli", *words(manifest, tmp_path / "cache", "--ray", cluster.address))
    done = run(tmp_path / "a", *command, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "it needs jitreplay 99.0" in done.stderr


def test_a_lost_node_s_shard_is_compiled_by_another(tmp_path: Path, manifest: Path, local: Path, cluster: Any) -> None:
    """It goes last: the cluster has one node afterwards."""
    there = shutil.copytree(local / "whole", tmp_path / "there")
    shutil.rmtree(next(there.glob("*/good.cubin")).parent)
    with started(tmp_path, *words(manifest, there, "--ray", cluster.address)) as running:
        end = time.monotonic() + LIMIT
        while shards_running(tmp_path) < 2:
            assert running.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
        said, _ = running.communicate(timeout=LIMIT)
    assert running.returncode == 0, said
    # What the cache held was not compiled again.
    assert ": 1 compiled, 3 cached" in said
    assert content(there) == content(local / "whole")
    assert not shards_running(tmp_path)


class TestWithoutACluster:
    def test_ray_that_is_not_installed(self, tmp_path: Path, manifest: Path) -> None:
        (tmp_path / "ray.py").write_text("raise ImportError('No module named ray')\n")
        done = jitreplay(tmp_path, *words(manifest, tmp_path / "cache", "--ray", "auto"))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert 'pip install "jitreplay[ray]"' in done.stderr

    @pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
    def test_an_address_where_none_is(self, tmp_path: Path, manifest: Path, address: str) -> None:
        done = jitreplay(tmp_path, *words(manifest, tmp_path / "cache", "--ray", address))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert address in done.stderr

    def test_a_shard_of_it(self, tmp_path: Path, manifest: Path) -> None:
        done = jitreplay(tmp_path, *words(manifest, tmp_path / "cache", "--ray", "auto", "--shard", "1/2"))
        assert done.returncode == 2 and "leave --shard out" in done.stderr
