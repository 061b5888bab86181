"""GET /v1/fleet/prefixes over a socket: what is told, for whom, and what is refused."""

from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cost.times import DAY_US, wall_us
from selfhosted.prefixes.store import PrefixStore
from selfhosted.prefixes.tracker import HabitDelta
from tests.api.finance import Finance, running_finance

PATH = "/v1/fleet/prefixes"


@pytest.fixture
async def finance(tmp_path: Path) -> AsyncIterator[Finance]:
    async with running_finance(tmp_path) as running:
        today_us = wall_us() // DAY_US * DAY_US
        await PrefixStore(running.gateway.engine).add(
            [habit("team_x", today_us), habit("team_y", today_us - 9 * DAY_US), habit("team_q", today_us, "rival")]
        )
        yield running


def habit(team: str, day_us: int, organisation: str = "acme") -> HabitDelta:
    return HabitDelta(
        day_us=day_us,
        organisation_id=organisation,
        team_id=team,
        target_id="cheap",
        skeleton="0123456789abcdef" * 2,
        requests=10,
        prompt_tokens=10_000,
        broken=9,
        broken_tokens=9_000,
        first_break_tokens=3,
        kinds=("date",),
    )


async def report(finance: Finance, who: str, **query: str) -> Any:
    answer = await finance.get(who, PATH, query)
    assert answer.status == 200, answer.text
    return answer.body


async def test_a_team_sees_its_own(finance: Finance) -> None:
    """A member's key is told of its team; finance and admins of all of the organisation's, and of no other's."""
    mine = await report(finance, "member x", days="30")
    assert (mine["organisation_id"], mine["team_id"]) == ("acme", "team_x")
    assert [each["team_id"] for each in mine["findings"]] == ["team_x"]
    (finding,) = mine["findings"]
    assert finding["advice"] == "move the date to the end of the system prompt or into the user message"
    assert finding["share_broken"] == Decimal("0.9")
    for who in ("finance", "admin"):
        assert {each["team_id"] for each in (await report(finance, who, days="30"))["teams"]} == {"team_x", "team_y"}
    only = await report(finance, "admin", days="30", team_id="team_y")
    assert [each["team_id"] for each in only["findings"]] == ["team_y"]
    assert (await report(finance, "rival admin", team_id="team_x"))["findings"] == []
    assert (await finance.get("member x", PATH, {"team_id": "team_y"})).refusal == (404, "team_not_found", "team_id")


async def test_the_days_that_are_asked_for(finance: Finance) -> None:
    """A week if nothing is said; other days, and parameters that nobody knows, are refused by name."""
    assert [each["team_id"] for each in (await report(finance, "admin"))["findings"]] == ["team_x"]
    for query, param in (({"days": "0"}, "days"), ({"days": "93"}, "days"), ({"month": "1"}, "month")):
        status, _, told = (await finance.get("admin", PATH, query)).refusal
        assert (status, told) == (400, param)
    for who in (None, "revoked"):
        assert (await finance.get(who, PATH)).refusal[0] == 401
