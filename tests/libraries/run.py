"""Run a library's operators under a recorder, or replay what was recorded; the answer is a JSON file.

    python run.py LIBRARY record|replay FOLDER TARGET [compile] [third]

Without `compile`, keys are made and compared and nothing is compiled. The target `live` is this machine's GPU.
`third` runs every third operator only.
"""

import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import jitreplay
from jitreplay.examples import counter as counting
from jitreplay.jit.headless import install
from jitreplay.manifest import file
from jitreplay.manifest.merge import merge_files
from jitreplay.replayer.waiting import WAITS

TESTS = Path(__file__).resolve().parent.parent


def record(library: Any, operators: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run every operator once; return those that did not run, with why."""
    failed = {}
    with jitreplay.Recorder(folder / "recording") as recorder:
        for name, call in operators.items():
            try:
                call()
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error) else ''}"
    merged = merge_files([folder / "recording"])
    file.save(merged.manifest, folder / "kernels.jitreplay")
    return {"failed": failed, "counts": recorder.counts, "notes": merged.notes}


def replay(library: Any, operators: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Replay the recording in this fresh process; return each variant's outcome and the keys held before any launch."""
    manifest = file.load(folder / "kernels.jitreplay")
    report = jitreplay.replay(manifest, allow=library.ALLOW, jobs=0)
    held = {f"{module}.{name}": found for (module, name), found in counting.keys().items()}
    outcomes = [[r.variant.kernel.name, r.variant.digest, r.outcome.value, r.reason] for r in report.results]
    choices = [[c.choice.kernel.name, c.restored, c.reason] for c in report.choices]
    return {"outcomes": outcomes, "choices": choices, "keys": held, "error": report.error}


def main() -> None:
    name, action, folder, target, *rest = sys.argv[1:]
    # As a script's, this folder is on the path: its modules are named as the libraries are.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != TESTS / "libraries"]
    sys.path.append(str(TESTS))
    counter = counting.Counter().install()
    driver: Any = None if target == "live" else install(target)
    if driver is None:
        torch.set_default_device("cuda")
    if "compile" not in rest:
        from kernels import uncompiled  # pyright: ignore[reportMissingImports]

        uncompiled.install()
    library = importlib.import_module(f"libraries.{name}")
    operators = dict(list(library.operators().items())[:: 3 if "third" in rest else 1])
    out = {"record": record, "replay": replay}[action](library, operators, Path(folder))
    events = counter.take()
    out["events"] = Counter(event.kind for event in events)
    # Kernels that the library makes while it runs: a replay waits for these.
    waited = {row[0] for row in out.get("outcomes", ()) if row[3].endswith(WAITS)}

    def held() -> int:
        return sum(len(keys) for name, keys in counting.keys().items() if ".".join(name) not in waited)

    if action == "replay":
        # The same traffic again: what it still compiles or times was not covered.
        launched = getattr(driver, "launches", None)
        again: dict[str, int] = {}
        stopped = json.loads((Path(folder) / "record.json").read_text())["failed"]
        for operator, call in operators.items():
            if operator in stopped:
                continue  # what it launches depends on what no launch computed
            before = held()
            try:
                call()
            except Exception:
                continue
            finally:
                made = held() - before
                if made:
                    again[operator] = made
        out["after"] = {".".join(name): keys for name, keys in counting.keys().items() if ".".join(name) in waited}
        out |= {"again": again, "benches": Counter(e.kind for e in counter.take())["bench"], "launched": launched}
    (Path(folder) / f"{action}.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main()
