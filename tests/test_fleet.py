"""`jitreplay compile` for a fleet: many targets, shards, archives, and caches that were moved."""

import json
import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import triton

from jitreplay.manifest.model import Manifest

from .helpers import TARGET, as_json, jitreplay, program, save
from .test_children import MANY, everything, only

__all__ = ["everything"]  # a fixture


def compiled(folder: Path, path: Path, cache: Path, *words: Any, code: int = 0, **variables: str) -> Any:
    """Run `jitreplay compile` for cuda:90 and return its report."""
    words = ("--target", "cuda:90", "--cache-dir", cache, "--allow", "kernels", "--json", *words)
    return as_json(jitreplay(folder, "compile", path, *words, **variables), code)


def found_in(folder: Path, path: Path, cache: Path) -> dict[str, int]:
    """Return what a replay in a fresh process finds in a cache."""
    code = f"""
    report = jitreplay.replay({str(path)!r}, allow=("kernels",))
    answer([report.counts, report.notes])
    """
    counts, notes = program(folder, code, TRITON_CACHE_DIR=str(cache))
    assert notes == []
    return counts


@pytest.fixture
def manifest(tmp_path: Path, everything: Manifest) -> Path:
    return save(only(everything, "good", most=4), tmp_path / "kernels.jitreplay")


def entries(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if not path.name.startswith(".")}


def test_a_moved_cache_is_found_and_has_its_launchers(tmp_path: Path, manifest: Path) -> None:
    report = compiled(tmp_path, manifest, tmp_path / "built", "-j", "2")
    assert report["counts"] == {"compiled": 4}
    if triton.__version__.startswith("3.6."):
        assert len(list((tmp_path / "built").glob("*/__triton_launcher*.so"))) == 1
        assert report["launchers"] in (1, 2)  # the command does not wait for one that a worker is building
    else:
        assert "launchers" not in report
    assert "launchers" not in compiled(tmp_path, manifest, tmp_path / "built")

    shutil.move(tmp_path / "built", tmp_path / "there")
    assert found_in(tmp_path / "a", manifest, tmp_path / "there") == {"cached": 4}
    # Once it is put right it is left alone.
    groups = {path: path.stat().st_mtime_ns for path in (tmp_path / "there").glob("*/__grp__*")}
    assert found_in(tmp_path / "b", manifest, tmp_path / "there") == {"cached": 4}
    assert {path: path.stat().st_mtime_ns for path in groups} == groups


def test_verify_leaves_a_moved_cache_as_it_is(tmp_path: Path, manifest: Path) -> None:
    compiled(tmp_path, manifest, tmp_path / "built")
    shutil.move(tmp_path / "built", tmp_path / "there")
    before = {path: path.lstat().st_mtime_ns for path in (tmp_path / "there").rglob("*")}

    words = ("verify", manifest, "--target", TARGET, "--cache-dir", tmp_path / "there", "--allow", "kernels", "--json")
    report = as_json(jitreplay(tmp_path, *words, TMPDIR=str(tmp_path)))

    assert report["counts"] == {"warm": 4}
    assert {path: path.lstat().st_mtime_ns for path in (tmp_path / "there").rglob("*")} == before
    assert not list(tmp_path.glob("jitreplay-*"))  # nothing stays in TMPDIR


def test_verify_of_no_cache_says_so(tmp_path: Path, manifest: Path) -> None:
    words = ("verify", manifest, "--target", TARGET, "--cache-dir", tmp_path / "none", "--allow", "kernels", "--json")
    report = as_json(jitreplay(tmp_path, *words), code=1)

    assert report["counts"] == {"would_compile": 4}
    assert report["notes"] == [f"there is no cache directory {tmp_path / 'none'}"]
    assert not (tmp_path / "none").exists()


def test_it_can_be_started_again(tmp_path: Path, manifest: Path) -> None:
    compiled(tmp_path, manifest, tmp_path / "built", "--shard", "1/2")
    first = entries(tmp_path / "built")
    report = compiled(tmp_path, manifest, tmp_path / "built")
    assert report["counts"].get("cached", 0) + report["counts"]["compiled"] == 4
    assert first < entries(tmp_path / "built")


def test_shards_together_make_the_whole(tmp_path: Path, manifest: Path) -> None:
    compiled(tmp_path, manifest, tmp_path / "whole")
    for part in ("1/2", "2/2"):
        compiled(tmp_path, manifest, tmp_path / "parts", "--shard", part)
    assert entries(tmp_path / "parts") == entries(tmp_path / "whole")


def test_another_toolchain_is_told(tmp_path: Path, manifest: Path) -> None:
    cache = tmp_path / "built"
    compiled(tmp_path, manifest, cache)
    note = cache / ".jitreplay" / "cache.json"
    found = json.loads(note.read_text())
    found["builds"]["90"]["triton"] = "3.5.0"
    note.write_text(json.dumps(found))
    code = f"""
    answer(jitreplay.replay({str(manifest)!r}, allow=("kernels",)).notes)
    """
    (told,) = program(tmp_path / "a", code, TRITON_CACHE_DIR=str(cache))
    assert "another toolchain" in told and "triton: 3.5.0" in told


