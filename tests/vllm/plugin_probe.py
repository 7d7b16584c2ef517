"""What the plugin does to vLLM's own worker classes, and what it says when a hook point is gone. Writes JSON.

usage: plugin_probe.py --json OUT
"""

import json
import logging
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    out = Path(sys.argv[sys.argv.index("--json") + 1])
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]
    import harness

    harness.start()
    found = {}
    before = set(sys.modules)
    from jitreplay.engines import vllm as plugin

    os.environ["JITREPLAY_RECORD"] = str(out.parent / "recording")
    plugin.register()
    plugin.register()
    found["platform picked by register"] = sorted(
        name for name in set(sys.modules) - before if name.startswith(("vllm.platforms", "vllm.triton_utils"))
    )
    found["worker modules loaded by register"] = "vllm.v1.worker.worker_base" in set(sys.modules) - before
    import vllm.v1.worker.worker_base as base

    cls = base.WorkerWrapperBase
    names = ("init_device", "initialize_from_config", "shutdown")
    found["hooked"] = [name for name in names if getattr(vars(cls)[name], "_jitreplay", False)]
    found["triton cache set"] = os.environ.get("TRITON_CACHE_DIR", "")

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("jitreplay").addHandler(handler)
    originals = {name: vars(cls)[name].__wrapped__ for name in names}
    found["missing"] = {}
    from jitreplay.manifest.settings import settings

    for gone in names:
        for name, method in originals.items():
            setattr(cls, name, method)
        delattr(cls, gone)
        said.clear()
        plugin._hook_workers(settings())
        left = [name for name in names if getattr(vars(cls).get(name), "_jitreplay", False)]
        found["missing"][gone] = {"said": list(said), "hooked": left}
    for name, method in originals.items():
        setattr(cls, name, method)

    from jitreplay.engines.vllm_worker import WorkerSession

    class Worker:
        """A worker that lacks what the session hangs on."""

        vllm_config = None

    class Wrapper:
        worker = Worker()

    said.clear()
    WorkerSession(settings(), Wrapper()).device_ready()
    found["a worker without its steps"] = list(said)
    out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
