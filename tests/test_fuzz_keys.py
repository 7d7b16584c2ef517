"""Kernels and arguments drawn at random: recorded, written, read, replayed in a fresh process, keys compared.

All launches are made in one process and replayed in one other. `TEST_FUZZ_LAUNCHES=N` draws N, and others each time.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .helpers import merged, program, save

USUAL = 300
LAUNCHES = int(os.environ.get("TEST_FUZZ_LAUNCHES", USUAL))
TARGETS = ("cuda:90", "hip:gfx942")

PREPARE = """
from kernels import uncompiled
uncompiled.install()
import numpy
from kernels import odd, odd_signatures
from kernels.odd import Level, Mode, Pair, Point, Rank, Shade
from triton.experimental.gluon import language as gl
from triton.tools.tensor_descriptor import TensorDescriptor
inf, nan = float("inf"), float("nan")
BASE = torch.empty(1 << 12, dtype=torch.uint8)
HUGE = torch.empty(3 << 30, dtype=torch.uint8, device="meta")

def tensor(dtype, skip, huge=False):
    return (HUGE if huge else BASE)[: 1 << 11].view(getattr(torch, dtype))[skip:]

def descriptor(dtype, block):
    return TensorDescriptor.from_tensor(torch.empty((64, 64), dtype=getattr(torch, dtype)), list(block))

refused = 0

def launch(kernel, *args, **kwargs):
    global refused
    if kernel is None:
        return
    try:
        kernel[(1,)](*args, **kwargs)
    except Exception:
        refused += 1
"""

EDGES = [0, 1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 16, 15, 17]
DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16"]
DTYPES += ["float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "complex64"]
TL_DTYPES = ["int1", "int8", "uint64", "float16", "bfloat16", "float8e4nv", "float8e5", "float64"]

integers = (st.sampled_from(EDGES) | st.integers(-(2**63), 2**64 - 1) | st.integers(-40, 40).map(lambda n: n * 16)).map(
    repr
)
floats = st.floats().map(repr)
bools = st.booleans().map(repr)
tensors = st.builds("tensor({!r}, {}, {})".format, st.sampled_from(DTYPES), st.integers(0, 17), st.booleans())
functions = st.sampled_from(["odd.callee", "odd.other_callee", "odd.doubled", "tl.sum"])
descriptors = st.builds(
    "descriptor({!r}, {})".format,
    st.sampled_from(["float16", "bfloat16", "int8", "float32"]),
    st.tuples(st.sampled_from([1, 16, 64]), st.sampled_from([16, 32, 64])),
)


def _tuples(items: Any, most: int = 4) -> Any:
    """Return tuples and named tuples of expressions, as expressions."""
    plain = st.lists(items, max_size=most).map(lambda found: "(" + "".join(f"{item}, " for item in found) + ")")
    return plain | st.builds("Pair({}, {})".format, items, items) | st.builds("Point({}, {})".format, items, items)


plain = integers | floats | bools | tensors | st.just("None")
arguments = (
    st.one_of(plain, plain, plain, descriptors, functions)
    | _tuples(plain | functions)
    | _tuples(_tuples(plain, 2) | plain, 3)
    | st.sampled_from(["Level.ONE", "Level.FIVE", "Rank(7)", "tl.constexpr(3)", "tl.float16"])
    | st.sampled_from(["odd.Address(24, torch.int8)", "odd.Ranged(32, torch.int8, 9)"])
)
simple_constants = (
    st.integers(-(2**80), 2**80).map(repr)
    | floats
    | bools
    | st.text(max_size=8).map(ascii)
    | st.binary(max_size=4).map(repr)
    | st.sampled_from([f"tl.{name}" for name in TL_DTYPES])
    | st.sampled_from([f"torch.{name}" for name in DTYPES])
    | functions
    | st.sampled_from(["None", "Shade.DARK", "Shade.LIGHT", "Level.FIVE", "Mode.READ", "Mode.READ | Mode.WRITE"])
    | st.builds("numpy.int{}({})".format, st.sampled_from([8, 16, 32, 64]), st.integers(-100, 100))
    | st.builds("numpy.float{}({!r})".format, st.sampled_from([32, 64]), st.floats(width=32))
    | st.builds("gl.BlockedLayout([1, {}], [{}, 4], [4, 1], [1, 0])".format, st.integers(1, 8), st.integers(1, 8))
)
constants = simple_constants | _tuples(simple_constants) | _tuples(_tuples(simple_constants, 2), 2)
OPTIONS = {
    "num_warps": st.sampled_from([1, 2, 4, 8]),
    "num_stages": st.integers(1, 4),
    "num_ctas": st.just(1),
    "enable_fp_fusion": st.booleans(),
    "debug": st.booleans(),
    "sanitize_overflow": st.booleans(),
}


@st.composite
def options(draw: Any) -> str:
    """Draw options in any order, as keyword arguments."""
    names = draw(st.lists(st.sampled_from(sorted(OPTIONS)), unique=True, max_size=3))
    return "".join(f", {name}={draw(OPTIONS[name])!r}" for name in names)


@st.composite
def calls(draw: Any) -> str:
    """Draw one launch, as a line of a program."""
    kind = draw(st.integers(0, 7))
    one = draw(arguments)
    if kind < 2:
        name = draw(st.sampled_from(["takes", "not_specialized", "not_aligned", "wide", "read_only"]))
        text = f"odd.{name}, {one}"
    elif kind == 2:
        text = f"odd.takes_more, {one}, {draw(arguments)}, {draw(arguments)}"
    elif kind == 3:
        text = f"odd.takes_many, {', '.join(draw(st.lists(plain, min_size=8, max_size=8)))}, "
        text += f"C={draw(constants)}, D={draw(constants)}"
    elif kind < 6:
        text = f"odd.{draw(st.sampled_from(['constant', 'listed_constant']))}, {draw(constants)}"
    elif kind == 6:
        text = f"odd.with_defaults, {one}, x={draw(floats)}, C={draw(constants)}"
    else:
        rest = "".join(f", {item}" for item in draw(st.lists(plain, max_size=3)))
        text = draw(
            st.sampled_from(
                [
                    f"odd_signatures.variadic, {one}{rest}",
                    f"odd_signatures.keyword_only, {one}, n={draw(plain)}",
                    f"odd_signatures.both, {one}{rest}, n={draw(plain)}, C={draw(constants)}",
                ]
            )
        )
    return f"launch({text}{draw(options())})"


def drawn(count: int) -> list[str]:
    """Return so many launches: the same in each run, unless more than usual are asked for."""
    found: list[str] = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        derandomize=LAUNCHES == USUAL,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(calls())
    def collect(line: str) -> None:
        found.append(line)

    collect()
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_a_replay_makes_the_recorded_keys_and_no_more(target: str, tmp_path: Path) -> None:
    lines = drawn(LAUNCHES)
    code = PREPARE + "\n".join(lines) + "\nanswer([keys(), recorder.counts, refused])"
    recorded, counts, refused = program(tmp_path, code, target=target, record=tmp_path / "recording")
    path = save(merged(tmp_path / "recording"), tmp_path / "drawn.jitreplay")
    replay = f"report = jitreplay.replay({str(path)!r}, allow=('kernels',))\n"
    replay += "answer([keys(), [[r.outcome.value, r.reason] for r in report.results if r.reason]])"

    replayed, told = program(tmp_path / "again", PREPARE + replay, target=target)

    assert told == []
    assert replayed == recorded
    assert counts["errors"] == 0 and refused < len(lines) / 2
    assert counts["variants"] == sum(map(len, recorded.values())) > len(lines) / 5
