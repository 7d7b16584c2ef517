"""Merging depends on content alone: not on order, grouping or repetition."""

import os
import socket
import sys
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitreplay.manifest import file, record
from jitreplay.manifest import values as V
from jitreplay.manifest.errors import ManifestError
from jitreplay.manifest.merge import merge, merge_files
from jitreplay.manifest.model import Argument, Choice, Environment, Kernel, Manifest, Param, Phase

from .made import COPY, ENVIRONMENT, MANIFESTS, integer, journal_bytes, manifest, shuffled, variant, write

replace = msgspec.structs.replace


class TestAlgebra:
    @given(MANIFESTS, MANIFESTS)
    def test_order_does_not_matter(self, a: Manifest, b: Manifest) -> None:
        assert file.dumps(merge([a, b])) == file.dumps(merge([b, a]))

    @given(MANIFESTS, MANIFESTS, MANIFESTS)
    def test_grouping_does_not_matter(self, a: Manifest, b: Manifest, c: Manifest) -> None:
        flat = file.dumps(merge([a, b, c]))

        assert file.dumps(merge([merge([a, b]), c])) == flat
        assert file.dumps(merge([a, merge([c, b])])) == flat

    @given(MANIFESTS)
    def test_repetition_does_not_matter(self, a: Manifest) -> None:
        once = merge([a])

        assert file.dumps(merge([a, a])) == file.dumps(once)
        assert file.dumps(merge([once, a])) == file.dumps(once)
        assert file.dumps(merge([once])) == file.dumps(once)

    @given(MANIFESTS)
    def test_a_file_gives_back_what_was_merged(self, a: Manifest) -> None:
        data = file.dumps(merge([a]))

        assert file.dumps(file.loads(data)) == data
        assert file.dumps(merge([file.loads(data)])) == data

    @given(MANIFESTS, st.integers(0, 9))
    def test_the_order_within_a_part_does_not_matter(self, a: Manifest, seed: int) -> None:
        other = Manifest(
            a.environments, tuple(shuffled(list(a.variants), seed)), tuple(shuffled(list(a.choices), seed))
        )

        assert file.dumps(merge([other])) == file.dumps(merge([a]))

    def test_the_order_of_a_map_does_not_matter(self) -> None:
        one, other = ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})

        assert file.dumps(manifest(environment=replace(ENVIRONMENT, variables=one))) == file.dumps(
            manifest(environment=replace(ENVIRONMENT, variables=other))
        )

    def test_nothing_merges_to_an_empty_manifest(self) -> None:
        assert merge([]) == Manifest()
        assert file.loads(file.dumps(Manifest())) == Manifest()


class TestFacts:
    def test_a_real_launch_replaces_a_warm_up(self) -> None:
        warm_up = variant(real=False, grid=None, phase=Phase.NEVER, order=1, compile_ms=90)
        launch = replace(variant(real=True, phase=Phase.STARTUP, order=5), digest=warm_up.digest)

        (found,) = manifest(warm_up, launch).variants

        assert (found.args, found.grid, found.real) == (launch.args, launch.grid, True)
        assert (found.phase, found.order, found.compile_ms) == (Phase.STARTUP, 1, 90)

    def test_serving_outweighs_startup(self) -> None:
        assert manifest(variant(phase=Phase.SERVING), variant(phase=Phase.STARTUP)).variants[0].phase is Phase.SERVING

    def test_derivations_stay_that_hold_in_every_real_launch(self) -> None:
        def launch(*derivations: str, real: bool = True) -> object:
            made = variant(real=real)
            return replace(made, args=(made.args[0], Argument(V.Integer(32), "i32:D", derivations), made.args[2]))

        found = manifest(launch("a", "b"), launch("b", "c"), launch(real=False)).variants[0]

        assert found.args[1].derivations == ("b",)

    def test_ranks_and_environments_add_up(self) -> None:
        other = replace(ENVIRONMENT, arch=80)
        found = merge([manifest(variant(ranks=("1",))), manifest(variant(ranks=("0",)), environment=other)])

        assert found.variants[0].ranks == ("0", "1")
        assert [found.environments[i].arch for i in found.variants[0].environments] == [80, 90]

    def test_entries_keep_their_target(self) -> None:
        """J5: captures of two architectures and of two vendors in one manifest."""
        targets = [Environment("cuda", 80, 32), Environment("cuda", 90, 32), Environment("hip", "gfx942", 64)]
        parts = [manifest(variant(), variant(n), environment=env) for n, env in zip((7, 1, 48), targets, strict=True)]

        merged = file.loads(file.dumps(merge(parts)))

        where = {v.args[1].value: {merged.environments[i].target for i in v.environments} for v in merged.variants}
        assert where[V.Integer(7)] == {"cuda:80"}
        assert where[V.Integer(1)] == {"cuda:90"}
        assert set().union(*where.values()) == {"cuda:80", "cuda:90", "hip:gfx942"}

    def test_a_choice_is_settled_by_time(self) -> None:
        def choice(block: int, *times: float) -> Choice:
            timings = tuple((str(i), time) for i, time in enumerate(times))
            return Choice(COPY, (V.Integer(8),), (("BLOCK", V.Integer(block)),), (), timings, environments=(0,))

        nan = float("nan")
        choices = (choice(16, nan, 3.0), choice(32, 2.0, float("inf")), choice(64))

        for seed in range(6):
            found = manifest(choices=tuple(shuffled(list(choices), seed))).choices
            assert [c.kwargs for c in found] == [choices[1].kwargs]

    def test_variants_that_differ_in_an_unused_constexpr_stay_two(self) -> None:
        """A11: the live keys differ, so both are needed."""
        assert len(manifest(variant(block=64), variant(block=128)).variants) == 2

    def test_values_that_python_takes_for_equal_stay_apart(self) -> None:
        blocks = [V.Integer(1), V.Bool(True), V.Float.of(1.0), V.Float.of(0.0), V.Float.of(-0.0), V.Integer(0)]
        nan = [V.Float.of(float("nan")), V.Float.of(float("nan"))]

        assert len(manifest(*(variant(block=b) for b in blocks + nan)).variants) == 7

    def test_two_sources_of_a_kernel_stay_apart(self) -> None:
        edited = replace(COPY, fingerprint="f2")

        assert len(manifest(variant(), variant(kernel=edited)).variants) == 2

    def test_captures_of_two_kinds_of_traffic_hold_both(self) -> None:
        """A6: greedy requests alone never reached the sampling kernel."""
        sample = Kernel("engine.ops", "sample", "f1", COPY.params)
        greedy, sampling = manifest(variant()), manifest(variant(), variant(kernel=sample))

        assert [k.qualname for k in merge([greedy, sampling]).kernels] == ["copy", "sample"]

    def test_a_launch_seen_a_thousand_times_is_one_entry_a_key(self) -> None:
        """A5: one entry per distinct key, not per launch and not per value."""
        values = [(i * 7919) % 64 for i in range(1000)]
        keys = {integer(n).spec for n in values}

        assert len(manifest(*(variant(n) for n in values)).variants) == len(keys)


