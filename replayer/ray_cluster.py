"""A Ray cluster that fills a Triton cache: one task per shard of a manifest, none of which needs a GPU.

Each task compiles its shard in a process of its own, into a folder that is gone afterwards, and sends back the entries
as an archive. Nodes need the same jitreplay, Triton and Python as the command, and the kernels' modules.
"""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from ..jit.environment import variables
from ..manifest import file
from ..manifest.errors import JitreplayError
from ..manifest.model import Manifest
from ..manifest.settings import LOGGER
from ..manifest.words import many
from . import archive, shard
from .outcome import Outcome, Report, Result
from .progress import Progress
from .quarantine import Quarantine

RETRIES = 3
"""How often Ray starts a shard again whose node or worker is gone."""
REACH = 10.0
"""Seconds that a cluster's address has to take a connection. Ray itself waits for minutes, then ends the process."""
PATIENCE = 5.0
"""Seconds that tasks have to end when the command is interrupted."""
LOOK = 0.5
"""Seconds between two looks at how far the shards are."""
_OWN_PLACES = {"TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TRITON_OVERRIDE_DIR"}


class ClusterError(JitreplayError):
    """Ray is not installed, a cluster cannot be used, or none of its nodes is fit; the text says what to do."""


def require() -> Any:
    """Return the module ray. Raises ClusterError where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise ClusterError(f'--ray needs Ray ({error}): pip install "jitreplay[ray]", or pip install ray') from None
    return ray


class Cluster:
    """The Ray cluster at an address: `auto` or `host:port`. Raises ClusterError when it cannot be reached or used."""

    def __init__(self, address: str) -> None:
        self.ray = ray = require()
        _reach(os.environ.get("RAY_ADDRESS", "") if address == "auto" else address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            text = " ".join(str(error).split())
            raise ClusterError(f"no Ray cluster that can be used at {address}: {text[:400]}") from None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.ray.shutdown()

    def fill(
        self,
        manifest: Manifest,
        cache: Path,
        builds: Mapping[str, dict[str, str]],
        quarantines: Mapping[str, Quarantine],
        *,
        allow: Iterable[str] = (),
        shards: int = 0,
        progress: Progress | None = None,
    ) -> Report:
        """Fill a cache directory of this machine with a manifest for the targets that `builds` names.

        `builds` says by target what its entries must be good for (`jit.place.build`), `quarantines` what is not tried
        and what is added to when a compile breaks its process. `shards` is in how many parts the work is cut, 0 for
        as many as the cluster has CPUs. What is there already is kept. `progress` is called as shards go on. A shard
        that is lost, or whose node is not fit, fails variant by variant, with a note that says why. Raises
        ClusterError when no node is fit.
        """
        start = time.perf_counter()
        parts = _Parts(manifest, shards or self._cpus(), tuple(builds))
        cache.mkdir(parents=True, exist_ok=True)
        remote = self.ray.remote(num_cpus=1, num_gpus=0, max_retries=RETRIES, scheduling_strategy="SPREAD")(_task())
        board = self.ray.remote(num_cpus=0)(_board()).remote()
        seed = self.ray.put(_seed(cache, manifest))
        held = {target: quarantine.held for target, quarantine in quarantines.items()}
        waiting: dict[Any, int] = {}
        for index in parts.todo:
            content = shard.Request(file.dumps(parts.manifests[index]), tuple(builds), tuple(allow), dict(builds), held)
            words = (index, board, msgspec.msgpack.encode(content), seed, _needs(), _variables(), _paths())
            waiting[remote.options(name=f"jitreplay {parts.name(index)}").remote(*words)] = index
        try:
            while waiting:
                if progress is not None:
                    to_go = f"{len(waiting)} of {many(len(parts.todo), 'shard')} to go"
                    progress(parts.finished, parts.total, parts.kernel + to_go)
                ready, _ = self.ray.wait(list(waiting), num_returns=1, timeout=LOOK)
                for each in ready:
                    self._take(parts, waiting.pop(each), each, cache, quarantines)
                if not ready:
                    self._read(board, parts)
        except BaseException:
            self._cancel(list(waiting))
            raise
        report = parts.report()
        report.seconds["total"] = time.perf_counter() - start
        return report

    def _cpus(self) -> int:
        cpus = int(self.ray.cluster_resources().get("CPU", 0))
        if cpus < 1:
            raise ClusterError("the Ray cluster has no CPU for a task: add a node to it")
        return cpus

    def _cancel(self, refs: list[Any]) -> None:
        """End tasks, with time to delete their folders: Ray kills what a task started when its driver is gone."""
        for ref in refs:
            self.ray.cancel(ref)
        if refs:
            self.ray.wait(refs, num_returns=len(refs), timeout=PATIENCE)

    def _read(self, board: Any, parts: _Parts) -> None:
        """Take what the tasks say of how far they are. A board that is lost with its node says nothing more."""
        try:
            said: dict[int, str] = self.ray.get(board.read.remote(), timeout=LOOK)
        except (self.ray.exceptions.RayError, TimeoutError):
            return
        for index, text in said.items():
            done, _, kernel = text.partition(" ")
            parts.done[index] = max(parts.done.get(index, 0), int(done))
            if index not in parts.answers and kernel:
                parts.kernel = f"{kernel}; "

    def _take(self, parts: _Parts, index: int, ready: Any, cache: Path, quarantines: Mapping[str, Quarantine]) -> None:
        """Take what a task sent, or why it sent nothing, and put its entries into the cache."""
        parts.done[index] = len(parts.manifests[index].variants) * len(parts.targets)
        try:
            reply = self.ray.get(ready)
        except self.ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            parts.lost[index] = (
                f"Ray lost it, after {RETRIES} retries at most ({type(error).__name__}: {lines[0][:300]})"
            )
            return
        where = f"node {reply['ip']} ({reply['node'][:8]})"
        error = reply["unfit"] or reply["error"]
        if not error:
            answer = msgspec.msgpack.decode(reply["answer"], type=shard.Answer)
            error = reply["unfit"] = answer.error
            parts.answers[index] = answer.report
            for target, held in answer.quarantine.items():
                quarantines[target].take(held)
        if error:
            parts.lost[index] = f"{where}: {error}"
            parts.unfit += bool(reply["unfit"])
            return
        with tempfile.TemporaryDirectory(prefix="jitreplay-") as folder:
            path = Path(folder, shard.ARCHIVE)
            path.write_bytes(reply["archive"])
            archive.merge(path, cache)
        found = len(parts.manifests[index].variants)
        LOGGER.info("%s: %d variants on %s in %.1f s", parts.name(index), found, where, reply["seconds"])


class _Parts:
    """A manifest in parts, and what became of each: `todo` are the numbers of those that hold something."""

    def __init__(self, manifest: Manifest, parts: int, targets: Sequence[str]) -> None:
        self.manifests, self.targets = shard.split(manifest, parts), targets
        self.todo = [index for index, part in enumerate(self.manifests) if part.variants]
        self.answers: dict[int, Report] = {}
        self.lost: dict[int, str] = {}
        self.unfit = 0
        self.done: dict[int, int] = {}
        self.total = len(manifest.variants) * len(targets)
        self.kernel = ""

    @property
    def finished(self) -> int:
        return sum(self.done.values())

    def name(self, index: int) -> str:
        return f"shard {index + 1}/{len(self.manifests)}"

    def report(self) -> Report:
        """Return the report of all, in the order of the parts. Raises ClusterError when every node was unfit."""
        if self.todo and self.unfit == len(self.todo):
            raise ClusterError(f"no node of the Ray cluster can compile this: {self.lost[self.todo[0]]}")
        report = Report()
        for index in self.todo:
            if index not in self.lost:
                shard.join(report, self.answers[index])
                continue
            name, variants = self.name(index), self.manifests[index].variants
            report.notes.append(f"{name}, {many(len(variants), 'variant')}: {self.lost[index]}")
            for _ in self.targets:
                report.results += [Result(v, Outcome.FAILED, f"{name} was not compiled") for v in variants]
        return report


def _reach(address: str) -> None:
    """Raise ClusterError where nothing listens at `host:port`; other forms are Ray's to judge."""
    host, colon, port = address.rpartition("/")[2].rpartition(":")
    if not (colon and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"no Ray cluster at {address}: {error}; `ray status` on its head node tells the address"
        ) from None


