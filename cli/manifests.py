"""merge, show, diff: what needs neither torch nor triton."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click
import msgspec

from ..manifest import alike, diff, file, merge, words
from ..manifest.errors import printable
from ..manifest.model import Choice, Environment, Kernel, Manifest, Variant
from ..manifest.words import many
from . import output
from .output import DIFFERS, print_json, table

_ANY = click.Path(path_type=Path)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print data as JSON (docs/json.md has its shape).")


def say(line: str) -> None:
    """Print a line of the result; names in a manifest may hold what a terminal would act on."""
    output.say(printable(line))


def tell(line: str) -> None:
    """Print a line beside the result."""
    output.note(printable(line))


@click.command("merge", short_help="Merge journals and manifests into one manifest.")
@click.argument("sources", nargs=-1, required=True, type=_ANY, metavar="DIR_OR_FILE...")
@click.option("-o", "--output", required=True, type=_ANY, help="The manifest to write.")
@_JSON
def merge_command(sources: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Merge journals and manifests, or folders of them, into one manifest.

    The same content gives the same bytes, whatever the order of the sources. A journal that was cut by a kill is
    taken up to there, and told.
    """
    merged = merge.merge_files(sources)
    size = file.save(merged.manifest, output)
    for line in merged.notes:
        tell(line)
    counts = {
        "journals": merged.journals,
        "manifests": merged.manifests,
        "kernels": len(merged.manifest.kernels),
        "variants": len(merged.manifest.variants),
        "choices": len(merged.manifest.choices),
        "bytes": size,
    }
    if as_json:
        print_json({**counts, "notes": merged.notes})
        return
    say(
        f"{output}: {many(counts['variants'], 'variant')} of {many(counts['kernels'], 'kernel')}, {size} bytes, "
        f"from {many(merged.journals, 'journal')} and {many(merged.manifests, 'manifest')}"
    )


@click.command("show", short_help="Print what a manifest or a journal holds.")
@click.argument("path", type=_ANY, metavar="FILE")
@click.option("-k", "--kernel", "pattern", help="Only kernels whose name contains this text; prints their arguments.")
@_JSON
def show_command(path: Path, pattern: str | None, as_json: bool) -> None:
    """Print what a manifest (or a journal) holds."""
    manifest = _read(path)
    if pattern:
        manifest = Manifest(
            manifest.environments,
            tuple(v for v in manifest.variants if pattern in v.kernel.name),
            tuple(c for c in manifest.choices if pattern in c.kernel.name),
        )
        if not manifest.kernels:
            tell(f"no kernel's name contains {pattern!r}; `jitreplay show {path}` lists them")
    if as_json:
        print_json(as_data(manifest))
        return
    for environment in manifest.environments:
        versions = ", ".join(
            f"{name} {value}".strip()
            for name, value in (("Triton", environment.triton), ("torch", environment.torch), ("", environment.engine))
            if value
        )
        say(f"recorded on {environment.target} {environment.device.name} with {versions}".strip())
    phases = Counter(v.phase.value for v in manifest.variants)
    shown = ", ".join(f"{count} {name}" for name, count in sorted(phases.items()))
    say(f"{many(len(manifest.variants), 'variant')} of {many(len(manifest.kernels), 'kernel')} ({shown or 'none'})")
    if manifest.choices:
        say(many(len(manifest.choices), "autotuner choice"))
    say("")
    if pattern:
        for variant in manifest.variants:
            _print_variant(variant)
        return
    groups = _by_kernel(manifest)
    rows = [
        (
            printable(k.name),
            len(vs),
            sum(v.phase.value == "serving" for v in vs),
            printable(", ".join(_varying(k, vs))) or "-",
        )
        for k, vs in groups
    ]
    table(("kernel", "variants", "serving", "what varies"), rows)
    for kernel, variants in groups:
        for hint in _warnings(kernel, variants):
            say(hint)


def _read(path: Path) -> Manifest:
    """Read a manifest; a journal or a folder of them is merged on the fly."""
    from ..manifest import journal

    if path.is_dir() or journal.is_journal(path):
        merged = merge.merge_files([path])
        for line in merged.notes:
            tell(line)
        return merged.manifest
    return file.load(path)


def _by_kernel(manifest: Manifest) -> list[tuple[Kernel, list[Variant]]]:
    groups: dict[tuple[str, str, str], list[Variant]] = {kernel.identity: [] for kernel in manifest.kernels}
    kernels = {kernel.identity: kernel for kernel in manifest.kernels}
    for variant in manifest.variants:
        groups[variant.kernel.identity].append(variant)
    return [(kernels[identity], variants) for identity, variants in groups.items()]


def _varying(kernel: Kernel, variants: list[Variant]) -> list[str]:
    """Return the arguments and options that differ between a kernel's variants, with how many forms each has."""
    found = []
    for index, param in enumerate(kernel.params):
        forms = {diff.key_part(v.args[index]) for v in variants if index < len(v.args)}
        if len(forms) > 1:
            found.append(f"{param.name} ({len(forms)})")
    options = {v.options for v in variants}
    return [*found, f"options ({len(options)})"] if len(options) > 1 else found


MANY = 64
"""Distinct constants of one argument from which `show` says that a manifest will not converge."""


