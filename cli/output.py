"""How commands print: tables and progress on a terminal, plain text in a pipe, JSON on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

DONE, DIFFERS, UNUSABLE = 0, 1, 2
"""Exit codes: done; differs, not warm or failed; wrong usage or unreadable file."""


EACH = 25
"""Variants after which a log gets a line."""


class Unusable(click.ClickException):
    """Ends a command with one line on stderr and exit code 2."""

    exit_code = UNUSABLE

    def show(self, file: Any = None) -> None:
        click.echo(f"jitreplay: {self.message}", err=True)


def on_terminal() -> bool:
    return sys.stdout.isatty()


def print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2, allow_nan=False))


def say(text: str) -> None:
    """Print a line of the result."""
    click.echo(text)


def note(text: str) -> None:
    """Print a line beside the result, on stderr."""
    click.echo(f"jitreplay: {text}", err=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
    """Print rows: a table on a terminal, aligned plain text in a pipe. Numbers are set to the right."""
    right = [all(isinstance(row[i], (int, float)) for row in rows) and bool(rows) for i in range(len(columns))]
    if on_terminal():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        shown = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
        for name, is_right in zip(columns, right, strict=True):
            shown.add_column(name, justify="right" if is_right else "left", overflow="fold")
        for row in rows:
            shown.add_row(*(Text(str(cell)) for cell in row))
        Console().print(shown)
        return
    if title:
        click.echo(title)
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        line = "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        )
        click.echo(line.rstrip())


@contextmanager
def progress(what: str) -> Iterator[Any]:
    """Give a function (done, total, kernel) that shows progress on stderr: on a terminal a bar, else a line each 25."""
    if not sys.stderr.isatty():

        def line(done: int, total: int, kernel: str) -> None:
            if done and done % EACH == 0 and done < total:
                note(f"{what}: {done} of {total}, next {kernel}")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[kernel]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, kernel="")

        def update(done: int, total: int, kernel: str) -> None:
            bar.update(task, completed=done, total=total, kernel=kernel)

        yield update
