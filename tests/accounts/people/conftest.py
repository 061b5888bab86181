"""Fixtures of the tests of people."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.accounts.people.cheap import Door


@pytest.fixture
def door(engine: AsyncEngine) -> Door:
    return Door(engine)
