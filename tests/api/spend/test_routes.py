"""LiteLLM's spend routes: its own types read them, and they tell our books."""

from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.api.finance import Finance, running_finance
from tests.cost.reports.two_organisations import DAY, booked
from tests.providers.wires import LITELLM_WARNINGS

pytestmark = LITELLM_WARNINGS

DAYS = {"start_date": "2026-04-05", "end_date": "2026-04-06"}


@pytest.fixture
async def finance(tmp_path: Path) -> AsyncIterator[Finance]:
    async with running_finance(tmp_path) as running:
        yield running


async def test_spend_by_day(finance: Finance) -> None:
    """Both dates without `summarize`: a row a day, with the spend of each key and model; the last day is one of them."""
    rows = (await finance.get("finance", "/spend/logs", DAYS)).body
    nano = Decimal("0.001000001")
    assert rows == [
        {
            "startTime": "2026-04-05",
            "spend": Decimal("0.073000003"),
            "users": {},
            "models": {"h100": Decimal("0.07"), "large": nano, "small": 2 * nano},
            "key_a": 2 * nano,
            "key_b": nano,
        },
        {"startTime": "2026-04-06", "spend": nano, "users": {}, "models": {"small": nano}, "key_a2": nano},
    ]
    (own,) = (await finance.get("finance", "/spend/logs", {**DAYS, "api_key": "key_b"})).body
    assert own["spend"] == nano


async def test_an_attempt_has_its_end_user(finance: Finance) -> None:
    """Under litellm's own name."""
    await finance.keep([booked("named", team_id="team_x", end_user="u-17", cost_nanousd=1, at_us=DAY)])
    rows = (await finance.get("finance", "/spend/logs", {**DAYS, "summarize": "false", "request_id": "named"})).body
    assert [row["end_user"] for row in rows] == ["u-17"]


async def test_single_attempts(finance: Finance) -> None:
    """With summarize=false, newest first and by pages; an unknown price is null, not nothing."""
    query = {**DAYS, "summarize": "false"}
    rows = (await finance.get("finance", "/spend/logs", query)).body
    assert [row["request_id"] for row in rows][:1] == ["a3"]
    assert sum(row["spend"] or 0 for row in rows) == Decimal("0.074000004")
    (unpriced,) = [row for row in rows if row["spend"] is None]
    assert (unpriced["request_id"], unpriced["status"], unpriced["metadata"]["unpriced"]) == ("a4", "failure", True)
    red = next(row for row in rows if row["request_id"] == "a2")
    assert (red["request_tags"], red["model"], red["model_group"], red["api_key"]) == (
        ["red"],
        "large",
        "auto",
        "key_a",
    )
    assert (red["prompt_tokens"], red["completion_tokens"], red["total_tokens"]) == (800, 200, 1_000)
    assert (red["startTime"], red["endTime"]) == (
        "2026-04-05T23:59:59.099999+00:00",
        "2026-04-05T23:59:59.999999+00:00",
    )
    pages, page = [], None
    while True:
        answer = await finance.get("finance", "/spend/logs", {**query, "limit": 2, **({"page": page} if page else {})})
        pages += answer.body
        page = answer.headers.get("x-next-page")
        assert ("x-litellm-spend-logs-truncated" in answer.headers) is (page is not None)
        if page is None:
            break
    assert pages == rows


async def test_one_request_by_its_id(finance: Finance) -> None:
    """Without dates too, and only one's own: another team's is not there."""
    (row,) = (await finance.get("member x", "/spend/logs", {"request_id": "a1", "user_id": "whoever"})).body
    assert (row["team_id"], row["messages"], row["response"]) == ("team_x", {}, {})
    for hidden in ("b1", "r1", "idle/h100/2026-04-05/1/1"):
        assert (await finance.get("member x", "/spend/logs", {"request_id": hidden})).body == []
    assert (await finance.get("finance", "/spend/logs", {"request_id": "r1"})).body == []
    # Without anything the last month is listed, in which nothing was booked.
    assert (await finance.get("finance", "/spend/logs")).body == []


