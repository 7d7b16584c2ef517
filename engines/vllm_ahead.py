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

_begun: tuple[int, prefetch.Prefetch] | None = None
"""The process that has begun, and what."""


def mismatch(manifest: Manifest, worker: Any) -> str:
    """Return why this manifest is not for this model, or "". Only the architecture decides that."""
    here = vllm_config.architecture(worker)
    there = {e.settings.get("architecture") for e in manifest.environments} - {None}
    if here and there and here not in there:
        return f"recorded for {', '.join(sorted(map(str, there)))}, this server runs {here}"
    return ""


def begin(chosen: Settings) -> None:
    """Start the helper, which needs seconds to be up; the engine's configuration says what it is asked for.

    Workers in processes of their own join it. It ends with this process, or when nobody needs it any more.
    """
    global _begun
    if _own() is not None:
        return
    try:
        manifest = file.load(chosen.manifest)
    except JitreplayError:
        return  # told by the worker that replays it
    ahead = _begin(chosen, manifest, ask=False)
    if ahead is not None:
        _begun = (os.getpid(), ahead)


def begin_for(chosen: Settings, manifest: Manifest, worker: Any) -> prefetch.Prefetch | None:
    """Begin to compile a manifest for a worker; return what does so, None where the device cannot be known yet."""
    return _begin(chosen, manifest, settings=vllm_config.configured(getattr(worker, "vllm_config", None)))


def _begin(chosen: Settings, manifest: Manifest, **more: Any) -> prefetch.Prefetch | None:
    return prefetch.begin(manifest, allow=(*ALLOW, *chosen.allow), jobs=chosen.jobs, limit=chosen.limit, **more)


def confirm(config: Any) -> None:
    """The engine's configuration is there: compile what it will launch, nothing if the manifest is another model's."""
    ahead = _own()
    if ahead is None:
        return
    if mismatch(ahead.manifest, SimpleNamespace(vllm_config=config)):
        _end()
    elif ahead.children is not None:
        ahead.ask_all(vllm_config.configured(config))


def take() -> prefetch.Prefetch | None:
    """Return what this process has begun, once: for the worker that lives in it."""
    global _begun
    ahead = _own()
    if ahead is not None and ahead.cache != os.path.abspath(prefetch.usable_cache()):
        _end()
        return None
    _begun = None
    return ahead


def _own() -> prefetch.Prefetch | None:
    """Return what this process itself has begun: not the one that it was forked from."""
    return _begun[1] if _begun is not None and _begun[0] == os.getpid() else None


def _end() -> None:
    global _begun
    if (ahead := _own()) is not None:
        ahead.close()
    _begun = None
