"""What compiling needs of a machine: a C compiler, Python's headers, an assembler, a driver's library. Each tried.

Nothing here starts a GPU driver: its library is looked for, not loaded.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .devices import Device

KFD, NVIDIA, BOARDS = Path("/dev/kfd"), Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/gpus")
_SOURCE = "#include <Python.h>\nint jitreplay_doctor(void) { return 42; }\n"


class Trouble(NamedTuple):
    """What is wrong, and what to do about it."""

    what: str
    do: str


def compiler(folder: Path) -> Trouble | str:
    """Build a small library with Python's headers in a folder and load it; return what was used, or the trouble.

    As Triton does (3.6.0 to 3.9.0, `runtime/build.py`): CC, else gcc, else clang.
    """
    name = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if name is None:
        return Trouble("no C compiler: neither CC, gcc nor clang", "install gcc, or set CC")
    headers = sysconfig.get_paths(
        scheme="posix_prefix" if sysconfig.get_default_scheme() == "posix_local" else sysconfig.get_default_scheme()
    )["include"]
    if not os.path.exists(os.path.join(headers, "Python.h")):
        return Trouble(f"no Python.h in {headers}", "install Python's headers (python3-dev)")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source, library = Path(scratch, "doctor.c"), Path(scratch, "doctor.so")
        source.write_text(_SOURCE)
        words = [name, str(source), "-O1", "-shared", "-fPIC", f"-I{headers}", "-o", str(library)]
        if said := _run(words):
            return Trouble(f"{name} does not build a small library: {said}", "check the compiler, or set CC to another")
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            return Trouble(f"what is built in {folder} cannot be loaded: {error}", "move the cache off a noexec mount")
    return f"{name}, headers in {headers}"


def assembler(arch: int) -> Trouble | str:
    """Have ptxas assemble an empty program for an architecture such as 90; return its version, or the trouble."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    wanted = "set TRITON_PTXAS_PATH to a ptxas that runs and knows this GPU, or install a newer Triton"
    try:
        tool = get_ptxas(arch)
        path, version = tool.path, tool.version
    except Exception as error:
        return Trouble(f"no ptxas that runs: {error}", wanted)
    name = sm_arch_from_capability(arch)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "empty.ptx")
        source.write_text(f".version 7.8\n.target {name if arch < 100 else 'sm_80'}\n.address_size 64\n")
        words = [path, f"--gpu-name={name}", str(source), "-o", str(Path(scratch, "empty.cubin"))]
        if said := _run(words):
            return Trouble(f"{path} (version {version}) does not assemble for {name}: {said}", wanted)
    return f"{path}, version {version}"


def _run(words: list[str]) -> str:
    """Run a command; return what it said when it failed, else ""."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stderr + done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else (lines[0] if lines else f"exit code {done.returncode}")[:300]


def driver() -> Trouble | str:
    """Return the NVIDIA or AMD driver's version and library, or what is missing. No driver is started."""
    if KFD.exists():
        return f"AMD GPU driver ({KFD})"
    if not NVIDIA.exists():
        return Trouble("no GPU on this machine", "give --target to the commands; a server needs its GPU")
    found = next((path for path in _libraries() if os.path.exists(path)), "")
    if not found:
        return Trouble("there is a GPU, but no libcuda.so.1", "install the driver's library, or run ldconfig")
    try:
        version = Path("/proc/driver/nvidia/version").read_text().split("  ")[1].strip()
    except (OSError, IndexError):
        version = "unknown"
    return f"NVIDIA driver {version}, {found}"


def may_have(device: Device) -> bool:
    """Whether this host may have such a GPU, and this process see it. No driver is asked.

    NVIDIA's tells its boards' models in /proc, but not in every container.
    """
    if device.backend == "hip":
        return KFD.exists() and not _hidden("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    return NVIDIA.exists() and not _hidden("CUDA_VISIBLE_DEVICES") and boards() <= {device.name}


def boards() -> set[str]:
    """Return the models of NVIDIA's boards as /proc tells them; empty where it does not."""
    texts = []
    for path in BOARDS.glob("*/information"):
        with suppress(OSError):
            texts.append(path.read_text())
    return {line.partition(":")[2].strip() for line in "\n".join(texts).splitlines() if line.startswith("Model:")}


def _hidden(*names: str) -> bool:
    return any(os.environ.get(name) in ("", "-1") for name in names)


def _libraries() -> Iterator[str]:
    """The places that Triton looks in (3.6.0: `libcuda_dirs`)."""
    if folder := os.environ.get("TRITON_LIBCUDA_PATH"):
        yield os.path.join(folder, "libcuda.so.1")
    try:
        listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=10).stdout
        yield from (line.split()[-1] for line in listed.splitlines() if "libcuda.so.1" in line)
    except (OSError, subprocess.TimeoutExpired):
        pass
    yield from (os.path.join(folder, "libcuda.so.1") for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"))
