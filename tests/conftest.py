"""What every test may rely on: no setting of the caller's leaks in, and no test touches the user's Triton cache."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .helpers import headless

for _name in [name for name in os.environ if name.startswith("JITREPLAY_")]:
    del os.environ[_name]


@pytest.fixture(scope="session", autouse=True)
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The folder that Triton caches in during this session."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("triton-cache"))
        patch.setenv("TRITON_CACHE_DIR", folder)
        yield folder


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Any]:
    """Headless Triton in this process."""
    with headless(tmp_path) as found:
        yield found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run. Device files are looked for, since asking a driver breaks forked tests."""
    lacks = {
        "gpu": None if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd") else "no GPU here",
        "vllm": None if os.environ.get("VLLM_ROOT") else "VLLM_ROOT is not set: run `make test-vllm`",
    }
    for item in items:
        for marker, reason in lacks.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
