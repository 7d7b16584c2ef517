"""The command `jitreplay`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from .. import __version__
from ..manifest.errors import JitreplayError
from ..manifest.settings import set_log_level, settings
from .output import Unusable

# Commands load when they are used: `show`, `merge` and `diff` must not pay for torch and triton, nor need them.
_COMMANDS = {
    "record": "record",
    "merge": "manifests",
    "show": "manifests",
    "diff": "manifests",
    "compile": "warm",
    "unpack": "warm",
    "replay": "warm",
    "verify": "warm",
    "doctor": "doctor",
    "demo": "demo",
}


class _Lazy(click.Group):
    """Imports a command's module when the command is asked for, and turns our errors into exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f".{_COMMANDS[cmd_name]}", __package__)
        return getattr(module, f"{cmd_name}_command")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except JitreplayError as error:
            raise Unusable(str(error)) from None


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jitreplay")
def main() -> None:
    """Record the Triton kernel variants that a server compiles under traffic, and make them warm before the next one.

    \b
    jitreplay record -o recording -- python server.py     while real traffic runs
    jitreplay merge recording -o kernels.jitreplay        review its diff in a pull request
    jitreplay replay kernels.jitreplay                    or jitreplay.replay(...) when the server boots

    Exit codes: 0 done, 1 differs, not warm or failed, 2 wrong usage or unreadable file.
    """
    set_log_level(settings().log)
