"""Values and differences in words and as JSON."""

import json

import pytest

from jitreplay.manifest import values as V
from jitreplay.manifest import words
from jitreplay.manifest.errors import printable
from jitreplay.manifest.model import Argument, Param

TENSOR = V.Tensor("bfloat16", (4, 8), (8, 1), 0, 0, 64)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (TENSOR, "bfloat16[4x8]"),
        (V.Tensor("float32", view_as="int32"), "int32[scalar]"),
        (V.Integer(7), "7"),
        (V.Integer.of(2**64), "0x10000000000000000"),
        (V.Float.of(-0.0), "-0.0"),
        (V.Float.of(float("nan")), "nan"),
        (V.Bool(True), "True"),
        (V.Nothing(), "None"),
        (V.Text("a\n"), r"'a\n'"),
        (V.Bytes(b"\0"), r"b'\x00'"),
        (V.DType("tl", "fp16"), "tl.fp16"),
        (V.Function("m", "f", "1"), "m.f"),
        (V.Enum("m", "Mode", "FAST"), "Mode.FAST"),
        (V.Tuple((V.Integer(1), V.Text("x"))), "(1, 'x')"),
        (V.NamedTuple("m", "Pair", ("a",), (V.Integer(1),)), "Pair(a=1)"),
        (V.Record("m", "Layout", (("a", V.Integer(1)),)), "Layout(a=1)"),
        (V.Wrapped(V.Integer(1)), "constexpr(1)"),
        (V.Opaque("builtins.function"), "<builtins.function>"),
        (
            V.Descriptor("m", "TensorDescriptor", TENSOR, (), (), (2, 2)),
            "TensorDescriptor(bfloat16[4x8], block [2, 2])",
        ),
    ],
)
def test_a_value_in_a_few_characters(value: V.Value, text: str) -> None:
    assert words.text(value) == text


@pytest.mark.parametrize(
    ("value", "spec", "shown"),
    [
        (V.Integer(32), "i32:D", "multiple of 16"),
        (V.Integer(7), "i32:", "other"),
        (V.Integer(1), "i32:1", "equal to 1"),
        (V.Integer(1), "constexpr", "equal to 1"),
        (V.Integer(7), "constexpr", "constant"),
        (V.Integer(7), "i32", "not specialized"),
        (V.Nothing(), "constexpr", "None"),
        (TENSOR, "*bf16:D", "aligned to 16"),
        (TENSOR, "*bf16:", "unaligned"),
        (TENSOR, "*bf16:S", "other, under 2 GB"),
        (V.Float.of(0.5), "fp32", "fp32"),
        (V.Bool(True), "u1", "u1"),
    ],
)
def test_a_specialization_in_words(value: V.Value, spec: str, shown: str) -> None:
    assert words.specialization(Argument(value, spec)) == shown


def test_a_difference_is_a_sentence() -> None:
    was, now = Argument(V.Integer(32), "i32:D"), Argument(V.Integer(7), "i32:")

    assert words.sentence("n_blocks", was, now) == "n_blocks: multiple of 16 -> other (32 -> 7)"
    wide = Argument(V.Integer(2**31), "i64:D")
    assert words.sentence("n", was, wide) == "n: multiple of 16 -> i64 multiple of 16 (32 -> 2147483648)"
    assert (
        words.sentence("B", Argument(V.Integer(64), "constexpr"), Argument(V.Integer(128), "constexpr"))
        == "B: 64 -> 128"
    )


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (V.Integer(2**64 - 1), 2**64 - 1),
        (V.Integer.of(1 << 20000), hex(1 << 20000)),
        (V.Float.of(0.5), 0.5),
        (V.Float.of(float("inf")), "inf"),
        (V.Bool(True), True),
        (V.Nothing(), None),
        (V.Text("x"), "x"),
        (V.Tuple((V.Integer(1), V.Bytes(b"x"))), [1, "b'x'"]),
    ],
)
def test_a_value_as_json(value: V.Value, plain: object) -> None:
    assert words.plain(value) == plain
    json.dumps(words.plain(value), allow_nan=False)


def test_an_argument_as_json() -> None:
    tensor = words.argument(Param("x"), Argument(TENSOR, "*bf16:D"))
    number = words.argument(Param("n"), Argument(V.Integer(7), "i32:", ("size(x,0)",)))
    block = words.argument(Param("B", constexpr=True), Argument(V.Integer(64), "constexpr"))

    assert [(a["name"], a["kind"]) for a in (tensor, number, block)] == [
        ("x", "tensor"),
        ("n", "integer"),
        ("B", "constexpr"),
    ]
    assert (tensor["shape"], tensor["strides"], tensor["specialization"]) == ([4, 8], [8, 1], "aligned to 16")
    assert (number["value"], number["spec"], number["derivations"]) == (7, "i32:", ["size(x,0)"])
    assert block == {"name": "B", "kind": "constexpr", "type": "integer", "value": 64}


def test_a_line_is_printable() -> None:
    assert printable("a\x1b[31m\n\tb\ud800é") == r"a\x1b[31m\n\tb\ud800é"


def test_what_python_takes_for_equal() -> None:
    same = [V.Integer(1), V.Bool(True), V.Float.of(1.0)]

    assert len({words.equal_as(value) for value in same}) == 1
    assert words.equal_as(V.Float.of(0.0)) == words.equal_as(V.Float.of(-0.0))
    assert words.equal_as(V.Text("1")) == V.Text("1")
