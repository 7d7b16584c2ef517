"""The settings that come by environment variable, since a served engine has no other place for them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping

import msgspec

from .errors import JitreplayError

LOGGER = logging.getLogger("jitreplay")


class SettingError(JitreplayError):
    """A variable with a value that cannot be used; the text names the variable and what it takes."""


class Settings(msgspec.Struct, frozen=True):
    """What the variables `JITREPLAY_*` say. `jobs` 0 means by free cores, `most` 0 that all variants are replayed.

    `budget` and `limit` are in seconds, None where not given: of a whole replay, of one compile.
    """

    record: str = ""
    manifest: str = ""
    cache: str = ""
    budget: float | None = None
    background: bool = False
    jobs: int = 0
    most: int = 0
    limit: float | None = None
    strict: bool = False
    report: str = ""
    log: str = ""
    allow: tuple[str, ...] = ()
    disabled: bool = False


def settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings. Raises SettingError for a value of the wrong form."""
    env = os.environ if environ is None else environ

    def get(name: str) -> str:
        return env.get(f"JITREPLAY_{name}", "").strip()

    if flag("JITREPLAY_DISABLE", get("DISABLE")):
        return Settings(disabled=True)
    return Settings(
        record=get("RECORD"),
        manifest=get("MANIFEST"),
        cache=get("CACHE"),
        budget=seconds("JITREPLAY_BUDGET", get("BUDGET")) if get("BUDGET") else None,
        background=flag("JITREPLAY_BACKGROUND", get("BACKGROUND")),
        jobs=number("JITREPLAY_JOBS", get("JOBS")) if get("JOBS") else 0,
        most=number("JITREPLAY_MOST", get("MOST")) if get("MOST") else 0,
        limit=seconds("JITREPLAY_LIMIT", get("LIMIT")) if get("LIMIT") else None,
        strict=flag("JITREPLAY_STRICT", get("STRICT")),
        report=get("REPORT"),
        log=get("LOG"),
        allow=tuple(part for part in re.split(r"[,\s]+", get("ALLOW")) if part),
    )


def flag(name: str, text: str) -> bool:
    """Return a variable as a boolean."""
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    raise SettingError(f"{name}={text}: expected 1 or 0")


def number(name: str, text: str) -> int:
    """Return a variable as a count."""
    if not text.isdecimal():
        raise SettingError(f"{name}={text}: expected a whole number")
    return int(text)


def seconds(name: str, text: str) -> float:
    """Return a duration such as `30s`, `500ms`, `2m` or `30` in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|)", text)
    if match is None:
        raise SettingError(f"{name}={text}: expected a duration such as 30s, 500ms or 2m")
    return float(match[1]) * {"ms": 0.001, "m": 60.0}.get(match[2], 1.0)


def set_log_level(level: str) -> None:
    """Show jitreplay's log from this level on (`debug`, `info`, `warning`, `error`) on stderr; "" leaves it alone."""
    if not level:
        return
    value = logging.getLevelName(level.upper())
    if not isinstance(value, int):
        raise SettingError(f"JITREPLAY_LOG={level}: expected debug, info, warning or error")
    LOGGER.setLevel(value)
    if not LOGGER.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("jitreplay: %(message)s"))
        LOGGER.addHandler(handler)
