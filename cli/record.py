"""record: run any Python program, unedited, and journal what its Triton kernels compile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import click

from ..manifest.errors import ManifestError
from ..manifest.merge import merge_files
from ..manifest.words import many
from .output import Unusable, note

_SITE = Path(__file__).resolve().parent.parent / "recorder" / "site"


@click.command(
    "record", short_help="Run a program and record what it compiles.", context_settings={"ignore_unknown_options": True}
)
@click.option(
    "-o", "--output", "folder", required=True, type=click.Path(path_type=Path), help="The folder for the journals."
)
@click.option(
    "--target", metavar="TARGET", help="Record without a GPU, for this target (such as cuda:90): launches are dropped."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
def record_command(folder: Path, target: str | None, command: tuple[str, ...]) -> None:
    """Run CMD and record each Triton kernel variant that it, or a Python process that it starts, compiles.

    The exit code is CMD's own. The journals in the folder are merged by `jitreplay merge`.
    """
    program = shutil.which(command[0])
    if program is None:
        raise Unusable(f"{command[0]}: no such program")
    if target:
        _check_target(target)
    if reason := _defeated(program, command[1:]):
        raise Unusable(reason)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unusable(f"{folder}: cannot be made: {error.strerror}") from None
    before = set(folder.glob("*.journal"))
    with tempfile.TemporaryDirectory(prefix="jitreplay-") as hello:
        code = _run([program, *command[1:]], _environment(folder, target, hello))
        seen = [name.partition("-")[0] for name in os.listdir(hello)]
    _tell(folder, set(folder.glob("*.journal")) - before, seen)
    raise SystemExit(code)


def _check_target(target: str) -> None:
    from ..jit.devices import parse_target

    try:
        parse_target(target)
    except ValueError as error:
        raise Unusable(str(error)) from None


def _environment(folder: Path, target: str | None, hello: str) -> dict[str, str]:
    path = [str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "JITREPLAY_RECORD": str(folder.absolute()),
        "JITREPLAY_HELLO": hello,
    }
    env.pop("JITREPLAY_TARGET", None)
    if target:
        env["JITREPLAY_TARGET"] = target
    return env


def _run(command: list[str], env: dict[str, str]) -> int:
    """Run the command and return its exit code, 128 and more for a signal; SIGINT and SIGTERM are the command's."""
    child = subprocess.Popen(command, env=env)

    def forward(number: int, _: object) -> None:
        child.send_signal(number)

    handlers = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    # The terminal sends SIGINT to the whole group; the command decides what it means.
    handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = child.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


def _defeated(program: str, args: tuple[str, ...]) -> str:
    """Return why a Python started like this would not load the recorder, or ""."""
    flags = _python_flags(args) if Path(program).name.startswith("python") else _shebang_flags(program)
    for letter, what in (("I", "isolated mode"), ("E", "it ignores PYTHONPATH"), ("S", "it does not load site")):
        if letter in flags:
            return (
                f"python -{letter} defeats the recorder ({what}); run CMD without it, "
                "or use jitreplay.Recorder in the program"
            )
    return ""


def _python_flags(args: tuple[str, ...]) -> str:
    flags, skip = "", False
    for arg in args:
        if skip:
            skip = False
        elif not arg.startswith("-") or arg == "-" or arg.startswith("--") or arg[1] in "cm":
            break
        elif arg[1] in "WX":
            skip = len(arg) == 2
        else:
            letters = arg[1:]
            for stop in "cm":
                letters = letters.partition(stop)[0]
            flags += letters
    return flags


def _shebang_flags(program: str) -> str:
    try:
        with open(program, "rb") as file:
            line = file.readline(512)
    except OSError:
        return ""
    words = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    return _python_flags(tuple(words[1:])) if words and Path(words[0]).name.startswith("python") else ""


def _tell(folder: Path, journals: set[Path], seen: list[str]) -> None:
    if journals:
        try:
            merged = merge_files(sorted(journals))
        except ManifestError as error:
            note(str(error))
            return
        for line in merged.notes:
            note(line)
        note(
            f"recorded {many(len(merged.manifest.variants), 'variant')} of "
            f"{many(len(merged.manifest.kernels), 'kernel')} in {many(len(journals), 'journal')}; "
            f"next: jitreplay merge {folder} -o kernels.jitreplay"
        )
    elif "triton" in seen:
        note("recorded nothing: Triton was imported, but no kernel was compiled")
    elif "python" in seen:
        note(f"recorded nothing: {seen.count('python')} Python processes ran, none imported Triton")
    else:
        note(
            "recorded nothing: no Python process loaded the recorder. Is CMD a Python program, started without -I, -E "
            "and -S, in an environment where jitreplay is installed?"
        )
