"""What compiles here, as a short digest: a stamp or a quarantine of another toolchain does not count.

Told from files and variables alone, without importing Triton or asking a driver: it is needed before either is there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import sysconfig
from pathlib import Path

_NOT_IN_IT = {"TRITON_CACHE_DIR", "TRITON_HOME"}
_FILES = (
    *("__init__.py", "_C/libtriton.so", "compiler/compiler.py", "runtime/jit.py"),
    *("backends/nvidia/bin/ptxas", "backends/nvidia/bin/ptxas-blackwell", "backends/nvidia/compiler.py"),
    "backends/amd/compiler.py",
)


def toolchain(target: str) -> str:
    """Return the digest of what compiles for a target such as `cuda:90`: Triton, ptxas, Python, variables of Triton's.

    A file counts by its size and time of change.
    """
    spec = importlib.util.find_spec("triton")
    home = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    variables = {
        name: value for name, value in os.environ.items() if name.startswith("TRITON_") and name not in _NOT_IN_IT
    }
    tools = [value for name, value in sorted(variables.items()) if name.startswith("TRITON_PTXAS")]
    facts = [
        target,
        platform.python_version(),
        sysconfig.get_config_var("EXT_SUFFIX"),
        platform.machine(),
        sorted(variables.items()),
        [_seen(path) for path in (*(home / name for name in _FILES), *map(Path, tools))],
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _seen(path: Path) -> list[int]:
    try:
        found = path.stat()
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns]
