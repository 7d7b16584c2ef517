"""demo: the main job on the headless target, in three boots of the example server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import click

from .output import DIFFERS, Unusable, say

_SERVER = ("-m", "jitreplay.examples.serving")


@click.command("demo", short_help="Show the main job, without a GPU.")
@click.option("--target", default="cuda:90", show_default=True, metavar="TARGET", help="The GPU to compile for.")
@click.option("--traffic", default="mixed", show_default=True, help="Which requests the example server gets.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Keep the recording, the manifest and the caches in this folder."
)
@click.option("--json", "as_json", is_flag=True, help="Print what each boot counted as JSON.")
def demo_command(target: str, traffic: str, keep: Path | None, as_json: bool) -> None:
    """Show the main job without a GPU: record a server, merge, and boot it three times.

    Each boot is a process of its own with a Triton cache of its own. Real kernels of Liger-Kernel and of the example
    server are compiled by the real compiler; launches are dropped. A counter that imports nothing of jitreplay counts.
    """
    _need("torch", "triton", "liger_kernel")
    with tempfile.TemporaryDirectory(prefix="jitreplay-demo-") as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        boots = _run(_Demo(folder, target, traffic, quiet=as_json))
    if as_json:
        click.echo(json.dumps(boots, indent=2))
    first, second, third = boots["no replay"], boots["replay"], boots["replay, prebuilt cache"]
    if not first["requests"] or second["requests"] or third["requests"] or third["boot"]:
        raise SystemExit(DIFFERS)


def _need(*modules: str) -> None:
    from importlib.util import find_spec

    missing = [name.replace("_", "-") for name in modules if find_spec(name) is None]
    if missing:
        names = " ".join(name.replace("liger-kernel", "liger-kernel==0.8.5") for name in missing)
        raise Unusable(f"the demo needs {', '.join(missing)}; install with: pip install {names}")


class _Demo:
    """Runs the commands of the demo and counts what each boot compiled."""

    def __init__(self, folder: Path, target: str, traffic: str, quiet: bool) -> None:
        self.folder, self.target, self.traffic, self.quiet = folder, target, traffic, quiet
        self.manifest = folder / "kernels.jitreplay"

    def tell(self, text: str) -> None:
        if not self.quiet:
            say(text)

    def command(self, *words: str) -> str:
        """Run a jitreplay command; return the last line that it printed."""
        return (self._child("-m", "jitreplay.cli", *words).strip().splitlines() or [""])[-1]

    def boot(self, name: str, *before: str, cache: Path, replay: bool) -> dict[str, Any]:
        """Boot the server in a fresh process; return what it compiled at boot and in its requests."""
        out = self.folder / f"{name}.json"
        words = [*_SERVER, "--target", self.target, "--traffic", self.traffic, "--json", str(out)]
        if replay:
            words += ["--manifest", str(self.manifest)]
        if before:
            words = ["-m", "jitreplay.cli", *before, "--", sys.executable, *words]
        self._child(*words, TRITON_CACHE_DIR=str(cache))
        return json.loads(out.read_text())

    def _child(self, *words: str, **variables: str) -> str:
        env = {k: v for k, v in os.environ.items() if not k.startswith("JITREPLAY_")} | variables
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True)
        if done.returncode:
            raise Unusable(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout


def _run(demo: _Demo) -> dict[str, Any]:
    target, folder, boots = demo.target, demo.folder, {}
    demo.tell("1. no replay: a cold server, recorded while it serves")
    demo.tell(f"   $ jitreplay record -o recording --target {target} -- python {' '.join(_SERVER)}")
    record = ("record", "-o", str(folder / "recording"), "--target", target)
    boots["no replay"] = _count(demo.boot("first", *record, cache=folder / "cache-1", replay=False))
    _tell_requests(demo, boots["no replay"])
    demo.tell("   $ jitreplay merge recording -o kernels.jitreplay")
    merged = demo.command("merge", str(folder / "recording"), "-o", str(demo.manifest))
    demo.tell(f"   {merged.replace(str(folder) + os.sep, '')}")

    demo.tell("2. replay: another cold server, which replays the manifest at boot")
    demo.tell(f"   $ JITREPLAY_MANIFEST=kernels.jitreplay python {' '.join(_SERVER)}")
    boots["replay"] = _count(demo.boot("second", cache=folder / "cache-2", replay=True))
    _tell_requests(demo, boots["replay"])

    demo.tell("3. replay with a cache that was built ahead, on a machine without a GPU")
    demo.tell(f"   $ jitreplay compile kernels.jitreplay --target {target} --cache-dir cache")
    cache = folder / "cache"
    demo.command("compile", str(demo.manifest), "--target", target, "--cache-dir", str(cache))
    demo.tell(f"   $ jitreplay verify kernels.jitreplay --target {target} --cache-dir cache")
    demo.command("verify", str(demo.manifest), "--target", target, "--cache-dir", str(cache))
    boots["replay, prebuilt cache"] = _count(demo.boot("third", cache=cache, replay=True))
    _tell_requests(demo, boots["replay, prebuilt cache"])

    demo.tell("")
    demo.tell(f"{'':24}{'compiles at boot':>18}{'compiles in requests':>23}")
    for name, counts in boots.items():
        demo.tell(f"{name:24}{counts['boot']:>18}{counts['requests']:>23}")
    return boots


def _count(found: dict[str, Any]) -> dict[str, Any]:
    kernels = Counter(kernel for request in found["requests"] for kernel in request["compiles"])
    return {
        "boot": len(found["boot"]["compiles"]),
        "requests": sum(kernels.values()),
        "stalled": sum(bool(request["compiles"]) for request in found["requests"]),
        "served": len(found["requests"]),
        "kernels": dict(kernels.most_common()),
    }


def _tell_requests(demo: _Demo, counts: dict[str, Any]) -> None:
    demo.tell(
        f"   {counts['boot']} compiles at boot, {counts['requests']} in "
        f"{counts['stalled']} of {counts['served']} requests"
    )
    line = "     "
    for kernel, number in counts["kernels"].items():
        word = f" {kernel}" + (f" x{number}" if number > 1 else "")
        if len(line) + len(word) > 100:
            demo.tell(line)
            line = "     "
        line += word
    if line.strip():
        demo.tell(line)
