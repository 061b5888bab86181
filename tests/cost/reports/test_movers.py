"""What changed against the time before: exact parts, since when, and the sentence, on SQLite and on PostgreSQL."""

import math
import random
from datetime import date, timedelta
from fractions import Fraction
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.calendar import Calendar
from cost.dimensions import Dimension, UsageFilters
from cost.ledger.entries import Entry
from cost.reports.change_point import find_step
from cost.reports.compared import ComparedQuery, ComparedReader, Measured, Window, longest_us, parts_of, window_of
from cost.reports.minutes import MinuteRow, read_minutes
from cost.reports.movers import read_movers, sentence, times
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.times import DAY_US, HOUR_US
from tests.cost.entries import settle
from tests.cost.reports.two_organisations import keep

MONDAY: int = 1_774_828_800_000_000
"""2026-03-30, a Monday, in UTC."""
ACME = ReadScope(organisation_id="acme", team_id=None)
TEAM = ReadScope(organisation_id="acme", team_id="search")


def shifted(start_us: int, end_us: int, shift_us: int) -> Window:
    """A time beside the one so long before it, in UTC."""
    return Window(
        start_us=start_us, end_us=end_us, previous_start_us=start_us - shift_us, previous_end_us=end_us - shift_us
    )


FORTNIGHT = shifted(MONDAY + 7 * DAY_US, MONDAY + 14 * DAY_US, 7 * DAY_US)
TUESDAY_14: int = MONDAY + 8 * DAY_US + 14 * HOUR_US
BY: tuple[Dimension, ...] = ("key", "model")


def call(request_id: str, at_us: int, **changes: Any) -> Entry:
    usual: dict[str, Any] = {
        "organisation_id": "acme",
        "team_id": "search",
        "key_id": "key_00000000000a",
        "target_id": "gpt-4o",
        "at_us": at_us,
        "input_tokens": 800,
        "output_tokens": 200,
        "cost_nanousd": 1_000_000_000,
        "served": True,
    }
    return settle(request_id, **{**usual, **changes})


def jump() -> list[Entry]:
    """Two weeks of a call an hour; from Tuesday of the second on three, each of 1.4 times the tokens at the same price a token."""
    entries = [call(f"flat{hour}", MONDAY + hour * HOUR_US, key_id="key_00000000000b") for hour in range(14 * 24)]
    for hour in range(14 * 24):
        at_us = MONDAY + hour * HOUR_US
        many, factor = (3, 7) if at_us >= TUESDAY_14 else (1, 5)
        entries += [
            call(
                f"a{hour}/{place}", at_us + place,
                input_tokens=160 * factor, output_tokens=40 * factor, cost_nanousd=200_000_000 * factor,
            )
            for place in range(many)
        ]  # fmt: skip
    return entries


amounts = st.integers(0, 10**15)
measured = st.builds(
    Measured,
    asked_nanousd=amounts,
    posted_nanousd=st.integers(-(10**12), 10**12),
    attempts=st.integers(0, 10**6),
    input_tokens=st.integers(0, 10**9),
    output_tokens=st.integers(0, 10**9),
)


@given(measured, measured)
def test_parts_add_up_and_factors_multiply_to_the_change(before: Measured, now: Measured) -> None:
    """To the nano-dollar, whatever the figures."""
    parts = parts_of(before, now)
    whole = parts.requests_nanousd + parts.tokens_nanousd + parts.price_nanousd + parts.posted_nanousd
    assert whole == now.cost_nanousd - before.cost_nanousd
    if parts.requests and parts.price is not None:
        product = parts.requests * (1 if parts.tokens is None else parts.tokens) * parts.price
        assert product == Fraction(now.asked_nanousd, before.asked_nanousd)


def test_a_single_cause_is_all_of_the_change() -> None:
    """Twice the calls, twice the tokens or twice the price alone are the whole change, and it runs backwards alike."""
    one = {"attempts": 10, "input_tokens": 900, "output_tokens": 100, "asked_nanousd": 5_000}
    before = Measured(**one)
    calls = Measured(attempts=20, input_tokens=1_800, output_tokens=200, asked_nanousd=10_000)
    tokens = Measured(attempts=10, input_tokens=1_900, output_tokens=100, asked_nanousd=10_000)
    price = Measured(**{**one, "asked_nanousd": 10_000})
    for now, place in ((calls, 0), (tokens, 1), (price, 2)):
        for first, second, sign in ((before, now, 1), (now, before, -1)):
            parts = parts_of(first, second)
            found = [parts.requests_nanousd, parts.tokens_nanousd, parts.price_nanousd]
            assert found == [sign * 5_000 if at == place else 0 for at in range(3)]


