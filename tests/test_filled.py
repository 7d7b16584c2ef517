"""The cache directory that a replay filled, and a program that names another afterwards (CASES G6)."""

from pathlib import Path

import pytest

from .helpers import goods, program, save

CODE = """
import logging
said = []
class Kept(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("jitreplay").addHandler(Kept(level=logging.WARNING))
{before}
report = jitreplay.replay("kernels.jitreplay", allow=("kernels",))
happened()
{after}
jitreplay.ready()
from kernels import faults
faults.good[(1,)](torch.zeros(16), N=0)
again = jitreplay.replay("kernels.jitreplay", allow=("kernels",))
answer([report.cache, said, happened("compile", "disk_hit"), again.notes, again.counts])
"""
OTHER = 'os.environ["TRITON_CACHE_DIR"] = os.path.join(os.getcwd(), "other")'


@pytest.mark.parametrize("when", ["never", "before", "after", "the same by another name"])
def test_a_program_that_moves_it_is_told(tmp_path: Path, when: str) -> None:
    save(goods(tmp_path / "recorded", 1), tmp_path / "kernels.jitreplay")
    (tmp_path / "cache").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    after = {"after": OTHER, "the same by another name": OTHER.replace("other", "link")}.get(when, "")
    code = CODE.format(before=OTHER if when == "before" else "", after=after)
    cache, said, events, notes, counts = program(tmp_path, code)

    assert cache == str(tmp_path / ("other" if when == "before" else "cache"))
    assert events == [] and counts == {"warm": 1}  # what is warm in this process stays so
    if when == "after":
        assert len(said) == 1 and str(tmp_path / "other") in said[0] and str(tmp_path / "cache") in said[0]
        assert notes == said
    else:
        assert said == notes == []
