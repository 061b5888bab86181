"""Where the agents are installed."""

import os
from pathlib import Path
from typing import Final

import pytest

_INSTALLED: Final = Path(os.environ.get("WB_AGENTS", "")) / "node_modules"

# They weigh 600 MB, which `make test-agents` brings.
collect_ignore_glob = [] if os.environ.get("WB_AGENTS") else ["test_*.py"]


@pytest.fixture(scope="session")
def installed() -> Path:
    """The folder with their packages."""
    return _INSTALLED
