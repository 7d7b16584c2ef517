"""What changed between two manifests, and which variant became which."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitreplay.manifest import pair, words
from jitreplay.manifest import values as V
from jitreplay.manifest.diff import as_data, diff, nearest
from jitreplay.manifest.model import Argument, Kernel, Manifest

from .made import COPY, ENVIRONMENT, MANIFESTS, integer, manifest, merge, variant

replace = msgspec.structs.replace


def brute(left: list[pair.Row], right: list[pair.Row]) -> list[tuple[int, int]]:
    """The rule, word for word: fewest differing columns first, ties in order, one to one, at most three."""
    found = [(pair.distance(a, b), i, j) for i, a in enumerate(left) for j, b in enumerate(right)]
    pairs: list[tuple[int, int]] = []
    for count, i, j in sorted(found):
        if count <= 3 and all(i != a and j != b for a, b in pairs):
            pairs.append((i, j))
    return pairs


VALUES = st.sampled_from(["i32:", "i32:D", ("constexpr", V.Integer(1)), ("constexpr", V.Bool(True)), None])
ROWS = st.lists(
    st.fixed_dictionaries(
        {name: VALUES for name in "abcde"} | {pair.ORDER: st.sampled_from([(), ("p",), ("q",)])},
        optional={"option p": VALUES},
    ),
    max_size=9,
)


class TestPair:
    @given(ROWS, ROWS)
    def test_comparing_every_pair_follows_the_rule(self, left: list[Any], right: list[Any]) -> None:
        assert list(pair._by_pairs(pair._Codes(left, right), pair.WORK)) == brute(left, right)

    @given(ROWS, ROWS)
    def test_masks_follow_the_rule(self, left: list[Any], right: list[Any]) -> None:
        assert list(pair._by_masks(pair._Codes(left, right), pair.WORK)) == brute(left, right)

    def test_large_sets_follow_the_rule(self) -> None:
        draw = random.Random(0)

        def rows(count: int) -> list[Any]:
            return [{name: draw.randrange(3) for name in "abcdefgh"} | {pair.ORDER: ()} for _ in range(count)]

        left, right = rows(250), rows(250)

        assert pair.pair(left, right) == list(pair._by_masks(pair._Codes(left, right), pair.WORK)) == brute(left, right)

    def test_a_bound_on_work_leaves_the_rest_unpaired(self) -> None:
        left = [{"a": n, "b": n % 7, "c": 0} for n in range(60)]
        right = [{"a": n + 100, "b": n % 7, "c": 0} for n in range(60)]

        assert len(pair.pair(left, right)) == 60
        assert pair.pair(left, right, work=200) == []

    def test_five_thousand_constants_are_paired(self) -> None:
        """A9: a request's number as a constant."""
        left = [{"N": n, "x": 0} for n in range(5000)]
        right = [{"N": n + 5000, "x": 0} for n in range(5000)]

        assert pair.pair(left, right) == [(n, n) for n in range(5000)]

    def test_more_than_three_differences_are_no_pair(self) -> None:
        four = [{name: 0 for name in "abcd"}], [{name: 1 for name in "abcd"}]

        assert pair.pair(*four) == []
        assert pair.pair([{**four[0][0], "a": 1}], four[1]) == [(0, 0)]

    def test_the_order_of_options_counts_alone_only(self) -> None:
        row = {"a": 0, "b": 0, "c": 0, pair.ORDER: (1,)}
        other = {"a": 1, "b": 1, "c": 1, pair.ORDER: (2,)}

        assert pair.distance(row, other) == 3
        assert pair.distance(row, {**row, pair.ORDER: (2,)}) == 1
        assert pair.distance(row, row) == 0


