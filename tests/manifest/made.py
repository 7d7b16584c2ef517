"""Manifests that the tests make: small ones by hand, and any by Hypothesis."""

import random
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from jitreplay.manifest import journal, record
from jitreplay.manifest import values as V
from jitreplay.manifest.merge import merge
from jitreplay.manifest.model import Argument, Choice, Environment, Kernel, Manifest, Param, Phase, Variant, digest

settings.register_profile("jitreplay", deadline=None, max_examples=60)  # a busy machine is no failure
settings.load_profile("jitreplay")

ENVIRONMENT = Environment("cuda", 90, 32, triton="3.6.0")
COPY = Kernel("engine.ops", "copy", "f1", (Param("x"), Param("n_blocks"), Param("BLOCK", constexpr=True)))


def integer(value: int) -> Argument:
    spec = "constexpr" if value == 1 else "i32:D" if value % 16 == 0 else "i32:"
    return Argument(V.Integer.of(value), spec)


def variant(n: int = 32, block: Any = 128, kernel: Kernel = COPY, **fields: Any) -> Variant:
    """Return a variant of `copy` as a launch with these arguments would make it."""
    value = block if isinstance(block, msgspec.Struct) else V.Integer.of(block)
    args = (Argument(V.Tensor("bfloat16", (n, 8), (8, 1)), "*bf16:D"), integer(n), Argument(value, "constexpr"))
    key = f"{[arg.spec for arg in args]} {value} {fields.get('options')}"
    fields = {"environments": (0,), "phase": Phase.SERVING, "real": True, "grid": (n, 1, 1), **fields}
    return Variant(kernel, digest(key), args, **fields)


def manifest(*variants: Variant, choices: tuple[Choice, ...] = (), environment: Environment = ENVIRONMENT) -> Manifest:
    return merge([Manifest((environment,), variants, choices)])


def journal_bytes(*variants: Variant, environment: Environment | None = ENVIRONMENT) -> bytes:
    """Return what a recorder would have written of these variants."""
    out = [record.preamble(record.JOURNAL_MAGIC)]
    if environment is not None:
        out.append(journal.encode(b"H", environment))
    kernels: dict[Kernel, int] = {}
    for v in variants:
        if v.kernel not in kernels:
            kernels[v.kernel] = len(kernels)
            out.append(journal.encode(b"K", [kernels[v.kernel], v.kernel]))
        event = journal.VariantEvent(kernels[v.kernel], v.digest, v.args, v.options, v.grid, v.phase, v.real)
        out.append(journal.encode(b"V", event))
    return b"".join(out)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


INTEGERS = st.integers() | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**70, 1, 0])
SMALL = st.integers(-(2**63), 2**64 - 1)
SIZES = st.lists(SMALL, max_size=3).map(tuple)
NAMES = st.text(max_size=6)
TENSORS = st.builds(
    V.Tensor,
    st.sampled_from(["bfloat16", "float32"]),
    SIZES,
    SIZES,
    SMALL,
    st.integers(0, 15),
    SMALL,
    st.booleans(),
    NAMES,
    NAMES,
    st.none() | st.builds(V.View, SMALL, SIZES, SIZES),
)
SIMPLE = st.one_of(
    TENSORS,
    st.builds(V.Integer.of, INTEGERS),
    st.builds(V.Float.of, st.floats()),
    st.builds(V.Bool, st.booleans()),
    st.just(V.Nothing()),
    st.builds(V.Text, st.text(st.characters(), max_size=6)),  # lone surrogates too
    st.builds(V.Bytes, st.binary(max_size=6)),
    st.builds(V.DType, st.sampled_from(["tl", "torch"]), NAMES),
    st.builds(V.Function, NAMES, NAMES, NAMES),
    st.builds(V.Enum, NAMES, NAMES, NAMES),
    st.builds(V.NumpyScalar, NAMES, st.binary(max_size=8)),
    st.builds(V.Opaque, NAMES, NAMES),
)


def _nested(inner: st.SearchStrategy[V.Value]) -> st.SearchStrategy[V.Value]:
    items = st.lists(inner, max_size=3).map(tuple)
    fields = st.lists(st.tuples(NAMES, inner), max_size=3).map(tuple)
    return st.one_of(
        st.builds(V.Tuple, items),
        st.builds(V.NamedTuple, NAMES, NAMES, st.lists(NAMES, max_size=3).map(tuple), items),
        st.builds(V.Descriptor, NAMES, NAMES, TENSORS, SIZES, SIZES, SIZES, fields),
        st.builds(V.Record, NAMES, NAMES, fields),
        st.builds(V.Wrapped, inner),
    )


VALUES: st.SearchStrategy[V.Value] = st.recursive(SIMPLE, _nested, max_leaves=6)

# Few names and values, so that parts meet in the same kernels, variants and choices.
_WORDS = st.sampled_from(["a", "b", "c"])
_SETS = st.lists(_WORDS, max_size=3).map(tuple)
_VALUES = st.sampled_from([V.Integer(1), V.Bool(True), V.Float.of(1.0), V.Float.of(float("nan")), V.Text("x")])
_OPTIONS = st.lists(st.tuples(_WORDS, _VALUES), max_size=1).map(tuple)
_PLACES = st.lists(st.integers(0, 1), max_size=3).map(tuple)
_KERNELS = st.builds(
    Kernel, _WORDS, st.just("k"), st.sampled_from(["f", "g"]), st.sampled_from([(), (Param("x"),), (Param("y"),)])
)
_SETTINGS = st.dictionaries(_WORDS, st.sampled_from([1, True, 1.0, 0.0, -0.0, float("nan"), None]), max_size=2)
_ENVIRONMENTS = st.builds(Environment, st.just("cuda"), st.sampled_from([80, 90]), st.just(32), settings=_SETTINGS)
_VARIANTS = st.builds(
    Variant,
    _KERNELS,
    st.sampled_from([digest("1"), digest("2")]),
    st.lists(st.builds(Argument, _VALUES, st.sampled_from(["", "i32:D"]), _SETS), max_size=2).map(tuple),
    _OPTIONS,
    st.sampled_from([None, "callable", (1,), (2, 1)]),
    st.sampled_from(Phase),
    st.booleans(),
    _SETS,
    st.integers(0, 2),
    st.integers(0, 2),
    st.booleans(),
    _PLACES,
    st.booleans(),
    keywords=st.sampled_from([(), ("launch_pdl",)]),
)
_TIMES = st.lists(st.tuples(_WORDS, st.sampled_from([0.5, 1.0, float("inf"), float("nan")])), max_size=2).map(tuple)
_CHOICES = st.builds(
    Choice,
    _KERNELS,
    st.lists(_VALUES, max_size=1).map(tuple),
    _OPTIONS,
    _OPTIONS,
    _TIMES,
    st.sampled_from(["", "H200"]),
    _SETS,
    _PLACES,
)
MANIFESTS: st.SearchStrategy[Manifest] = st.builds(
    Manifest,
    st.lists(_ENVIRONMENTS, min_size=2, max_size=2).map(tuple),
    st.lists(_VARIANTS, max_size=5).map(tuple),
    st.lists(_CHOICES, max_size=3).map(tuple),
)


def shuffled(items: list[Any], seed: int) -> list[Any]:
    return random.Random(seed).sample(items, len(items))