async def test_activity_by_day(finance: Finance) -> None:
    """Newest first, with every breakdown adding up to the day; failed attempts are told apart."""
    body = (await finance.get("finance", "/team/daily/activity", DAYS)).body
    later, earlier = body["results"]
    assert (later["date"], earlier["date"]) == ("2026-04-06", "2026-04-05")
    assert earlier["metrics"] == {
        "spend": Decimal("0.073000003"),
        "prompt_tokens": 3_200,
        "completion_tokens": 800,
        "cache_read_input_tokens": 1_200,
        "cache_creation_input_tokens": 0,
        "total_tokens": 4_000,
        "successful_requests": 3,
        "failed_requests": 1,
        "api_requests": 4,
    }
    for name in ("models", "model_groups", "providers", "entities"):
        parts = earlier["breakdown"][name].values()
        for figure, whole in earlier["metrics"].items():
            assert sum(part["metrics"][figure] for part in parts) == whole
    assert set(earlier["breakdown"]["entities"]) == {"team_x", "team_y", "Unassigned"}
    assert set(earlier["breakdown"]["api_keys"]) == {"key_a", "key_b"}
    assert body["metadata"]["total_spend"] == Decimal("0.074000004")
    assert (body["metadata"]["page"], body["metadata"]["total_pages"], body["metadata"]["has_more"]) == (1, 1, False)


async def test_activity_in_pages_of_days_and_filtered(finance: Finance) -> None:
    """A page is some days; teams can be asked for or left out; another's team is not found."""
    first = (await finance.get("finance", "/team/daily/activity", {**DAYS, "page_size": 1})).body
    second = (await finance.get("finance", "/team/daily/activity", {**DAYS, "page_size": 1, "page": 2})).body
    assert [each["date"] for each in first["results"] + second["results"]] == ["2026-04-06", "2026-04-05"]
    assert (first["metadata"]["has_more"], second["metadata"]["has_more"]) == (True, False)
    assert (await finance.get("finance", "/team/daily/activity", {**DAYS, "page": 7})).body["results"] == []
    for query, teams in (
        ({"team_ids": "team_y, team_r"}, {"team_y"}),
        ({"exclude_team_ids": "team_y"}, {"team_x", "Unassigned"}),
        ({"model": "large"}, {"team_x"}),
        ({"api_key": "key_b"}, {"team_y"}),
    ):
        body = (await finance.get("finance", "/team/daily/activity", {**DAYS, **query})).body
        assert {name for each in body["results"] for name in each["breakdown"]["entities"]} == teams
    refused = await finance.get("member x", "/team/daily/activity", {**DAYS, "team_ids": "team_x,team_y"})
    assert refused.refusal == (404, "team_not_found", "team_ids")


async def test_what_is_not_sound_is_refused(finance: Finance) -> None:
    """Half a range, a range backwards or too long, a key itself in place of its id."""
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("/spend/logs", {"start_date": "2026-04-05"}, "end_date"),
        ("/spend/logs", {"start_date": "2026-04-05", "end_date": "2026-04-04"}, "end_date"),
        ("/spend/logs", {"start_date": "2026-04-05", "end_date": "2027-04-06"}, "end_date"),
        ("/spend/logs", {"start_date": "2026-04-05", "end_date": "2026-06-05", "summarize": "false"}, "end_date"),
        ("/spend/logs", {"api_key": finance.keys["finance"]}, "api_key"),
        ("/spend/logs", {"limit": 10_001}, "limit"),
        ("/spend/logs", {"page": "x"}, "page"),
        ("/team/daily/activity", {}, "start_date"),
        ("/team/daily/activity", {**DAYS, "page": 0}, "page"),
        ("/team/daily/activity", {**DAYS, "page_size": 1_001}, "page_size"),
    ]
    for path, query, param in refused:
        assert (await finance.get("finance", path, query)).refusal == (400, None, param), query


async def test_litellms_own_types_read_the_activity(finance: Finance) -> None:
    """The reply is one that LiteLLM's own server could have given."""
    from litellm.types.proxy.management_endpoints.common_daily_activity import (
        SpendAnalyticsPaginatedResponse,
    )

    answer = await finance.get("finance", "/team/daily/activity", DAYS)
    read = SpendAnalyticsPaginatedResponse.model_validate_json(answer.text)
    assert [str(each.date) for each in read.results] == ["2026-04-06", "2026-04-05"]
    assert read.metadata.total_api_requests == 5
