"""Run several rows in one process, recorded or after a replay, and write what Triton did in each.

usage: batch.py --json OUT [--record DIR | --manifest FILE] [--warm] [--rows a,b,...] [--params k=v ...]

All rows are built first, as a server builds its runner, then the replay runs on the rows' own tables, then vLLM's own
warm-up (with --warm), then the traffic. Parameters go to each row that has them; they are the settings too.
"""

import argparse
import inspect
import json
import sys
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
SETTINGS = {
    "max_model_len": 4096,
    "block_size": 16,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 8192,
    "num_blocks": 64,
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--rows", default="")
    parser.add_argument("--params", nargs="*", default=[], metavar="k=v")
    parser.add_argument("--target", default="cuda:90/H200")
    return parser.parse_args()


def main():
    args = arguments()
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]
    import harness
    from run_row import literal

    _, vllm = harness.start(args.target)
    from jitreplay.examples.counter import Counter

    counter = Counter().install()
    import rows
    import torch
    import triton

    params = {name: literal(value) for name, value in (item.split("=", 1) for item in args.params)}
    names = [name for name in args.rows.split(",") if name] or [name for name in rows.ROWS if name != "engine"]
    result = {
        "versions": {"vllm": vllm.__version__, "triton": triton.__version__, "torch": torch.__version__},
        "params": params,
        "replay": None,
        "rows": {name: {} for name in names},
    }
    recorder = None
    if args.record:
        from jitreplay import Recorder

        recorder = Recorder(args.record).start()
    with torch.inference_mode():
        made = {}
        for name in names:
            known = inspect.signature(rows.ROWS[name]).parameters
            phase(
                result,
                counter,
                name,
                "build",
                lambda name=name, known=known: made.update(
                    {name: rows.ROWS[name](**{key: value for key, value in params.items() if key in known})}
                ),
            )
        if recorder is not None:
            recorder.describe("vllm " + vllm.__version__, "dp0:pp0:pcp0:tp0", settings(params, made))
            recorder.watch_buffers(lambda: owned(made, "buffers"))
        if args.manifest:
            result["replay"] = replay(args.manifest, made, params)
            result["replay"]["events"] = events(counter)
        for name in made:
            if args.warm and made[name].warm is not None:
                phase(result, counter, name, "warm", made[name].warm)
        for name in made:
            phase(result, counter, name, "serve", made[name].serve)
    from jitreplay.examples.counter import keys

    result["keys"] = sum(map(len, keys().values()))
    if recorder is not None:
        recorder.stop()
        result["counts"] = recorder.counts
    args.json.write_text(json.dumps(result, indent=1))


def phase(result, counter, name, what, function):
    try:
        function()
    except Exception as error:
        traceback.print_exc()
        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
            causes.append(cause)
        result["rows"][name]["error"] = f"{what}: " + "; because of ".join(map(repr, causes))
    result["rows"][name][what] = events(counter)


def events(counter):
    return [[event.kind, event.kernel] for event in counter.take()]


def settings(params, made):
    return (
        SETTINGS
        | owned(made, "settings")
        | {name: value for name, value in params.items() if isinstance(value, (int, str))}
    )


def owned(made, what):
    """The buffers, or the settings, of all rows by name, as the plugin names those of a runner."""
    from jitreplay.engines.runner import tables

    found = {}
    for name, row in made.items():
        if row.runner is not None:
            own = getattr(tables(row.runner, ("vllm", "types")), what)
            found |= {f"{name}.{path}": value for path, value in own.items()}
    return found


def replay(path, made, params):
    from jitreplay import load
    from jitreplay.replayer.live import Live
    from jitreplay.replayer.session import Session

    session = Session(load(path), ("vllm", "fla", "triton_kernels"), rank="dp0:pp0:pcp0:tp0")
    session.restore_choices()
    session.live = Live(owned(made, "buffers"), settings(params, made))
    session.late()
    report = session.report
    return report.as_data() | {
        "summary": report.summary(),
        "choices": [[c.choice.kernel.name, c.restored, c.reason] for c in report.choices],
    }


if __name__ == "__main__":
    main()
