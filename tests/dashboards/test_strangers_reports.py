"""What users of other gateways' dashboards reported, tried on these pages. Each test names the kind of fault, not the product."""

import csv
import io
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from api.budgets.listing import budget_as_json
from cost.budgets.alerts import Alerts
from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from cost.calendar import Calendar
from cost.calendars import set_calendar
from cost.times import DAY_US, HOUR_US, day_of, start_of, wall_us
from tests.dashboards.pages.teams import asked, keep, running_teams
from tests.running_gateway import PEPPER, Running
from tests.signed_in import Browser, signed_in

TEAM = "/dashboard/teams/team_a"
NOW_US = wall_us()
TODAY = NOW_US - NOW_US % DAY_US
DOLLAR = 10**9


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_teams(tmp_path) as found:
        yield found


@pytest.fixture
async def finance(running: Running) -> AsyncIterator[Browser]:
    async with signed_in(running, "fin@example.com", role="finance") as found:
        yield found


async def rows_of(browser: Browser, path: str) -> list[dict[str, str]]:
    answer = await browser.get(path)
    assert answer.status == 200, answer.text[:500]
    return list(csv.DictReader(io.StringIO(answer.text)))


async def spent(browser: Browser, first: str, last: str) -> Decimal:
    found = await rows_of(browser, f"{TEAM}/spend?from={first}&to={last}&by=model&format=csv&table=parts")
    return sum((Decimal(row["cost_usd"]) for row in found), Decimal(0))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/Los_Angeles"])
async def test_single_days_add_up_to_their_time_in_every_zone(running: Running, finance: Browser, zone: str) -> None:
    """One day does not have its neighbours' spend, and days add up to what the whole time says, in zones of half hours, too."""
    since = Calendar(zone).start(day_of(TODAY - 30 * DAY_US))
    await set_calendar(running.engine, "default", zone, "monday", since, NOW_US)
    entries = [
        asked(f"h{hour}", at_us=TODAY - hour * HOUR_US - 60_000_000, cost_nanousd=DOLLAR) for hour in range(1, 24 * 6)
    ]
    await keep(running, entries)
    days = [day_of(TODAY - number * DAY_US).isoformat() for number in range(4, 1, -1)]
    alone = [await spent(finance, day, day) for day in days]
    assert alone == [24, 24, 24]
    assert await spent(finance, days[0], days[-1]) == sum(alone)


async def test_a_month_to_date_begins_with_the_month(running: Running, finance: Browser) -> None:
    """The last day of the month before is no part of it."""
    first = start_of(day_of(NOW_US).replace(day=1))
    await keep(
        running,
        [
            asked("before", at_us=first - 1_000_000, cost_nanousd=500 * DOLLAR),
            asked("within", at_us=first + 1, cost_nanousd=3 * DOLLAR),
        ],
    )
    month = day_of(NOW_US).replace(day=1).isoformat()
    assert await spent(finance, month, day_of(first).isoformat()) == 3
    page = (await finance.get(TEAM)).text
    assert "$3.00" in page.partition("Spent this month")[2][:300]


async def test_a_filter_by_key_keeps_its_failures_and_its_pages(running: Running, finance: Browser) -> None:
    """By a name that begins another key's name, failed requests too, on every page of the list."""
    pepper = Pepper(id=pepper_id(PEPPER.encode()), secret=PEPPER.encode())
    keys = [await running.accounts.create_key("team_a", name, pepper) for name in ("user01", "user01-cli")]
    entries = [
        asked(
            f"r{number:03}",
            at_us=NOW_US - number * 1_000_000,
            key_id=keys[number % 2].key_id,
            **({"status": 502, "served": False} if number % 4 == 0 else {}),
        )
        for number in range(240)
    ]
    await keep(running, entries)
    rows = await rows_of(finance, f"{TEAM}/requests?key={keys[0].key_id}&format=csv")
    found = [row["request_id"] for row in rows]
    assert len(found) == len(set(found)) == 120
    assert {row["key"].split(" ")[0] for row in rows} == {"user01"}
    assert sum(row["status"] == "502" for row in rows) == 60
    by_name = await rows_of(finance, f"{TEAM}/requests?q=key%3Auser01&format=csv")
    assert [row["request_id"] for row in by_name] == found


async def test_a_failed_request_is_none_without_a_price(running: Running, finance: Browser) -> None:
    """What nobody answered cost nothing; it is not counted among those whose cost is unknown."""
    await keep(
        running,
        [
            asked("failed", at_us=NOW_US - 10**6, status=502, served=False, cost_nanousd=0),
            asked("odd", at_us=NOW_US - 2 * 10**6, cost_nanousd=None),
        ],
    )
    rows = await rows_of(finance, f"{TEAM}/requests?outcome=unpriced&format=csv")
    assert [row["request_id"] for row in rows] == ["odd"]


