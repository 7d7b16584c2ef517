"""Put on the path by `jitreplay record`: runs the sitecustomize that it shadows, then arms the recorder."""

import os
import sys


def _chain() -> None:
    """Run the next sitecustomize on the path, as if this folder were not there."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    ours = sys.modules.get("sitecustomize")
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if ours is not None:
            sys.modules["sitecustomize"] = ours
        raise


def _arm() -> None:
    if not os.environ.get("JITREPLAY_RECORD") or os.environ.get("JITREPLAY_DISABLE") == "1":
        return
    try:
        # Importing jitreplay arms it: the variable is set.
        import jitreplay  # noqa: F401
    except Exception as error:
        sys.stderr.write(
            f"jitreplay: not recording {sys.executable}: {type(error).__name__}: {error}; "
            "install jitreplay in the environment that runs the program\n"
        )


try:
    _chain()
finally:
    _arm()
