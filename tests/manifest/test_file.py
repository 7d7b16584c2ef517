"""A manifest's file: what is damaged in any way raises ManifestError with one line, and a save is whole or nothing."""

import errno
import gc
import hashlib
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitreplay.manifest import file, record
from jitreplay.manifest import values as V
from jitreplay.manifest.errors import ManifestError, WriteError
from jitreplay.manifest.model import Choice, Environment, Manifest, Phase

from .made import COPY, ENVIRONMENT, manifest, variant, write

CHOICE = Choice(COPY, (V.Integer(8),), (("BLOCK", V.Integer(64)),), (), (("a", 1.5),), "H200", environments=(0,))
MADE = manifest(variant(7), variant(32, options=(("num_warps", V.Integer(4)),)), choices=(CHOICE,))
DATA = file.dumps(MADE)


def records(data: bytes) -> list[tuple[bytes, Any]]:
    """Return (tag, content) of each record but the last."""
    found = []
    for tag, body, _ in record.frames(data, "manifest"):
        if tag != b"E":
            found.append((tag, record.unpack(body if tag == b"H" else zlib.decompress(body), "manifest")))
    return found


def assembled(parts: list[tuple[bytes, Any]], start: bytes | None = None) -> bytes:
    """Return a whole file of these records, with a right checksum and end. Bytes are bodies as they are."""
    out = record.preamble(record.MANIFEST_MAGIC) if start is None else start
    for tag, content in parts:
        body = content if isinstance(content, bytes) else msgpack.packb(content)
        out += record.frame(tag, body if tag == b"H" or isinstance(content, bytes) else zlib.compress(body))
    return out + record.frame(b"E", hashlib.sha256(out).digest())


def changed(tag: bytes, change: Any) -> bytes:
    """Return the file with the rows of a table changed in place."""
    parts = records(DATA)
    for name, content in parts:
        if name == tag:
            change(content)
    return assembled(parts)


def refused(data: bytes, message: str | None = None) -> str:
    with pytest.raises(ManifestError, match=message) as caught:
        file.loads(data)
    text = str(caught.value)
    assert text and "\n" not in text
    return text


class TestDamage:
    def test_a_cut_at_any_byte_is_told(self) -> None:
        for size in range(len(DATA)):
            refused(DATA[:size], "cut|empty|begins with")

    def test_a_flipped_byte_is_told(self) -> None:
        for at in range(len(DATA)):
            if at in (8, 9):
                continue  # the version of the writer, which a reader only tells
            refused(DATA[:at] + bytes([DATA[at] ^ 0x41]) + DATA[at + 1 :])

    @pytest.mark.parametrize("tail", [b"\0", b"\n", DATA[:20], DATA[12:]])
    def test_trailing_bytes_are_told(self, tail: bytes) -> None:
        refused(DATA + tail)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"{}",
            b'{"header": {}, "kernels": []}',
            b"\x80",
            b"\x89PNG\r\n\x1a\n" + b"\0" * 50,
            b"\x89JRJ\r\n\x1a\n\0\1\0\1",
        ],
    )
    def test_a_foreign_file_is_told(self, data: bytes) -> None:
        assert "not a jitreplay manifest" in refused(data)

    @given(st.binary(max_size=80))
    def test_any_body_of_any_record_is_told_or_read(self, body: bytes) -> None:
        for tag in (b"H", b"A", b"O", b"K", b"R", b"C"):
            for form in (body, zlib.compress(body)):
                parts = [(name, form if name == tag else content) for name, content in records(DATA)]
                try:
                    file.loads(assembled(parts))
                except ManifestError as error:
                    assert "\n" not in str(error)

    def test_a_newer_format_says_to_upgrade(self) -> None:
        newer = struct.pack(">8sHH", record.MANIFEST_MAGIC, 9, 2)

        assert "upgrade jitreplay" in refused(assembled(records(DATA), newer))

    def test_a_newer_format_that_this_can_read_is_read(self) -> None:
        assert file.loads(assembled(records(DATA), struct.pack(">8sHH", record.MANIFEST_MAGIC, 9, 1))) == MADE


