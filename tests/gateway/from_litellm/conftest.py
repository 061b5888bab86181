"""A database of LiteLLM's for each test that asks for one."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.gateway.from_litellm.litellm_database import TABLES, LitellmDatabase
from tests.postgres import Postgres


@pytest.fixture
async def litellm(postgres: Postgres) -> AsyncIterator[LitellmDatabase]:
    """An empty one, with LiteLLM's tables."""
    url = await postgres.empty_database()
    connection = await asyncpg.connect(url)
    await connection.execute(TABLES)
    yield LitellmDatabase(url, connection)
    await connection.close()
    await postgres.drop(url)
