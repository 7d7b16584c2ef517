"""Makes a spawned worker, or the compile helper of one, headless before vLLM is imported there."""

import os
import sys

WORKERS = ("multiprocessing.spawn", "multiprocessing-fork", "default_worker.py", "jitreplay.replayer.child")

if any(mark in word for word in sys.orig_argv for mark in WORKERS) and "VLLM_HEADLESS" in os.environ:
    import harness

    harness.start(os.environ["VLLM_HEADLESS"])
