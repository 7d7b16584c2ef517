"""How long work shows itself where there is no terminal."""

import pytest

from jitreplay.cli.output import progress


def test_a_log_gets_a_line_for_each_25(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("compiling for cuda:90") as update:
        for done in range(61):
            update(done, 60, f"engine.ops.kernel{done}")
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.splitlines() == [
        "jitreplay: compiling for cuda:90: 25 of 60, next engine.ops.kernel25",
        "jitreplay: compiling for cuda:90: 50 of 60, next engine.ops.kernel50",
    ]
