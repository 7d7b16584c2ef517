"""Where a prebuilt cache lies and what it is good for: noted when it is filled, checked and put right at boot.

Triton's group files hold absolute paths (3.6.0 to 3.9.0: `FileCacheManager.put_group`), so that a cache which was moved
finds nothing. They are written anew for the present place; of a cache that cannot be written, into another folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import sysconfig
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from .internals import internals
from .lock import own_folder

NOTE, BENEATH = "cache.json", "beneath"


def build() -> dict[str, str]:
    """Return what a cache's entries are good for: this build of Triton, its assembler, this Python. Asks the driver."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler import make_backend
    from triton.runtime.build import platform_key
    from triton.runtime.cache import triton_key

    names = internals()
    return {
        "triton": names.version,
        "build": hashlib.sha256(triton_key().encode()).hexdigest()[:16],
        "assembler": make_backend(names.driver.active.get_current_target()).hash(),
        "python": f"{platform.python_version()} {sysconfig.get_config_var('EXT_SUFFIX')}",
        "platform": platform_key(),
        "variables": json.dumps(sorted(map(list, get_cache_invalidating_env_vars().items()))),
    }


def note(cache: str | os.PathLike[str]) -> None:
    """Note in a cache that was filled here where it lies and what it is good for, by target."""
    add(cache, {str(internals().driver.active.get_current_target().arch): build()})


def add(cache: str | os.PathLike[str], builds: dict[str, Any]) -> None:
    """Add to a cache's note what more it is good for, by target, and that it lies here. Raises OSError."""
    path = own_folder(cache) / NOTE
    found = {**read(cache).get("builds", {}), **builds}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"place": str(Path(cache).absolute()), "builds": found}))


def read(cache: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a cache's note; empty where there is none."""
    try:
        found = json.loads((own_folder(cache) / NOTE).read_text())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def differences(cache: str | os.PathLike[str]) -> list[str]:
    """Return how this process differs from what a prebuilt cache is good for; empty where it has no note."""
    target = str(internals().driver.active.get_current_target().arch)
    builds = read(cache).get("builds")
    if not isinstance(builds, dict) or not builds:
        return []
    there, here = builds.get(target), build()
    if not isinstance(there, dict):
        return [f"it was filled for {', '.join(sorted(builds))}, this is {target}"]
    return [f"{name}: {there.get(name)} -> {here[name]}" for name in here if there.get(name) != here[name]]


def settle(cache: str | os.PathLike[str]) -> int:
    """Make the entries of a prebuilt cache that was moved here findable; return how many were."""
    root = Path(cache).absolute()
    if not was_moved(root):
        return 0
    found = read(root)
    count = sum(_write_groups(entry, entry) for entry in _entries(root))
    write_whole(own_folder(root) / NOTE, json.dumps({**found, "place": str(root)}))
    return count


def layer(cache: str | os.PathLike[str], upper: str | os.PathLike[str]) -> int:
    """Make a folder a cache that has the entries of one that cannot be written; return how many they are.

    Each is a link, or of a cache that was moved a group file that points into it. What the folder has of its own stays.
    """
    root, over = Path(cache).absolute(), Path(upper)
    for link in over.iterdir():
        if link.is_symlink() and not link.exists():
            link.unlink(missing_ok=True)  # the cache beneath is another now
    found, moved, count = read(root), was_moved(root), 0
    for entry in _entries(root):
        there = over / entry.name
        if moved and list(entry.glob("__grp__*.json")):
            count += _write_groups(entry, there)
            continue
        # One that its maker did not finish is made anew, and not in a folder that cannot be written.
        if list(entry.glob("__grp__*.json")) or list(entry.glob("*.so")):
            with suppress(FileExistsError):  # our own, or another rank was sooner
                there.symlink_to(entry, target_is_directory=True)
            count += 1
    own_folder(over).mkdir(exist_ok=True)
    write_whole(own_folder(over) / BENEATH, str(root))
    if found:
        write_whole(own_folder(over) / NOTE, json.dumps({**found, "place": str(over.absolute())}))
    return count


def beneath(cache: str | os.PathLike[str]) -> str:
    """Return the cache that this one is a layer over, or ""."""
    try:
        return (own_folder(cache) / BENEATH).read_text()
    except OSError:
        return ""


def use(cache: str) -> None:
    """Have Triton use a cache directory, here and in processes that are started, also where its knob was set."""
    os.environ["TRITON_CACHE_DIR"] = cache
    knob = getattr(getattr(sys.modules.get("triton"), "knobs", None), "cache", None)  # imports nothing
    if knob is not None and "dir" in vars(knob):
        knob.dir = cache


def was_moved(cache: str | os.PathLike[str]) -> bool:
    """Whether a prebuilt cache lies elsewhere than where it was filled."""
    found = read(cache)
    return bool(found) and found.get("place") != str(Path(cache).absolute())


def _entries(root: Path) -> list[Path]:
    try:
        return [entry for entry in root.iterdir() if entry.is_dir() and entry.name.isalnum()]
    except FileNotFoundError:
        return []


def _write_groups(entry: Path, there: Path) -> bool:
    """Write the group files of an entry anew, in its own folder or in another; a launcher's entry has none."""
    groups = list(entry.glob("__grp__*.json"))
    there.mkdir(parents=True, exist_ok=True)
    for group in groups:
        if there != entry and any(path.name != group.name for path in there.iterdir()):
            continue  # compiled anew there, because the entry beneath was cut
        write_group(entry, there / group.name, [path.name for path in entry.iterdir()])
    return bool(groups)


def write_group(entry: Path, group: Path, names: list[str]) -> None:
    """Write a group file for the files of an entry, whole or not at all."""
    stem = group.name.removeprefix("__grp__").removesuffix(".json")
    children = {name: str(entry.absolute() / name) for name in sorted(names) if name.startswith(f"{stem}.")}
    write_whole(group, json.dumps({"child_paths": children}))


def write_whole(path: Path, text: str) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    scratch = path.with_name(f"{path.name}.tmp.{os.getpid()}.{threading.get_native_id()}")
    scratch.write_text(text)
    os.replace(scratch, path)
