"""A team's end users: what each spent and asked, found by name, and page by page."""

import csv
import io
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from cost.end_users import booked
from cost.reports.end_user_figures import MOST_ATTEMPTS, read_end_user_figures
from cost.reports.scope import ReadScope
from cost.times import DAY_US, wall_us
from tests.cost.ledger.in_files import put_in_files
from tests.dashboards.pages.teams import asked, keep, running_teams
from tests.running_gateway import Running
from tests.signed_in import Browser, signed_in

LIST = "/dashboard/teams/team_a/end-users"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_teams(tmp_path) as found:
        yield found


@pytest.fixture
async def member(running: Running) -> AsyncIterator[Browser]:
    async with signed_in(running, "mem@example.com", teams={"team_a": "member"}) as found:
        yield found


async def test_attempts_in_files_are_told(running: Running, member: Browser) -> None:
    """What was spent is of all, and what is counted from attempts says that it lacks some."""
    now_us = wall_us()
    await keep(running, [asked("a1", end_user="ann")])
    assert "puts them back" not in (await member.get(LIST)).text
    await put_in_files(running.engine, now_us)
    page = (await member.get(LIST)).text
    assert "ann" in page
    assert "Requests, tokens and failures lack what is in files" in page


async def test_each_end_user_with_cost_requests_failures_and_budget(running: Running, member: Browser) -> None:
    """The largest first, those of other teams never, with links to their spend and requests."""
    await keep(
        running,
        [
            asked("a1", end_user="ann", cost_nanousd=3_000_000_000),
            asked("a2", end_user="ann", status=502, served=False, cost_nanousd=0),
            asked("b1", end_user="bob", cost_nanousd=1_000_000_000),
            asked("c1", end_user=booked("cyd@example.com"), cost_nanousd=500_000_000),
            asked("x1", end_user="theirs", team_id="team_b"),
        ],
    )
    budget = Budget(
        budget_id="each", organisation_id="default", scope="end_user", scope_id="team_a/*", period="month", kind="soft",
        limit_nanousd=4_000_000_000,
    )  # fmt: skip
    await BudgetStore(running.engine).put(budget)
    page = (await member.get(LIST)).text
    assert page.index(">ann<") < page.index(">bob<")
    assert "theirs" not in page
    assert "75.0 % of $4.00" in page
    assert 'href="/dashboard/teams/team_a/requests?end_user=ann"' in page
    rows = list(csv.DictReader(io.StringIO((await member.get(f"{LIST}?format=csv&table=end_users")).text)))
    assert [(row["requests"], row["failed_share"]) for row in rows] == [("2", "0.5"), ("1", "0.0"), ("1", "0.0")]
    assert ">bob<" in (await member.get(f"{LIST}?q=bo")).text
    assert "digest-" in (await member.get(f"{LIST}?q=cyd@example.com")).text
    assert "No end user is called so." in (await member.get(f"{LIST}?q=nobody")).text
    assert (await member.get("/dashboard/teams/team_b/end-users")).status == 404


async def test_pages_have_each_once(running: Running, member: Browser) -> None:
    """Also where many spent the same."""
    await keep(
        running, [asked(f"r{number}", end_user=f"u{number:03}", cost_nanousd=1 + number % 3) for number in range(120)]
    )
    seen: list[str] = []
    path = LIST
    for _ in range(5):
        text = (await member.get(path)).text
        seen += re.findall(r">(u\d{3})<", text)
        path = LIST + (re.findall(r'href="([^"]+)" rel="next"', text) or [""])[0].replace("&amp;", "&")
    assert sorted(seen) == [f"u{number:03}" for number in range(120)]


@pytest.mark.parametrize(
    "query", ["month=2020-01", "month=x", "after=x", "after=1.", "q=%00", "q=%27", "month=9999-12", "after=99.%00"]
)
async def test_any_address_is_a_page(member: Browser, query: str) -> None:
    """Also a month without anybody."""
    answer = await member.get(f"{LIST}?{query}")
    assert answer.status == 200
    assert ">None" not in answer.text


async def test_a_busy_end_users_newest_attempts_are_told(running: Running) -> None:
    """However many there are, so many are read."""
    now_us = wall_us()
    await keep(
        running, [asked(f"r{number}", end_user="ann", at_us=now_us - number) for number in range(MOST_ATTEMPTS + 20)]
    )
    scope = ReadScope(organisation_id="default", team_id="team_a")
    found = await read_end_user_figures(running.engine, scope, ["ann", "bob"], now_us - DAY_US, now_us + 1)
    assert found.keys() == {"ann"}
    assert (found["ann"].requests, found["ann"].is_whole) == (MOST_ATTEMPTS, False)
