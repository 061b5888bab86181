"""LiteLLM's own proxy for all stories in this folder, with a database that it writes itself. `make test-litellm` runs them."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.litellm.proxy import LitellmProxy, make_tables
from tests.litellm.upstream import answer
from tests.postgres import Postgres
from tests.providers.wires import Provider, provider

_PLACE: Final = os.environ.get("WB_LITELLM", "")
"""The environment that LiteLLM is installed in."""

collect_ignore_glob = [] if _PLACE else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """LiteLLM alone takes a minute to start, and several on a busy machine."""
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.timeout(1_200))


@pytest.fixture(scope="session")
def proxy(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LitellmProxy]:
    """LiteLLM's proxy; it is asked for models by each test, which it keeps in its database."""
    database = make_tables(postgres, Path(_PLACE))
    started = LitellmProxy(Path(_PLACE), database, tmp_path_factory.mktemp("litellm"))
    try:
        started.start()
        yield started
    finally:
        started.kill()


@pytest.fixture
async def upstream() -> AsyncIterator[Provider]:
    """What LiteLLM calls, and what is called after it."""
    async with provider(answer) as served:
        yield served
