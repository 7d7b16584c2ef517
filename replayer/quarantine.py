"""Variants whose compile broke its process, so that the next boot with the same toolchain leaves them alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..jit.lock import own_folder
from ..manifest.model import Kernel

NAME = "quarantine.jsonl"


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

    def why(self, kernel: Kernel, digest: str) -> str:
        """Return why a key of a kernel is in quarantine, or ""."""
        return self._why.get((*kernel.identity, digest), "")

    def add(self, kernel: Kernel, digest: str, why: str) -> None:
        """Put a key of a kernel in quarantine."""
        if self.why(kernel, digest):
            return
        self._why[(*kernel.identity, digest)] = why
        entry = {"toolchain": self._toolchain, "kernel": kernel.identity, "digest": digest, "why": why}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError:
            pass  # then the next boot tries it again
