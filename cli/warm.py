"""compile, replay, verify: what runs Triton."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..manifest import file
from ..manifest.errors import JitreplayError
from ..manifest.model import Manifest
from ..manifest.settings import settings
from ..manifest.words import many
from ..replayer.failures import advice
from ..replayer.outcome import NOT_WARM, Outcome, Report
from .output import DIFFERS, Unusable, note, print_json, progress, say, table

_FILE = click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON (docs/json.md has its shape).")
_ALLOW = click.option(
    "--allow",
    multiple=True,
    metavar="PACKAGE",
    help="A package that may be imported to find kernels; also JITREPLAY_ALLOW. Installed packages that need Triton or "
    "torch are allowed already.",
)
_CACHE = click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    help="The Triton cache directory to use instead of TRITON_CACHE_DIR.",
)


def _target(required: bool, many: bool = False) -> Any:
    return click.option(
        "--target",
        "targets" if many else "target",
        required=required,
        multiple=many,
        metavar="TARGET",
        help="The GPU to compile for, such as cuda:90, cuda:90/H200 or hip:gfx942; none is needed on this machine.",
    )


_JOBS = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(0),
    metavar="N",
    help="Processes that compile; by default as many as cores are free.",
)


def _shard(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """Return (i, n) of a text such as `2/8`."""
    part, slash, parts = value.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise click.BadParameter(f"{value!r}: expected i/n such as 2/8, the second of eight parts")
    return int(part), int(parts)


@click.command("compile", short_help="Fill a Triton cache, without a GPU.")
@_FILE
@_target(required=True, many=True)
@click.option("--cache-dir", required=True, type=click.Path(path_type=Path), help="The Triton cache directory to fill.")
@_JOBS
@click.option("--shard", default="1/1", metavar="I/N", callback=_shard, help="Compile the i-th of n parts only.")
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Compile on a Ray cluster: `auto` or HOST:PORT. A shard for each of its CPUs, or as many as -j says.",
)
@click.option(
    "--archive", type=click.Path(path_type=Path), help="Also write cache and manifest as one file, for `unpack`."
)
@_ALLOW
@_JSON
def compile_command(
    path: Path,
    targets: tuple[str, ...],
    cache_dir: Path,
    jobs: int | None,
    shard: tuple[int, int],
    ray: str | None,
    archive: Path | None,
    allow: tuple[str, ...],
    as_json: bool,
) -> None:
    """Fill a Triton cache directory with every variant of a manifest, on a machine without a GPU.

    What is there already is kept, so a run that was ended can be started again. The cache may be moved, and read from
    a place that cannot be written: a replay finds its entries there.
    """
    from ..replayer.archive import pack

    manifest = file.load(path)
    jobs = settings().jobs if jobs is None else jobs
    if ray is None:
        report = _fill(manifest, targets, cache_dir, allow, jobs, shard)
    elif shard != (1, 1):
        raise click.UsageError("--ray cuts the manifest in shards by itself: leave --shard out")
    else:
        report = _fill_by_ray(ray, manifest, targets, cache_dir, allow, jobs)
    tail = f"cache: {cache_dir}"
    if archive is not None:
        tail += f"\narchive: {archive}, {many(pack(archive, cache_dir, manifest), 'entry')}"
    _print(report, as_json, tail)


def _fill(
    manifest: Manifest,
    targets: Sequence[str],
    cache_dir: Path,
    allow: tuple[str, ...],
    jobs: int,
    shard: tuple[int, int],
) -> Report:
    from ..replayer.replay import fill
    from ..replayer.shard import join

    report = Report()
    for target in targets:
        _prepare(target, cache_dir)
        with progress(f"compiling for {target}") as update:
            join(report, fill(manifest, allow=_allowed(allow), jobs=jobs, shard=shard, progress=update))
    return report


def _fill_by_ray(
    address: str, manifest: Manifest, targets: Sequence[str], cache_dir: Path, allow: tuple[str, ...], jobs: int
) -> Report:
    from ..jit import place
    from ..replayer.quarantine import Quarantine, here
    from ..replayer.ray_cluster import Cluster

    builds: dict[str, dict[str, str]] = {}
    held: dict[str, Quarantine] = {}
    with Cluster(address) as cluster:
        for target in targets:
            _prepare(target, cache_dir)
            builds[target], held[target] = place.build(), here(cache_dir)
        with progress(f"compiling for {', '.join(targets)} on Ray") as update:
            return cluster.fill(manifest, cache_dir, builds, held, allow=_allowed(allow), shards=jobs, progress=update)


@click.command("unpack", short_help="Unpack an archive of `compile`.")
@click.argument("archive", type=click.Path(path_type=Path), metavar="ARCHIVE")
@click.option("--cache-dir", required=True, type=click.Path(path_type=Path), help="The Triton cache directory to fill.")
def unpack_command(archive: Path, cache_dir: Path) -> None:
    """Unpack an archive of `compile` into a Triton cache directory, after checking every file of it."""
    from ..replayer.archive import unpack

    done = unpack(archive, cache_dir)
    say(f"{done.written} entries written, {done.kept} were there; manifest: {done.manifest}")


@click.command("replay", short_help="Compile and load every variant in this process.")
@_FILE
@_target(required=False)
@_CACHE
@_ALLOW
@click.option("--load/--no-load", default=True, help="Also load each binary on the device (default).")
@click.option(
    "--strict", is_flag=True, help="Stop at the first variant that does not become warm; also JITREPLAY_STRICT."
)
@_JSON
def replay_command(
    path: Path,
    target: str | None,
    cache_dir: Path | None,
    allow: tuple[str, ...],
    load: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Replay a manifest in this process: compile and load every variant, report what became of each.

    What stays afterwards is Triton's disk cache. A server replays in its own process, by `jitreplay.replay(...)`.
    """
    _print(_run(path, target, cache_dir, allow, load, strict or settings().strict), as_json)


