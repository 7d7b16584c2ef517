"""A cache that cannot be written: what it holds is used, what it lacks goes elsewhere, and the log says so (G3)."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .helpers import LIMIT, PRELUDE, TARGET, environment, merged, program, save

CODE = """
import logging
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
from kernels.basic import unused
report = jitreplay.replay({manifest!r}, allow=("kernels",))
replayed, raised = happened(), []
for n in (5, 16, 1):
    try:
        unused[(1,)](torch.zeros(16), n)
    except Exception as error:
        raised.append(type(error).__name__)
answer([report.summary(), sorted([r.outcome.value, r.reason] for r in report.results), report.notes, raised,
        [kind for kind, _ in replayed], happened(), os.environ["TRITON_CACHE_DIR"]])
"""


def drop_rights() -> None:
    """Let permissions count for root too (PR_CAPBSET_DROP: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH)."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


class Place:
    """Caches of every kind of fullness, and homes, that a server may or may not write."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.full, self.home = folder, folder / "full", folder / "home"
        self.manifest = folder / "kernels.jitreplay"
        self.log = ""
        self.home.mkdir()
        code = "from kernels.basic import unused\nfor n in (5, 16, 1): unused[(1,)](torch.zeros(16), n)\nanswer(0)"
        program(folder, code, record=folder / "journals", TRITON_CACHE_DIR=str(self.full))
        save(merged(folder / "journals"), self.manifest)

    def cache(self, kind: str) -> Path:
        """Return the full cache, one that lacks an entry, one of which an entry is cut, an empty one, or none."""
        if kind == "full":
            return self.full
        path = self.folder / kind
        if kind == "none":
            return path
        if kind == "empty":
            path.mkdir()
            return path
        kept = self.folder / "kept"
        shutil.copytree(self.full, kept)
        (entry, *_) = sorted(self.full.glob("*/unused.cubin"))
        if kind == "part":
            shutil.rmtree(entry.parent)
        else:
            os.truncate(entry, 100)
        return self.full

    def boot(self, cache: Path, first: str = "", last: str = "", **variables: str) -> Any:
        """Return what a server says that can write neither the cache nor what the test took the right from."""
        script, out = self.folder / "server.py", self.folder / "answer.json"
        start = PRELUDE.format(target=TARGET, answer=str(out))
        script.write_text(start + first + CODE.format(manifest=str(self.manifest)) + last)
        out.touch()
        settings = {"TRITON_CACHE_DIR": str(cache), "HOME": str(self.home), "XDG_CACHE_HOME": "", **variables}
        for path in (*cache.glob("**"), *([cache] if cache.exists() else [])):
            path.chmod(0o555)
        self.folder.chmod(0o555)
        try:
            done = subprocess.run(
                [sys.executable, script],
                env=environment(self.folder, **settings),
                preexec_fn=drop_rights,
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
        finally:
            self.folder.chmod(0o755)
        assert done.returncode == 0, done.stdout + done.stderr
        self.log = "\n".join(line for line in done.stderr.splitlines() if line.startswith("jitreplay:"))
        return json.loads(out.read_text())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "no").mkdir(mode=0o555)
    probe = subprocess.run(["touch", folder / "no" / "file"], preexec_fn=drop_rights, capture_output=True)
    if probe.returncode == 0:
        pytest.skip("this user's rights cannot be taken away")
    yield Place(folder)
    for path in (folder, *folder.glob("**")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


MISSING = {"full": 0, "part": 1, "cut": 1, "empty": 3, "none": 3}


@pytest.mark.parametrize("kind", MISSING)
def test_what_it_lacks_is_compiled_elsewhere(place: Place, kind: str) -> None:
    cache = place.cache(kind)
    before = sorted(cache.rglob("*"))

    _, results, notes, raised, _, later, used = place.boot(cache)

    assert raised == [] and later == []
    assert [outcome for outcome, _ in results].count("compiled") == MISSING[kind]
    assert [outcome for outcome, _ in results].count("cached") == 3 - MISSING[kind]
    assert used.startswith(str(place.home)) and f"{cache} cannot be written" in place.log
    assert bool(notes) is bool(MISSING[kind]) and all(used in note for note in notes)
    assert sorted(cache.rglob("*")) == before


def test_the_next_boot_finds_that_too(place: Place) -> None:
    cache = place.cache("cut")
    place.boot(cache)
    _, results, _, raised, events, later, _ = place.boot(cache)

    assert [outcome for outcome, _ in results] == ["cached"] * 3
    assert "compile" not in events and raised == [] and later == []


def test_tritons_hash_of_itself_is_kept_beside_what_it_lacked(place: Place) -> None:
    cache = place.cache("full")
    place.boot(cache)
    (note,) = (place.home / ".cache" / "jitreplay").glob("over-*/.jitreplay/triton/*")
    before = note.stat().st_ino
    first = "import triton.runtime.cache as cache\nown = cache.triton_key\n"
    code = "import jitreplay.jit.triton_hash as taken\nassert taken._begun.found._kept == own()\n"
    place.boot(cache, first=first, last=code)

    assert note.stat().st_ino == before and not list(cache.rglob("triton"))


def test_one_that_its_maker_did_not_finish_is_made_elsewhere(place: Place) -> None:
    (group, *_) = sorted(place.full.glob("*/__grp__unused.json"))
    group.unlink()

    _, results, _, raised, _, later, _ = place.boot(place.full)

    assert [outcome for outcome, _ in results] == ["cached", "cached", "compiled"] and raised == [] and later == []


def test_a_knob_that_the_program_set_is_followed(place: Place) -> None:
    cache = place.cache("part")
    code = f"triton.knobs.cache.dir = {str(cache)!r}\n"

    _, results, _, raised, _, later, _ = place.boot(cache, first=code, TRITON_CACHE_DIR="")

    assert [outcome for outcome, _ in results] == ["cached", "cached", "compiled"] and raised == [] and later == []


def test_ranks_that_layer_it_at_once_agree(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from jitreplay.jit.place import layer

    lower, upper = tmp_path / "lower", tmp_path / "upper"
    for number in range(300):
        entry = lower / f"ENTRY{number}"
        entry.mkdir(parents=True)
        (entry / "__grp__k.json").write_text('{"child_paths": {}}')
    for _ in range(5):
        upper.mkdir()
        for number in range(50):
            (upper / f"GONE{number}").symlink_to(tmp_path / "nowhere")
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda _: layer(lower, upper), range(4))) == [300] * 4
        assert len([path for path in upper.iterdir() if path.is_symlink()]) == 300
        shutil.rmtree(upper)


def test_an_entry_that_went_from_beneath_is_no_trouble(place: Place) -> None:
    cache = place.cache("full")
    place.boot(cache)
    for path in (cache, *cache.glob("*")):
        path.chmod(0o755)
    place.cache("part")

    _, results, _, raised, _, later, _ = place.boot(cache)

    assert [outcome for outcome, _ in results] == ["cached", "cached", "compiled"] and raised == [] and later == []


@pytest.mark.parametrize("kind", MISSING)
def test_with_nowhere_to_write_only_what_is_missing_fails(place: Place, kind: str) -> None:
    place.home.chmod(0o555)
    # Neither is the folder for temporary files of any use: another may write it.
    shared = place.folder / "tmp"
    (shared / f"jitreplay-{os.getuid()}").mkdir(parents=True)
    (shared / f"jitreplay-{os.getuid()}").chmod(0o777)

    summary, results, _, raised, _, _, _ = place.boot(place.cache(kind), TMPDIR=str(shared))

    assert [outcome for outcome, _ in results].count("failed") == MISSING[kind]
    assert len(raised) == (0 if kind == "cut" else MISSING[kind])  # to plain Triton a cut binary is one
    assert [outcome for outcome, _ in results].count("cached") == 3 - MISSING[kind]
    assert "neither can a layer over it" in place.log
    assert ("make the cache directory writable" in summary) is bool(MISSING[kind])


def test_with_no_home_it_is_kept_on_this_host(place: Place) -> None:
    place.home.chmod(0o555)
    temporary = place.folder / "tmp"
    temporary.mkdir()

    _, results, notes, raised, _, _, used = place.boot(place.cache("part"), TMPDIR=str(temporary))

    assert [outcome for outcome, _ in results] == ["cached", "cached", "compiled"] and raised == []
    assert used.startswith(str(temporary / f"jitreplay-{os.getuid()}")) and used in notes[0]
    assert Path(used).parent.stat().st_mode & 0o077 == 0
