"""The device that this process runs on, or that a recording ran on, as a headless process can answer for it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from ..manifest.model import Environment
from .devices import DEVICES, Device
from .internals import internals


def live_device() -> Device:
    """Return the current device as its driver and torch describe it. Asks the driver.

    Read on Triton 3.6.0 to 3.9.0 (`get_device_properties` of both backends) and torch 2.11 (`_CudaDeviceProperties`).
    """
    active = internals().driver.active
    if (found := headless_device(active)) is not None:
        return found
    target, index = active.get_current_target(), active.get_current_device()
    facts: dict[str, Any] = active.utils.get_device_properties(index)
    known: Any = None
    try:
        known = sys.modules["torch"].cuda.get_device_properties(index)
    except Exception:
        known = None  # a backend that torch reaches otherwise
    arch = target.arch if isinstance(target.arch, int) else 0

    def of(name: str, default: int = 0) -> int:
        found = getattr(known, name, None)
        return default if found is None else int(found)

    shared = int(facts.get("max_shared_mem", 0))
    return Device(
        name=str(getattr(known, "name", "")),
        backend=target.backend,
        arch=target.arch,
        capability=(of("major", arch // 10), of("minor", arch % 10)),
        multiprocessors=int(facts.get("multiprocessor_count") or of("multi_processor_count")),
        max_shared_mem=shared,
        shared_per_multiprocessor=of("shared_memory_per_multiprocessor", shared),
        total_memory=of("total_memory"),
        l2=of("L2_cache_size"),
        clock_rate=int(facts.get("sm_clock_rate", 0)),
        memory_clock_rate=int(facts.get("mem_clock_rate", 0)),
        memory_bus_width=int(facts.get("mem_bus_width", 0)),
        max_threads_per_multiprocessor=of("max_threads_per_multi_processor", 2048),
        shared_per_block=of("shared_memory_per_block", 48 << 10),
        regs_per_multiprocessor=of("regs_per_multiprocessor", 65536),
        warp_size=int(target.warp_size),
        gcn_arch=str(getattr(known, "gcnArchName", "") or getattr(known, "name", "")),
    )


def headless_device(driver: Any) -> Device | None:
    """Return the device that a headless driver answers for, None where the driver is another, or there is none."""
    found = getattr(driver, "device", None)
    return found if isinstance(found, Device) else None


def running_device() -> Device | None:
    """Return the live device where Triton and torch have its driver up already, else None. Starts no driver."""
    active, torch = active_driver(), sys.modules.get("torch")
    if headless_device(active) is not None or (
        active is not None and torch is not None and torch.cuda.is_initialized()
    ):
        return live_device()
    return None


def active_driver() -> Any:
    """Return Triton's driver if there is one already; to ask for `active` would make it (3.6.0 to 3.9.0)."""
    module = sys.modules.get("triton.runtime.driver")
    return getattr(getattr(module, "driver", None), "__dict__", {}).get("_active")


def is_headless() -> bool:
    """Whether this process's driver is a headless one. Asks the driver."""
    return headless_device(internals().driver.active) is not None


def recorded_device(environment: Environment) -> Device | None:
    """Return the device of a recording: the table's of that name and target, else another's, with the recorded facts.

    Returns None for a target that the table does not have.
    """
    alike = [device for device in DEVICES.values() if str(device.target) == environment.target]
    if not alike:
        return None
    found = environment.device
    base = next((device for device in alike if device.name == found.name), alike[0])
    return replace(
        base,
        name=found.name or base.name,
        max_shared_mem=found.shared_memory or base.max_shared_mem,
        multiprocessors=found.multiprocessors or base.multiprocessors,
        total_memory=found.memory or base.total_memory,
    )
