"""What needs more than vLLM itself: Ray Serve, and NIXL. `make test-vllm-more` runs it; `make test` does not."""

import os
from pathlib import Path
from typing import Final

import pytest

PYTHON: Final = os.environ.get("WB_VLLM_MORE_PYTHON", "")
"""Of the environment that has vLLM, Ray and NIXL."""
MADE: Final = Path(os.environ.get("WB_VLLM_MODEL", ""))

collect_ignore_glob = [] if PYTHON else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Waiting ends when engines stand still; this bound is for what hangs otherwise."""
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.timeout(3_600))