class TestHostile:
    @pytest.mark.parametrize("tag", [b"H", b"A", b"O", b"K", b"R", b"C"])
    @pytest.mark.parametrize(
        "body",
        [
            b"\x91" * 5000 + b"\xc0",
            b"\x91" * 400 + b"\xc0",
            b"\x81\xa1a" * 5000 + b"\xc0",
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
            b"\xdb\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\xc9\xff\xff\xff\xff\1",
            b"\xd4\1\0",
            b"\xc1",
            b"\x91\xa1\xff",
            b"\x91\x81\x91\xc0\xc0",
            b"\xc0",
            b"\x80",
            b"\x90\x90",
            b"",
        ],
    )
    def test_a_body_beyond_the_limits_is_told(self, tag: bytes, body: bytes) -> None:
        form = body if tag == b"H" else zlib.compress(body)

        refused(assembled([*((n, c) for n, c in records(DATA) if n != tag), (tag, form)]))

    def test_values_nested_5000_deep_are_told(self) -> None:
        value = b"\x92\xa5tuple\x91" * 5000 + b"\x91\xa4none"

        refused(assembled([(b"A", zlib.compress(b"\x91\x93" + value + b"\xa0\x90"))]))

    def test_a_zip_bomb_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(record, "MAX_INFLATED", 1 << 20)
        bomb = zlib.compress(b"\xc0" * (64 << 20), 9)

        refused(assembled([(b"R", bomb)]), "decompresses to more")

    def test_many_blocks_share_one_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(record, "MAX_INFLATED", 1000)
        block = zlib.compress(msgpack.packb([b"\0" * 600]))

        refused(assembled([(b"A", block), (b"A", block)]), "decompresses to more")

    @pytest.mark.parametrize("junk", [b"\0", b"more", zlib.compress(b"\x90")])
    def test_bytes_after_a_block_are_told(self, junk: bytes) -> None:
        refused(assembled([(b"A", zlib.compress(b"\x90") + junk)]))

    def test_a_record_that_claims_4_gigabytes_is_told(self) -> None:
        refused(record.preamble(record.MANIFEST_MAGIC) + struct.pack(">IIc", 0xFFFFFFFF, 0, b"R"), "claims")

    def test_a_file_past_the_limit_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(record, "MAX_FILE", len(DATA) - 1)

        with pytest.raises(ManifestError, match="larger than"):
            file.load(write(tmp_path / "big", DATA))

    def test_a_foreign_file_is_read_no_further_than_its_mark(self) -> None:
        with pytest.raises(ManifestError, match="not a jitreplay manifest"):
            file.load("/dev/zero")

    def test_a_key_given_twice_is_told(self) -> None:
        pair = record.pack("backend") + record.pack("cuda")

        refused(assembled([(b"H", b"\x91\x82" + pair + pair)]), "same key twice")

    @pytest.mark.parametrize(("tag", "what"), [(b"R", "variant"), (b"K", "kernel"), (b"C", "choice")])
    def test_a_row_given_twice_is_told(self, tag: bytes, what: str) -> None:
        refused(changed(tag, lambda rows: rows.append(rows[0])), f"same {what} twice")

    def test_two_headers_are_told(self) -> None:
        refused(assembled([(b"H", []), (b"H", [])]), "two headers")

    @pytest.mark.parametrize("index", [-1, 99, 2**40, 2**64 - 1, None, "0", 0.0, True])
    @pytest.mark.parametrize("place", [0, 2, 3, 10])
    def test_an_index_out_of_its_table_is_told(self, place: int, index: Any) -> None:
        refused(changed(b"R", lambda rows: rows[0].__setitem__(place, [index] if place in (2, 10) else index)))

    @pytest.mark.parametrize("digest", [b"", b"short", b"x" * 17, "text" * 4])
    def test_a_digest_of_another_length_is_told(self, digest: Any) -> None:
        refused(changed(b"R", lambda rows: rows[0].__setitem__(1, digest)))

    def test_a_message_stays_one_printable_line(self) -> None:
        parts = [(b"H", [{"backend\n\x1b[31m": 1, "arch": 90, "warp_size": 32, "backend": ["\n\x1b"]}])]

        assert "\x1b" not in refused(assembled(parts))


