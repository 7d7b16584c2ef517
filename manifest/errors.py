"""The errors that a manifest or a journal can raise."""

from __future__ import annotations


def printable(line: str) -> str:
    """Return a line without what would end it or act on a terminal: names in a file may hold anything."""
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


class JitreplayError(Exception):
    """Base of the errors that a user is meant to read. Its text says what was expected, what was found, what to do.

    It is one line.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(printable(text))


class ManifestError(JitreplayError):
    """A manifest or journal that cannot be read: cut, foreign, damaged, too new, or past a limit."""


class WriteError(JitreplayError):
    """A manifest that could not be written; the file that was there before is untouched."""
