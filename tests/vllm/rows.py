"""The traffic: one function a row, each driving vLLM's own code and knowing nothing of jitreplay.

A row builds its objects and returns a `Row`: `serve` is what requests cause, `warm` what this
version of vLLM does for it at start-up (None where it does nothing), and `runner` holds the row's
tables under the attribute paths that they have on the real model runner. What differs between
versions of vLLM is found out by looking at its functions.

The rows are in tables.py, layers.py and sampling.py; here are those that run a whole engine.
"""

import os

import layers  # noqa: F401
import sampling  # noqa: F401
import tables  # noqa: F401
from traffic import ROWS, Row, row

__all__ = ["ROWS", "Row"]


@row
def engine(model="dense", runner="v2", monitor=None, pooling=False, **changes):
    """A whole engine: its start-up is the row's build, and requests of many kinds are served.

    `runner` is v1 or v2. With `pooling` the requests are embeddings, so nothing is decoded. `monitor`
    ("warn" or "error") arms vLLM's JIT monitor (0.33 arms it only where its own warm-up ran, so not
    with enforce_eager). Other parameters are those of vllm.LLM.
    """
    import engine as engines

    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(runner == "v2"))
    if monitor is not None:
        changes = {"enforce_eager": False, "jit_monitor_mode": monitor} | changes
        changes["compilation_config"] = {"mode": 0, "cudagraph_mode": "NONE", "custom_ops": ["none"]}
    if pooling:
        changes = {"runner": "pooling", "convert": "embed", "skip_tokenizer_init": False} | changes
    llm = engines.engine(model, **changes)

    def embed():
        for length in (40, 1, 16, 600):
            llm.embed([{"prompt_token_ids": list(range(3, 3 + length))}] * 2, use_tqdm=False)

    def serve():
        for prompts, params in REQUESTS:
            engines.request(llm, prompts, **params)

    # As elastic expert parallelism does after it changed the number of ranks.
    warm_again = engines.worker(llm).compile_or_warm_up_model
    return Row(embed if pooling else serve, lambda: warm_again(), engines.worker(llm).model_runner, llm)


# Lengths of prompts, and sampling parameters: the kinds of request that stalled on a real server.
REQUESTS = (
    ([40], {}),
    ([40], {"temperature": 0.8, "top_p": 0.9}),
    ([40], {"temperature": 0.8, "top_k": 20}),
    ([40, 17, 3], {}),
    ([40] * 3, {"temperature": 0.7, "top_p": 0.95, "top_k": 40}),
    ([16], {}),
    ([600], {}),
)