async def test_a_planted_tuesday_is_found(engine: AsyncEngine) -> None:
    """The key and model that changed, by how much, by which factors, and the very hour; what did not change is not told."""
    await keep(engine, jump())
    query = ComparedQuery(scope=TEAM, window=FORTNIGHT, group_by=BY)
    found = await read_movers(ComparedReader(engine), query)
    (mover,) = found.movers
    assert mover.row.group == ("key_00000000000a", "gpt-4o")
    after = (MONDAY + 14 * DAY_US - TUESDAY_14) // HOUR_US
    assert mover.row.now.attempts == 7 * 24 + 2 * after
    assert (
        mover.row.change_nanousd == after * (3 * 1_400_000_000 - 1_000_000_000) == found.compared.whole.change_nanousd
    )
    assert mover.row.parts.price == 1
    assert mover.since is not None
    assert (mover.since.at_us, mover.since.how) == (TUESDAY_14, "step")
    told = sentence(mover, BY, lambda _, value: {"key_00000000000a": "search-prod"}.get(value, value), FORTNIGHT.end_us)
    assert (
        told
        == "+$416: key “search-prod”, gpt-4o, since Tuesday 14:00, 2.5 \u00d7 the requests, 1.4 \u00d7 the tokens each"
    )


async def test_one_day_is_seen_beside_its_fortnight(engine: AsyncEngine) -> None:
    """Tuesday against Monday has its hour too: two days alone would tell nothing."""
    await keep(engine, jump())
    window = shifted(MONDAY + 8 * DAY_US, MONDAY + 9 * DAY_US, DAY_US)
    (mover,) = (await read_movers(ComparedReader(engine), ComparedQuery(scope=TEAM, window=window, group_by=BY))).movers
    assert mover.since is not None
    assert mover.since.at_us == TUESDAY_14


async def test_new_gone_posted_rotated_and_others_tenants(engine: AsyncEngine) -> None:
    """What is new or gone says so by its hours; postings are a part of their own; a key's successor goes on with its figures; nobody
    sees another team's or organisation's.
    """
    second = FORTNIGHT.start_us
    entries = [
        *(call(f"n{hour}", second + (30 + hour) * HOUR_US, target_id="new") for hour in range(5)),
        *(call(f"g{hour}", MONDAY + hour * HOUR_US, target_id="gone") for hour in range(6)),
        *(call(f"r{hour}", MONDAY + hour * DAY_US, target_id="kept", key_id="key_00000000000c") for hour in range(7)),
        *(call(f"s{hour}", second + hour * DAY_US, target_id="kept", key_id="key_00000000000c.d") for hour in range(7)),
        call("fix", second, entry="adjust", origin="correction", target_id="kept", key_id="key_00000000000c", cost_nanousd=77, input_tokens=0, output_tokens=0),
        *(call(f"o{hour}", second + hour * HOUR_US, organisation_id="rival", team_id="x", target_id="theirs") for hour in range(3)),
        *(call(f"p{hour}", second + hour * HOUR_US, team_id="other", target_id="others") for hour in range(3)),
    ]  # fmt: skip
    await keep(engine, entries)
    reader = ComparedReader(engine)
    found = await read_movers(reader, ComparedQuery(scope=TEAM, window=FORTNIGHT, group_by=BY, limit=50))
    told = [sentence(each, BY, lambda _, value: value, FORTNIGHT.end_us + 30 * DAY_US) for each in found.movers]
    assert told == [
        "-$6.00: key “key_00000000000a”, gone, gone since 30 March 06:00, no requests any more",
        "+$5.00: key “key_00000000000a”, new, new since 7 April 06:00, 5 requests, none before",
        "+$0.000000077: key “key_00000000000c”, kept, +$0.000000077 of it posted by the books",
    ]
    assert found.compared.whole.change_nanousd == -1_000_000_000 + 77
    everything = await read_movers(reader, ComparedQuery(scope=ACME, window=FORTNIGHT, group_by=("team",), limit=1))
    assert [each.row.group for each in everything.movers] == [("other",)]
    others = everything.compared.others
    assert others.change_nanousd + everything.movers[0].row.change_nanousd == everything.compared.whole.change_nanousd


