"""The list of teams and a team's overview: what they tell, and whom."""

import csv
import io
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from accounts.keys import Pepper
from accounts.store import AccountStore
from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from cost.ledger.store import LedgerStore
from cost.times import DAY_US, day_of, wall_us
from selfhosted.prefixes.store import PrefixStore
from selfhosted.prefixes.tracker import HabitDelta
from tests.cost.entries import settle
from tests.dashboards.pages.teams import EVIL, asked, keep, month, running_teams
from tests.in_turn import in_turn
from tests.running_gateway import Running
from tests.signed_in import Answer, Browser, signed_in

TEAM = "/dashboard/teams/team_a"
PAGES = (TEAM, f"{TEAM}/savings", f"{TEAM}/latest", f"{TEAM}/requests", f"{TEAM}/policy")


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_teams(tmp_path) as found:
        yield found


@pytest.fixture
async def member(running: Running) -> AsyncIterator[Browser]:
    async with signed_in(running, "mem@example.com", teams={"team_a": "member"}) as found:
        yield found


@pytest.fixture
async def admin(running: Running) -> AsyncIterator[Browser]:
    async with signed_in(running, "adm@example.com", role="admin") as found:
        yield found


def rows(answer: Answer) -> list[dict[str, str]]:
    assert answer.status == 200, answer.text[:500]
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text)))


