"""Bringing a compiled kernel to the point where a launch costs a launch."""

from __future__ import annotations

from typing import Any


def load(kernel: Any) -> bool:
    """Load a CompiledKernel's binary on the current device and build its launcher; return whether there was work.

    Triton 3.6.0 to 3.9.0 do this at the first launch, by `CompiledKernel._init_handles`. What it raises is raised: too
    little shared memory, no compiler for the launcher, a driver that refuses the binary.
    """
    if kernel.module is not None:
        return False
    kernel._init_handles()
    return True
