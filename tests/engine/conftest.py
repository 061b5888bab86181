"""One llama.cpp for all stories in this folder. `make test-engine` runs them; `make test` does not."""

import os
from collections.abc import Iterator

import pytest

from tests.engines import LlamaReplica, llama_replicas

collect_ignore_glob = [] if os.environ.get("WB_ENGINE") else ["test_*.py"]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaReplica]:
    """Ready to answer."""
    with llama_replicas(tmp_path_factory.mktemp("engine"), "a") as (replica,):
        yield replica
