"""Where the agents are installed."""

import os
from pathlib import Path

import pytest

_PLACES = os.environ.get("WB_AGENTS", "")

# They weigh much, and `make test-agents` brings them.
collect_ignore_glob = [] if _PLACES else ["test_*.py"]


@pytest.fixture(scope="session")
def installed() -> Path:
    """The folder with their packages for Node.js."""
    return Path(_PLACES.split(":")[0]) / "node_modules"


@pytest.fixture(scope="session")
def aider() -> Path:
    """Aider's command, in its environment."""
    return Path(_PLACES.split(":")[1]) / "bin" / "aider"