class TestDiff:
    def test_a_changed_argument_is_told_in_words(self) -> None:
        found = diff(manifest(variant(32)), manifest(variant(7)))

        (change,) = found.changed
        assert [words.sentence(*arg) for arg in change.args] == ["n_blocks: multiple of 16 -> other (32 -> 7)"]
        assert (found.added, found.removed, found.header) == ([], [], [])

    def test_the_nearest_are_paired_and_the_rest_came_or_went(self) -> None:
        before = manifest(variant(32, block=128), variant(32, block=64))
        after = manifest(variant(7, block=64), variant(7, block=256), variant(1, block=512))

        found = diff(before, after)

        pairs = {(c.before.args[2].value, c.after.args[2].value) for c in found.changed}
        assert (V.Integer(64), V.Integer(64)) in pairs
        assert (len(found.changed), len(found.added), len(found.removed)) == (2, 1, 0)

    def test_another_source_of_a_kernel_is_a_change(self) -> None:
        edited = replace(COPY, fingerprint="f2")
        found = diff(manifest(variant()), manifest(variant(kernel=edited)))

        assert found.kernels_changed == ["engine.ops.copy"]
        assert (found.kernels_added, found.kernels_removed, found.changed, found.added) == ([], [], [], [])

    def test_a_kernel_of_one_capture_only_is_listed(self) -> None:
        """A6: the sampling kernel is only in the production capture."""
        sample = Kernel("engine.ops", "sample", "f1", COPY.params)
        greedy, production = manifest(variant()), manifest(variant(), variant(kernel=sample))

        found, back = diff(greedy, production), diff(production, greedy)

        assert (found.kernels_added, [v.kernel.name for v in found.added]) == (["engine.ops.sample"],) * 2
        assert (back.kernels_removed, [v.kernel.name for v in back.removed]) == (["engine.ops.sample"],) * 2

    def test_options_and_their_order(self) -> None:
        four, three = ("num_warps", V.Integer(4)), ("num_stages", V.Integer(3))

        def sentences(a: tuple[Any, ...], b: tuple[Any, ...]) -> list[str]:
            (change,) = diff(manifest(variant(options=a)), manifest(variant(options=b))).changed
            return [words.sentence(*arg) for arg in change.args]

        assert sentences((four,), (("num_warps", V.Integer(8)),)) == ["num_warps: 4 -> 8"]
        assert sentences((), (four,)) == ["num_warps: <not given> -> 4"]
        assert sentences((four, three), (three, four)) == [
            "option order: ('num_warps', 'num_stages') -> ('num_stages', 'num_warps')"
        ]

    def test_an_option_that_became_one_is_not_the_same_as_true(self) -> None:
        one, true = (("flag", V.Integer(1)),), (("flag", V.Bool(True)),)

        assert len(diff(manifest(variant(options=one)), manifest(variant(options=true))).changed) == 1

    def test_the_header_is_apart(self) -> None:
        nan = float("nan")
        one = replace(ENVIRONMENT, settings={"max_num_seqs": 1, "ratio": nan, "eager": True})
        two = replace(ENVIRONMENT, triton="3.7.1", settings={"max_num_seqs": 2, "ratio": nan, "eager": 1})

        found = diff(manifest(variant(), environment=one), manifest(variant(), environment=two))

        assert found.header == [
            ("settings.eager", True, 1),
            ("settings.max_num_seqs", 1, 2),
            ("triton", "3.6.0", "3.7.1"),
        ]
        assert not (found.changed or found.added or found.removed)

    @given(MANIFESTS)
    def test_nothing_differs_from_itself(self, made: Manifest) -> None:
        """C4: NaN equals NaN."""
        assert not diff(merge([made]), merge([made, made]))

    @given(MANIFESTS, MANIFESTS)
    def test_every_variant_is_accounted_for(self, a: Manifest, b: Manifest) -> None:
        old, new = merge([a]), merge([b])
        found = diff(old, new)

        def keys(variants: Any) -> set[tuple[str, str]]:
            return {(v.kernel.name, v.digest) for v in variants}

        gone = keys(found.removed) | keys(c.before for c in found.changed)
        come = keys(found.added) | keys(c.after for c in found.changed)
        assert gone == keys(old.variants) - keys(new.variants)
        assert come == keys(new.variants) - keys(old.variants)
        assert all(c.before.kernel.name == c.after.kernel.name and len(c.args) <= 3 for c in found.changed)

    def test_a_key_alone_may_differ(self) -> None:
        other = replace(variant(), digest="0" * 32)

        (change,) = diff(manifest(variant()), manifest(other)).changed

        assert change.args == []

    def test_the_nearest_of_others_is_found(self) -> None:
        sample = Kernel("engine.ops", "sample", "f1", COPY.params)
        others = [variant(32, block=64), variant(32, block=128), variant(7, kernel=sample)]

        found = nearest(variant(7, block=128), others)

        assert found is not None
        assert (found[0], [name for name, *_ in found[1]]) == (others[1], ["n_blocks"])
        assert nearest(variant(), []) is None


def test_json_has_the_shape_of_the_documentation() -> None:
    sample = Kernel("engine.ops", "sample", "f1", COPY.params)
    before, after = manifest(variant(32)), manifest(variant(7), variant(1, kernel=sample))

    data = as_data(diff(before, after))

    assert list(data) == ["header", "kernels", "variants", "choices"]
    assert data["kernels"] == {"added": ["engine.ops.sample"], "removed": [], "changed": []}
    assert data["variants"]["added"] == [{"kernel": "engine.ops.sample", "digest": variant(1).digest}]
    assert data["variants"]["removed"] == []
    (change,) = data["variants"]["changed"]
    (arg,) = change.pop("args")
    assert change == {"kernel": "engine.ops.copy", "from": variant(32).digest, "to": variant(7).digest}
    assert arg == {"name": "n_blocks", "from": "multiple of 16 (32)", "to": "other (7)"}
    assert as_data(diff(before, before)) == {
        "header": [],
        "kernels": {"added": [], "removed": [], "changed": []},
        "variants": {"added": [], "removed": [], "changed": []},
        "choices": [],
    }


@pytest.mark.parametrize(("a", "b"), [(1, 1), (16, 32), (7, 9)])
def test_values_of_one_class_are_no_difference(a: int, b: int) -> None:
    one, other = variant(a), replace(variant(b), args=(variant(a).args[0], integer(b), variant(a).args[2]))

    assert not diff(manifest(one), manifest(replace(other, digest=one.digest)))
    assert isinstance(one.args[1], Argument)
