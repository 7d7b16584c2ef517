"""Would a replay work on this machine? Each check gives a finding; none starts a GPU driver."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path

import msgspec

from ..jit import tools
from ..jit.devices import Device
from ..jit.internals import internals
from ..manifest import file
from ..manifest.errors import JitreplayError
from ..manifest.words import many
from .outcome import Outcome
from .width import free_cores

ROOM = 1 << 30
"""Bytes that a cache should have free."""


class Health(str, Enum):
    """How a finding is."""

    GOOD = "good"
    NOTE = "note"
    """Worth knowing; a replay works."""
    BAD = "bad"
    """A replay would not work."""


class Finding(msgspec.Struct, frozen=True):
    """What one check found, and what to do if that is not good."""

    check: str
    health: Health
    what: str
    do: str = ""


def examine(
    cache: str,
    targets: Sequence[str],
    manifest: Path | None,
    allow: Iterable[str],
    install: Callable[[str], Device | None],
) -> list[Finding]:
    """Check this machine for compiling into a cache directory for targets, and what a boot would find there.

    `install` has a target answered for without its driver, and returns its device, None where that cannot be done. Of
    what depends on a target nothing is checked without one.
    """
    found = [_versions(), _triton()]
    folder = _cache(cache)
    found += folder
    usable = Path(cache) if all(item.health is not Health.BAD for item in folder) else Path("/tmp")
    found.append(_tool("compiler", lambda: tools.compiler(usable)))
    boots = []
    for target in targets:
        device, of = install(target), "" if len(targets) == 1 else f" {target}"
        if device is None:
            what = f"{target} cannot be answered for without Triton and torch"
            found.append(Finding(f"ptxas{of}", Health.NOTE, f"not checked: {what}", "install them"))
            continue
        if device.backend == "cuda" and isinstance(device.arch, int):
            found.append(_tool(f"ptxas{of}", functools.partial(tools.assembler, device.arch)))
        if manifest is not None:
            boots += _would(f"boot{of}", manifest, allow)
    if not targets:
        found.append(Finding("ptxas", Health.NOTE, "not checked: for which GPU?", "give --target, such as cuda:90"))
    driver = tools.driver()
    if isinstance(driver, tools.Trouble):
        absent = not os.path.exists("/dev/nvidiactl")
        found.append(Finding("driver", Health.NOTE if absent else Health.BAD, driver.what, driver.do))
    else:
        found.append(Finding("driver", Health.GOOD, driver))
    found.append(_cores())
    found += _engine(os.environ)
    if manifest is not None:
        found += _manifest(manifest)
    return [*found, *boots]


def _versions() -> Finding:
    names = ("jitreplay", "triton", "torch", "vllm")
    parts = [f"Python {platform.python_version()}"]
    for name in names:
        try:
            parts.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Finding("versions", Health.GOOD, ", ".join(parts))


def _triton() -> Finding:
    try:
        return Finding("triton", Health.GOOD, f"Triton {internals().version} has all that a replay needs")
    except JitreplayError as error:
        return Finding("triton", Health.BAD, str(error), "install a Triton from 3.6 to 3.9")


def _tool(check: str, call: Callable[[], tools.Trouble | str]) -> Finding:
    try:
        found = call()
    except Exception as error:
        return Finding(check, Health.BAD, f"{type(error).__name__}: {error}", "see the message")
    if isinstance(found, tools.Trouble):
        return Finding(check, Health.BAD, found.what, found.do)
    return Finding(check, Health.GOOD, found)


def _cache(cache: str) -> list[Finding]:
    path = Path(cache)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".jitreplay.doctor.{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        if path.is_dir() and any(path.iterdir()):
            what = f"{path} cannot be written: {error.strerror}"
            return [Finding("cache", Health.NOTE, what, "what is missing in it cannot be kept; set TRITON_CACHE_DIR")]
        return [Finding("cache", Health.BAD, f"{path}: {error.strerror}", "set TRITON_CACHE_DIR to a folder of yours")]
    count = sum(1 for entry in path.iterdir() if not entry.name.startswith("."))
    usage, inodes = shutil.disk_usage(path), os.statvfs(path)
    what = f"{path}: {many(count, 'entry')}, {usage.free >> 20} MiB free"
    if usage.free < ROOM or (inodes.f_files and inodes.f_favail < 10_000):
        return [Finding("cache", Health.NOTE, f"{what}, {inodes.f_favail} files more", "make room: an entry is 0.2 MB")]
    return [Finding("cache", Health.GOOD, what)]


def _cores() -> Finding:
    return Finding("cores", Health.GOOD, f"room for {free_cores()} compile workers now")


def _engine(environ: os._Environ[str]) -> list[Finding]:
    """Check what keeps vLLM from loading the plugin, or from handing its variables on."""
    found = []
    plugins = environ.get("VLLM_PLUGINS")
    if plugins is not None and "jitreplay" not in [name.strip() for name in plugins.split(",")]:
        what = f"VLLM_PLUGINS={plugins} leaves the plugin jitreplay out"
        found.append(Finding("plugins", Health.BAD, what, f"set VLLM_PLUGINS={plugins},jitreplay".rstrip(",")))
    try:
        version = importlib.metadata.version("vllm")
        importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return found
    prefixes = environ.get("VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY", "")
    if version.startswith("0.26.") and "JITREPLAY_" not in prefixes:
        # vllm/ray/ray_env.py of 0.26.0 copies a list of prefixes; 0.33.0's executor copies all.
        do = "set VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY=JITREPLAY_,TRITON_"
        found.append(Finding("ray", Health.NOTE, f"vLLM {version} does not hand JITREPLAY_* on to Ray's workers", do))
    return found


def _manifest(path: Path) -> list[Finding]:
    try:
        manifest = file.load(path)
    except JitreplayError as error:
        return [Finding("manifest", Health.BAD, str(error), "record and merge it again")]
    facts = ", ".join(sorted({e.target for e in manifest.environments}))
    size = f"{many(len(manifest.variants), 'variant')} of {many(len(manifest.kernels), 'kernel')}"
    what = f"{size}, recorded on {facts or 'nothing'}"
    found = [Finding("manifest", Health.GOOD if manifest.variants else Health.NOTE, what)]
    names = {e.device.name for e in manifest.environments if e.device.name}
    if names and not names & (here := tools.boards()) and here:
        what = f"recorded on {', '.join(sorted(names))}, this machine has {', '.join(sorted(here))}"
        found.append(Finding("board", Health.NOTE, what, "record here, too: choices are the GPU's own"))
    return found


def _would(check: str, path: Path, allow: Iterable[str]) -> list[Finding]:
    from .replay import verify

    try:
        manifest = file.load(path)
    except JitreplayError:
        return []  # told as the manifest's
    report = verify(manifest, allow=allow)
    counts = Counter(result.outcome for result in report.results)
    skipped = [result.reason for result in report.results if result.outcome is Outcome.SKIPPED]
    warm, cold = many(counts[Outcome.WARM], "variant"), counts[Outcome.WOULD_COMPILE]
    what = f"a boot here would find {warm} compiled, and compile {cold}"
    if not skipped:
        return [Finding(check, Health.GOOD, what)]
    reason, count = Counter(skipped).most_common(1)[0]
    what += f"; it would leave out {len(skipped)}, {count} of them since: {reason}"
    nothing = len(skipped) == len(report.results)
    do = "replay with the versions and packages that it was recorded with" if nothing else ""
    return [Finding(check, Health.BAD if nothing else Health.NOTE, what, do)]
