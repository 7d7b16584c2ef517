"""doctor: would a replay work on this machine?"""

from __future__ import annotations

import os
from pathlib import Path

import click

from ..manifest import file
from ..manifest.errors import JitreplayError
from ..manifest.settings import settings
from .output import DIFFERS, Unusable, print_json, say, table


@click.command("doctor", short_help="Check that a replay would work here.")
@click.argument("manifest", required=False, type=click.Path(path_type=Path), metavar="[MANIFEST]")
@click.option("--target", metavar="TARGET", help="Check for this GPU, such as cuda:90; else for all of the manifest's.")
@click.option("--cache-dir", type=click.Path(path_type=Path), help="The Triton cache directory, else TRITON_CACHE_DIR.")
@click.option("--allow", multiple=True, metavar="PACKAGE", help="A package that may be imported to find kernels.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor_command(
    manifest: Path | None, target: str | None, cache_dir: Path | None, allow: tuple[str, ...], as_json: bool
) -> None:
    """Check that a replay would work here, and what a boot with MANIFEST would find.

    It looks at the compiler, Python's headers, ptxas, the driver (without starting it), the cache directory and the
    settings. Exit code 1 if a replay would not work.
    """
    from ..replayer.doctor import Health, examine
    from ..replayer.prefetch import usable_cache

    if cache_dir is not None:
        os.environ["TRITON_CACHE_DIR"] = str(cache_dir.absolute())
    allowed, targets = (*allow, *settings().allow), [target] if target else _recorded(manifest)
    if targets:
        from ..jit.resolve import triton_packages

        allowed = (*allowed, *sorted(triton_packages()))
    found = examine(usable_cache(), targets, manifest, allowed, _install)
    if as_json:
        print_json([{"check": f.check, "health": f.health.value, "what": f.what, "do": f.do} for f in found])
    else:
        table(("check", "", "found"), [(f.check, f.health.value, f.what) for f in found])
        for finding in found:
            if finding.do:
                say(f"{finding.check}: {finding.do}")
    if any(finding.health is Health.BAD for finding in found):
        raise SystemExit(DIFFERS)


def _recorded(manifest: Path | None) -> list[str]:
    """Return the targets that a manifest was recorded on, none where it cannot be read."""
    if manifest is None:
        return []
    try:
        return sorted({environment.target for environment in file.load(manifest).environments})
    except JitreplayError:
        return []  # told among the findings


def _install(target: str):  # type: ignore[no-untyped-def]
    """Answer for a GPU without its driver; return its device, None where Triton or torch is not there."""
    from ..jit.headless import HeadlessError, install

    try:
        return install(target).device
    except ValueError as error:
        raise Unusable(str(error)) from None
    except HeadlessError:
        return None
