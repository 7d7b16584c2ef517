"""Compile for a GPU that this machine does not have.

`install("cuda:90")` puts a driver under Triton that knows its device from a table. Binding, specialization, the
compiler and its disk cache are Triton's own; a binary is "loaded" into a number, and a launch is counted and dropped.
So kernels take CPU tensors, and what they should have computed means nothing. torch.cuda answers for the same device.

Install it before the libraries that look at the device at import (vllm.triton_utils, FLA): what they then remember
stays, while `uninstall` puts back all that this module changed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from ..manifest.errors import JitreplayError
from .devices import Device, parse_target, torch_answers

_BACKENDS = {"cuda": "nvidia", "hip": "amd"}
_KNOWN = "this jitreplay knows 3.6 to 3.9"
_NEEDED = {
    "backends": "backends",
    "GPUTarget": "backends.compiler",
    "DriverBase": "backends.driver",
    "CompiledKernel": "compiler.compiler",
    "max_shared_mem": "compiler.compiler",
    "Autotuner": "runtime.autotuner",
    "driver": "runtime.driver",
    "JITFunction": "runtime.jit",
}
_installed: HeadlessDriver | None = None


class HeadlessError(JitreplayError):
    """Triton or torch is absent, or this Triton lacks something that the headless driver stands on."""


class Handle(int):
    """Stands for a module and its function; its type tells a kernel that was loaded here."""


class Launcher:
    """Takes a launch as a real launcher does, calls Triton's hooks, counts it and keeps nothing.

    Read on 3.6.0 to 3.9.0: CompiledKernel._init_handles makes it, JITFunction.run and CompiledKernel.__getitem__ call
    it, CudaLauncher and HIPLauncher are the real ones.
    """

    def __init__(self, driver: HeadlessDriver, src: Any, metadata: Any) -> None:
        self.driver, self.name = driver, metadata.name

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        _, launch, enter, leave = rest[:4]
        if enter is not None:
            enter(launch)
        self.driver.launches += 1
        for callback in self.driver.on_launch:
            callback(self.name, (x, y, z))
        if leave is not None:
            leave(launch)


def _utils(driver: HeadlessDriver) -> SimpleNamespace:
    """Return the C module of a driver, without C. Read on 3.6.0 to 3.9.0: CudaUtils, HIPUtils and driver.c of both."""

    def load_binary(name: str, kernel: bytes, shared: int, device_index: int) -> tuple[Handle, Handle, int, int, int]:
        """Return module, function, registers, spills, threads that a block may have."""
        driver.loads += 1
        handle = Handle(driver.loads)
        return handle, handle, 0, 0, driver.device.max_threads_per_block

    def nothing(*_: Any, **__: Any) -> None:
        """Accept and drop."""

    dropped = (
        *("launch", "unload_module", "set_current_device", "set_printf_fifo_size", "create_tdm_descriptor"),
        *("fill_tma_descriptor", "fill_tma_descriptor_tiled", "fill_tma_descriptor_im2col"),
    )
    return SimpleNamespace(
        **dict.fromkeys(dropped, nothing),
        get_device_properties=lambda device=0: driver.device.triton_properties(),
        load_binary=load_binary,
        build_signature_metadata=lambda signature: b"",
        cuOccupancyMaxActiveClusters=lambda *_: 1,
        get_current_device=driver.get_current_device,
        get_default_stream=driver.get_current_stream,
        get_device_capability=driver.get_device_capability,
        is_stream_capturing=lambda stream: False,
    )


def benchmark(fn: Callable[[], Any], *_: Any, quantiles: Any = None, return_mode: str = "mean", **__: Any) -> Any:
    """Call `fn` once and say that it took 1 ms, so that of equals the first config that compiles always wins.

    Stands for triton.testing.do_bench and do_bench_cudagraph (3.6.0 to 3.9.0), with their shapes of answer.
    """
    fn()
    if quantiles is not None:
        return [1.0] * len(quantiles) if len(quantiles) > 1 else 1.0
    return [1.0] if return_mode == "all" else 1.0


def _bench_only(self: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], Any]) -> bool:
    """Stand for Autotuner.check_disk_cache (3.6.0 to 3.9.0): made-up times must not reach the cache that ships."""
    bench_fn()
    return False


class HeadlessDriver:
    """The driver that `install` made active; also a context manager that uninstalls it.

    `launches` and `loads` count; each of `on_launch` is called with a kernel's name and its grid. Read on 3.6.0 to
    3.9.0: triton.backends.driver.DriverBase and GPUDriver, CudaDriver, HIPDriver.
    """

    device: Device
    _target: Any  # a GPUTarget
    _real: Any  # the driver class that this one stands for
    _torch: Any

    def __init__(self) -> None:
        self.launches = 0
        self.loads = 0
        self.on_launch: list[Callable[[str, tuple[int, int, int]], Any]] = []
        self._current = 0
        # as GPUDriver does: instance attributes, not methods
        self.get_current_device = lambda: self._current
        self.set_current_device = self._set_current_device
        self.get_current_stream = lambda device=None: 0
        self.get_device_capability = lambda device=None: self.device.capability
        self.assemble_tensormap_to_arg = lambda tensormaps_info, args: args
        self.clear_cache = lambda cache: None
        self.utils = _utils(self)
        self.launcher_cls = partial(Launcher, self)
        self._undo: list[Callable[[], Any]] = []

    def _set_current_device(self, device: Any) -> None:
        """Make a device the current one: a number or a torch.device. All of them are alike, and any number will do."""
        index = getattr(device, "index", device)
        if isinstance(index, int) and index >= 0:
            self._current = index

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        return self._target

    def get_active_torch_device(self) -> Any:
        return self._torch.device("cpu")

    def get_device_interface(self) -> Any:
        return self._torch.cuda

    def map_python_to_cpp_type(self, ty: str) -> str:
        return self._real.map_python_to_cpp_type(self, ty)

    def get_benchmarker(self) -> Callable[..., Any]:
        return benchmark

    def get_empty_cache_for_benchmark(self) -> Any:
        return self._torch.empty(0, dtype=self._torch.int)

    def uninstall(self) -> None:
        """Put everything back as `install` found it; nothing if that has been done."""
        global _installed
        if _installed is self:
            _installed = None
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> HeadlessDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()


def install(target: str, device: Device | None = None) -> HeadlessDriver:
    """Make Triton compile for `target` (see `parse_target`) without its GPU, and return the driver that now is active.

    `device` replaces the table's, such as a recorded one. A headless driver that is there is uninstalled first.
    Raises ValueError for an unknown target, HeadlessError if Triton or torch lacks a name; then nothing is changed.
    """
    global _installed
    device = device or parse_target(target)[1]
    if str(parsed := device.target) != target.strip().partition("/")[0]:
        raise ValueError(f"{device.name} is a {parsed} device: install({target!r}) needs one of that target")
    uninstall()
    triton = _look_up()
    if (name := _BACKENDS[parsed.backend]) not in triton.backends:
        raise HeadlessError(f"Triton {triton.version} has no backend {name!r}, only {', '.join(triton.backends)}")
    members = {
        "device": device,
        "_target": triton.GPUTarget(parsed.backend, parsed.arch, parsed.warp_size),
        "_real": triton.backends[name].driver,
        "_torch": triton.torch,
    }
    try:
        _installed = driver = type("HeadlessDriver", (HeadlessDriver, triton.DriverBase), members)()
        _set_aside(driver, triton)
        _register(driver, triton, name)
        _patch(driver, triton.testing, do_bench=benchmark, do_bench_cudagraph=benchmark)
        _patch(driver, triton.Autotuner, check_disk_cache=_bench_only)
        if (cuda := getattr(triton.torch, "cuda", None)) is not None:
            answers = torch_answers(device)
            answers |= {"current_device": driver.get_current_device, "set_device": driver.set_current_device}
            _patch(driver, cuda, **{k: v for k, v in answers.items() if hasattr(cuda, k)})
        if device.backend == "hip":
            # what libraries ask to know AMD by (Liger: is_hip)
            _patch(driver, triton.torch.version, hip="headless")
    except Exception as error:
        uninstall()
        raise HeadlessError(
            f"Triton {triton.version} does not take a headless driver ({type(error).__name__}: {error}); {_KNOWN}"
        ) from error
    return driver


def uninstall() -> None:
    """Put everything back as `install` found it; nothing if no headless driver is installed."""
    if _installed is not None:
        _installed.uninstall()


def _look_up() -> SimpleNamespace:
    """Return the names of Triton that this module needs, and torch. Read on 3.6.0, 3.7.1, 3.8.0 and 3.9.0.

    Raises HeadlessError, which names the version and what is missing.
    """
    version = "(none)"
    try:
        version = import_module("triton").__version__
        names = {name: getattr(import_module(f"triton.{module}"), name) for name, module in _NEEDED.items()}
        names |= {"testing": import_module("triton.testing"), "torch": import_module("torch")}
    except (ImportError, AttributeError) as error:
        raise HeadlessError(f"a headless target needs torch and Triton; Triton {version}: {error}; {_KNOWN}") from None
    return SimpleNamespace(**names, version=version)


def _patch(driver: HeadlessDriver, owner: Any, **values: Any) -> None:
    """Set attributes and note what was in their place. Raises KeyError for one that is not there."""
    for name, value in values.items():
        # from vars(), since to get DriverConfig's `active` or `default` would start the real driver
        driver._undo.append(partial(setattr, owner, name, vars(owner)[name]))
        setattr(owner, name, value)


def _register(driver: HeadlessDriver, triton: Any, name: str) -> None:
    """Make the driver the active one, and the only one that discovery finds.

    Read on 3.6.0 to 3.9.0: triton.runtime.driver.DriverConfig and _create_driver, triton.backends.backends.
    """
    backends, found = triton.backends, dict(triton.backends)
    driver._undo += [partial(backends.update, found), backends.clear]  # undone from the end
    for key, backend in found.items():
        if key == name:
            backends[key] = replace(backend, driver=type(driver))
        elif backend.driver is not None:
            # is_active of the real class may start a GPU driver (3.9: cuInit where torch is not loaded)
            inactive = {"is_active": staticmethod(lambda: False)}
            backends[key] = replace(backend, driver=type("Inactive", (backend.driver,), inactive))
    # `_default` too, or DriverConfig.reset_active would look for a GPU
    _patch(driver, triton.driver, _default=driver, _active=driver)
    # it remembers the shared memory by device number
    triton.max_shared_mem.cache_clear()
    driver._undo.append(triton.max_shared_mem.cache_clear)


def _live(kind: type) -> list[Any]:
    """Return the living objects of a class or its subclasses."""
    # type(), since isinstance would run the __class__ of proxies
    return [o for o in gc.get_objects() if issubclass(type(o), kind)]


def _set_aside(driver: HeadlessDriver, triton: Any) -> None:
    """Keep kernels and choices of the driver before apart from those that are made from here on.

    JITFunction.device_caches and Autotuner.cache do not know the target: a kernel bound headless would be launched
    into nothing on the real driver later. Read on 3.6.0 to 3.9.0; also CompiledKernel.__del__ (3.8.0 on).
    """

    def caches() -> Iterable[dict[Any, Any]]:
        yield from (fn.device_caches for fn in _live(triton.JITFunction) if "device_caches" in vars(fn))
        yield from (t.cache for t in _live(triton.Autotuner) if isinstance(vars(t).get("cache"), dict))

    found = [(cache, dict(cache)) for cache in caches() if cache]
    for cache, _ in found:
        cache.clear()

    def restore() -> None:
        for kernel in _live(triton.CompiledKernel):
            state = vars(kernel)
            # a partial raises OutOfResources, which held for the headless device
            if isinstance(state.get("module"), Handle) or isinstance(state.get("_run"), partial):
                kernel.module = kernel.function = kernel._run = None
        for tuner in _live(triton.Autotuner):
            if vars(tuner).get("do_bench") is benchmark:
                del tuner.do_bench
        for cache in caches():
            cache.clear()
        for cache, entries in found:
            cache.update(entries)

    driver._undo.append(restore)
