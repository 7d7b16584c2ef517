"""The errors that a manifest or a journal can raise."""

from __future__ import annotations


class JitreplayError(Exception):
    """Base of the errors that a user is meant to read. Its text says what was expected, what was found, what to do."""


class ManifestError(JitreplayError):
    """A manifest or journal that cannot be read: cut, foreign, damaged, too new, or past a limit."""


class WriteError(JitreplayError):
    """A manifest that could not be written; the file that was there before is untouched."""
