"""The preview over a socket: for its own team, with the usual refusals, and nothing is applied."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.running_gateway import Running, model, running_gateway

SCRIPTED: list[dict[str, Any]] = [{"kind": "scripted"}]


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    """Two targets and the plain rule, which has no curve."""
    models = [model("small", SCRIPTED, capability=0.3), model("big", SCRIPTED)]
    sections = {"policy": {"quality_floor": 0.93}, "classifier": {"enabled": False}}
    async with running_gateway(tmp_path, models, **sections) as running:
        yield running


async def preview(gateway: Running, query: str = "", key: str | None = None) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key or gateway.key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{gateway.base_url}/policy/preview{query}", headers=headers) as got,
    ):
        return got.status, await got.json()


async def test_a_team_sees_its_own_floor_and_changes_nothing(gateway: Running) -> None:
    """The gateway's floor holds until the team has one; asking for another applies nothing."""
    status, told = await preview(gateway, "?quality_floor=0.5&quality_floor=0.9")
    assert (status, told["object"], told["team_id"]) == (200, "policy.preview", "team_a")
    assert told["current"] == {"quality_floor": 0.93, "willing_usd": None}
    assert (told["basis"], told["offers"]) == ("none", [])
    (team,) = await gateway.accounts.list_teams()
    assert team.settings.quality_floor is None


@pytest.mark.parametrize("query", ["?quality_floor=2", "?quality_floor=x", "?quality_floor="])
async def test_what_is_no_floor_is_refused_in_openais_shape(gateway: Running, query: str) -> None:
    """The message names the parameter and what it may be."""
    status, told = await preview(gateway, query)
    assert (status, told["error"]["param"]) == (400, "quality_floor")
    assert set(told["error"]) == {"message", "type", "param", "code"}
    assert "above 0 and at most 1" in told["error"]["message"]


async def test_too_many_floors_are_refused(gateway: Running) -> None:
    """Each costs milliseconds of everybody's gateway."""
    status, told = await preview(gateway, "?" + "&".join(f"quality_floor=0.{n}" for n in range(10, 43)))
    assert (status, told["error"]["param"]) == (400, "quality_floor")


async def test_without_a_key_there_is_no_preview(gateway: Running) -> None:
    """It tells prices and shares of a team's traffic."""
    assert (await preview(gateway, key="wb-nobody"))[0] == 401
