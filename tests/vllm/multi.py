"""Serve with vLLM's workers in processes of their own, and write what Triton did in each rank, by phase.

usage: multi.py --json OUT [--executor mp|ray|external_launcher] [--tp N] [--pp N] [--spawn] [--core] [--wait]
                [--params k=v ...]

Fork, or spawn with --spawn; --core puts the engine core in a process of its own too, as `vllm serve` does. With
--wait it serves, says `serving PID...` (a worker each) and waits to be killed.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATHS = [str(HERE / "site"), str(HERE), str(HERE.parents[1])]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--executor", default="mp")
    parser.add_argument("--model", default="dense")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--spawn", action="store_true")
    parser.add_argument("--core", action="store_true")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--target", default="cuda:90/H200")
    parser.add_argument("--params", nargs="*", default=[], metavar="k=v")
    return parser.parse_args()


def start_ray(devices):
    """A cluster of this machine that has as many GPUs as we say; vLLM would ask the driver."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=devices, num_gpus=devices, include_dashboard=False, log_to_driver=True)


def main():
    args = arguments()
    os.environ["VLLM_HEADLESS"] = args.target
    os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, os.environ["VLLM_ROOT"]])
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn" if args.spawn else "fork"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(args.core))
    sys.path[:0] = PATHS
    import harness

    harness.start(args.target)
    if args.executor == "ray":
        start_ray(args.tp * args.pp)
    import engine
    from rows import REQUESTS
    from run_row import literal

    changes = {name: literal(value) for name, value in (item.split("=", 1) for item in args.params)}
    llm = engine.engine(
        args.model,
        distributed_executor_backend=args.executor,
        tensor_parallel_size=args.tp,
        pipeline_parallel_size=args.pp,
        disable_custom_all_reduce=True,
        **changes,
    )
    phases = {"build": llm.collective_rpc("jit_events")}
    for prompts, params in REQUESTS:
        if len(prompts) == 1:  # the requests of a batch may reach an engine core one by one, and be served so
            engine.request(llm, prompts, **params)
    phases["serve"] = llm.collective_rpc("jit_events")
    workers = llm.collective_rpc("process")
    args.json.write_text(json.dumps({"phases": phases, "workers": workers}, indent=1))
    if args.wait:
        print("serving", os.getpid(), *(worker["pid"] for worker in workers), flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main()
