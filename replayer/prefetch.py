"""Compiling ahead in children: what was asked for, and what became of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from ..jit import disk, triton_hash
from ..jit.devices import Device
from ..jit.live_device import active_driver, headless_device, recorded_device, running_device
from ..jit.resolve import Unresolved
from ..jit.toolchain import toolchain
from ..manifest.derivation import Survivors
from ..manifest.model import Kernel, Manifest, Variant
from ..manifest.settings import LOGGER, settings
from .children import Children, Guest, Helper
from .live import Live, forms, is_recorded_form
from .meeting import Meeting
from .plan import applies, known_stages, order
from .prebuilt import settle
from .quarantine import Quarantine
from .stamp import Stamp, content
from .suspects import Suspects
from .width import free_cores
from .wire import Answer, Hello, State
from .worth import Worth, cost_ms

LIMIT = 120.0
"""Seconds that one variant may take to compile."""
MEMORY = 8 << 30
"""Bytes that one compile may need."""
LINGER = 60.0
"""Seconds that a helper which nobody asks for anything waits for another process to join."""
ATTEMPTS = 50
"""Tenths of a second that a helper of another process may need to open its socket."""


class Prefetch:
    """A helper's work for one manifest on one device, into one cache directory.

    `allow` names the packages that a helper may import, beside those that this process has imported. It builds
    launchers too where binaries will be loaded, elsewhere with `launchers`. Processes of this host that want the same,
    as the ranks of one server do, share one helper, which is the first's.
    """

    def __init__(
        self,
        manifest: Manifest,
        device: Device,
        cache: str,
        *,
        allow: Iterable[str] = (),
        rank: str = "",
        jobs: int = 0,
        limit: float | None = None,
        launchers: bool = False,
    ) -> None:
        self.manifest, self.device, self.cache, self.rank = manifest, device, os.path.abspath(cache), rank
        self.digest = content(manifest)
        tools = toolchain(str(device.target))
        self.quarantine = Quarantine(self.cache, tools)
        self.suspects = Suspects(self.cache, tools)
        self.stamp = Stamp(self.cache, self.digest, tools, rank)
        self.children: Children | None = None
        self._allow = tuple(allow)
        self._jobs = jobs
        self._limit = limit or LIMIT
        self._launchers = launchers or headless_device(active_driver()) is None
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._looked = False

    def start(self, variants: Iterable[Variant]) -> None:
        """Start the helper where there is none yet; it imports the modules of these variants' kernels.

        Where none can be started, nothing is compiled ahead, and the log says why.
        """
        before = self.children
        if before is not None and not before.ended:
            return
        modules = dict.fromkeys(v.kernel.module for v in variants if may_be_sent(v.kernel))
        tops = {name.partition(".")[0] for name in (*self._allow, *sys.modules)} - {"__main__", "__mp_main__"}
        hello = Hello(
            self.device,
            [path for path in map(os.path.abspath, sys.path) if os.path.exists(path)],
            sorted(tops),
            list(modules),
            self._jobs or free_cores(),
            self._limit,
            MEMORY,
            self._launchers,
        )
        try:
            self.children = self._join(hello)
        except (OSError, ValueError) as error:
            LOGGER.warning("no compile helper, the server compiles by itself: %s", error)
            return
        if before is not None:
            self.children.continues(before)

    def suits(self, device: Device) -> bool:
        """Whether it is for this device. One that was asked for nothing yet must have been started for its like."""
        return self.device.target == device.target if self._numbers else self.device.is_like(device)

    def start_for(self, variants: Iterable[Variant], worth: Worth) -> None:
        """Start the helper where these are sure to need one that is worth it; nothing is asked for yet.

        Each key has a folder of the disk cache: of more keys than there are folders, some have none.
        """
        wanted = list(variants)
        there = disk.count(self.cache, len(wanted))
        if self.children is not None or there >= len(wanted):
            return
        sent = [v for v in wanted if may_be_sent(v.kernel) and not self.quarantine.why(v.kernel, v.digest)]
        sent.sort(key=cost_ms)
        missing = sent[: max(0, len(sent) - there)]
        if missing and worth.of(missing, self.device.backend) and not self.stamp.whole():
            self.start(sent)

    def _join(self, hello: Hello) -> Children:
        """Return the helper that others of this host have started for the same, or start it."""
        try:
            place = Meeting(
                *(self.cache, msgspec.msgpack.encode(self.device), sys.executable, sys.prefix),
                *(str(hello.limit), str(self._jobs), str(self._launchers), *sorted(self._allow)),
            )
        except OSError as error:
            LOGGER.debug("no shared compile helper: %s", error)
            return Helper(hello, self.cache)
        for _ in range(ATTEMPTS):
            lock = place.claim()
            if lock is not None:
                hello.listen, hello.linger = place.socket, LINGER
                return Helper(hello, self.cache, lock)
            try:
                return Guest(hello, place.socket)
            except OSError:
                time.sleep(0.1)  # it has yet to open its socket, or is ending
        return Helper(hello, self.cache)

    def begin(self) -> list[Variant]:
        """Start the helper for what it may be asked for; return that, dearest and most needed first."""
        wanted, stages = [], known_stages(self.manifest)
        for variant in order(self.manifest.variants, self.rank):
            try:
                applies(self.manifest, variant, self.device.backend, self.rank, stages)
            except Unresolved:
                continue
            if may_be_sent(variant.kernel) and not self.quarantine.why(variant.kernel, variant.digest):
                wanted.append(variant)
        del wanted[settings().most or len(wanted) :]
        if wanted:
            self.discard_mixed()
            self.start(wanted)
        return wanted

    def discard_mixed(self) -> None:
        """Take entries out of a cache that is stamped but not whole whose binaries are other variants'. Once.

        Nothing in such an entry tells, and a helper would find it good.
        """
        if self._looked:
            return
        self._looked = True
        for folder in self.stamp.mixed():
            self.stamp.drop()
            with suppress(OSError):
                disk.discard(folder)

    def ask_all(self, settings: Mapping[str, Any] | None = None) -> int:
        """Ask for every variant as a program with these settings will launch it; return how many were asked for.

        What follows tables of the program, which are not there yet, is asked for as it was recorded.
        """
        survivors = Survivors(self.manifest.variants, self.manifest.environments)
        live, count = Live({}, settings or {}), 0
        for variant in self.begin():
            for form in forms(variant, survivors, live):
                if is_recorded_form(form):
                    count += self.ask(variant, variant.digest)
                elif not self.quarantine.holds(variant.kernel):
                    # Its key is known to the helper alone; the replay finds it on disk, or asks again.
                    count += self.ask(msgspec.structs.replace(variant, args=form.args), repr(form.args))
        return count

    def ask(self, variant: Variant, digest: str) -> bool:
        """Ask for a variant whose live key has this digest, unless that was done; return whether it is asked for."""
        if self.children is None or not may_be_sent(variant.kernel):
            return False
        if self.children.ended:
            self.start([variant])
        name = (*variant.kernel.identity, digest)
        if name not in self._numbers:
            self._numbers[name] = self.children.submit(variant)
        return True

    def asked(self, kernel: Kernel, digest: str) -> bool:
        """Whether a key was asked for."""
        return (*kernel.identity, digest) in self._numbers

    def number(self, kernel: Kernel, digest: str | None) -> int | None:
        """Return the number that a key was asked for under, None when it was not."""
        return self._numbers.get((*kernel.identity, digest))

    def answer(self, kernel: Kernel, digest: str, seconds: float | None = None) -> Answer | None:
        """Return what became of a key that was asked for; wait for it at most so long, then return None."""
        assert self.children is not None
        return self.children.wait(self._numbers[(*kernel.identity, digest)], seconds)

    def close(self) -> None:
        """End the helper."""
        if self.children is not None:
            self.children.close()


BROKEN = frozenset({State.FAILED, State.MEMORY, State.CRASHED, State.HUNG})
"""States after which the server does not try by itself."""


def may_be_sent(kernel: Kernel) -> bool:
    """Whether a helper may import a kernel's module: not one that this process runs as its main program."""
    if "__main__" in (kernel.module, kernel.main) or kernel.module == "__mp_main__":
        return False
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if kernel.module in (name, (name or "").removesuffix(".__main__")):
        return False
    file = getattr(main, "__file__", None)
    if file is None:
        return True
    return os.path.splitext(os.path.basename(file))[0] != kernel.module


