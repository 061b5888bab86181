"""The image, run by Podman. `make test-image` builds it and runs these; `make test` does not."""

import os
from pathlib import Path

import pytest

collect_ignore_glob = [] if os.environ.get("WB_IMAGE") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A build takes minutes."""
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.timeout(1_800))
