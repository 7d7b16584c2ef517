"""Record and replay each library in fresh processes, and write docs/coverage.md: kernel, variants, outcome."""

import argparse
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jitreplay.manifest import file
from jitreplay.manifest.model import digest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIBRARIES = ("liger", "linear_attention", "gluon", "conch", "gems")


def run(library: str, target: str, compile: bool) -> dict[str, Any]:
    """Return what a recording and a replay of a library gave."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for action in ("record", "replay"):
            words = [sys.executable, str(HERE / "run.py"), library, action, name, target, *(["compile"] * compile)]
            env = {**os.environ, "TRITON_CACHE_DIR": str(folder / f"cache-{action}")}
            done = subprocess.run(words, env=env, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{library}: {action} failed:\n{done.stderr[-4000:]}")
        found = {action: json.loads((folder / f"{action}.json").read_text()) for action in ("record", "replay")}
        return {**found, "manifest": file.load(folder / "kernels.jitreplay")}


def target(library: str) -> str:
    """Return the target that a library's operators are launched for."""
    return importlib.import_module(f"libraries.{library}").TARGET


def rows(found: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Return (kernel, variants, outcome) of a library, kernels in order."""
    recorded: dict[str, set[str]] = defaultdict(set)
    for variant in found["manifest"].variants:
        recorded[variant.kernel.name].add(variant.digest)
    outcomes: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, _, outcome, reason in found["replay"]["outcomes"]:
        outcomes[name].append((outcome, reason))
    out = []
    for name, digests in sorted(recorded.items()):
        held = {digest(key) for key in found["replay"]["keys"].get(name, [])}
        words = [f"{count} {word}" for word, count in sorted(Counter(word for word, _ in outcomes[name]).items())]
        reasons = sorted({reason for _, reason in outcomes[name] if reason})
        later = {digest(key) for key in found["replay"]["after"].get(name, [])}
        verdict = (
            "equal keys"
            if held == digests
            else "equal keys, once the program had made it"
            if later == digests and not held
            else f"keys differ: {len(digests - held - later)} missing, {len((held | later) - digests)} more"
        )
        out.append((name, len(digests), "; ".join([verdict, *words, *reasons])))
    return out


def text(results: dict[str, dict[str, Any]], compile: bool) -> str:
    """Return the document."""
    import triton

    kernels = len({name for found in results.values() for name, _, _ in rows(found)})
    variants = sum(len(found["manifest"].variants) for found in results.values())
    lines = ["# Coverage", ""]
    lines += [
        f"Made by `make coverage`: operators of real libraries, launched headless with Triton {triton.__version__}, "
        "recorded in one process and replayed in a fresh one. *Equal keys* says that after the replay Triton held the "
        "recorded keys of that kernel and no other. *Once the program had made it*: the library writes that kernel "
        "while it runs, so that a replay binds all its variants at its first launch."
        + (
            ""
            if compile
            else " The compiler was left out: keys are made "
            "before it runs, and *compiled* says that Triton asked for it."
        ),
        "",
        f"{kernels} distinct kernels, {variants} variants.",
    ]
    for library, found in results.items():
        module = importlib.import_module(f"libraries.{library}")
        version = importlib.metadata.version(module.DISTRIBUTION)
        lines += ["", f"## {module.DISTRIBUTION} {version}, {module.TARGET}", "", module.__doc__, ""]
        lines += ["| kernel | variants | outcome |", "|---|---|---|"]
        lines += [f"| `{name}` | {count} | {outcome} |" for name, count, outcome in rows(found)]
        choices = found["replay"]["choices"]
        if choices:
            restored = sum(restored for _, restored, _ in choices)
            lines += ["", f"{restored} of {len(choices)} autotuner choices were restored."]
            timed = found["record"]["events"].get("bench", 0)
            benches = found["replay"]["benches"]
            lines += [f"The recording timed {timed} configs, the same traffic after the replay {benches}."]
        again = found["replay"]["again"]
        lines += ["", f"The same traffic after the replay made {sum(again.values())} further keys" + _by(again) + "."]
        if failed := found["record"]["failed"]:
            lines += ["", "Operators that stopped on a CPU before or after some of their launches:", ""]
            lines += [f"- {name}: {reason}" for name, reason in failed.items()]
        if absent := getattr(module, "NOT_LAUNCHED", {}):
            lines += ["", "Kernels of it that no operator here launches:", ""]
            lines += [f"- {names}: {reason}" for names, reason in absent.items()]
    return "\n".join(line for line in lines) + "\n"


def _by(again: dict[str, int]) -> str:
    return " (" + ", ".join(f"{name}: {count}" for name, count in again.items()) + ")" if again else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="compile too: minutes to hours")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "coverage.md")
    parser.add_argument("libraries", nargs="*", default=LIBRARIES)
    chosen = parser.parse_args()
    # As a script's, this folder is on the path: its modules are named as the libraries are.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    sys.path.append(str(HERE.parent))
    results = {library: run(library, target(library), chosen.compile) for library in chosen.libraries}
    chosen.output.write_text(text(results, chosen.compile))


if __name__ == "__main__":
    main()