async def test_a_changed_limit_keeps_what_was_spent(running: Running) -> None:
    """Of whatever size the new limit is; and more than all of it is told as that."""
    store = BudgetStore(running.engine)
    budget = Budget(
        budget_id="b1", organisation_id="default", scope="team", scope_id="team_a", period="year", kind="soft",
        limit_nanousd=10 * DOLLAR,
    )  # fmt: skip
    await store.put(budget)
    await keep(running, [asked("r", at_us=NOW_US - 10**6, cost_nanousd=15 * DOLLAR)])
    for limit, share in ((10, "1.5000"), (100, "0.1500"), (5, "3.0000")):
        await store.set(msgspec.structs.replace(budget, limit_nanousd=limit * DOLLAR))
        told = budget_as_json(await store.get("b1"))
        assert (told["spent_usd"], str(told["share"])) == (15, share)


async def test_a_warning_is_sent_again_in_the_next_period_and_not_before(running: Running) -> None:
    """Once a threshold and period, whatever restarts in between."""
    got: list[str] = []

    async def put(message_id: str, *_rest: object) -> bool:
        is_new = message_id not in got
        got.extend([message_id] if is_new else [])
        return is_new

    clock = [TODAY + 12 * HOUR_US]
    store = BudgetStore(running.engine, lambda: clock[0])
    await store.put(
        Budget(
            budget_id="b1",
            organisation_id="default",
            scope="team",
            scope_id="team_a",
            period="day",
            kind="soft",
            limit_nanousd=DOLLAR,
            webhook="ops",
        )
    )
    for day in range(2):
        await keep(running, [asked(f"d{day}", at_us=TODAY + day * DAY_US + HOUR_US, cost_nanousd=2 * DOLLAR)])
        clock[0] = TODAY + day * DAY_US + 12 * HOUR_US
        for _ in range(2):
            await Alerts(put, {"ops"}).tell(await store.all())
    assert len(got) == len(set(got)) == 6


async def test_a_usual_time_and_the_same_days_chosen_count_alike(running: Running, finance: Browser) -> None:
    """The organisation's spend of the last seven days, and of these days by their dates, is one figure; nothing is told from a cache."""
    await keep(
        running, [asked(f"r{day}", at_us=TODAY - day * DAY_US + HOUR_US, cost_nanousd=DOLLAR) for day in range(1, 40)]
    )
    first, last = (day_of(TODAY - days * DAY_US).isoformat() for days in (6, 0))
    pages = [await finance.get(f"{TEAM}/spend{query}") for query in ("", f"?from={first}&to={last}")]
    told = [page.text.partition(">Spent<")[2][:400].partition("request")[0] for page in pages]
    assert told[0] == told[1]
    assert "$6.00" in told[0]
    assert all("no-store" in page.headers["cache-control"] for page in pages)


async def test_each_way_to_divide_adds_up_to_the_same(running: Running, finance: Browser) -> None:
    """By model, key, tag, user, day and tier: what is exported is as much money and as many requests, with rows of no price and of dead keys."""
    pepper = Pepper(id=pepper_id(PEPPER.encode()), secret=PEPPER.encode())
    keys = [await running.accounts.create_key("team_a", f"k{number}", pepper) for number in range(3)]
    await running.accounts.revoke_key(keys[2].key_id)
    entries = [
        asked(
            f"r{number}",
            at_us=TODAY - (number + 1) * HOUR_US,
            key_id=keys[number % 3].key_id,
            target_id=("gpt-4o", "llama-3-70b")[number % 2],
            tag="" if number % 3 else "nightly",
            end_user="" if number % 4 else '=HYPERLINK("http://x")',
            cost_nanousd=None if number % 10 == 9 else DOLLAR,
            cached_input_tokens=7,
        )
        for number in range(40)
    ]
    await keep(running, entries)
    first, last = day_of(TODAY - 2 * DAY_US).isoformat(), day_of(NOW_US).isoformat()
    told = {}
    for by in ("model", "key", "tag", "tier", "provider"):
        rows = await rows_of(finance, f"{TEAM}/spend?from={first}&to={last}&by={by}&format=csv&table=parts")
        told[by] = (sum(Decimal(row["cost_usd"] or 0) for row in rows), sum(int(row["requests"]) for row in rows))
        assert not any(value.startswith("=") for row in rows for value in row.values())
    assert set(told.values()) == {(Decimal(36), 40)}
    users = f"{TEAM}/spend?from={first}&to={first}&by=end_user&format=csv&table=parts"
    rows = await rows_of(finance, users)
    assert sum(int(row["requests"]) for row in rows) == 16
    assert {row["name"] for row in rows} == {"No end user", '\'=HYPERLINK("http://x")'}