@pytest.mark.parametrize("order", ["change", "cost"])
@pytest.mark.parametrize("group_by", [("key",), ("team", "key", "model"), ("tag", "model"), ("team",)])
async def test_the_first_of_many_are_those_of_all(
    engine: AsyncEngine, group_by: tuple[Dimension, ...], order: Literal["change", "cost"]
) -> None:
    """A few groups that the database chooses by their cost are the first of all that it would tell of, with the same figures; also
    where costs are equal, a key was replaced and a group was there in one of both times alone.
    """
    chance = random.Random(7)
    entries = [
        call(
            f"m{number}",
            MONDAY + chance.randrange(14 * 24) * HOUR_US,
            key_id=chance.choice([f"key_{chance.randrange(9):012x}", "key_00000000000c.d"]),
            team_id=f"team_{chance.randrange(5)}",
            target_id=chance.choice(["a", "b"]),
            tag=chance.choice(["", "x", "y"]),
            cost_nanousd=chance.choice([10, 10, 20, 1_000]),
        )
        for number in range(300)
    ]
    await keep(engine, entries)
    reader = ComparedReader(engine)
    query = ComparedQuery(scope=ACME, window=FORTNIGHT, group_by=group_by, order=order, limit=200)
    every = (await reader.read(query)).rows
    for limit in (1, 3, 40):
        assert (await reader.read(msgspec.structs.replace(query, limit=limit))).rows == every[:limit]


async def test_end_users_come_from_the_ledger(engine: AsyncEngine) -> None:
    """They are in no roll-up, and are compared alike; a filter holds for both times."""
    second = FORTNIGHT.start_us
    await keep(
        engine,
        [
            call("e1", MONDAY, end_user="ann"),
            *(call(f"e{hour}", second + hour, end_user="ann") for hour in range(2, 5)),
            call("e9", second, end_user="bob"),
        ],
    )
    reader = ComparedReader(engine)
    query = ComparedQuery(scope=TEAM, window=FORTNIGHT, group_by=("end_user",), order="cost")
    rows = (await reader.read(query)).rows
    assert [(row.group, row.now.attempts, row.before.attempts) for row in rows] == [(("ann",), 3, 1), (("bob",), 1, 0)]
    only = ComparedQuery(scope=TEAM, window=FORTNIGHT, filters=UsageFilters(end_user=("bob",)))
    assert (await reader.read(only)).whole.change_nanousd == 1_000_000_000


