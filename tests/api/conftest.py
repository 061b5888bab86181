"""The bench, on SQLite and on PostgreSQL."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.api.changes.bench import Bench, make_bench


@pytest.fixture
async def bench(engine: AsyncEngine) -> Bench:
    return await make_bench(engine)
