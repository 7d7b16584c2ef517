"""What differs between a recording and this process, in general: not of one variant, but of all."""

from __future__ import annotations

from collections.abc import Iterable

from ..jit.bind import injected
from ..jit.environment import live_target, variables
from ..jit.internals import internals
from ..manifest.model import Environment


def drift(environments: Iterable[Environment]) -> list[str]:
    """Return what differs between the recording and here and enters keys or binaries.

    Triton, target, environment variables, and the options that Triton itself adds to each launch (debug and the like).
    """
    backend, arch, _ = live_target()
    found: list[str] = []
    added = {f"option {name}": str(value) for name, value in injected(None).items()}
    here = {"Triton": internals().version, "target": f"{backend}:{arch}", **variables(), **added}
    for environment in environments:
        there = {"Triton": environment.triton, "target": environment.target, **environment.variables}
        there |= {f"option {name}": value for name, value in environment.injected.items()}
        for name in sorted({*here, *there}, key=lambda n: (n not in ("Triton", "target"), n)):
            if there.get(name) != here.get(name):
                found.append(f"{name}: {there.get(name, 'unset')} -> {here.get(name, 'unset')}")
    return list(dict.fromkeys(found))
