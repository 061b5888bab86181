"""The models that a team may call, as its developers see them."""

import csv
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.dashboards.pages.teams import running_teams
from tests.running_gateway import Running
from tests.signed_in import Browser, signed_in

HERE = "/dashboard/teams/team_a/models"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_teams(tmp_path, policy={"aliases": {"quick": ["small", "large"], "big": ["large"]}}) as found:
        yield found


@pytest.fixture
async def milo(running: Running) -> AsyncIterator[Browser]:
    """A member of the team."""
    async with signed_in(running, "milo@example.com", teams={"team_a": "member"}) as found:
        yield found


async def names(browser: Browser) -> dict[str, dict[str, str]]:
    answer = await browser.get(f"{HERE}?format=csv&table=models")
    return {row["name"]: row for row in csv.DictReader(io.StringIO(answer.text))}


async def test_models_are_listed_with_their_prices(milo: Browser) -> None:
    """`auto`, aliases with what they stand for, and models; what was never measured has no ability."""
    found = await names(milo)
    assert list(found) == ["auto", "big", "quick", "large", "small"]
    assert found["quick"]["what"] == "Stands for small, large"
    assert (found["auto"]["input_usd"], found["small"]["ability_share"]) == ("", "")
    assert 0 < float(found["small"]["input_usd"]) < float(found["large"]["input_usd"])
    assert found["large"]["state"] == "Ready"


async def test_a_team_sees_what_it_may_use(running: Running, milo: Browser) -> None:
    """An alias without a usable model is none of its names; another team's list is not there."""
    await running.accounts.update_team("team_a", allowed_models={"small"})
    assert list(await names(milo)) == ["auto", "quick", "small"]
    assert (await milo.get(f"{HERE}/small")).status == 200
    for hidden in ("large", "big", "nobody", "%00", "x" * 300):
        assert (await milo.get(f"{HERE}/{hidden}")).status == 404, hidden
    assert (await milo.get("/dashboard/teams/team_b/models")).status == 404


async def test_a_model_tells_how_to_call_it(running: Running, milo: Browser) -> None:
    """At this gateway's address, by its name, with the key in the environment."""
    page = (await milo.get(f"{HERE}/small")).text
    assert f"curl {running.url}/v1/chat/completions" in page
    assert "WEIGHBRIDGE_KEY" in page
    assert "model=&#39;small&#39;" in page
    assert "Not measured" in page
