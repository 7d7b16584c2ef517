"""The vLLM tests run in an environment that setup.sh made (`make test-vllm`); VLLM_ROOT names an unpacked vLLM."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in Path(item.fspath).parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(1200))
