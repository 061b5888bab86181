"""Where the clients are installed."""

import os
from pathlib import Path

import pytest

_PLACES = os.environ.get("WB_CLIENTS", "")

# They weigh 1.6 GB, which `make test-clients` brings.
collect_ignore_glob = ["scripts/*", *([] if _PLACES else ["test_*.py"])]


@pytest.fixture(scope="session")
def places() -> dict[str, Path]:
    """The environment's interpreter of each kind of client, and for Node.js the folder with their packages."""
    *environments, node = (Path(place) for place in _PLACES.split(":"))
    kinds = ("newest", "older", "guidellm")
    interpreters = {kind: each / "bin" / "python" for kind, each in zip(kinds, environments, strict=True)}
    return {**interpreters, "node": node / "node_modules"}
