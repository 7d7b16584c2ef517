"""How a replay tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called with (done, total, kernel): kernel is the one that is next, "" at the end."""