def test_many_targets_fill_one_cache_and_none_is_taken_for_foreign(tmp_path: Path, manifest: Path) -> None:
    report = compiled(tmp_path, manifest, tmp_path / "built", "--target", "cuda:80", "--target", "cuda:89")
    assert report["counts"] == {"compiled": 12} and "notes" not in report
    for target in ("cuda:80", "cuda:89", "cuda:90"):
        words = ("--target", target, "--cache-dir", tmp_path / "built", "--allow", "kernels", "--json")
        assert as_json(jitreplay(tmp_path, "verify", manifest, *words))["counts"] == {"warm": 4}


@pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="from 3.7 on no launcher is built")
@pytest.mark.parametrize(("count", "jobs"), [(4, "0"), (MANY, "2")], ids=["a few", "many"])
def test_a_cache_without_its_launchers_is_no_success(
    tmp_path: Path, everything: Manifest, count: int, jobs: str
) -> None:
    path = save(only(everything, "good", most=count), tmp_path / "kernels.jitreplay")
    report = compiled(tmp_path, path, tmp_path / "built", "-j", jobs, code=1, CC="/bin/false")
    reasons = {v["reason"] for v in report["variants"] if v["outcome"] == "failed"}
    assert len(reasons) <= 2 and all("the C compiler did not build its launcher" in reason for reason in reasons)
    if count < 20:
        assert report["counts"] == {"failed": count}
    else:
        assert report["counts"] == {"failed": 20, "skipped": count - 20}
        assert "20 variants in a row failed alike" in report["stopped"] and "set CC" in report["stopped"]

    words = ("--target", "cuda:90", "--cache-dir", tmp_path / "built", "--allow", "kernels")
    done = jitreplay(tmp_path, "compile", path, *words, CC="/bin/false")
    assert done.returncode == 1 and "set CC" in done.stdout + done.stderr


@pytest.mark.parametrize("jobs", ["0", "2"])
def test_a_full_disk_is_told_and_what_fits_is_kept(tmp_path: Path, manifest: Path, jobs: str) -> None:
    """After so many files of the cache there is no room: for entries, notes and stamps alike (CASES G4)."""
    (tmp_path / "sitecustomize.py").write_text(
        dedent(f"""
        import errno, os
        own = os.replace
        def replace(source, target, **more):
            count = sum(len(files) for _, _, files in os.walk({str(tmp_path / "built")!r}))
            if str(target).startswith({str(tmp_path / "built")!r}) and count > 14:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
            return own(source, target, **more)
        os.replace = replace
        """)
    )
    report = compiled(tmp_path, manifest, tmp_path / "built", "-j", jobs, code=1)
    assert report["counts"]["failed"] >= 2
    assert "cannot be marked" in report["stopped"] and "make room" in report["stopped"]
    (tmp_path / "sitecustomize.py").unlink()
    assert compiled(tmp_path, manifest, tmp_path / "built")["counts"].get("failed", 0) == 0


class TestArchive:
    def test_it_fills_another_cache(self, tmp_path: Path, manifest: Path) -> None:
        compiled(tmp_path, manifest, tmp_path / "built", "--archive", tmp_path / "a.tgz")
        shutil.rmtree(tmp_path / "built")
        done = jitreplay(tmp_path, "unpack", tmp_path / "a.tgz", "--cache-dir", tmp_path / "there")
        assert done.returncode == 0, done.stderr
        assert found_in(tmp_path / "a", tmp_path / "there" / "kernels.jitreplay", tmp_path / "there") == {"cached": 4}

        again = jitreplay(tmp_path, "unpack", tmp_path / "a.tgz", "--cache-dir", tmp_path / "there")
        assert again.stdout.startswith("0 entries written")

    def test_a_damaged_one_is_refused_whole(self, tmp_path: Path, manifest: Path) -> None:
        compiled(tmp_path, manifest, tmp_path / "built", "--archive", tmp_path / "a.tgz")
        data = (tmp_path / "a.tgz").read_bytes()
        for broken in (data[:-200], data[:2000], b"no archive"):
            (tmp_path / "broken.tgz").write_bytes(broken)
            done = jitreplay(tmp_path, "unpack", tmp_path / "broken.tgz", "--cache-dir", tmp_path / "there")
            assert (done.returncode, done.stderr.count("\n")) == (2, 1)
            assert not (tmp_path / "there").exists()

    def test_a_name_that_leaves_the_cache_is_refused(self, tmp_path: Path) -> None:
        import hashlib
        import io
        import tarfile

        data = b"x"
        sums = {name: hashlib.sha256(data).hexdigest() for name in ("kernels.jitreplay", "cache/../../x")}
        index = json.dumps({"format": 1, "sha256": sums}).encode()
        with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
            for name, content in {"index.json": index, **dict.fromkeys(sums, data)}.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        done = jitreplay(tmp_path, "unpack", tmp_path / "a.tgz", "--cache-dir", tmp_path / "there")
        assert done.returncode == 2 and "no file of a cache" in done.stderr
        assert not (tmp_path / "there").exists()
