"""Values come back as they went in, and are equal when the compiler would take them for one."""

import math
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitreplay.manifest import file, journal, record, words
from jitreplay.manifest import values as V
from jitreplay.manifest.errors import ManifestError
from jitreplay.manifest.model import Argument, Choice
from jitreplay.manifest.table import convert

from .made import COPY, INTEGERS, VALUES, journal_bytes, manifest, variant, write


def through_a_file(value: V.Value) -> V.Value:
    found = file.loads(file.dumps(manifest(variant(block=value))))
    return found.variants[0].args[2].value


class TestRoundTrip:
    @given(VALUES)
    def test_every_kind_comes_back_from_a_manifest(self, value: V.Value) -> None:
        held = variant(block=value, options=(("o", value),))
        made = manifest(held, choices=(Choice(COPY, (value,), (("k", value),), environments=(0,)),))

        assert file.loads(file.dumps(made)) == made

    @given(VALUES)
    def test_every_kind_comes_back_from_a_journal(
        self, tmp_path_factory: pytest.TempPathFactory, value: V.Value
    ) -> None:
        held = variant(block=value, options=(("o", value),), environments=())
        path = write(tmp_path_factory.mktemp("journal") / "1.journal", journal_bytes(held))

        assert journal.read(path).variants == [held]

    @given(INTEGERS)
    def test_an_integer_of_any_size_is_exact(self, number: int) -> None:
        found = through_a_file(V.Integer.of(number))

        assert isinstance(found, V.Integer)
        assert found.number == number

    @given(st.floats())
    def test_a_float_keeps_its_bits(self, number: float) -> None:
        found = through_a_file(V.Float.of(number))

        assert isinstance(found, V.Float)
        if math.isnan(number):
            assert math.isnan(found.number)
        else:
            assert struct.pack("d", found.number) == struct.pack("d", number)

    def test_deep_nesting_comes_back(self) -> None:
        value: V.Value = V.Nothing()
        for _ in range(60):
            value = V.Tuple((value,))

        assert through_a_file(value) == value

    @given(VALUES)
    def test_both_ways_to_pack_give_the_same_bytes(self, value: V.Value) -> None:
        import msgpack

        plain = msgspec.to_builtins(value, builtin_types=(bytes,))

        assert record.pack(value) == msgpack.packb(plain, use_bin_type=True, unicode_errors="surrogatepass")


class TestEquality:
    @pytest.mark.parametrize(
        ("a", "b"),
        [
            (V.Integer(1), V.Bool(True)),
            (V.Integer(1), V.Float.of(1.0)),
            (V.Bool(True), V.Float.of(1.0)),
            (V.Integer(0), V.Bool(False)),
            (V.Float.of(0.0), V.Float.of(-0.0)),
            (V.Text("fp16"), V.DType("tl", "fp16")),
            (V.Text("x"), V.Bytes(b"x")),
            (V.Tuple(()), V.Nothing()),
            (V.Integer(1), V.Wrapped(V.Integer(1))),
            (V.Integer.of(2**64), V.Text(hex(2**64))),
        ],
    )
    def test_values_that_the_compiler_tells_apart_differ(self, a: V.Value, b: V.Value) -> None:
        assert a != b
        assert len({a, b}) == 2
        assert through_a_file(V.Tuple((a, b))) == V.Tuple((a, b))

    def test_nan_equals_nan(self) -> None:
        assert V.Float.of(float("nan")) == V.Float.of(-float("nan"))


class TestForms:
    @pytest.mark.parametrize(
        "row",
        [
            ["int", "0x1"],
            ["int", "18446744073709551616"],
            ["int", "zz"],
            ["int", True],
            ["int", 1.0],
            ["float", "1.0"],
            ["float", "0x1.0000000000000p+9999"],
            ["float", "NAN"],
            ["bool", 1],
            ["str", b"x"],
            ["tuple", [["int", None]]],
            [],
            "int",
        ],
    )
    def test_a_value_in_no_known_form_is_damage(self, row: object) -> None:
        with pytest.raises(ManifestError):
            convert(row, V.Value, "manifest")

    def test_an_integer_past_64_bits_is_made_by_of(self) -> None:
        with pytest.raises(ValueError, match=r"Integer\.of"):
            V.Integer(2**64)


class TestParts:
    def test_an_opaque_part_is_found_at_any_depth(self) -> None:
        opaque = V.Opaque("builtins.function")
        tensor = V.Tensor("bfloat16")
        held = V.Wrapped(V.Record("m", "c", (("f", V.Descriptor("m", "d", tensor, (), (), (), (("e", opaque),))),)))

        assert V.first_opaque(V.NamedTuple("m", "n", ("a",), (held,))) is opaque
        assert V.first_opaque(V.Tuple((tensor,))) is None

    def test_a_variant_names_the_argument_or_option(self) -> None:
        opaque = V.Opaque("builtins.function", "address")

        assert variant(block=opaque).opaque() == ("BLOCK", opaque)
        assert variant(options=(("hook", opaque),)).opaque() == ("hook", opaque)
        assert variant().opaque() is None

    def test_derivations_are_a_set(self) -> None:
        assert Argument(V.Integer(1), "", ("b", "a", "b")) == Argument(V.Integer(1), "", ("a", "b"))

    @given(VALUES)
    def test_words_and_json_take_every_kind(self, value: V.Value) -> None:
        import json

        assert words.text(value) is not None
        json.dumps(words.plain(value), allow_nan=False)
        assert type(value) in words.KINDS