def _seed(cache: Path, manifest: Manifest) -> bytes:
    """Return what the cache holds as an archive, so that no node compiles it again; b"" where it holds nothing."""
    if not any(path.is_dir() and not path.name.startswith(".") for path in cache.iterdir()):
        return b""
    with tempfile.TemporaryDirectory(prefix="jitreplay-") as folder:
        path = Path(folder, shard.SEED)
        archive.pack(path, cache, manifest)
        return path.read_bytes()


def _needs() -> dict[str, str]:
    """Return the versions that a node must have; those that are not installed as distributions are left out."""
    found = {"python": platform.python_version()}
    for name in ("jitreplay", "triton"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _variables() -> dict[str, str]:
    """Return the variables that a node must compile with: what enters Triton's keys, and our limit."""
    names = {name for name in os.environ if name.startswith("TRITON_")} - _OWN_PLACES
    return {name: os.environ[name] for name in sorted({*names, *variables(), "JITREPLAY_LIMIT"}) if name in os.environ}


def _paths() -> list[str]:
    return [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _board() -> Any:
    """Return the actor that tasks tell how far they are. Made here, like the task."""

    class Board:
        def __init__(self) -> None:
            self._said: dict[int, str] = {}

        def say(self, index: int, text: str) -> None:
            self._said[index] = text

        def read(self) -> dict[int, str]:
            return self._said

    return Board


def _task() -> Any:
    """Return what a node runs. It is made here so that Ray sends it whole: the node may lack jitreplay."""

    def task(
        index: int,
        board: Any,
        request: bytes,
        seed: bytes,
        needs: dict[str, str],
        given: dict[str, str],
        paths: list[str],
    ) -> Any:
        """Return node, address, seconds, and the answer and archive of a shard, or why there is none."""
        import os
        import platform
        import subprocess
        import sys
        import tempfile
        import time
        from importlib.metadata import Distribution
        from pathlib import Path

        import ray

        reply: dict[str, Any] = {"unfit": "", "error": "", "answer": b"", "archive": b"", "seconds": 0.0}
        reply["node"], reply["ip"] = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        paths, start = [path for path in paths if os.path.exists(path)], time.perf_counter()
        for name, wanted in needs.items():
            dists = Distribution.discover(name=name, path=[*paths, *sys.path])
            here = platform.python_version() if name == "python" else next((d.version for d in dists), "")
            if here != wanted:
                reply["unfit"] = f"has {'no ' + name if not here else name + ' ' + here}; it needs {name} {wanted}"
                return reply
        kept = {
            k: v for k, v in os.environ.items() if k == "TRITON_HOME" or not k.startswith(("TRITON_", "JITREPLAY_"))
        }
        path = os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH", "")]))
        try:
            with tempfile.TemporaryDirectory(prefix="jitreplay-") as name, open(Path(name, "said"), "wb") as said:
                folder = Path(name)
                (folder / "request").write_bytes(request)
                if seed:
                    (folder / "seed.tgz").write_bytes(seed)
                child = subprocess.Popen(
                    [sys.executable, "-m", "jitreplay.replayer.shard", name],
                    stdin=subprocess.PIPE,
                    stdout=said,
                    stderr=said,
                    cwd=name,
                    env={**kept, **given, "PYTHONPATH": path},
                )
                try:
                    # Its stdin stays open: it ends when this process does. A cancelled task wakes from a sleep alone.
                    told = ""
                    while (code := child.poll()) is None:
                        time.sleep(0.1)
                        if (folder / "done").exists() and (now := (folder / "done").read_text()) != told:
                            told = now
                            board.say.remote(index, told)
                finally:
                    child.kill()
                    child.wait()
                if code:
                    lines = (folder / "said").read_text(errors="replace").strip().splitlines() or [""]
                    reply["error"] = f"the compile process ended with {code}: {lines[-1][:400]}"
                else:
                    reply["answer"] = (folder / "answer").read_bytes()
                    if (folder / "cache.tgz").exists():
                        reply["archive"] = (folder / "cache.tgz").read_bytes()
        except OSError as error:
            reply["error"] = f"{type(error).__name__}: {error}"
        reply["seconds"] = time.perf_counter() - start
        return reply

    return task
