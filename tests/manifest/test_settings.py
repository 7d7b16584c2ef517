"""The variables `JITREPLAY_*`."""

import logging

import pytest

from jitreplay.manifest.errors import JitreplayError
from jitreplay.manifest.settings import LOGGER, SettingError, Settings, set_log_level, settings


def test_nothing_set_is_the_default() -> None:
    assert settings({}) == Settings()


def test_every_variable_is_read() -> None:
    found = settings(
        {
            "JITREPLAY_RECORD": " dir ",
            "JITREPLAY_MANIFEST": "m",
            "JITREPLAY_CACHE": "c",
            "JITREPLAY_BUDGET": "2m",
            "JITREPLAY_JOBS": "4",
            "JITREPLAY_MOST": "500",
            "JITREPLAY_STRICT": "1",
            "JITREPLAY_REPORT": "r",
            "JITREPLAY_LOG": "debug",
            "JITREPLAY_ALLOW": "fla, liger_kernel engine",
        }
    )

    assert (found.record, found.manifest, found.cache, found.report, found.log) == ("dir", "m", "c", "r", "debug")
    assert (found.budget, found.jobs, found.most, found.strict) == (120.0, 4, 500, True)
    assert found.allow == ("fla", "liger_kernel", "engine")


def test_disable_turns_everything_off() -> None:
    assert settings({"JITREPLAY_DISABLE": "1", "JITREPLAY_RECORD": "dir", "JITREPLAY_JOBS": "bad"}) == Settings(
        disabled=True
    )


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("30s", 30), ("500ms", 0.5), ("1.5m", 90), ("0", 0)])
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert settings({"JITREPLAY_BUDGET": text}).budget == seconds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BUDGET", "soon"),
        ("BUDGET", "-1"),
        ("BUDGET", "1h"),
        ("JOBS", "-1"),
        ("JOBS", "1.5"),
        ("MOST", "all"),
        ("STRICT", "maybe"),
    ],
)
def test_a_value_of_the_wrong_form_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"JITREPLAY_{name}={value}: expected") as caught:
        settings({f"JITREPLAY_{name}": value})
    assert isinstance(caught.value, JitreplayError)


def test_the_log_level_is_set_once() -> None:
    before, handlers = LOGGER.level, list(LOGGER.handlers)
    try:
        set_log_level("")
        assert LOGGER.level == before
        set_log_level("info")
        set_log_level("debug")
        assert LOGGER.level == logging.DEBUG
        assert len(LOGGER.handlers) == 1
        with pytest.raises(SettingError, match="JITREPLAY_LOG=loud"):
            set_log_level("loud")
    finally:
        LOGGER.setLevel(before)
        LOGGER.handlers[:] = handlers
