"""GET /v1/usage/movers over a socket: what changed, for whom it may be told, and what it refuses."""

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio

from cost.times import DAY_US, iso
from tests.api.finance import Finance, running_finance
from tests.cost.reports.two_organisations import DAY

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/usage/movers"
SECOND_DAY = {"start": "2026-04-06", "end": "2026-04-07"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finance(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Finance]:
    async with running_finance(tmp_path_factory.mktemp("shared")) as running:
        yield running


async def test_changes_add_up_and_agree_with_usage(finance: Finance) -> None:
    """Rows and the others are the total, parts are their change, and both times are as /v1/usage tells them."""
    body = (await finance.get("finance", PATH, {**SECOND_DAY, "group_by": "team,model", "limit": 1})).body
    assert (body["before_start"], body["end"]) == (iso(DAY), iso(DAY + 2 * DAY_US))
    told = [*body["data"], body["others"]]
    assert sum(each["change_usd"] for each in told) == body["total"]["change_usd"]
    for each in [*told, body["total"]]:
        assert sum(each["parts"].values()) == each["change_usd"]
    for name, day in (("now", SECOND_DAY), ("before", {"start": "2026-04-05", "end": "2026-04-06"})):
        totals = (await finance.get("finance", "/v1/usage", day)).body["totals"]
        assert body["total"][name] == {key: totals[key] for key in body["total"][name]}


async def test_teams_and_organisations_stay_apart(finance: Finance) -> None:
    """A member's key has its own team alone, and asking for another's is refused as everywhere."""
    mine = (await finance.get("member x", PATH, {**SECOND_DAY, "group_by": "team"})).body
    assert {each["group"]["team_id"] for each in mine["data"]} == {"team_x"}
    refused = await finance.get("member x", PATH, {**SECOND_DAY, "team_id": "team_y"})
    assert refused.refusal == (404, "team_not_found", "team_id")
    theirs = (await finance.get("rival finance", PATH, {**SECOND_DAY, "group_by": "model"})).body
    ours = (await finance.get("finance", PATH, {**SECOND_DAY, "group_by": "model"})).body
    assert theirs["total"]["change_usd"] != ours["total"]["change_usd"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"start": "2020-01-01", "end": "2026-04-07"}, "start"),
        ({"start": "2999-01-01", "end": "2999-01-02"}, "start"),
        ({"start": "2026-03-01", "end": "2026-04-07", "end_user": "ann"}, "start"),
        ({**SECOND_DAY, "group_by": "day"}, "group_by"),
        ({**SECOND_DAY, "against": "year"}, "against"),
        ({**SECOND_DAY, "limit": "51"}, "limit"),
        ({**SECOND_DAY, "colour": "red"}, "colour"),
    ],
)
async def test_what_cannot_be_compared_is_refused(finance: Finance, query: dict[str, Any], param: str) -> None:
    """With the parameter and what to do."""
    assert (await finance.get("finance", PATH, query)).refusal == (400, None, param)


async def test_a_first_day_is_all_new(finance: Finance) -> None:
    """Nothing before is no share and no factor, and unknown cost stays null."""
    body = (await finance.get("finance", PATH, {"start": "2026-04-05", "end": "2026-04-06"})).body
    assert body["total"]["change_share"] is None
    assert body["total"]["factors"] == {"attempts": None, "tokens": None, "price": None}
    assert all(each["how"] in {"new", None} for each in body["data"])
    assert sum((each["change_usd"] for each in body["data"]), Decimal(0)) <= body["total"]["change_usd"]