async def test_a_team_of_many_keys_has_them_on_the_page_of_spend(
    running: Running, member: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its overview asks for no key: what changed is told by model, and the file of keys is there for who asks for it."""
    await keep(running, month())
    monkeypatch.setattr("dashboards.teams.page._MOST_KEYS", 0)
    page = (await member.get(TEAM)).text
    assert 'href="/dashboard/teams/team_a/spend?' in page
    assert "which asks for them alone" in page
    assert 'name="sources' not in page
    assert len(rows(await member.get(f"{TEAM}?format=csv&table=sources"))) >= 1


async def test_a_team_without_anything_has_pages_that_say_so(member: Browser) -> None:
    """No figure is made up, and what is unknown is a dash."""
    for path in PAGES:
        answer = await member.get(path)
        assert answer.status == 200, path
        assert ">None" not in answer.text, path
        assert ">nan" not in answer.text, path


async def test_a_new_team_is_told_what_comes_next(running: Running, member: Browser, admin: Browser) -> None:
    """One step: the key, by who may create one, and then the first request with a place for it; no empty figures."""
    accounts = AccountStore(running.engine)
    for key in await accounts.list_keys("team_a"):
        await accounts.revoke_key(key.key_id)
    asked_for = (await member.get(TEAM)).text
    assert "Next: ask for a key" in asked_for
    assert "/keys/new" not in asked_for
    first = (await admin.get(TEAM)).text
    assert "Next: create a key" in first
    assert f'href="{TEAM}/keys/new"' in first
    minted = await accounts.create_key("team_a", "first", Pepper(id="p", secret=b"a" * 32))
    for browser in (member, admin):
        following = (await browser.get(TEAM)).text
        assert "Bearer YOUR_KEY" in following
        assert f"{running.base_url}/chat/completions" in following
        assert 'class="figure"' not in following
    await accounts.revoke_key(minted.key_id)
    assert "Next: create a key" in (await admin.get(TEAM)).text
    await keep(running, month())
    assert "Next:" not in (await admin.get(TEAM)).text


async def test_the_overview_tells_what_the_books_say(running: Running, member: Browser) -> None:
    """Thirty days of five million nano-dollars each, against eight at the reference."""
    await keep(running, month())
    page = (await member.get(TEAM)).text
    assert "$0.15" in page
    assert "$0.09" in page
    assert "37.50 % of the baseline&#39;s cost" in page
    assert "100.0 % succeeded" in page
    assert f'hx-get="{TEAM}/savings"' in page
    models = rows(await member.get(f"{TEAM}?format=csv&table=models"))
    assert [(row["model"], row["served"], row["cost_usd"], row["saved_usd"]) for row in models] == [
        ("large", "30", "0.120000000", "0.000000000"),
        ("small", "30", "0.030000000", "0.090000000"),
    ]
    sources = rows(await member.get(f"{TEAM}?format=csv&table=sources"))
    assert {(row["tag"], row["requests"]) for row in sources} == {("", "30"), ("red", "30")}


async def test_what_was_given_again_is_told_apart(running: Running, member: Browser) -> None:
    """Beside the other figures, which do not change by it."""
    again = {"entry": "cache", "cost_nanousd": 0, "input_nanousd": 0, "output_nanousd": 0, "served": False}
    again |= {"input_tokens": 0, "output_tokens": 0, "baseline_nanousd": None, "reason": "cache"}
    more = [asked(f"req_again_{number}", cache_saved_nanousd=1_230_000_000, **again) for number in range(3)]
    await keep(running, [*month(), *more])
    page = (await member.get(TEAM)).text
    assert "Answered from the cache" in page
    assert "3 requests, saved" in page
    assert "$3.69" in page
    assert "100.0 % succeeded" in page
    assert "37.50 % of the baseline&#39;s cost" in page


async def test_a_period_is_part_of_the_address(running: Running, member: Browser) -> None:
    """Any days, also such that are long over; what is no day is told, and the usual ones are shown."""
    await keep(running, month())
    today = day_of(wall_us())
    for first, last, served in ((6, 0, "7"), (3, 3, "1"), (29, 20, "10"), (89, 0, "30")):
        days = f"from={today - timedelta(days=first)}&to={today - timedelta(days=last)}"
        for table, column in (("models", "served"), ("sources", "requests")):
            found = rows(await member.get(f"{TEAM}?{days}&format=csv&table={table}"))
            assert found[0][column] == served, (days, table)
    long_ago = f"{TEAM}?from=2020-02-01&to=2020-02-10"
    assert rows(await member.get(f"{long_ago}&format=csv&table=models")) == []
    page = (await member.get(long_ago)).text
    assert "Requests from 2020-02-01 to 2020-02-10" in page
    # What was spent this month is told whatever days are looked at.
    assert spent_this_month(page) == spent_this_month((await member.get(TEAM)).text) != "$0.00"
    for wrong in ("from=nonsense", "from=2026-02-30", "from=2026-02-02&to=2026-02-01"):
        page = (await member.get(f"{TEAM}?{wrong}")).text
        assert "The last 30 days are shown." in page, wrong


def spent_this_month(page: str) -> str:
    found = re.search(r"Spent this month</div>.*?(\$[\d.,]+)", page, re.DOTALL)
    assert found is not None
    return found[1]


async def test_budgets_stand_with_their_likely_end(running: Running, member: Browser) -> None:
    """The team's own, and nobody else's."""
    await keep(running, month())
    store = BudgetStore(running.engine)
    for scope_id, limit in (("team_a", 1_000_000_000), ("team_b", 77_000_000_000)):
        budget = Budget(
            budget_id=f"of-{scope_id}",
            organisation_id="default",
            scope="team",
            scope_id=scope_id,
            period="month",
            kind="hard",
            limit_nanousd=limit,
        )
        await store.put(budget)
    page = (await member.get(TEAM)).text
    assert "never overrun" in page
    assert "$1.00" in page
    assert "$77" not in page
    assert "Open, likely to last" in page
    (ours,) = await store.of_scope("default", "team", "team_a")
    await store.put(msgspec.structs.replace(ours.budget, limit_nanousd=ours.spent_nanousd - 1))
    page = (await member.get(TEAM)).text
    assert "over already, so it lets no further cost in" in page
    assert "never overrun" not in page


async def test_savings_come_with_their_verdict(running: Running, member: Browser) -> None:
    """As a part for the overview, and as a page by itself."""
    await keep(running, month())
    part = await member.get(f"{TEAM}/savings", **{"hx-request": "true"})
    whole = await member.get(f"{TEAM}/savings")
    assert "Not enough data" in part.text
    assert "60 requests were served; 100 are needed" in part.text
    assert "<html" not in part.text
    assert "<html" in whole.text
    await keep(running, [asked(f"more_{number}") for number in range(60)])
    # The plain rule knows no models, so how good they are is their operator's word alone.
    page = (await member.get(f"{TEAM}/savings")).text
    assert "Not measured</span>" in page
    assert "weighbridge classifier measure small" in page


async def test_the_latest_requests_tell_difficulty_speed_and_failures(running: Running, member: Browser) -> None:
    """Of the team alone; the line is where what happened parts, and says how well."""
    others = [asked("b", team_id="team_b", status=502, served=False, target_id="large", flags=("upstream_error",))]
    failed = asked("f", status=502, served=False, cost_nanousd=0, flags=("upstream_error",), baseline_nanousd=None)
    await keep(running, [*month(), *others, failed])
    part = (await member.get(f"{TEAM}/latest", **{"hx-request": "true"})).text
    assert "The line at 0.50 parts them best" in part
    assert "above it 100.0 % stayed with <code>large</code>, below it 100.0 % went to another" in part
    failures = rows(await member.get(f"{TEAM}?format=csv&table=failures"))
    assert [(row["target"], row["cause"], row["count"]) for row in failures] == [
        ("small", "The upstream answered with an error", "1")
    ]
    speed = rows(await member.get(f"{TEAM}/latest?format=csv&table=speed"))
    assert [(row["target"], row["count"], row["ttft_p50_s"]) for row in speed] == [
        ("All targets", "60", "0.12"),
        ("large", "30", "0.12"),
        ("small", "30", "0.12"),
    ]


async def test_what_has_no_price_is_said(running: Running, member: Browser) -> None:
    """A sum that lacks something says so beside it."""
    unpriced = {"cost_nanousd": None, "input_nanousd": 0, "output_nanousd": 0, "baseline_nanousd": None}
    await keep(running, [asked("u", **unpriced), asked("v", **unpriced)])
    page = (await member.get(TEAM)).text
    assert "2 attempts in the last 30 days have no price" in page
    assert ">$0.00<" not in page


async def test_everybody_sees_their_own_teams(running: Running, member: Browser, admin: Browser) -> None:
    """A member those that it belongs to, who reads the organisation all of it, and nobody another organisation's."""
    async with (
        signed_in(running, "fin@example.com", role="finance") as finance,
        signed_in(running, "sig@example.com", role="admin", organisation_id="fjord") as fjord,
        signed_in(running, "ola@example.com", role="operator") as operator,
    ):
        seen = {
            name: [row["team_id"] for row in rows(await each.get("/dashboard/teams?format=csv&table=teams"))]
            for name, each in {"m": member, "a": admin, "f": finance, "o": fjord, "p": operator}.items()
        }
    assert {name: sorted(teams) for name, teams in seen.items()} == {
        "m": ["team_a"],
        "a": ["team_a", "team_b"],
        "f": ["team_a", "team_b"],
        "o": ["fjord-lab"],
        "p": [],
    }


async def test_a_name_stays_a_name(running: Running, admin: Browser) -> None:
    """Whatever a team is called."""
    await keep(running, [asked("b", team_id="team_b", tag="x", target_id=EVIL, alias=EVIL, reason=EVIL)])
    for path in ("/dashboard/teams", *(page.replace("team_a", "team_b") for page in (*PAGES, f"{TEAM}/requests/b"))):
        answer = await admin.get(path)
        assert answer.status == 200, path
        assert EVIL not in answer.text, path


async def test_an_administrator_makes_a_team(running: Running, admin: Browser, member: Browser) -> None:
    """Once: a form that is sent again renames nothing, and members may not."""
    made = await admin.post("/dashboard/teams", {"team_id": "search", "name": "Search"})
    assert (made.status, made.location) == (303, "/dashboard/teams/search")
    again = await admin.post("/dashboard/teams", {"team_id": "search", "name": "Other"})
    assert again.status == 422
    assert "has a team of this id already" in again.text
    assert (await running.accounts.get_team("search")).name == "Search"
    assert (await member.post("/dashboard/teams", {"team_id": "mine"})).status == 403


@in_turn("team_id", ["", "Not an id", "x" * 65, "fjord-lab", "../a"])
async def test_a_team_that_cannot_be_made_is_told(admin: Browser, team_id: str) -> None:
    """Beside its field, with what was typed still there."""
    answer = await admin.post("/dashboard/teams", {"team_id": team_id, "name": "Kept"})
    assert answer.status == 422
    assert 'id="error-team_id"' in answer.text
    assert 'value="Kept"' in answer.text


async def test_what_breaks_the_cache_is_told_with_its_advice(running: Running, member: Browser) -> None:
    """Of the team's own prompts; what holds is said to hold."""
    store = PrefixStore(running.engine)
    await store.add([_habit(team_id="team_b", skeleton="theirs", broken=50, broken_tokens=5_000, kinds=("uuid",))])
    assert "No prompt to one of our own engines was looked at" in (await member.get(f"{TEAM}/latest")).text
    await store.add([_habit(team_id="team_a", skeleton="stable", broken=0, broken_tokens=0, kinds=())])
    assert "All stable" in (await member.get(f"{TEAM}/latest")).text
    await store.add([_habit(team_id="team_a", skeleton="dated", broken=40, broken_tokens=9_000, kinds=("date",))])
    page = (await member.get(f"{TEAM}/latest")).text
    assert "Move the date to the end of the system prompt" in page
    assert "40.0 %" in page


def _habit(team_id: str, skeleton: str, broken: int, broken_tokens: int, kinds: tuple[str, ...]) -> HabitDelta:
    """How a hundred prompts of a team began today."""
    now_us = wall_us()
    return HabitDelta(
        day_us=now_us - now_us % DAY_US,
        organisation_id="default",
        team_id=team_id,
        target_id="small",
        skeleton=skeleton,
        requests=100,
        prompt_tokens=50_000,
        broken=broken,
        broken_tokens=broken_tokens,
        first_break_tokens=12,
        kinds=kinds,
    )


async def test_the_first_steps_tick_themselves(running: Running, admin: Browser, member: Browser) -> None:
    """What is there is done, what is not is told how; finance and members do not see it, and it goes at the end."""

    async def todo() -> list[str]:
        page = (await admin.get("/dashboard/teams")).text
        return re.findall(r'To do: </span><strong>(?:<a href="[^"]*">)?([^<]+)', page)

    assert await todo() == ["The first request"]
    assert "First steps" not in (await member.get("/dashboard/teams")).text
    await keep(running, [asked("r")])
    assert await todo() == []
    assert "First steps" not in (await admin.get("/dashboard/teams")).text


async def test_an_empty_organisation_is_told_what_to_do_first(running: Running) -> None:
    """Of its own: another organisation's keys, people and requests tick nothing."""
    await keep(running, [asked("r")])
    await running.accounts.create_organisation("empty", "Empty")
    async with signed_in(running, "eve@example.com", role="admin", organisation_id="empty") as eve:
        page = (await eve.get("/dashboard/teams")).text
        assert re.findall(r'To do: </span><strong>(?:<a href="[^"]*">)?([^<]+)', page) == [
            "A team",
            "A key",
            "The first request",
            "Somebody else is invited",
        ]
        assert "weighbridge people invite" in page


async def test_the_largest_end_users_stand_with_their_budgets(running: Running, member: Browser) -> None:
    """Only where requests name any; what is spent of their budgets is told beside it."""
    assert "Largest end users" not in (await member.get("/dashboard/teams/team_a")).text
    entry = settle("r1", team_id="team_a", end_user="ada", cost_nanousd=2_000_000_000, at_us=wall_us())
    await LedgerStore(running.engine).insert([entry])
    await BudgetStore(running.engine).put(
        Budget(
            budget_id="each",
            organisation_id="default",
            scope="end_user",
            scope_id="team_a/*",
            period="month",
            kind="hard",
            limit_nanousd=2_000_000_000,
        )
    )
    page = (await member.get("/dashboard/teams/team_a")).text
    shown = page[page.index("Largest end users") :]
    assert all(each in shown for each in ("<code>ada</code>", "Used up", "$2.00", "a month, hard"))
