"""The vLLM plugin (entry point `vllm.general_plugins`): records or replays where the variables ask for it.

Read on vLLM 0.26.0 and 0.33.0. vLLM loads it in every process; it does nothing but wait until a worker
initialises its device. Then, with `JITREPLAY_RECORD`, that worker records; with `JITREPLAY_MANIFEST` it replays twice:
before memory is profiled what needs no table of the runner, and before warm-up and graph capture the rest. Each
rank works alone: no collective, no launch.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from ..manifest.settings import LOGGER, Settings, set_log_level, settings
from ..recorder.bootstrap import stand_down, when_imported

_WORKER_BASE = "vllm.v1.worker.worker_base"
_ENGINE_ARGS = "vllm.engine.arg_utils"
_vllm_log = logging.getLogger("vllm.jitreplay")
_registered = False


def register() -> None:
    """Called by vLLM in each process, once or more. Never raises."""
    global _registered
    try:
        if _registered:
            return
        chosen = settings()
        if chosen.disabled or not (chosen.record or chosen.manifest):
            return
        _registered = True
        _speak_through_vllm()
        set_log_level(chosen.log)
        _set_cache_directory(chosen)
        stand_down()
        when_imported(_WORKER_BASE, functools.partial(_hook_workers, chosen))
        if chosen.manifest:
            when_imported(_ENGINE_ARGS, functools.partial(_hook_configuration, chosen))
    except Exception as error:
        _vllm_log.warning("jitreplay is off: %s: %s", type(error).__name__, error)


class _ToVllm(logging.Handler):
    """Hands our records to vLLM's logger, which has the process's prefix and the user's format."""

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = f"jitreplay: {record.getMessage()}", None
        _vllm_log.handle(record)


def _speak_through_vllm() -> None:
    if not any(isinstance(handler, _ToVllm) for handler in LOGGER.handlers):
        LOGGER.addHandler(_ToVllm())
        LOGGER.propagate = False
        LOGGER.setLevel(logging.INFO)


def _set_cache_directory(chosen: Settings) -> None:
    """Give Triton a cache directory of ours where the user gave none, before the compiler starts.

    vLLM would move it into a folder of its own per configuration and rank in mid-boot, and what was prepared before
    would not be found (0.33.0, compilation/compiler_interface.py, keeps one that is set; 0.26.0 does not).
    """
    if "TRITON_CACHE_DIR" in os.environ:
        return
    root = os.environ.get("VLLM_CACHE_ROOT") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "vllm"
    )
    os.environ["TRITON_CACHE_DIR"] = os.path.abspath(chosen.cache or os.path.join(root, "jitreplay", "triton"))


def _hook_workers(chosen: Settings) -> None:
    """Wrap the methods of WorkerWrapperBase that every executor calls. One that is missing turns us off, in a line."""
    import sys

    cls = getattr(sys.modules[_WORKER_BASE], "WorkerWrapperBase", None)
    missing = [name for name in ("init_device", "initialize_from_config") if not hasattr(cls, name)]
    if cls is None or missing:
        what = ", ".join(f"WorkerWrapperBase.{name}" for name in missing) or "WorkerWrapperBase"
        LOGGER.warning("off: this vLLM has no %s; the server runs as without jitreplay", what)
        return

    def init_device(original: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        session = _guarded(_session, chosen, wrapper)
        result = original(wrapper, *args, **kwargs)
        if session is not None:
            wrapper.__dict__["_jitreplay"] = session
            _guarded(session.device_ready)
        return result

    def initialize_from_config(original: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(wrapper, *args, **kwargs)
        session = wrapper.__dict__.get("_jitreplay")
        if session is not None:
            _guarded(session.tables_ready)
        return result

    def shutdown(original: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        session = wrapper.__dict__.get("_jitreplay")
        if session is not None:
            _guarded(session.close)
        return original(wrapper, *args, **kwargs)

    _wrap(cls, "init_device", init_device)
    _wrap(cls, "initialize_from_config", initialize_from_config)
    if hasattr(cls, "shutdown"):
        _wrap(cls, "shutdown", shutdown)


def _hook_configuration(chosen: Settings) -> None:
    """Wrap what configures an engine: there the process knows that it will serve, and compiling ahead begins.

    Without it the workers begin by themselves, later.
    """
    import sys

    cls = getattr(sys.modules[_ENGINE_ARGS], "EngineArgs", None)
    if not hasattr(cls, "create_engine_config"):
        LOGGER.debug("this vLLM has no EngineArgs.create_engine_config; compiling ahead begins with the workers")
        return

    def create_engine_config(original: Callable[..., Any], args: Any, *rest: Any, **kwargs: Any) -> Any:
        from . import vllm_ahead

        _guarded(vllm_ahead.begin, chosen)
        config = original(args, *rest, **kwargs)
        _guarded(vllm_ahead.confirm, config)
        return config

    _wrap(cls, "create_engine_config", create_engine_config)


def _session(chosen: Settings, wrapper: Any) -> Any:
    from .vllm_worker import WorkerSession

    return WorkerSession(chosen, wrapper)


def _wrap(cls: Any, name: str, around: Callable[..., Any]) -> None:
    original = getattr(cls, name)
    if getattr(original, "_jitreplay", False):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    method._jitreplay = True  # type: ignore[attr-defined]
    setattr(cls, name, method)


def _guarded(call: Callable[..., Any], *args: Any) -> Any:
    """Call; what goes wrong is one line in the log, never in the boot. Strict replays alone may stop it."""
    from ..replayer.session import ReplayError

    try:
        return call(*args)
    except ReplayError:
        raise
    except Exception as error:
        LOGGER.warning("%s failed, the server goes on without: %s: %s", call.__name__, type(error).__name__, error)
        LOGGER.debug("what failed", exc_info=True)
        return None
