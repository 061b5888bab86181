"""What an address asks that a route does not know: refused on every route, so that no figures are taken for another's."""

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from fastapi.routing import APIRoute

from gateway.wiring.web_app import web_app
from tests.api.finance import Finance, running_finance
from tests.dashboards.pages.routes_table import OTHER_ROUTES

OF_TEAMS: Final = {
    "/v1/budgets": "",
    "/v1/end_users/alice": "",
    "/v1/feedback/summary": "",
    "/v1/fleet/prefixes": "",
    "/v1/policy/preview": "",
    "/v1/savings": "start=2026-04-05&end=2026-04-07&",
    "/v1/usage": "date=2026-04-05&",
    "/v1/usage/movers": "start=2026-04-05&end=2026-04-07&",
}
"""Reports that may be asked for a team, with what they need beside it."""
SHAPES: Final = frozenset({"batch", "models", "responses"})
"""Tags of shapes whose clients send more than they need: what OpenAI's and Anthropic's SDKs put into `extra_query`."""
KEYLESS: Final = frozenset({"everybody", "its own token"})


@pytest.fixture
async def finance(tmp_path: Path) -> AsyncIterator[Finance]:
    async with running_finance(tmp_path) as running:
        yield running


def routes(found: Sequence[Any]) -> Iterator[APIRoute]:
    """Every route of the control plane that is no page."""
    for route in found:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from routes(included.routes)
        elif not route.path.startswith("/dashboard"):
            yield route


async def test_no_route_answers_as_if_a_parameter_had_not_been_there(finance: Finance) -> None:
    """`team` for `team_id` and `mdoel` for `model`: a report for a team, or a limit taken from a whole team, otherwise."""
    ours = [each for each in routes(web_app().routes) if SHAPES.isdisjoint(each.tags)]
    assert len(ours) > 80
    for route in ours:
        path = route.path_format.replace("{", "").replace("}", "")
        for method in route.methods or ():
            if OTHER_ROUTES.get(f"{method} {route.path}") in KEYLESS:
                continue
            answer = await finance.send("admin", method, f"{path}?mdoel=x")
            assert (answer.status, "mdoel" in answer.text) == (400, True), (method, route.path, answer)


async def test_a_team_is_asked_for_or_the_report_is_refused(finance: Finance) -> None:
    """A member's key reads its own team; a finance key its organisation's, also where the key is of another; nobody else's."""
    for path, needed in OF_TEAMS.items():
        own = await finance.get("member x", path, f"{needed}team_id=team_x")
        assert own.status == 200, (path, own)
        for foreign in ("team_y", "team_q", "team_nowhere"):
            told = await finance.get("member x", path, f"{needed}team_id={foreign}")
            assert told.refusal == (404, "team_not_found", "team_id"), (path, told)
        other = await finance.get("finance", path, f"{needed}team_id=team_x")
        assert other.status == 200, (path, other)
        assert '"team_id":"team_y"' not in other.text.replace(" ", ""), path


@pytest.mark.parametrize("path", ["/v1/budgets", "/v1/end_users/alice", "/v1/feedback/summary", "/v1/policy/preview"])
async def test_a_finance_key_gets_no_figures_of_a_team_that_is_not_there(finance: Finance, path: str) -> None:
    """Its own would be taken for the team's that was misspelt; another organisation's looks the same."""
    for foreign in ("team_q", "team_nowhere", ""):
        told = await finance.get("finance", path, f"team_id={foreign}")
        assert told.refusal == (404, "team_not_found", "team_id"), told
        assert foreign in told.body["error"]["message"]
    twice = await finance.get("finance", path, "team_id=team_x&team_id=team_y")
    assert twice.refusal == (400, None, "team_id"), twice


@pytest.mark.parametrize(
    "asked",
    [
        "team_id[]=team_y",
        "team_id%5B%5D=team_y",
        "team_id=team%255Fy",
        "team_id=team_y%00",
        "team_id=%00",
        "team_id=team_%EF%BD%99",
        "team_id=%FF%FE",
        "team_id=TEAM_Y",
        "team_id=team_y%20",
        "team_id=team_%25",
        "team_id=" + "y" * 30_000,
        "team_id=team_x&team_id=team_y",
        "team_id=team_x&team_id[]=team_y",
        "team_id=team_x;team_id=team_y",
        "Team_id=team_y",
        "team_id[0]=team_y",
    ],
)
async def test_no_spelling_of_a_team_gives_a_member_anothers_figures(finance: Finance, asked: str) -> None:
    """Refused in our own words, whichever report is asked."""
    for path, needed in OF_TEAMS.items():
        told = await finance.send("member x", "GET", f"{path}?{needed}{asked}")
        assert told.status in {400, 404}, (path, told)
        assert told.refusal[0] == told.status


async def test_a_filter_in_brackets_or_twice_is_not_left_out(finance: Finance) -> None:
    """A limit on one model would be taken from the whole team, and the whole log be read as the team's."""
    body = {"requests_per_minute": 7}
    for model in ("", "?model=only"):
        assert (await finance.send("admin", "PUT", f"/v1/admin/limits/team/team_x{model}", body)).status < 300
    twice = await finance.send("admin", "DELETE", "/v1/admin/limits/team/team_x?model=a&model=only")
    assert twice.refusal == (400, None, "model"), twice
    taken = await finance.send("admin", "DELETE", "/v1/admin/limits/team/team_x?model[]=only")
    assert taken.status == 200, taken
    assert (await finance.send("admin", "GET", "/v1/admin/limits/team/team_x")).status == 200
    assert (await finance.send("admin", "GET", "/v1/admin/limits/team/team_x?model=only")).status == 404
    assert (await finance.get("admin", "/v1/admin/audit", "object=limit")).body["data"]
    assert (await finance.get("admin", "/v1/admin/audit", "object[]=nothing")).body["data"] == []
    told = await finance.get("admin", "/v1/admin/audit", "object=limit&object=nothing")
    assert told.refusal == (400, None, "object"), told


async def test_what_is_of_the_key_alone_is_not_told_of_a_team(finance: Finance) -> None:
    """Limits and prices are those of the key that asks: another team's are refused, with what may be asked."""
    told = await finance.get("finance", "/v1/limits", "team_id=team_x")
    assert "There is no parameter `team_id`; there are model." in told.text
    told = await finance.get("finance", "/v1/prices", "team_id=team_x")
    assert "There is no parameter `team_id`; there are none here." in told.text


async def test_budgets_of_one_team_are_those_of_it_and_its_keys(finance: Finance) -> None:
    """The organisation's other teams are left out."""
    for budget_id, scope, scope_id in (
        ("x", "team", "team_x"),
        ("y", "team", "team_y"),
        ("all", "organisation", "acme"),
    ):
        body = {"scope": scope, "scope_id": scope_id, "period": "month", "limit_usd": 10}
        put = await finance.send("admin", "PUT", f"/v1/budgets/{budget_id}", body)
        assert put.status < 300, put
    assert _ids(await finance.get("finance", "/v1/budgets")) == {"x", "y", "all"}
    assert _ids(await finance.get("finance", "/v1/budgets", "team_id=team_x")) == {"x"}
    assert _ids(await finance.get("finance", "/v1/budgets", "team_id=team_y")) == {"y"}


async def test_a_request_without_a_key_learns_no_parameter(finance: Finance) -> None:
    """401 comes before 400."""
    assert (await finance.get(None, "/v1/limits", "mdoel=x")).status == 401


def _ids(answer: Any) -> set[str]:
    return {each["id"] for each in answer.body["data"]}
