"""Record which Triton kernel variants a server really compiles, and make them warm before its next first request.

The public names load on first use: `import jitreplay` brings in neither torch nor triton and touches no driver.
"""

import os as _os
import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jitreplay.manifest.file import load
    from jitreplay.recorder.session import Recorder, ready
    from jitreplay.replayer.replay import prefetch, replay

__version__ = "0.1.0"

__all__ = ["Recorder", "__version__", "load", "prefetch", "ready", "replay"]

_HOMES = {
    "Recorder": ".recorder.session",
    "load": ".manifest.file",
    "prefetch": ".replayer.replay",
    "ready": ".recorder.session",
    "replay": ".replayer.replay",
}


def __getattr__(name: str) -> Any:
    """Import a public name from the room that holds it (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _find_rooms() -> None:
    """Let a checkout find its rooms.

    From its root, this folder shadows any installed jitreplay, but the rooms lie beside it and not inside.
    """
    folder = _os.path.dirname(_os.path.abspath(__file__))
    root = _os.path.dirname(folder)
    installed = _os.path.isdir(_os.path.join(folder, "manifest"))
    checkout = _os.path.isfile(_os.path.join(root, "pyproject.toml")) and _os.path.isdir(
        _os.path.join(root, "manifest")
    )
    if checkout and not installed:
        __path__.append(root)


def _arm() -> None:
    """Start recording where the environment asks for it; a failure costs one line on stderr, never the import."""
    if not _os.environ.get("JITREPLAY_RECORD") or _os.environ.get("JITREPLAY_DISABLE") == "1":
        return
    try:
        from .recorder import bootstrap

        bootstrap.arm()
    except Exception as error:
        try:
            _sys.stderr.write(f"jitreplay: not recording: {type(error).__name__}: {error}\n")
        except Exception:
            pass  # stderr may be closed, or None


_find_rooms()
_arm()
