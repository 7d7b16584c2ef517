"""Building a kernel's launcher into Triton's cache without loading it, where Triton builds one per signature.

Read on Triton 3.6.0 (CudaLauncher, HIPLauncher, `compile_module_from_src`). From 3.7 on one launcher serves all.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .hook import Hook
from .internals import internals
from .lock import KeyLocks, own_folder

_HOMES = {
    "cuda": ("triton.backends.nvidia.driver", "CudaLauncher"),
    "hip": ("triton.backends.amd.driver", "HIPLauncher"),
}
# What 3.6's launcher calls of the driver. A linker that drops libraries nobody needs keeps one that has these.
_CALLS = (
    *("cuGetErrorString", "cuFuncSetAttribute", "cuPointerGetAttribute", "cuCtxGetCurrent", "cuDeviceGet"),
    *("cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuLaunchKernelEx"),
)


def is_per_signature(backend: str) -> bool:
    """Whether this Triton builds a launcher for each signature."""
    home = _HOMES.get(backend)
    return home is not None and hasattr(import_module(home[0]), "make_launcher")


def build(kernel: Any, locks: KeyLocks | None = None) -> bool:
    """Build a CompiledKernel's launcher with the C compiler where the cache lacks it; return whether one was built.

    Nothing is loaded and no driver is touched. Raises what Triton raises: RuntimeError without a C compiler,
    CalledProcessError when it fails.
    """
    backend = internals().driver.active.get_current_target().backend
    if not is_per_signature(backend):
        return False
    name, launcher = _HOMES[backend]
    module = import_module(name)
    with _not_loading(module, locks) as built:
        getattr(module, launcher)(kernel.src, kernel.metadata)
    return bool(built)


class Builds(Hook):
    """Counts the launchers that Triton has the C compiler build meanwhile; from 3.7 on none is for one signature."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __enter__(self) -> None:
        module = import_module("triton.runtime.build")
        if hasattr(module, "_build"):
            self._put_on((module, "_build", self._wrap))

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def _wrap(self, original: Any) -> Any:
        @functools.wraps(original)
        def _build(name: str, *args: Any, **kwargs: Any) -> Any:
            found = original(name, *args, **kwargs)
            self.count += self._on and "launcher" in name
            return found

        return _build


@contextmanager
def _not_loading(module: Any, locks: KeyLocks | None) -> Iterator[list[str]]:
    """Let launchers be built but not loaded; gives the list of those that were."""
    building = import_module("triton.runtime.build")
    built: list[str] = []
    before = building._load_module_from_path, building._build, module.compile_module_from_src

    def build_one(*args: Any, **kwargs: Any) -> str:
        built.append(args[0])
        return before[1](*args, **kwargs)

    def compile_once(src: str, name: str, *args: Any, **kwargs: Any) -> Any:
        key = hashlib.sha256((src + building.platform_key()).encode()).hexdigest()
        if locks is not None and not locks.take(key):
            return SimpleNamespace(launch=None)  # another process is building it
        try:
            return before[2](src, name, *args, **kwargs)
        finally:
            if locks is not None:
                locks.release(key)

    building._load_module_from_path = lambda name, path: SimpleNamespace(launch=None)
    building._build, module.compile_module_from_src = build_one, compile_once
    libraries = getattr(module, "library_dirs", None)
    try:
        if libraries is not None:
            module.library_dirs = lambda: _library_folders(module, libraries)
        yield built
    finally:
        building._load_module_from_path, building._build, module.compile_module_from_src = before
        if libraries is not None:
            module.library_dirs = libraries


def _library_folders(module: Any, real: Any) -> list[str]:
    try:
        return real()
    except (AssertionError, OSError, subprocess.SubprocessError):
        return [module.libdevice_dir, str(stub_folder())]


def stub_folder() -> Path:
    """Return a folder with a libcuda.so.1 to link against, for machines without a driver; build it if need be."""
    folder = own_folder(internals().knobs.cache.dir) / "libcuda"
    library = folder / "libcuda.so.1"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "gcc"
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            source, made = Path(scratch) / "stub.c", Path(scratch) / "libcuda.so.1"
            source.write_text("".join(f"int {name}(void) {{ return 999; }}\n" for name in _CALLS))
            words = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(made), str(source)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            os.replace(made, library)
    return folder
