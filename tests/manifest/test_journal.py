"""A journal: what stands before a cut is kept; what does not fit is left out and told."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from jitreplay.manifest import journal, record
from jitreplay.manifest import values as V
from jitreplay.manifest.errors import ManifestError
from jitreplay.manifest.model import Phase

from .made import COPY, ENVIRONMENT, journal_bytes, variant, write

VARIANTS = [msgspec.structs.replace(variant(n), environments=()) for n in (1, 7, 32)]
DATA = journal_bytes(*VARIANTS)
ENDS = [record.PREAMBLE_SIZE, *(end for _, _, end in record.frames(DATA, "journal"))]


def read(tmp_path: Path, data: bytes) -> journal.Journal:
    return journal.read(write(tmp_path / "1.journal", data))


def test_a_journal_comes_back(tmp_path: Path) -> None:
    choice = journal.ChoiceEvent(0, (V.Integer(1),), (("B", V.Integer(2)),), (), (("c", 1.0),), "H200", "0")
    counts = {"dropped": 3}
    found = read(tmp_path, DATA + journal.encode(b"C", choice) + journal.encode(b"S", counts))

    assert (found.environment, found.variants, found.counts) == (ENVIRONMENT, VARIANTS, counts)
    assert (found.damage, found.skipped) == ("", [])
    assert [(c.kernel, c.key, c.device, c.ranks) for c in found.choices] == [(COPY, choice.key, "H200", ("0",))]


class TestCut:
    def test_what_stands_before_a_cut_is_kept(self, tmp_path: Path) -> None:
        before = 0
        for size in range(len(DATA) + 1):
            found = read(tmp_path, DATA[:size])
            assert len(found.variants) >= before
            assert found.variants == VARIANTS[: len(found.variants)]
            assert bool(found.damage) is (size not in ENDS)
            assert found.skipped == []
            before = len(found.variants)
        assert before == 3

    def test_what_stands_before_a_damaged_middle_is_kept(self, tmp_path: Path) -> None:
        for at in range(ENDS[-2], ENDS[-1]):
            found = read(tmp_path, DATA[:at] + bytes([DATA[at] ^ 0x41]) + DATA[at + 1 :])
            assert found.variants[:2] == VARIANTS[:2]
            assert len(found.variants) == 2
        middle = ENDS[3] + 12
        found = read(tmp_path, DATA[:middle] + b"\xff" + DATA[middle + 1 :])
        assert found.variants == VARIANTS[:1]
        assert "checksum" in found.damage

    def test_a_journal_without_its_first_bytes_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(ManifestError, match="not a jitreplay journal"):
            read(tmp_path, DATA[1:])

    def test_a_missing_journal_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(ManifestError, match="cannot be read: No such file"):
            journal.read(tmp_path / "missing.journal")

    def test_a_newer_journal_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(ManifestError, match="upgrade jitreplay"):
            read(tmp_path, DATA[:8] + b"\0\x09\0\x09" + DATA[12:])


class TestContent:
    def row(self, **fields: Any) -> list[Any]:
        """Return the third variant's event as a row, with some fields changed."""
        v = VARIANTS[2]
        event = journal.VariantEvent(0, v.digest, v.args, v.options, v.grid, Phase.SERVING, True)
        row = msgspec.to_builtins(event, builtin_types=(bytes,))
        for name, value in fields.items():
            row[journal.VariantEvent.__struct_fields__.index(name)] = value
        return row

    def test_a_record_that_does_not_fit_is_left_out(self, tmp_path: Path) -> None:
        head = DATA[: ENDS[2]]
        for bad in (
            journal.encode(b"V", self.row(digest="not hexadecimal")),
            journal.encode(b"V", self.row(digest="0" * 32 + "\n")),
            journal.encode(b"V", self.row(kernel=5)),
            journal.encode(b"V", self.row(kernel=None)),
            journal.encode(b"V", [1]),
            journal.encode(b"V", "x" * (record.MAX_TEXT + 1)),
            record.frame(b"V", b"\xdd\xff\xff\xff\xff"),
            record.frame(b"V", b"\x91" * 5000 + b"\xc0"),
            journal.encode(b"C", [0]),
            journal.encode(b"S", [0]),
        ):
            found = read(tmp_path, head + bad + DATA[ENDS[2] :])
            assert found.variants == VARIANTS
            assert found.damage == ""
            assert len(found.skipped) == 1
            assert "\n" not in found.skipped[0]

    def test_unknown_records_and_fields_are_skipped(self, tmp_path: Path) -> None:
        data = DATA[: ENDS[-2]] + record.frame(b"Z", b"\xc1 no msgpack") + journal.encode(b"V", [*self.row(), "new"])

        found = read(tmp_path, data)

        assert (found.variants, found.skipped, found.damage) == (VARIANTS, [], "")

    def test_an_unknown_kind_of_value_becomes_opaque(self, tmp_path: Path) -> None:
        row = self.row(args=[[["hologram", 1], "i32:"], [["int", 7], "i32:"]], options=[["o", ["hologram"]]])

        found = read(tmp_path, DATA[: ENDS[-2]] + journal.encode(b"V", row)).variants[2]

        assert isinstance(found.args[0].value, V.Opaque)
        assert found.args[0].spec == "i32:"
        assert found.args[1].value == V.Integer(7)
        assert found.opaque() == ("x", found.args[0].value)
        assert isinstance(found.options[0][1], V.Opaque)

    def test_a_later_header_replaces_an_earlier_one(self, tmp_path: Path) -> None:
        later = msgspec.structs.replace(ENVIRONMENT, engine="vllm")

        assert read(tmp_path, DATA + journal.encode(b"H", later)).environment == later


def test_the_specification_lists_an_events_elements() -> None:
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()

    assert f"[kernel id, digest as 32 hexadecimal digits, arguments, {_names(journal.VariantEvent, 3)}]" in text
    assert f"[kernel id, {_names(journal.ChoiceEvent, 1)}]" in text


def _names(kind: Any, start: int) -> str:
    return ", ".join(kind.__struct_fields__[start:])