@click.command("verify", short_help="Check that nothing of a manifest would compile.")
@_FILE
@_target(required=False)
@_CACHE
@_ALLOW
@_JSON
def verify_command(
    path: Path, target: str | None, cache_dir: Path | None, allow: tuple[str, ...], as_json: bool
) -> None:
    """Exit with 0 only if nothing of a manifest would compile; with 1 and the list of what would.

    It compiles nothing and writes nothing. It uses the recorded values, so it cannot know what a deployment with
    another configuration (max_model_len, block size, ...) would launch.
    """
    from ..replayer.replay import verify

    manifest = file.load(path)
    _prepare(target, cache_dir)
    with progress("verifying") as update:
        report = verify(manifest, allow=_allowed(allow), progress=update)
    _print(report, as_json, "checked with the recorded values; another configuration may launch other variants")


def _prepare(target: str | None, cache_dir: Path | None) -> None:
    """Set the cache directory, then the target, before Triton looks at either."""
    if cache_dir is not None:
        os.environ["TRITON_CACHE_DIR"] = str(cache_dir.absolute())
    try:
        if target:
            from ..jit.headless import install

            install(target)
        else:
            from ..jit.environment import live_target

            live_target()
    except (ValueError, JitreplayError) as error:
        hint = "" if target else "; without one, give --target, such as --target cuda:90"
        raise Unusable(f"{error}{hint}") from None


def _allowed(allow: tuple[str, ...]) -> tuple[str, ...]:
    from ..jit.resolve import triton_packages

    return (*allow, *settings().allow, *sorted(triton_packages()))


def _run(
    path: Path, target: str | None, cache_dir: Path | None, allow: tuple[str, ...], load: bool, strict: bool = False
) -> Report:
    from ..replayer.replay import replay

    manifest = file.load(path)
    _prepare(target, cache_dir)
    with progress(f"replaying for {target}" if target else "replaying") as update:
        return replay(manifest, allow=_allowed(allow), load=load, strict=strict, progress=update)


def _print(report: Report, as_json: bool, tail: str = "") -> None:
    if report.error:
        raise Unusable(report.error)
    if as_json:
        print_json(report.as_data())
    else:
        _print_text(report, tail)
    if not report.warm or report.stopped:
        raise SystemExit(DIFFERS)


def _print_text(report: Report, tail: str) -> None:
    for line in report.remarks:
        note(line)
    if report.stopped:
        note(f"stopped: {report.stopped}")
    told = [r for r in report.results if r.reason]
    grouped = (Outcome.SKIPPED, Outcome.FAILED)
    groups = Counter((r.outcome.value, r.variant.kernel.name, r.reason) for r in told if r.outcome in grouped)
    rows = []
    for r in told:
        count = groups.pop(group := (r.outcome.value, r.variant.kernel.name, r.reason), 0)
        if count > 1:
            rows.append((*group[:2], many(count, "variant"), r.reason))
        elif count or r.outcome not in grouped:
            rows.append((*group[:2], r.variant.digest[:8], r.reason))
    rows.sort(key=lambda row: Outcome(row[0]) not in NOT_WARM)
    if rows:
        table(("outcome", "kernel", "variant", "reason"), rows)
        say("")
    if not report.stopped:
        for hint in dict.fromkeys(advice(r.reason) for r in told if r.outcome is Outcome.FAILED):
            say(f"failed: {hint}")
    if told := Counter((c.choice.kernel.name, c.restored, c.reason) for c in report.choices if c.reason):
        words = [(name, n, "yes" if restored else "no", reason) for (name, restored, reason), n in told.items()]
        table(("autotuner", "choices", "restored", "reason"), words)
        say("")
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report.counts.items()) or "no variants"
    built = f"; {many(report.launchers, 'launcher')} built" if report.launchers else ""
    say(f"{many(len(report.results), 'variant')} in {report.seconds.get('total', 0.0):.1f} s: {counts}{built}")
    if report.choices:
        say(f"{sum(c.restored for c in report.choices)} of {len(report.choices)} autotuner choices restored")
    if tail:
        say(tail)
