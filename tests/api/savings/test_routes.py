"""GET /v1/savings over a socket: the three comparisons, for whom they are, and what is refused."""

from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.api.finance import Finance, running_finance
from tests.cost.reports.two_organisations import DAY, booked

pytestmark = pytest.mark.asyncio(loop_scope="module")

RANGE = {"start": "2026-04-05", "end": "2026-04-07"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finance(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Finance]:
    """One for all who only read."""
    async with running_finance(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def own(tmp_path: Path) -> AsyncIterator[Finance]:
    """For one who changes something."""
    async with running_finance(tmp_path) as running:
        yield running


async def savings(finance: Finance, who: str, **query: str) -> Any:
    answer = await finance.get(who, "/v1/savings", {**RANGE, **query})
    assert answer.status == 200, answer.text
    return answer.body


async def test_finance_sees_the_whole_report(finance: Finance) -> None:
    """Three comparisons side by side, and everything that was spent, idle GPUs too, as exact numbers."""
    found = await savings(finance, "finance")
    assert [each["comparator"] for each in found["comparisons"]] == ["reference", "cheapest", "hosted"]
    reference = found["comparisons"][0]
    # Four served requests of 0.004 $ each; four attempts of 0.001000001 $ and 0.07 $ of idle GPUs.
    assert reference["baseline_usd"] == Decimal("0.016")
    assert reference["cost_usd"] == found["cost_usd"] == Decimal("0.074000004")
    assert found["cost"]["idle_usd"] == Decimal("0.07")
    assert (reference["verdict"], found["verdict"]) == ("not enough data", "not enough data")
    assert "4 requests were served; 100 are needed" in reference["reasons"]
    assert "1 attempts have no price of their own" in reference["reasons"]
    assert (found["start"], found["end"], found["team_id"], found["fleet"]) == ("2026-04-05", "2026-04-07", None, [])
    assert (found["target_share"], found["quality"], found["measured"]) == (Decimal("0.40"), None, None)


async def test_a_team_sees_its_own(finance: Finance) -> None:
    """Its own comparisons without idle GPUs; finance may ask for the same."""
    mine = await savings(finance, "member x")
    assert (mine["team_id"], mine["cost"]["idle_usd"], mine["served_requests"]) == ("team_x", 0, 3)
    assert (
        mine
        == await savings(finance, "finance", team_id="team_x")
        == await savings(finance, "member x", team_id="team_x")
    )
    foreign = await finance.get("member x", "/v1/savings", {"team_id": "team_y"})
    assert foreign.refusal == (404, "team_not_found", "team_id")
    rival = await finance.get("rival finance", "/v1/savings", {"team_id": "team_x"})
    assert rival.refusal == (404, "team_not_found", "team_id")


async def test_the_verdict_can_go_either_way(own: Finance) -> None:
    """A hundred requests that save 40 % would meet the target, were their model measured; a nano-dollar more a request would
    not.
    """
    for team_id, cost, verdict in (("team_v", 2_400_000, "not measured"), ("team_w", 2_400_001, "not met")):
        usual: dict[str, Any] = {"organisation_id": "rival", "team_id": team_id, "cost_nanousd": cost, "at_us": DAY}
        await own.gateway.accounts.create_team(team_id, organisation_id="rival")
        await own.keep([booked(f"{team_id}{number}", **usual) for number in range(100)])
        found = await savings(own, "rival finance", team_id=team_id)
        assert (found["comparisons"][0]["verdict"], found["verdict"]) == (verdict, verdict)


async def test_what_is_asked_must_be_sound(finance: Finance) -> None:
    """A wrong range, or a parameter that nobody knows, is told by its name; without a key nothing is told."""
    for query, param in (
        ({"start": "2026-04-07", "end": "2026-04-05"}, "end"),
        ({"start": "2020-01-01", "end": "2026-04-05"}, "end"),
        ({"start": "yesterday"}, "start"),
        ({"days": "3"}, "days"),
    ):
        status, _, told = (await finance.get("finance", "/v1/savings", query)).refusal
        assert (status, told) == (400, param)
    for who in (None, "revoked"):
        assert (await finance.get(who, "/v1/savings")).refusal[0] == 401


async def test_by_default_the_last_thirty_days_are_told(finance: Finance) -> None:
    """Today included; there is nothing in them here."""
    answer = await finance.get("finance", "/v1/savings")
    assert (answer.status, answer.body["served_requests"], answer.body["comparisons"][0]["savings_share"]) == (
        200,
        0,
        None,
    )
