"""The rollout's page: a trial says so only where a replica runs what is tried."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.dashboards.operations.test_overview_page import _trouble
from tests.running_gateway import Running
from tests.signed_in import signed_in

PLACE = "/dashboard/operations/rollouts"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with _trouble(tmp_path) as found:
        yield found


async def test_a_version_without_replicas_is_not_on_trial(running: Running) -> None:
    """On the list, on its page, in its row and in what the order answers: it waits for a replica, and gets nothing."""
    async with signed_in(running, role="operator") as browser:
        new = {"model": "own", "name": "v2", "weights": "s3://weights/v2"}
        assert (await browser.post(f"{PLACE}/gpus/versions", new)).status == 303
        done = await browser.post(f"{PLACE}/gpus/canary", {"version": "v2", "percent": "50"})
        assert (done.status, done.location) == (303, f"{PLACE}/gpus")
        page = (await browser.get(f"{PLACE}/gpus")).text
        assert "On trial</span>" not in page
        assert "Waits for a replica" in page
        assert "is to get 50.0 % of conversations, and gets none yet" in page
        assert "nothing until a replica runs it" in page
        assert "Waits for a replica" in (await browser.get(f"{PLACE}?format=csv&table=rollouts")).text