def usable_cache() -> str:
    """Return the cache directory that Triton uses here (3.6.0 to 3.9.0: `knobs.cache.dir`), without importing it."""
    if (triton := sys.modules.get("triton")) is not None and hasattr(triton, "knobs"):
        return str(triton.knobs.cache.dir)
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    return os.environ.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton", "cache")


def begin(
    manifest: Manifest,
    *,
    allow: Iterable[str] = (),
    rank: str = "",
    jobs: int = 0,
    limit: float | None = None,
    settings: Mapping[str, Any] | None = None,
    ask: bool = True,
) -> Prefetch | None:
    """Begin to compile a manifest; return what does so, or None where the device is not known.

    It is compiled as a program with `settings` will launch it, else as it was recorded. Without `ask` the helper is
    started, and asked for nothing yet. No driver is asked that does not run already. Where the stamp says that all is
    warm, no helper is started.
    """
    device = running_device() or _recorded(manifest)
    if device is None:
        return None
    cache = settle(usable_cache())
    triton_hash.begin(cache)
    ahead = Prefetch(manifest, device, cache, allow=allow, rank=rank, jobs=jobs, limit=limit)
    if not ahead.stamp.whole():
        ahead.ask_all(settings) if ask else ahead.begin()
    return ahead


def _recorded(manifest: Manifest) -> Device | None:
    if len({environment.target for environment in manifest.environments}) != 1:
        return None
    return recorded_device(manifest.environments[0])


_pending: Prefetch | None = None


def put(ahead: Prefetch | None) -> None:
    """Keep a prefetch for the replay of its manifest that follows; one that was kept before is ended."""
    global _pending
    if _pending is not None and _pending is not ahead:
        _pending.close()
    _pending = ahead


def take(manifest: Manifest) -> Prefetch | None:
    """Return the prefetch of this manifest, once; one of another manifest is ended."""
    global _pending
    ahead, _pending = _pending, None
    if ahead is not None and ahead.digest != content(manifest):
        ahead.close()
        return None
    return ahead
