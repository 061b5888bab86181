"""Where the clients are installed."""

import os
from pathlib import Path

import pytest

_PLACES = os.environ.get("WB_CLIENTS", "")

# They weigh 980 MB, which `make test-clients` brings.
collect_ignore_glob = ["scripts/*", *([] if _PLACES else ["test_*.py"])]


@pytest.fixture(scope="session")
def places() -> dict[str, Path]:
    """The environment's interpreter of each kind of client, and for Node.js the folder with their packages."""
    newest, older, node = (Path(place) for place in _PLACES.split(":"))
    return {"newest": newest / "bin" / "python", "older": older / "bin" / "python", "node": node / "node_modules"}
