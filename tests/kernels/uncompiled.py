"""Triton without its compiler: what a launch binds and keys is real, the kernel it gets is an empty object.

For tests that compare keys, which `JITFunction.run` makes before it compiles (Triton 3.6.0 to 3.9.0).
"""

from typing import Any

import triton.compiler


class Uncompiled:
    """Stands for a CompiledKernel that is loaded already."""

    module = function = 1
    packed_metadata = ()
    kernel = b""

    def __init__(self, src: Any) -> None:
        self.src, self.name = src, src.name
        self._run = self.launch

    @property
    def run(self) -> Any:
        return self._run

    def launch(self, *args: Any) -> None:
        """Accept and drop."""

    def launch_metadata(self, *args: Any) -> None:
        """Accept and drop, as a CompiledKernel without launch hooks does."""

    def _init_handles(self) -> None:
        """There is nothing to load."""


def compile(src: Any, target: Any = None, options: Any = None, _env_vars: Any = None) -> Any:
    """Stand for `triton.compiler.compile`."""
    return Uncompiled(src)


def install() -> None:
    """Put the empty compile in place for the rest of the process. Binders that exist already keep the real one.

    A replay starts no compile helper then: it would have the compiler.
    """
    from jitreplay.replayer import worth

    triton.compiler.compile = compile
    worth.free_cores = lambda: 1


__all__ = ["Uncompiled", "compile", "install"]