class TestEvolution:
    def test_unknown_records_are_skipped(self) -> None:
        parts = records(DATA)

        assert file.loads(assembled([(b"Z", b"anything"), *parts, (b"\0", b"")])) == MADE

    @pytest.mark.parametrize("tag", [b"A", b"K", b"R", b"C"])
    def test_unknown_trailing_fields_are_skipped(self, tag: bytes) -> None:
        assert file.loads(changed(tag, lambda rows: [row.append({"new": [1]}) for row in rows])) == MADE

    def test_unknown_trailing_fields_of_a_value_are_skipped(self) -> None:
        assert file.loads(changed(b"A", lambda rows: [row[0].append("new") for row in rows])) == MADE

    def test_unknown_header_fields_are_skipped(self) -> None:
        assert file.loads(changed(b"H", lambda rows: rows[0].update(new={"a": [1]}))) == MADE

    def test_missing_trailing_fields_take_their_defaults(self) -> None:
        found = file.loads(changed(b"A", lambda rows: [row.pop() for row in rows]))

        assert found == MADE

    @pytest.mark.parametrize(
        "value",
        [
            ["hologram", 1, 2],
            ["tuple", [["int", 1], ["hologram"]]],
            ["constexpr", ["hologram", {"a": 1}]],
            ["record", "m", "c", [["f", ["hologram"]]]],
        ],
    )
    def test_an_unknown_kind_of_value_becomes_opaque(self, value: Any) -> None:
        def put(rows: list[Any]) -> None:
            rows[0][0] = value

        found = [arg.value for v in file.loads(changed(b"A", put)).variants for arg in v.args]

        assert V.Opaque("hologram", "a newer jitreplay wrote this kind of value") in found
        assert sum(isinstance(value, V.Opaque) for value in found) < len(found)

    def test_an_unknown_kind_in_options_and_choices_becomes_opaque(self) -> None:
        options = file.loads(changed(b"O", lambda rows: [row.append(["new", ["hologram"]]) for row in rows]))
        choices = file.loads(changed(b"C", lambda rows: rows[0][1].append(["hologram"])))

        assert all(v.options[-1][0] == "new" and v.opaque() for v in options.variants)
        assert isinstance(choices.choices[0].key[-1], V.Opaque)

    def test_a_known_kind_with_a_wrong_field_is_damage(self) -> None:
        refused(changed(b"A", lambda rows: rows[0].__setitem__(0, ["int", "no number"])))

    def test_an_unknown_phase_weighs_least(self) -> None:
        found = file.loads(changed(b"R", lambda rows: [row.__setitem__(5, "draining") for row in rows]))

        assert {v.phase for v in found.variants} == {Phase.NEVER}


class TestLoad:
    @pytest.mark.parametrize("enabled", [True, False])
    @pytest.mark.parametrize("data", [DATA, DATA[:-1], assembled([(b"R", [[]])])])
    def test_the_collector_is_left_as_it_was(self, data: bytes, enabled: bool) -> None:
        (gc.enable if enabled else gc.disable)()
        try:
            try:
                file.loads(data)
            except ManifestError:
                pass
            assert gc.isenabled() is enabled
        finally:
            gc.enable()

    def test_the_path_is_in_the_message(self, tmp_path: Path) -> None:
        for path in (tmp_path / "missing", tmp_path, write(tmp_path / "cut", DATA[:-1])):
            with pytest.raises(ManifestError, match=str(path)):
                file.load(path)