class TestSources:
    def test_a_folder_stands_for_what_is_below_it(self, tmp_path: Path) -> None:
        (tmp_path / "rank0" / "deep").mkdir(parents=True)
        write(tmp_path / "rank0" / "deep" / "1.journal", journal_bytes(variant(7)))
        write(tmp_path / "2.journal", journal_bytes(variant(32)))
        file.save(manifest(variant(1)), tmp_path / "older.jitreplay")
        write(tmp_path / "notes.txt", b"not ours")
        write(tmp_path / "system.journal", b"LPKSHHRH of another program")
        write(tmp_path / ".jitreplay-1.tmp", record.preamble(record.MANIFEST_MAGIC))

        merged = merge_files([tmp_path])

        assert (merged.journals, merged.manifests, len(merged.manifest.variants)) == (2, 1, 3)
        assert merged.notes == []

    def test_a_source_given_twice_counts_once(self, tmp_path: Path) -> None:
        path = write(tmp_path / "1.journal", journal_bytes(variant()))

        assert merge_files([path, path, tmp_path]).journals == 1

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("missing", None, "no such file or folder"),
            ("null\0byte", None, "no such file or folder"),
            ("empty", b"", "it is empty"),
            ("foreign.journal", b"LPKSHHRH of another program", "not a jitreplay"),
            ("foreign.json", b'{"kernels": []}', "not a jitreplay"),
        ],
    )
    def test_a_bad_source_is_told(self, tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
        if content is not None:
            write(tmp_path / name, content)

        with pytest.raises(ManifestError, match=message):
            merge_files([tmp_path / name])

    def test_an_empty_folder_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(ManifestError, match="holds no journal"):
            merge_files([tmp_path])

    def test_a_source_that_may_not_be_looked_at_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: Path) -> bool:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "is_dir", refuse)

        with pytest.raises(ManifestError, match="Permission denied"):
            merge_files([tmp_path])

    def test_a_journal_cut_before_its_first_record_is_noted(self, tmp_path: Path) -> None:
        """J7: a worker may be killed before it wrote anything."""
        for size in (0, 3, 8, 11):
            write(tmp_path / f"{size}.journal", journal_bytes()[:size])
        write(tmp_path / "good.journal", journal_bytes(variant()))

        merged = merge_files([tmp_path])

        assert len(merged.manifest.variants) == 1
        assert [note.rpartition("/")[2][: len("0.journal: cut")] for note in merged.notes][:1] == ["0.journal: cut"]
        assert len(merged.notes) == 4

    def test_a_journal_that_says_not_where_it_ran_is_noted(self, tmp_path: Path) -> None:
        write(tmp_path / "1.journal", journal_bytes(variant(), environment=None))

        merged = merge_files([tmp_path])

        assert merged.manifest.variants == ()
        assert "1 events were left out" in merged.notes[0]

    def test_growth_without_end_shows_as_so_many_variants(self, tmp_path: Path) -> None:
        """A10: a recording per step, with a new length in each."""
        for step in range(100):
            write(tmp_path / f"{step}.journal", journal_bytes(variant(block=1000 + step)))

        assert len(merge_files([tmp_path]).manifest.variants) == 100


def test_a_merged_manifest_names_no_path_host_or_process(tmp_path: Path) -> None:
    """Nothing of where a journal lies, and of who wrote it, goes into the manifest."""
    kernel = Kernel(
        "__main__", "copy", "f1", (Param("x"), Param("n_blocks"), Param("BLOCK", constexpr=True)), main="run"
    )
    for n in (1, 7, 32):
        write(tmp_path / f"{os.getpid()}-{n}.journal", journal_bytes(variant(n, kernel=kernel)))

    data = file.dumps(merge_files([tmp_path]).manifest)

    bodies = [body for _, body, _ in record.frames(data, "manifest")]
    inflated = [zlib.decompress(body) if body.startswith(b"\x78") else body for body in bodies]
    text = b"\n".join([data, *inflated])
    for secret in (str(tmp_path), sys.prefix, str(Path.cwd()), socket.gethostname(), f"{os.getpid()}-"):
        assert secret.encode() not in text
    assert b"n_blocks" in text
