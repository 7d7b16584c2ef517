"""Find every entry kernel of vLLM 0.33.0 by the name that jitreplay has for it. Writes JSON.

usage: inventory.py --json OUT

kernels-0.33.0.tsv lists the entry kernels by file (read from the wheel). A file that imports without a GPU has its
kernels as live JITFunctions; each must be what the resolver finds under its recorded name.
"""

import csv
import gc
import importlib
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def listed():
    """The entry kernels by module."""
    found = {}
    with open(HERE / "kernels-0.33.0.tsv") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            module = "vllm." + row["file"].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            found.setdefault(module, set()).add(row["name"])
    return found


def main():
    out = Path(sys.argv[sys.argv.index("--json") + 1])
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]
    import harness

    harness.start()
    from jitreplay.jit.internals import internals
    from jitreplay.jit.resolve import Resolver, Unresolved
    from jitreplay.jit.source import kernel

    modules, errors = listed(), {}
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]
    resolver, found = Resolver(("vllm",)), {}
    cls = internals().JITFunction
    for fn in [thing for thing in gc.get_objects() if issubclass(type(thing), cls)]:
        if fn.module not in modules or fn.fn.__name__ not in modules[fn.module]:
            continue
        described = kernel(fn)
        try:
            status = "found" if resolver.kernel(described) is fn else "another kernel has its name"
        except Unresolved as reason:
            status = str(reason)
        found[described.name] = {
            "name": fn.fn.__name__,
            "module": fn.module,
            "status": status,
            "wrappers": described.wrappers,
        }
    live = {(entry["module"], entry["name"]) for entry in found.values()}
    missing = [
        {"module": module, "name": name, "why": errors.get(module, "not made when its file is imported")}
        for module, names in sorted(modules.items())
        for name in sorted(names)
        if (module, name) not in live
    ]
    out.write_text(json.dumps({"kernels": found, "missing": missing, "errors": errors}, indent=1))


if __name__ == "__main__":
    main()