class TestSave:
    def test_a_manifest_comes_back(self, tmp_path: Path) -> None:
        path = tmp_path / "kernels.jitreplay"

        assert file.save(MADE, path) == len(DATA) == path.stat().st_size
        assert file.load(path) == MADE
        assert [p.name for p in tmp_path.iterdir()] == [path.name]

    def test_the_usual_permissions_apply(self, tmp_path: Path) -> None:
        before = os.umask(0o027)
        try:
            file.save(MADE, tmp_path / "m")
        finally:
            os.umask(before)

        assert (tmp_path / "m").stat().st_mode & 0o777 == 0o640

    @pytest.mark.parametrize("call", ["fsync", "replace"])
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
    def test_trouble_keeps_the_old_file_and_leaves_no_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
    ) -> None:
        """M4: a replace may also be refused because another program has the file open."""
        path = write(tmp_path / "m", b"what was there")

        def fail(*_: Any, **__: Any) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, call, fail)
        with pytest.raises(WriteError, match=f"m: cannot be written: {os.strerror(number)}") as caught:
            file.save(MADE, path)

        assert "\n" not in str(caught.value)
        assert path.read_bytes() == b"what was there"
        assert [p.name for p in tmp_path.iterdir()] == ["m"]

    def test_an_interrupt_leaves_no_other_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            file.save(MADE, tmp_path / "m")

        assert list(tmp_path.iterdir()) == []

    def test_a_place_that_does_not_exist_or_is_a_folder_is_told(self, tmp_path: Path) -> None:
        for path in (tmp_path / "no" / "m", tmp_path):
            with pytest.raises(WriteError, match="cannot be written"):
                file.save(MADE, path)
        assert list(tmp_path.iterdir()) == []


def test_the_specification_is_enough_to_read_a_file() -> None:
    """Follows docs/format.md with struct, zlib and msgpack alone."""
    magic, version, least = struct.unpack_from(">8sHH", DATA)
    assert (magic, version, least) == (b"\x89JRM\r\n\x1a\n", 1, 1)
    at, tables, header = 12, {tag: [] for tag in "AOKRC"}, None
    while at < len(DATA):
        length, crc, tag = struct.unpack_from(">IIc", DATA, at)
        body = DATA[at + 9 : at + 9 + length]
        assert crc == zlib.crc32(tag + body)
        if tag == b"E":
            assert body == hashlib.sha256(DATA[:at]).digest()
            assert at + 9 + length == len(DATA)
        elif tag == b"H":
            header = msgpack.unpackb(body)
        else:
            tables[tag.decode()].extend(msgpack.unpackb(zlib.decompress(body)))
        at += 9 + length

    assert header is not None
    assert [(e["backend"], e["arch"], e["warp_size"], e["triton"]) for e in header] == [("cuda", 90, 32, "3.6.0")]
    assert len(tables["R"]) == 2
    for row, expected in zip(tables["R"], MADE.variants, strict=True):
        kernel, digest, args, options, grid, phase, flags, ranks, order, compile_ms, environments, keywords = row
        module, qualname, fingerprint, params, *_ = tables["K"][kernel]
        assert (module, qualname, fingerprint) == ("engine.ops", "copy", "f1")
        assert [param[0] for param in params] == ["x", "n_blocks", "BLOCK"]
        assert digest.hex() == expected.digest
        n = grid[0]
        (tensor, spec, derivations), (number, *_), (block, *_) = (tables["A"][index] for index in args)
        assert tensor[:5] == ["tensor", "bfloat16", [n, 8], [8, 1], 0]
        assert (spec, derivations, number, block) == ("*bf16:D", [], ["int", n], ["int", 128])
        assert tables["O"][options] == ([["num_warps", ["int", 4]]] if n == 32 else [])
        assert (phase, flags, ranks, order, compile_ms) == ("serving", 1, [], 0, 0)
        assert (environments, keywords) == ([0], [])
    assert tables["C"] == [
        [0, [["int", 8]], [["BLOCK", ["int", 64]]], [], [["a", 1.5]], "H200", [], [0]],
    ]


def test_the_specification_lists_what_the_reader_does() -> None:
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()

    for struct_type in (file.VariantRow, file.ChoiceRow, Environment):
        for name in struct_type.__struct_fields__:
            assert f"`{name}`" in text
    for kind in V.Value.__args__:  # type: ignore[attr-defined]
        fields = ", ".join(kind.__struct_fields__)
        assert f"| `{kind.__struct_config__.tag}` | {fields} |" in text
    assert Manifest((ENVIRONMENT,)).environments[0].target == "cuda:90"