@pytest.mark.parametrize(
    "asked_for",
    [
        "spend?from=2026-11-01&to=2026-11-20&by=end_user&table=parts",
        "spend?from=yesterday&table=parts",
        "?from=x&table=models",
        "end-users?month=2026-13&table=end_users",
        "caching?from=yesterday&table=read",
        "guard?from=yesterday&table=found",
    ],
)
async def test_a_file_is_no_answer_to_another_question(running: Running, finance: Browser, asked_for: str) -> None:
    """What a page cannot show of a time it says beside what it shows instead; a file would pass for another time, or for no spend."""
    await keep(running, [asked("one", at_us=NOW_US - 10**6, cost_nanousd=DOLLAR)])
    path = f"{TEAM}{'' if asked_for.startswith('?') else '/'}{asked_for}&format=csv"
    answer = await finance.get(path)
    assert answer.status == 400
    assert "is shown" not in answer.text
    assert (await finance.get(path.removesuffix("&format=csv"))).status == 200


async def test_tokens_from_caches_are_part_of_prompts_and_of_no_sum_twice(running: Running, finance: Browser) -> None:
    """No share above all of it, models that no cache served count below the line, and tokens read again are not added to those sent."""
    await keep(
        running,
        [
            asked("long", at_us=NOW_US - 10**6, input_tokens=10_000, cached_input_tokens=9_900, output_tokens=10),
            asked("fresh", at_us=NOW_US - 10**6, target_id="large", input_tokens=10_000, output_tokens=10),
        ],
    )
    page = (await finance.get(f"{TEAM}/caching")).text
    assert "49.5 %" in page.partition("Read from caches")[2][:200]
    read = {row["model"]: row for row in await rows_of(finance, f"{TEAM}/caching?format=csv&table=read")}
    assert [(read[model]["tokens"], read[model]["share"]) for model in ("small", "large")] == [
        ("10000", "0.99"),
        ("10000", "0.0"),
    ]
    days = f"from={day_of(NOW_US - DAY_US)}&to={day_of(NOW_US)}"
    sums = (await finance.get(f"{TEAM}?{days}&format=csv&table=models")).text
    assert {row["input_tokens"] for row in csv.DictReader(io.StringIO(sums))} == {"10000"}


async def test_a_key_without_a_budget_has_not_its_teams(running: Running, finance: Browser) -> None:
    """Nor is it told as unlimited: beside its own budgets stands that the team's apply."""
    pepper = Pepper(id=pepper_id(PEPPER.encode()), secret=PEPPER.encode())
    key = await running.accounts.create_key("team_a", "free", pepper)
    await BudgetStore(running.engine).put(
        Budget(
            budget_id="b1", organisation_id="default", scope="team", scope_id="team_a", period="month", kind="hard",
            limit_nanousd=1_234 * DOLLAR,
        )
    )  # fmt: skip
    page = (await finance.get(f"{TEAM}/keys/{key.key_id}")).text
    assert "1,234" not in page
    assert "The team&#39;s budgets apply too." in page


async def test_a_budget_of_a_tenth_of_a_cent_is_not_told_as_nothing(running: Running, finance: Browser) -> None:
    await BudgetStore(running.engine).put(
        Budget(
            budget_id="b1", organisation_id="default", scope="team", scope_id="team_a", period="month", kind="hard",
            limit_nanousd=DOLLAR // 1_000,
        )
    )  # fmt: skip
    await keep(running, [asked("r", at_us=NOW_US - 10**6, cost_nanousd=DOLLAR // 2_000)])
    page = (await finance.get(f"{TEAM}/budgets")).text
    assert "$0.0010" in page
    assert "50.0 %" in page


async def test_a_prompt_that_is_missing_is_no_reason_to_switch_on_what_is_on(
    running: Running, finance: Browser
) -> None:
    """A team that keeps prompts is told why this one is not there, not to keep prompts."""
    await running.accounts.update_team("team_a", learning="prompts")
    await keep(running, [asked("r", at_us=NOW_US - 10**6, status=502, served=False)])
    async with signed_in(running, "mem@example.com", teams={"team_a": "member"}) as member:
        page = (await member.get(f"{TEAM}/requests/r")).text
    told = page.partition("The prompt</h2>")[2].partition("</section>")[0]
    assert "was not kept, or was deleted since" in told
    assert "Policy" not in told


async def test_a_bar_stands_on_the_day_it_is_of(running: Running, finance: Browser) -> None:
    """The first day of a time is not empty, and none is moved to its neighbour, west of Greenwich."""
    zone = "America/Los_Angeles"
    calendar = Calendar(zone)
    await set_calendar(running.engine, "default", zone, "monday", calendar.start(day_of(TODAY - 30 * DAY_US)), NOW_US)
    days = [day_of(TODAY - number * DAY_US) for number in (6, 5, 4)]
    entries = [
        asked(f"{number}-{place}", at_us=at_us, cost_nanousd=number * DOLLAR)
        for number, day in enumerate(days, 1)
        for place, at_us in enumerate((calendar.start(day) + 1, calendar.start(day) + 23 * HOUR_US))
    ]
    await keep(running, entries)
    page = (await finance.get(f"{TEAM}/spend?from={days[0]}&to={days[-1]}")).text
    bars = page.partition("Show as a table")[2].partition("</table>")[0]
    for number, day in enumerate(days, 1):
        row = bars.partition(day.isoformat())[2].partition("</tr>")[0]
        assert f"${2 * number}.00" in row
