"""The page of spend: what changed, what it is made of, and where each part leads."""

import csv
import html
import io
import re
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import pytest

from cost.times import DAY_US, HOUR_US, iso, wall_us
from dashboards.spend.asked import asked_of
from tests.dashboards.pages.teams import EVIL, asked, keep, running_teams
from tests.running_gateway import Running
from tests.signed_in import Browser, signed_in

TEAM = "/dashboard/teams/team_a/spend"
WHOLE = "/dashboard/finance/spend"
NOW_US = wall_us()
TODAY = NOW_US - NOW_US % DAY_US
JUMP_DAY = TODAY - 2 * DAY_US
JUMP = JUMP_DAY + 14 * HOUR_US


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_teams(tmp_path) as found:
        yield found


@pytest.fixture
async def member(running: Running) -> AsyncIterator[Browser]:
    async with signed_in(running, "mem@example.com", teams={"team_a": "member"}) as found:
        yield found


@pytest.fixture
async def finance(running: Running) -> AsyncIterator[Browser]:
    async with signed_in(running, "fin@example.com", role="finance") as found:
        yield found


async def history(running: Running) -> None:
    """Three weeks of a call an hour, and from two days ago at 14:00 five more by one tag and end user."""
    entries = []
    for hour in range(-21 * 24, (NOW_US - TODAY) // HOUR_US):
        at_us = TODAY + hour * HOUR_US + 1
        entries.append(asked(f"h{hour}", at_us=at_us, end_user="bob"))
        entries.append(asked(f"o{hour}", at_us=at_us, team_id="team_b", key_id="key_theirs", target_id="large"))
        if at_us >= JUMP:
            entries += [
                asked(
                    f"j{hour}/{each}", at_us=at_us, tag="nightly", end_user="ann", target_id="large", cost_nanousd=10**9
                )
                for each in range(5)
            ]
    await keep(running, entries)


def links(text: str, start: str) -> list[str]:
    return [
        html.unescape(each) for each in re.findall(r'href="([^"]+)"', text) if html.unescape(each).startswith(start)
    ]


async def test_a_jump_is_a_sentence_that_leads_to_its_requests(running: Running, member: Browser) -> None:
    """On the team's page; its link narrows the spend, whose bars, rows and requests are of it alone."""
    await history(running)
    overview = (await member.get("/dashboard/teams/team_a")).text
    changes = overview[overview.index('id="changes"') :][:4_000]
    assert "large" in changes
    assert "new since" in changes
    (narrowed, *_) = links(changes, f"{TEAM}?from=")
    page = (await member.get(narrowed)).text
    assert "Only " in page
    for told in (changes, page):
        assert re.search(r"\d{4}-\d{2}-\d{2}[^<]*, beside \d{4}-\d{2}-\d{2}", told), "what it is compared with"
    requests = links(page, "/dashboard/teams/team_a/requests?")
    assert requests
    found = (await member.get(requests[0])).text
    assert "/requests/j" in found
    assert "/requests/h" not in found


async def test_days_lead_to_hours_to_minutes_to_requests(running: Running, member: Browser) -> None:
    """Each bar to the next finer one, with the filters kept."""
    await history(running)
    day = iso(JUMP_DAY)[:10]
    days = (await member.get(f"{TEAM}?tag=nightly")).text
    (to_day,) = [each for each in links(days, "?") if f"from={day}&to={day}" in each]
    hours = (await member.get(TEAM + to_day)).text
    assert "Cost by hour and model" in hours
    (to_hour, *_) = [each for each in links(hours, "?") if f"hour={day}T15" in each]
    assert "tag=nightly" in to_hour
    minutes = (await member.get(TEAM + to_hour.replace("%3A", ":"))).text
    assert "Cost by minute and model" in minutes
    minute = [each for each in links(minutes, "/dashboard/teams/team_a/requests?") if f"{day}T15%3A00%3A00Z" in each]
    assert minute
    assert "tag=nightly" in minute[0]


@pytest.mark.parametrize("by", ["key", "model", "tag", "tier", "provider"])
async def test_parts_add_up_to_what_was_spent(running: Running, member: Browser, by: str) -> None:
    """By every dimension, of the team alone, and the CSV has them exactly."""
    await history(running)
    query = f"from={iso(TODAY - 3 * DAY_US)[:10]}&to={iso(TODAY - DAY_US)[:10]}&by={by}"
    answer = await member.get(f"{TEAM}?{query}&format=csv&table=parts")
    assert answer.status == 200
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    hours = (TODAY - JUMP) // HOUR_US
    assert sum(Decimal(row["cost_usd"]) for row in rows) == 5 * hours + Decimal("0.001") * 72
    assert sum(Decimal(row["before_usd"]) for row in rows) == Decimal("0.001") * 72


async def test_a_time_that_is_not_over_says_where_its_rows_end(running: Running, member: Browser) -> None:
    """The chart goes on to now; the rows, and the name of their file, to the last full hour."""
    now_us = wall_us()
    if now_us % HOUR_US < 2 * 10**6 or now_us % DAY_US < 2 * HOUR_US:
        pytest.skip("an hour or a day has just begun")
    hour_us = now_us - now_us % HOUR_US
    await keep(
        running,
        [
            asked("now", at_us=hour_us + 10**6, cost_nanousd=7 * 10**9),
            asked("before", at_us=hour_us - 10**6, cost_nanousd=10**9),
        ],
    )
    page = html.unescape((await member.get(f"{TEAM}?last=24h")).text)
    note = page.partition("These rows and their CSV end there")[2].partition("</p>")[0]
    assert "“Spent” and the chart go on to now" in note
    assert "<time" not in note, "the same moment is told in one zone"
    assert "$8.00" in page
    file = await member.get(f"{TEAM}?last=24h&format=csv&table=parts")
    assert f"-until-{iso(hour_us)[:13]}00Z" in file.headers["content-disposition"]
    assert [Decimal(row["cost_usd"]) for row in csv.DictReader(io.StringIO(file.text))] == [1]
    day = iso(now_us - DAY_US)[:10]
    assert "go on to now" not in (await member.get(f"{TEAM}?from={day}&to={day}")).text


async def test_a_day_by_end_user(running: Running, member: Browser) -> None:
    """Within a day, as their rows are the ledger's; of more days the page says where they are."""
    await history(running)
    day = iso(TODAY - DAY_US)[:10]
    answer = await member.get(f"{TEAM}?from={day}&to={day}&by=end_user&format=csv&table=parts")
    rows = {row["name"]: (row["cost_usd"], row["before_usd"]) for row in csv.DictReader(io.StringIO(answer.text))}
    assert {name: tuple(map(Decimal, costs)) for name, costs in rows.items()} == {
        "ann": (5 * 24, 5 * 10),
        "bob": (Decimal("0.024"), Decimal("0.024")),
    }
    assert "/dashboard/teams/team_a/end-users" in (await member.get(f"{TEAM}?by=end_user")).text


async def test_the_organisation_by_team_and_one_team_of_it(running: Running, finance: Browser, member: Browser) -> None:
    """A team is a row and a choice; members of a team have no such page, and another organisation's team is not there."""
    await history(running)
    whole = (await finance.get(WHOLE)).text
    assert html.escape(EVIL) in whole
    assert EVIL not in whole
    of_team = (await finance.get(f"{WHOLE}?team=team_b&by=model")).text
    assert "large" in of_team
    assert (await finance.get(f"{WHOLE}?team=fjord-lab")).status == 404
    assert (await member.get(WHOLE)).status in {403, 404}
    assert (await member.get("/dashboard/teams/team_b/spend")).status == 404


@pytest.mark.parametrize(
    "query",
    ["last=24h", "last=3h", "month=2026-10", "from=2026-01-01&to=2026-11-01", "hour=2026-11-24T99", "from=x", "end_user=ann",
     "by=end_user&from=2026-10-01&to=2026-11-20", "of=end_user", "of=tag&against=week", "key=%00", "last=9h&by=nonsense",
     "from=2025-12-01&to=2026-11-20&end_user=ann", "hour=9999-12-31T23", "hour=1970-01-01T00&against=week"],
)  # fmt: skip
async def test_any_address_is_a_page(running: Running, member: Browser, query: str) -> None:
    """Also one that asks for too much, or for nothing."""
    await keep(running, [asked("x", end_user="ann"), asked("y", at_us=wall_us() - 2 * HOUR_US)])
    answer = await member.get(f"{TEAM}?{query}")
    assert answer.status == 200, answer.text[:300]
    assert ">None" not in answer.text


def test_the_address_holds_everything() -> None:
    """Every change keeps the rest, a mail address is asked for as it is booked, and the time's parameters exclude each other."""
    found = asked_of(
        {"from": "2026-11-24", "to": "2026-11-24", "key": "k", "end_user": "a@b.c"}, NOW_US, of_organisation=False
    )
    assert found.values["end_user"].startswith("digest-")
    assert found.href(model="gpt 4") == "?from=2026-11-24&to=2026-11-24&key=k&end_user=a%40b.c&model=gpt+4"
    assert found.href(last="3h") == "?key=k&end_user=a%40b.c&last=3h"
    assert found.href(key="") == "?from=2026-11-24&to=2026-11-24&end_user=a%40b.c"
