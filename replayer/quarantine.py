"""Variants whose compile broke its process, so that the next boot with the same toolchain leaves them alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..jit.live_device import live_device
from ..jit.lock import own_folder
from ..jit.toolchain import toolchain
from ..manifest.model import Kernel

NAME = "quarantine.jsonl"


class Held(msgspec.Struct, frozen=True):
    """A key in quarantine, by its kernel's identity and its digest, and why it is there."""

    name: tuple[str, ...]
    why: str


class Quarantine:
    """The list beside a cache: one line of JSON a variant, appended. One that cannot be read or written is empty."""

    def __init__(self, cache: str | os.PathLike[str], toolchain: str) -> None:
        self.path: Path = own_folder(cache) / NAME
        self._toolchain = toolchain
        self._why: dict[tuple[str, ...], str] = {}
        try:
            lines = self.path.read_text().splitlines()
        except (OSError, ValueError):
            return
        for line in lines:
            try:
                entry = json.loads(line)
                if entry["toolchain"] == toolchain:
                    self._why[(*entry["kernel"], entry["digest"])] = str(entry["why"])
            except (ValueError, KeyError, TypeError):
                continue  # a cut line

    @property
    def held(self) -> list[Held]:
        """What is in quarantine."""
        return [Held(name, why) for name, why in self._why.items()]

    def why(self, kernel: Kernel, digest: str) -> str:
        """Return why a key of a kernel is in quarantine, or ""."""
        return self._why.get((*kernel.identity, digest), "")

    def holds(self, kernel: Kernel) -> bool:
        """Whether any key of a kernel is in quarantine."""
        return any(name[:-1] == kernel.identity for name in self._why)

    def add(self, kernel: Kernel, digest: str, why: str) -> None:
        """Put a key of a kernel in quarantine."""
        self.take([Held((*kernel.identity, digest), why)])

    def take(self, held: Iterable[Held]) -> None:
        """Put into quarantine what another list holds."""
        for each in held:
            if each.name in self._why:
                continue
            self._why[each.name] = each.why
            *kernel, digest = each.name
            entry = {"toolchain": self._toolchain, "kernel": kernel, "digest": digest, "why": each.why}
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with open(self.path, "a") as file:
                    file.write(json.dumps(entry) + "\n")
            except OSError:
                pass  # then the next boot tries it again


def here(cache: str | os.PathLike[str]) -> Quarantine:
    """Return the quarantine of a cache for the device and toolchain in use."""
    return Quarantine(cache, toolchain(str(live_device().target)))
