"""Run one row headless and write what Triton did in each phase.

usage: run_row.py ROW [--json OUT] [--warm] [--params k=v ...]

Phases: `build` (imports and tables), `warm` (vLLM's own warm-up, with --warm), `serve`, and `again`
(the same traffic once more, which must find everything). Values of --params are Python literals.
The exit status is 1 where a phase raised; what was seen until then is written all the same.
"""

import argparse
import ast
import json
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--warm", action="store_true", help="run vLLM's own warm-up before serving")
    parser.add_argument("--params", nargs="*", default=[], metavar="k=v")
    parser.add_argument("--target", default="cuda:90/H200")
    return parser.parse_args()


def literal(text):
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def main():
    args = arguments()
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]
    import harness

    driver, vllm = harness.start(args.target)
    from jitreplay.examples.counter import Counter, keys

    counter = Counter().install()
    import rows
    import torch
    import triton

    if args.row not in rows.ROWS:
        raise SystemExit(f"no row {args.row!r}; there are: {', '.join(rows.ROWS)}")
    phases, seconds = {}, {}

    def phase(name, function):
        started = time.perf_counter()
        try:
            return function()
        finally:
            seconds[name] = round(time.perf_counter() - started, 3)
            phases[name] = [event._asdict() for event in counter.take()]

    params = dict(item.split("=", 1) for item in args.params)
    made = {name: literal(value) for name, value in params.items()}
    row = error = None
    try:
        with torch.inference_mode():
            row = phase("build", lambda: rows.ROWS[args.row](**made))
            if args.warm and row.warm is not None:
                phase("warm", row.warm)
            phase("serve", row.serve)
            phase("again", row.serve)
    except Exception as raised:  # such as vLLM's JIT monitor in its error mode
        traceback.print_exc()
        error = f"{type(raised).__name__}: {raised}"
    result = {
        "row": args.row,
        "params": made,
        "versions": {"vllm": vllm.__version__, "triton": triton.__version__, "torch": torch.__version__},
        "has_warm": row is not None and row.warm is not None,
        "error": error,
        "phases": phases,
        "seconds": seconds,
        "launches": driver.launches,
        "keys": {".".join(kernel): found for kernel, found in keys().items()},
    }
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    print(summary(result))
    return 1 if error else 0


def summary(result):
    """One line: how many events of each kind each phase had."""
    parts = []
    for name, events in result["phases"].items():
        kinds = [event["kind"] for event in events]
        counts = " ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))) or "nothing"
        parts.append(f"{name}: {counts}")
    raised = f"; {result['error']}" if result["error"] else ""
    return f"{result['row']} {result['params'] or ''} | " + "; ".join(parts) + raised


if __name__ == "__main__":
    sys.exit(main())
