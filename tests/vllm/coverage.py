"""Write docs/coverage-vllm.md from what inventory.py found and what batch.py replayed.

usage: coverage.py INVENTORY.json REPLAYED.json OUT.md
"""

import json
import sys
from collections import Counter
from pathlib import Path


def main(inventory, replayed, out):
    found, run = json.loads(Path(inventory).read_text()), json.loads(Path(replayed).read_text())
    outcomes = {}
    for variant in run["replay"]["variants"]:
        outcomes.setdefault(variant["kernel"], Counter())[variant["outcome"]] += 1
    names = sorted({*found["kernels"], *outcomes})
    launched = [name for name in names if name in outcomes]
    versions = run["versions"]
    lines = [
        "# Coverage of vLLM's kernels",
        "",
        f"vLLM {versions['vllm']}, Triton {versions['triton']}, cuda:90, headless. Made by `tests/vllm/coverage.py` "
        "from `inventory.py` (every entry kernel, found by its recorded name) and `batch.py` (the rows that "
        "`make test-vllm` launches, recorded, and replayed in a fresh process). *compiled* and *cached* mean that the "
        "live key was the recorded one.",
        "",
        f"{len(found['kernels'])} entry kernels found by name, {len(found['missing'])} not; {len(launched)} kernels "
        f"launched and replayed, {sum(sum(c.values()) for c in outcomes.values())} variants.",
        "",
        "## Launched, recorded and replayed",
        "",
        "| kernel | variants | outcome |",
        "|---|---|---|",
    ]
    for name in launched:
        counts = outcomes[name]
        lines.append(f"| `{name}` | {sum(counts.values())} | {', '.join(f'{n} {o}' for o, n in counts.items())} |")
    lines += ["", "## Not found", "", "| kernel | why |", "|---|---|"]
    lines += [f"| `{entry['module']}.{entry['name']}` | {entry['why']} |" for entry in found["missing"]]
    lines += ["", "## Found by name, never launched by the tests", ""]
    rest = [name for name in names if name not in outcomes]
    lines += [f"- `{name}`" for name in rest]
    Path(out).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
