"""Kernels whose compile breaks its process: where `FAULTS` names a folder, in a compile helper alone unless
`FAULTS_EVERYWHERE` is set.

Each that hangs leaves a file with its process's number and its parent's in that folder.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import triton
import triton.language as tl
from triton.compiler.compiler import ASTSource

FOLDER = os.environ.get("FAULTS")
IN_HELPER = getattr(sys.modules["__main__"].__spec__, "name", "") == "jitreplay.replayer.child"
FACTOR: tl.constexpr = tl.constexpr(2 if IN_HELPER and FOLDER else 3)


@triton.jit
def good(x, N: tl.constexpr):
    tl.store(x, N)


@triton.jit
def aborts(x):
    tl.store(x, 1.0)


@triton.jit
def segfaults(x):
    tl.store(x, 2.0)


@triton.jit
def hangs(x):
    tl.store(x, 3.0)


@triton.jit
def gorges(x):
    tl.store(x, 4.0)


@triton.jit
def ends(x):
    tl.store(x, 5.0)


@triton.jit
def differs(x):
    tl.store(x, FACTOR)


def _break(name: str) -> None:
    if name == "aborts":
        os.abort()
    if name == "segfaults":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(0)
    if name == "ends":
        sys.exit(0)
    if name == "gorges":
        bytearray(64 << 30)
    if name == "hangs":
        Path(str(FOLDER), f"hangs.{os.getpid()}").write_text(f"{os.getpid()} {os.getppid()}")
        while True:
            time.sleep(1)


if FOLDER and (IN_HELPER or os.environ.get("FAULTS_EVERYWHERE")):
    _make_ir = ASTSource.make_ir

    def _breaking(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        _break(self.fn.__name__)
        return _make_ir(self, *args, **kwargs)

    ASTSource.make_ir = _breaking
