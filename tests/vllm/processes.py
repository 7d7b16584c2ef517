"""Rows and engines in processes of their own, with this interpreter, and what they answered."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def run(script, *words, cache, fails=False, **variables):
    """Run a script of this folder in a fresh process; return what it wrote as JSON and what it printed."""
    out = Path(cache).parent / f"{script}-{abs(hash((words, str(variables))))}.json"
    out.unlink(missing_ok=True)
    env = {name: value for name, value in (environment(cache) | variables).items() if value is not None}
    done = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, words), "--json", str(out)],
        env=env,
        capture_output=True,
        text=True,
        timeout=1100,
    )
    printed = done.stdout + done.stderr
    assert fails == bool(done.returncode), printed[-6000:]
    return json.loads(out.read_text()), printed


def environment(cache):
    """The variables of a fresh process: this one's without jitreplay's, and a Triton cache of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JITREPLAY_")}
    return clean | {"TRITON_CACHE_DIR": str(cache), "VLLM_LOGGING_LEVEL": "INFO"}


def merge(source, target):
    """Merge a recording by the command, as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "jitreplay.cli", "merge", str(source), "-o", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target


def kinds(events, *kind):
    """Return the kernels of the events of these kinds; compiles and disk hits are both misses of Triton's cache."""
    return [kernel for found, kernel in events if found in kind]