async def test_half_a_day_is_compared_with_the_half_before(engine: AsyncEngine) -> None:
    """Though both together are a whole day."""
    await keep(engine, [call("x", MONDAY + HOUR_US), *(call(f"y{at}", MONDAY + 13 * HOUR_US + at) for at in range(3))])
    window = shifted(MONDAY + DAY_US // 2, MONDAY + DAY_US, DAY_US // 2)
    whole = (await ComparedReader(engine).read(ComparedQuery(scope=TEAM, window=window))).whole
    assert (whole.before.attempts, whole.now.attempts) == (1, 3)


def test_what_is_not_over_is_compared_as_far_as_it_is() -> None:
    """A day until its last full hour, a month until its last full day; nothing where nothing is over, or where too much is asked."""
    now_us = MONDAY + 40 * DAY_US + 14 * HOUR_US + 1
    today = MONDAY + 40 * DAY_US
    day = window_of(today, today + DAY_US, now_us, longest_us=31 * DAY_US)
    assert day == shifted(today, today + 14 * HOUR_US, DAY_US)
    month = window_of(today - 29 * DAY_US, today + DAY_US, now_us, longest_us=366 * DAY_US)
    assert month == shifted(today - 29 * DAY_US, today, 30 * DAY_US)
    week = window_of(today - 3 * DAY_US, today, now_us, "week", longest_us=31 * DAY_US)
    assert week.previous_start_us == today - 10 * DAY_US
    assert not window_of(today, today + DAY_US, today, longest_us=31 * DAY_US).is_compared
    limit = longest_us(UsageFilters(end_user=("ann",)), (), today - 29 * DAY_US, today)
    assert not window_of(today - 29 * DAY_US, today, now_us, longest_us=limit).is_compared
    with pytest.raises(BadQuery):
        ComparedQuery(scope=TEAM, window=FORTNIGHT, limit=1_000)


@pytest.mark.parametrize(
    ("zone", "day"), [("Europe/Berlin", date(2026, 3, 29)), ("Asia/Kolkata", date(2026, 3, 29)), ("America/New_York", date(2026, 11, 1))]
)  # fmt: skip
def test_days_of_a_zone_are_compared_with_days(zone: str, day: date) -> None:
    """Whole ones, however long, also where an hour was skipped; what is not over with as many hours since midnight."""
    calendar, one = Calendar(zone), timedelta(days=1)
    start_us, end_us = calendar.days(day, day)
    found = window_of(start_us, end_us, end_us, calendar=calendar, longest_us=31 * DAY_US)
    assert found.spans == (calendar.days(day - one, day - one), (start_us, end_us))
    week = window_of(*calendar.days(day - 6 * one, day), end_us, "week", calendar, longest_us=14 * DAY_US)
    assert week.spans[0] == calendar.days(day - 13 * one, day - 7 * one)
    assert week.is_compared
    now_us = start_us + 10 * HOUR_US + 7
    today = window_of(start_us, end_us, now_us, calendar=calendar, longest_us=31 * DAY_US)
    gone_us = now_us - now_us % HOUR_US - start_us
    before_us = calendar.start(day - one)
    assert today.spans == ((before_us, before_us + gone_us), (start_us, start_us + gone_us))
    month = window_of(*calendar.days(day - 29 * one, day), now_us, calendar=calendar, longest_us=366 * DAY_US)
    assert month.spans == (
        calendar.days(day - 59 * one, day - 31 * one),
        calendar.days(day - 29 * one, day - one),
    )


async def test_since_when_is_told_by_the_clock_there(engine: AsyncEngine) -> None:
    """In India a day begins within an hour: what is new or gone there is of its day, and the hour is the one that clocks show."""
    calendar = Calendar("Asia/Kolkata")
    span = (date(2026, 4, 6), date(2026, 4, 12))
    first_us = calendar.start(span[0])
    await keep(
        engine,
        [
            *jump(),
            call("n", first_us, target_id="new"),
            call("g", first_us - 1, target_id="gone"),
        ],
    )
    window = window_of(*calendar.days(*span), MONDAY + 30 * DAY_US, "previous", calendar, longest_us=31 * DAY_US)
    found = await read_movers(ComparedReader(engine), ComparedQuery(scope=TEAM, window=window, group_by=("model",)))
    sentences = {
        each.row.group[0]: sentence(each, ("model",), lambda _, value: value, window.end_us + 30 * DAY_US, calendar)
        for each in found.movers
    }
    assert "new since 6 April 00:00" in sentences["new"]
    assert "gone since 6 April 00:00" in sentences["gone"]
    assert "since 7 April 19:30" in sentences["gpt-4o"]
    months = window_of(
        *calendar.days(date(2026, 3, 16), span[1]), MONDAY + 30 * DAY_US, "previous", calendar, longest_us=366 * DAY_US
    )
    by_day = await read_movers(ComparedReader(engine), ComparedQuery(scope=TEAM, window=months, group_by=("model",)))
    (new,) = [each for each in by_day.movers if each.row.group == ("new",)]
    assert sentence(new, ("model",), lambda _, value: value, window.end_us + 30 * DAY_US, calendar).startswith(
        "+$1.00: new, new since 6 April, 1 request"
    )


def _hours(chance: random.Random, *, since: int | None, factor: float) -> list[float]:
    """A fortnight of costs with a daily rhythm, quiet weekends, and hours that hang together."""
    found, drift = [], 0.0
    for hour in range(14 * 24):
        drift = 0.7 * drift + chance.gauss(0, 0.15)
        usual = math.exp(1.5 * math.sin(2 * math.pi * (hour % 24) / 24)) * (0.3 if hour // 24 % 7 >= 5 else 1)
        risen = factor if since is not None and hour >= since else 1
        found.append(usual * risen * math.exp(drift + chance.gauss(0, 0.3)))
    return found


SEASONS = [(hour % 24, hour // 24 % 7 >= 5) for hour in range(14 * 24)]


def test_a_step_is_found_within_hours_and_noise_is_no_step() -> None:
    """Of fortnights without a step few have one told, and one that a wild hour has is none; three times the cost since ten hours ago is
    found, and nearly where it is.
    """
    chance = random.Random(7)
    quiet = [find_step(_hours(chance, since=None, factor=1), SEASONS, a_day=24, rises=True) for _ in range(60)]
    assert sum(each is not None for each in quiet) <= 3
    wild = _hours(chance, since=None, factor=1)
    wild[200] *= 500
    assert find_step(wild, SEASONS, a_day=24, rises=True) is None
    since = 8 * 24 + 14
    weekdays = [
        find_step(_hours(chance, since=since, factor=3)[: 9 * 24], SEASONS[: 9 * 24], a_day=24, rises=True)
        for _ in range(40)
    ]
    there = sorted(abs(each.place - since) for each in weekdays if each is not None)
    assert len(there) >= 20
    assert there[len(there) // 2] <= 2


def test_a_step_at_a_weekend_is_seen_beside_all_days_and_a_weekend_is_no_step() -> None:
    """Where two weekend days are all that is known, the days between them are part of the noise."""
    steady = [1.0 if hour < 12 * 24 + 14 else 3.0 for hour in range(14 * 24)]
    found = find_step(steady, SEASONS, a_day=24, rises=True)
    assert found is not None
    assert found.place == 12 * 24 + 14
    quiet = [0.2 if weekend else 1.0 for _, weekend in SEASONS]
    assert find_step(quiet, SEASONS, a_day=24, rises=False) is None
    assert find_step([1 - each for each in quiet], SEASONS, a_day=24, rises=True) is None


@pytest.mark.parametrize("seed", range(40))
def test_a_few_cents_move_no_step(seed: int) -> None:
    """A steady job trebles on a Saturday at 14:00; a handful of stray calls in the days before say nothing of when."""
    chance, jump = random.Random(seed), 13 * 24 + 14
    seasons = [(hour % 24, (hour // 24) % 7 in {0, 6}) for hour in range(14 * 24)]
    values = [2.0 if hour < jump else 6.0 for hour in range(14 * 24)]
    for _ in range(6):
        values[chance.randrange(13 * 24)] += chance.choice([0.02, 0.05, 0.12])
    found = find_step(values, seasons, a_day=24, rises=True)
    assert found is not None
    assert found.place == jump


def test_factors_read_as_people_say_them() -> None:
    """Large ones without decimals, small ones with two digits."""
    assert [times(Fraction(value)) for value in ("3.14", "1.07", "0.62", "0.031", "41.4", "1234")] == [
        "3.1 \u00d7", "1.07 \u00d7", "0.62 \u00d7", "0.031 \u00d7", "41 \u00d7", "1,234 \u00d7"
    ]  # fmt: skip


async def test_minutes_come_from_the_ledger_and_are_bounded(engine: AsyncEngine) -> None:
    """By model, of the scope and the filter alone."""
    await keep(
        engine,
        [
            call("m1", MONDAY + 61_000_000),
            call("m2", MONDAY + 62_000_000, tag="red"),
            call("m3", MONDAY, organisation_id="rival"),
        ],
    )
    found = await read_minutes(engine, TEAM, UsageFilters(), MONDAY, MONDAY + HOUR_US)
    assert found == [MinuteRow(MONDAY + 60_000_000, "gpt-4o", 2, 2_000_000_000)]
    red = await read_minutes(engine, TEAM, UsageFilters(tag=("red",)), MONDAY, MONDAY + HOUR_US)
    assert [each.requests for each in red] == [1]
    with pytest.raises(BadQuery):
        await read_minutes(engine, TEAM, UsageFilters(), MONDAY, MONDAY + 5 * HOUR_US)
