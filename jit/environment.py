"""Where this process runs, for the manifest's header. Asks the driver, so only a recording or a replay calls it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from typing import Any

from ..manifest.model import Device, Environment
from .bind import injected
from .internals import Unsupported, internals
from .live_device import is_headless


def live_target() -> tuple[str, int | str, int]:
    """Return (backend, arch, warp size) of the active driver (Triton 3.6.0 to 3.9.0: `get_current_target`).

    Raises Unsupported, in one line, when there is no GPU that Triton can use.
    """
    names = internals()
    try:
        target = names.driver.active.get_current_target()
    except Exception as error:  # Triton raises RuntimeError without a GPU, and what a broken driver raises
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unsupported(f"no GPU that Triton {names.version} can use here ({text})") from None
    return target.backend, target.arch, target.warp_size


def environment(engine: str = "", settings: Mapping[str, Any] | None = None) -> Environment:
    """Return the environment of this process, with the engine's name and settings."""
    from .. import __version__

    backend, arch, warp_size = live_target()
    torch = sys.modules.get("torch")
    return Environment(
        backend,
        arch,
        warp_size,
        device(),
        __version__,
        internals().version,
        str(getattr(torch, "__version__", "")),
        platform.python_version(),
        engine,
        variables=variables(),
        injected={name: str(value) for name, value in injected(None).items()},
        settings=dict(settings or {}),
    )


def device() -> Device:
    """Return the current device as the driver and torch describe it; fields that neither knows stay empty."""
    active = internals().driver.active
    index = active.get_current_device()
    properties: dict[str, Any] = {}
    name, memory = "", 0
    try:
        properties = active.utils.get_device_properties(index)
    except Exception:
        properties = {}
    torch = sys.modules.get("torch")
    try:
        if torch is not None:
            found = torch.cuda.get_device_properties(index)
            name, memory = found.name, int(found.total_memory)
    except Exception:
        name = ""  # a CPU build, or another backend's device
    return Device(
        name, int(properties.get("max_shared_mem", 0)), int(properties.get("multiprocessor_count", 0)), memory
    )


def tuned_on() -> str:
    """Return the device that an autotuner's timings are of. A headless driver makes its timings up, and says so."""
    name = device().name
    return f"{name} (headless)" if is_headless() else name


def variables() -> dict[str, str]:
    """Return the environment variables that enter Triton's disk key (`get_cache_invalidating_env_vars`)."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    return {str(name): str(value) for name, value in sorted(get_cache_invalidating_env_vars().items())}
