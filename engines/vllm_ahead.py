"""Compiling ahead for a vLLM server: begun when its engine is configured, long before a worker has a device."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from ..manifest import file
from ..manifest.errors import JitreplayError
from ..manifest.model import Manifest
from ..manifest.settings import Settings
from ..replayer import prefetch
from . import vllm_config

ALLOW = ("vllm", "triton_kernels", "fla")
"""Packages whose kernels vLLM launches; a manifest may have their modules imported."""

_begun: tuple[int, str, prefetch.Prefetch] | None = None


def mismatch(manifest: Manifest, worker: Any) -> str:
    """Return why this manifest is not for this model, or "". Only the architecture decides that."""
    here = vllm_config.architecture(worker)
    there = {e.settings.get("architecture") for e in manifest.environments} - {None}
    if here and there and here not in there:
        return f"recorded for {', '.join(sorted(map(str, there)))}, this server runs {here}"
    return ""


def begin(chosen: Settings) -> None:
    """Begin with the manifest as it was recorded; what the engine's configuration changes is asked for later.

    Workers in processes of their own join the helper. It ends with this process, or when nobody needs it any more.
    """
    global _begun
    if not chosen.manifest or (_begun is not None and _begun[0] == os.getpid()):
        return
    try:
        manifest = file.load(chosen.manifest)
    except JitreplayError:
        return  # told by the worker that replays it
    ahead = begin_for(chosen, manifest)
    if ahead is not None:
        _begun = (os.getpid(), prefetch.usable_cache(), ahead)


def begin_for(chosen: Settings, manifest: Manifest) -> prefetch.Prefetch | None:
    """Begin to compile a manifest; return what does so, None where the device cannot be known yet."""
    return prefetch.begin(manifest, allow=(*ALLOW, *chosen.allow), jobs=chosen.jobs, limit=chosen.limit)


def confirm(config: Any) -> None:
    """The engine's configuration is there: end what was begun if the manifest is another model's."""
    if _begun is not None and _begun[0] == os.getpid():
        manifest = _begun[2].manifest
        if mismatch(manifest, SimpleNamespace(vllm_config=config)):
            _drop()


def take() -> prefetch.Prefetch | None:
    """Return what this process has begun, once: for the worker that lives in it."""
    global _begun
    begun, _begun = _begun, None
    if begun is None or begun[0] != os.getpid():
        return None
    if begun[1] != prefetch.usable_cache():
        begun[2].close()
        return None
    return begun[2]


def _drop() -> None:
    global _begun
    if _begun is not None:
        _begun[2].close()
        _begun = None
