"""The GPUs that a headless process can answer for. Imports neither torch nor triton.

The H200's row was read from its driver (cuDeviceGetAttribute, and torch 2.11). The others are what owners of those
devices posted of deviceQuery, rocminfo and torch; clocks and memory differ a little between boards and drivers. What
Triton and config lists look at (name, shared memory, multiprocessors, threads) does not.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Target:
    """What a binary is compiled for, with the fields of Triton's GPUTarget."""

    backend: str
    arch: int | str
    warp_size: int

    def __str__(self) -> str:
        return f"{self.backend}:{self.arch}"


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU as its driver and torch describe it. Memory in bytes, clocks in kHz, the bus in bits.

    `max_shared_mem` is what one block may opt in to, `shared_per_block` what it gets without. `capability` is
    torch's (major, minor), `gcn_arch` torch's gcnArchName, which on CUDA is the device's name.
    """

    name: str
    backend: str
    arch: int | str
    capability: tuple[int, int]
    multiprocessors: int
    max_shared_mem: int
    shared_per_multiprocessor: int
    total_memory: int
    l2: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    max_threads_per_multiprocessor: int = 2048
    max_threads_per_block: int = 1024
    shared_per_block: int = 48 * _KIB
    regs_per_block: int = 65536
    regs_per_multiprocessor: int = 65536
    warp_size: int = 32
    gcn_arch: str = ""

    @property
    def target(self) -> Target:
        """The target that this device runs."""
        return Target(self.backend, self.arch, self.warp_size)

    def is_like(self, other: Device) -> bool:
        """Whether a kernel's module finds another to be this one: clocks and memory differ between boards."""
        mine, its = (
            (one.name, one.target, one.capability, one.multiprocessors, one.max_shared_mem) for one in (self, other)
        )
        return mine == its

    def triton_properties(self) -> dict[str, Any]:
        """Return what Triton's `utils.get_device_properties` gives (3.6.0 to 3.9.0, driver.c of both backends)."""
        facts: dict[str, Any] = {
            "max_shared_mem": self.max_shared_mem,
            "max_num_regs": self.regs_per_block,
            "multiprocessor_count": self.multiprocessors,
            "warpSize": self.warp_size,
            "sm_clock_rate": self.clock_rate,
            "mem_clock_rate": self.memory_clock_rate,
            "mem_bus_width": self.memory_bus_width,
        }
        if self.backend == "hip":
            threads = self.max_threads_per_multiprocessor
            facts |= {"arch": self.gcn_arch, "max_threads_per_sm": threads, "cooperativeLaunch": 1}
        return facts