def _warnings(kernel: Kernel, variants: list[Variant]) -> list[str]:
    found = []
    for index, param in enumerate(kernel.params):
        if param.constexpr:
            values = {repr(v.args[index].value) for v in variants if index < len(v.args)}
            if len(values) >= MANY:
                found.append(
                    f"{kernel.name}: argument {param.name} has {len(values)} distinct constexpr values; each new value "
                    "is a new compile, so a recording of it will not converge"
                )
    found.extend(alike.sentence(*pair) for pair in alike.look_alikes(variants))
    if opaque := [v for v in variants if v.opaque()]:
        name, value = opaque[0].opaque() or ("", None)
        why = getattr(value, "why", "")
        found.append(f"{kernel.name}: {many(len(opaque), 'variant')} cannot be replayed: argument {name}: {why}")
    return found


def _print_variant(variant: Variant) -> None:
    grid = variant.grid if isinstance(variant.grid, str) else "x".join(map(str, variant.grid or ())) or "not seen"
    say(f"{variant.kernel.name}  {variant.digest}  {variant.phase.value}  grid {grid}")
    for param, arg in zip(variant.kernel.params, variant.args, strict=False):
        constant = "constexpr" if param.constexpr else f"{arg.spec}  {words.specialization(arg)}"
        say(f"    {param.name} = {words.text(arg.value)}  {constant}")
    for name, value in variant.options:
        say(f"    option {name} = {words.text(value)}")


@click.command("diff", short_help="Print what changed between two manifests.")
@click.argument("before", type=_ANY, metavar="A")
@click.argument("after", type=_ANY, metavar="B")
@_JSON
def diff_command(before: Path, after: Path, as_json: bool) -> None:
    """Print what changed from manifest A to manifest B; exit code 1 when something did."""
    found = diff.diff(_read(before), _read(after))
    if as_json:
        print_json(diff.as_data(found))
    else:
        _print_diff(found)
    if found:
        raise SystemExit(DIFFERS)


def _print_diff(found: diff.Diff) -> None:
    if not found:
        say("no differences")
        return
    for name, was, now in found.header:
        say(f"header {name}: {_shown(was)} -> {_shown(now)}")
    for sign, what, names in (
        ("+", "new", found.kernels_added),
        ("-", "gone", found.kernels_removed),
        ("~", "source changed", found.kernels_changed),
    ):
        for name in names:
            say(f"{sign} kernel {name} ({what})")
    for change in found.changed:
        say(f"~ {change.after.kernel.name} {change.before.digest[:8]} -> {change.after.digest[:8]}")
        for name, was, now in change.args:
            say(f"    {words.sentence(name, was, now)}")
        if not change.args:
            say("    the same arguments under another key (another Triton, or other options of its own)")
    for sign, variants in (("+", found.added), ("-", found.removed)):
        for variant in variants:
            say(f"{sign} {variant.kernel.name} {variant.digest[:8]}  {_in_short(variant)}")
    for change in found.choices:
        choice, sign = change.choice, "+" if change.before is None else "-" if change.after is None else "~"
        place = f"{choice.kernel.name} for {words.texts(choice.key)} on {choice.device or 'an unnamed device'}"
        say(f"{sign} choice of {place}: {change.before or 'none'} -> {change.after or 'none'}")


def _shown(value: Any) -> str:
    return "not there" if value is None else str(value)


def _in_short(variant: Variant) -> str:
    pairs = zip(variant.kernel.params, variant.args, strict=False)
    return ", ".join(f"{param.name}={words.text(arg.value)}" for param, arg in pairs)


def as_data(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest as `show --json` prints it."""
    return {
        "header": {
            "format": 1,
            "kernels": len(manifest.kernels),
            "variants": len(manifest.variants),
            "environments": [_environment_data(e) for e in manifest.environments],
        },
        "kernels": [
            {
                "module": kernel.module,
                "name": kernel.qualname,
                "fingerprint": kernel.fingerprint,
                "wrappers": list(kernel.wrappers),
                "variants": [_variant_data(v) for v in variants],
            }
            for kernel, variants in _by_kernel(manifest)
        ],
        "choices": [_choice_data(choice) for choice in manifest.choices],
    }


def _environment_data(environment: Environment) -> dict[str, Any]:
    settings = {name: words.finite(value) for name, value in environment.settings.items()}
    return {"target": environment.target} | msgspec.to_builtins(environment) | {"settings": settings}


def _variant_data(v: Variant) -> dict[str, Any]:
    return {
        "digest": v.digest,
        "phase": v.phase.value,
        "real": v.real,
        "grid": list(v.grid) if isinstance(v.grid, tuple) else v.grid,
        "args": [words.argument(param, arg) for param, arg in zip(v.kernel.params, v.args, strict=False)],
        "options": [[name, words.plain(value)] for name, value in v.options],
        "keywords": list(v.keywords),
        "ranks": list(v.ranks),
        "order": v.order,
        "compile_ms": v.compile_ms,
        "disk_hit": v.disk_hit,
        "environments": list(v.environments),
    }


def _choice_data(choice: Choice) -> dict[str, Any]:
    return {
        "kernel": choice.kernel.name,
        "key": [words.plain(value) for value in choice.key],
        "config": [[name, words.plain(value)] for name, value in (*choice.kwargs, *choice.options)],
        "timings": [[config, words.finite(time)] for config, time in choice.timings],
        "device": choice.device,
    }
