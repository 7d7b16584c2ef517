"""A replay's plan and helper before the GPU's driver is asked, whose first answer takes half a second."""

from __future__ import annotations

from collections.abc import Iterable

from ..jit.capture import capturing
from ..jit.devices import Device
from ..jit.internals import internals
from ..jit.live_device import recorded_device, running_device
from ..jit.resolve import Resolver
from ..jit.tools import may_have
from ..manifest.model import Manifest
from ..manifest.settings import settings
from .plan import Plan, cut, make_plan
from .prefetch import Prefetch, usable_cache
from .worth import Worth


class Early:
    """The plan, and the helper if one is sure to be wanted, for the device that the driver will likely name.

    `prefetch` is None where that is not known.
    """

    def __init__(
        self, manifest: Manifest, resolver: Resolver, worth: Worth, allow: Iterable[str], rank: str, limit: float | None
    ) -> None:
        self.prefetch: Prefetch | None = None
        self._plan, self._backend = Plan(), ""
        internals()  # a Triton that lacks something is told as such
        device = None if capturing() else likely_device(manifest)
        if device is None:
            return
        self._plan, self._backend = make_plan(manifest, device.backend, resolver, rank), device.backend
        cut(self._plan, settings().most)
        self.prefetch = Prefetch(manifest, device, usable_cache(), allow=allow, rank=rank, jobs=worth.jobs, limit=limit)
        self.prefetch.start_for([planned.variant for planned in self._plan.todo if not planned.changed], worth)

    def plan_for(self, backend: str) -> Plan | None:
        """Return the plan if it is for this backend."""
        return self._plan if self._backend == backend else None


def likely_device(manifest: Manifest) -> Device | None:
    """Return the device of a driver that runs, else the one that all was recorded on if this host may have it."""
    if (found := running_device()) is not None:
        return found
    if len({(environment.target, environment.device.name) for environment in manifest.environments}) != 1:
        return None
    found = recorded_device(manifest.environments[0])
    return found if found is not None and may_have(found) else None