def _cuda(
    name: str,
    arch: int,
    sms: int,
    shared: int,
    memory: float,
    l2: int,
    clocks: tuple[int, int, int],
    threads: int = 2048,
) -> Device:
    """A row: shared memory of a multiprocessor and L2 in KiB, memory in MiB, clocks in MHz and the bus in bits."""
    # From Ampere on, CUDA keeps 1 KiB of it for itself in each block.
    reserved = 1 if arch >= 80 else 0
    return Device(
        name=name,
        backend="cuda",
        arch=arch,
        capability=(arch // 10, arch % 10),
        multiprocessors=sms,
        max_shared_mem=(shared - reserved) * _KIB,
        shared_per_multiprocessor=shared * _KIB,
        total_memory=int(memory * _MIB),
        l2=l2 * _KIB,
        clock_rate=clocks[0] * 1000,
        memory_clock_rate=clocks[1] * 1000,
        memory_bus_width=clocks[2],
        max_threads_per_multiprocessor=threads,
        gcn_arch=name,
    )


def _hip(
    name: str, arch: str, capability: tuple[int, int], cus: int, shared: int, memory: int, clocks: tuple[int, int, int]
) -> Device:
    """A row of the table, as `_cuda`. A block may use all shared memory; HIP counts the L2 of one die."""
    return Device(
        name=name,
        backend="hip",
        arch=arch,
        capability=capability,
        multiprocessors=cus,
        max_shared_mem=shared * _KIB,
        shared_per_multiprocessor=shared * _KIB,
        shared_per_block=shared * _KIB,
        total_memory=memory * _MIB,
        l2=4096 * _KIB,
        clock_rate=clocks[0] * 1000,
        memory_clock_rate=clocks[1] * 1000,
        memory_bus_width=clocks[2],
        warp_size=64,
        gcn_arch=f"{arch}:sramecc+:xnack-",
    )


# By the word that a target takes; the first of a target is its default.
DEVICES: dict[str, Device] = {
    "T4": _cuda("Tesla T4", 75, 40, 64, 14913, 4096, (1590, 5001, 256), 1024),
    "A100": _cuda("NVIDIA A100-SXM4-80GB", 80, 108, 164, 81152, 40960, (1410, 1593, 5120)),
    "A100-40GB": _cuda("NVIDIA A100-SXM4-40GB", 80, 108, 164, 40339, 40960, (1410, 1215, 5120)),
    "A100-PCIE": _cuda("NVIDIA A100 80GB PCIe", 80, 108, 164, 81049, 40960, (1410, 1512, 5120)),
    "A10": _cuda("NVIDIA A10", 86, 72, 100, 22592, 6144, (1695, 6251, 384), 1536),
    "A10G": _cuda("NVIDIA A10G", 86, 80, 100, 22515, 6144, (1710, 6251, 384), 1536),
    "L40S": _cuda("NVIDIA L40S", 89, 142, 100, 45457, 98304, (2520, 9001, 384), 1536),
    "L4": _cuda("NVIDIA L4", 89, 58, 100, 22491, 49152, (2040, 6251, 192), 1536),
    "RTX4090": _cuda("NVIDIA GeForce RTX 4090", 89, 128, 100, 24210, 73728, (2520, 10501, 384), 1536),
    "H100": _cuda("NVIDIA H100 80GB HBM3", 90, 132, 228, 81079, 51200, (1980, 2619, 5120)),
    "H100-PCIE": _cuda("NVIDIA H100 PCIe", 90, 114, 228, 81004, 51200, (1755, 1593, 5120)),
    "H200": _cuda("NVIDIA H200", 90, 132, 228, 143155.9375, 61440, (1980, 3201, 6016)),
    "B200": _cuda("NVIDIA B200", 100, 148, 228, 182631, 129536, (1965, 3996, 7680)),
    "RTX5090": _cuda("NVIDIA GeForce RTX 5090", 120, 170, 100, 32120, 98304, (2550, 14001, 512), 1536),
    "MI300X": _hip("AMD Instinct MI300X", "gfx942", (9, 4), 304, 64, 196592, (2100, 1300, 8192)),
    "MI325X": _hip("AMD Instinct MI325X", "gfx942", (9, 4), 304, 64, 262128, (2100, 1500, 8192)),
    "MI355X": _hip("AMD Instinct MI355X", "gfx950", (9, 5), 256, 160, 294896, (2400, 2000, 8192)),
}


def parse_target(text: str) -> tuple[Target, Device]:
    """Return the target and device that a text names: `cuda:90`, `hip:gfx942`, `cuda:90/H200`.

    After the slash stands a word of DEVICES or the name as the driver gives it, in any case; without it, the first
    device of the target. Raises ValueError, which lists what is known, for anything else.
    """
    head, slash, word = text.strip().partition("/")
    of_target = {short: device for short, device in DEVICES.items() if str(device.target) == head}
    if not of_target:
        raise ValueError(f"unknown target {text!r}; known: {known_targets()}; a device may follow, as in cuda:90/H200")
    if not slash:
        device = next(iter(of_target.values()))
        return device.target, device
    for short, device in of_target.items():
        if word.strip().lower() in (short.lower(), device.name.lower()):
            return device.target, device
    names = ", ".join(f"{short} ({device.name})" for short, device in of_target.items())
    raise ValueError(
        f"unknown device {word!r} for {head}; known: {names}; leave the device out, or name "
        "the one with the same shared memory and multiprocessors"
    )


def known_targets() -> str:
    """Return the known targets with their devices, for a message: `cuda:75 (T4), cuda:80 (A100, ...), ...`."""
    words: dict[str, list[str]] = {}
    for short, device in DEVICES.items():
        words.setdefault(str(device.target), []).append(short)
    return ", ".join(f"{target} ({', '.join(shorts)})" for target, shorts in words.items())


class NoContext(nullcontext[None]):
    """A `with torch.cuda.device(...)` that changes nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


class NullStream:
    """CUDA's default stream, as libraries ask for it around a launch."""

    cuda_stream = stream_id = device_index = priority = 0

    def query(self) -> bool:
        return True

    def synchronize(self, *_: Any) -> None:
        """Accept and drop, as the other methods."""

    wait_stream = wait_event = record_event = synchronize


def torch_answers(device: Device) -> dict[str, Any]:
    """Return what torch.cuda should say of a device, by the attribute's name.

    The fields of the properties are those of torch 2.11 with CUDA. `is_available` stays false: tensors are on the CPU,
    and the real one asks the driver. Which device is current, the headless driver says.
    """
    properties = SimpleNamespace(
        name=device.name,
        major=device.capability[0],
        minor=device.capability[1],
        gcnArchName=device.gcn_arch,
        warp_size=device.warp_size,
        multi_processor_count=device.multiprocessors,
        total_memory=device.total_memory,
        L2_cache_size=device.l2,
        clock_rate=device.clock_rate,
        memory_clock_rate=device.memory_clock_rate,
        memory_bus_width=device.memory_bus_width,
        max_threads_per_block=device.max_threads_per_block,
        max_threads_per_multi_processor=device.max_threads_per_multiprocessor,
        regs_per_multiprocessor=device.regs_per_multiprocessor,
        shared_memory_per_block=device.shared_per_block,
        shared_memory_per_block_optin=device.max_shared_mem,
        shared_memory_per_multiprocessor=device.shared_per_multiprocessor,
        is_integrated=0,
        is_multi_gpu_board=0,
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
        uuid="00000000-0000-0000-0000-000000000000",
    )
    stream = NullStream()
    return {
        "is_available": lambda: False,
        "device_count": lambda: 1,
        "synchronize": lambda device=None: None,
        "get_device_name": lambda device=None: properties.name,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_device_properties": lambda device=None: properties,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "stream": NoContext,
        "device": NoContext,
        "device_of": NoContext,
    }
