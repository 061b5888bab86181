"""The tables of what the guard found: twice is once, hosts add up, organisations are apart, and nothing stays for ever."""

from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore
from cost.calendars import calendar_of, set_calendar
from cost.times import DAY_US, HOUR_US
from guard.ruleset import Action, Finding
from proxy.settle.findings.counting import FindingsTold, Found, FoundCount, GuardedRequest
from proxy.settle.findings.store import KEPT_US, MOST_PER_TEAM, REQUESTS_KEPT_US, FindingStore

NOW_US = 490_000 * HOUR_US


def told(
    requests: int, *, boot_id: str = "b", hour_us: int = NOW_US, action: Action = "mask", **who: Any
) -> FindingsTold:
    whose = {"organisation_id": "acme", "team_id": "team", **who}
    found = Found(hour_us=hour_us, name="email", label="email", action=action, side="input", **whose)
    return FindingsTold(boot_id, (FoundCount(found, requests, 3 * requests),), 1)


def kept(request_id: str, at_us: int = NOW_US, *, team_id: str = "team", organisation_id: str = "acme") -> FindingsTold:
    request = GuardedRequest(
        request_id=request_id,
        at_us=at_us,
        organisation_id=organisation_id,
        team_id=team_id,
        findings=(Finding("email", "email", "mask", 2),),
    )
    return FindingsTold("b", (), 1, (request,))


async def total(store: FindingStore, team_id: str | None = "team", organisation_id: str = "acme") -> tuple[int, int]:
    found = await store.read(organisation_id, team_id, 0, NOW_US + DAY_US)
    return sum(each.requests for each in found), sum(each.findings for each in found)


async def test_a_count_is_replaced_by_a_larger_one(engine: AsyncEngine) -> None:
    """What a process tells twice, or late, changes nothing; that of other processes and hosts is added; teams are apart."""
    store = FindingStore(engine)
    for count in (3, 5, 5, 4):
        await store.keep(told(count))
    await store.keep(told(10, boot_id="other"))
    await store.keep(told(7, organisation_id="rival"))
    await store.keep(told(2, team_id="second"))
    assert await total(store) == (15, 45)
    assert await total(store, "second") == (2, 6)
    assert await total(store, None) == (17, 51)
    assert await total(store, organisation_id="rival") == (7, 21)
    assert await total(store, None, "nobody") == (0, 0)


async def test_hours_of_processes_become_one_and_nothing_is_lost(engine: AsyncEngine) -> None:
    """Once: a second round finds nothing to add, and an hour that still counts is left. After three months they are gone."""
    store = FindingStore(engine)
    for boot_id in ("a", "b", "c"):
        for hour in range(4):
            await store.keep(told(hour + 1, boot_id=boot_id, hour_us=NOW_US + hour * HOUR_US))
    for now_us in (NOW_US + 5 * HOUR_US, NOW_US + 5 * HOUR_US, NOW_US + 20 * HOUR_US):
        await store.roll_up(now_us)
        assert await total(store) == (30, 90)
    # A control plane that was away told it late.
    await store.keep(told(5, boot_id="late"))
    await store.roll_up(NOW_US + 20 * HOUR_US)
    assert await total(store) == (35, 105)
    for now_us in (NOW_US + 2 * DAY_US + 3 * HOUR_US, NOW_US + 3 * DAY_US, NOW_US + 3 * DAY_US):
        await store.roll_up(now_us)
        assert await total(store) == (35, 105)
    await store.roll_up(NOW_US + KEPT_US + 5 * HOUR_US)
    assert await total(store) == (0, 0)


async def test_hours_become_days_of_their_organisation(engine: AsyncEngine) -> None:
    """Not those of UTC: a day in Kiritimati is 14 hours ahead."""
    await AccountStore(engine).create_organisation("acme", "Acme")
    await set_calendar(engine, "acme", "Pacific/Kiritimati", "monday", 0, 0)
    store = FindingStore(engine)
    calendar = await calendar_of(engine, "acme")
    day_us = calendar.start(calendar.day(NOW_US))
    for hour_us in (day_us - HOUR_US, day_us, day_us + 23 * HOUR_US, day_us + 24 * HOUR_US):
        await store.keep(told(1, hour_us=hour_us))
    await store.roll_up(NOW_US + 9 * DAY_US)
    found = await store.by_hour("acme", None, day_us - DAY_US, day_us + 2 * DAY_US)
    assert sorted(found) == [(day_us - DAY_US, "mask", 3), (day_us, "mask", 6), (day_us + DAY_US, "mask", 3)]


async def test_hours_are_told_by_what_was_done(engine: AsyncEngine) -> None:
    """Within the time asked for alone, its end not included."""
    store = FindingStore(engine)
    await store.keep(told(1))
    await store.keep(told(2, team_id="second"))
    await store.keep(told(4, action="block", hour_us=NOW_US + HOUR_US))
    await store.keep(told(9, hour_us=NOW_US + 2 * HOUR_US))
    await store.keep(told(9, organisation_id="rival"))
    found = await store.by_hour("acme", None, NOW_US, NOW_US + 2 * HOUR_US)
    assert sorted(found) == [(NOW_US, "mask", 9), (NOW_US + HOUR_US, "block", 12)]
    assert await store.by_hour("acme", "second", NOW_US, NOW_US + HOUR_US) == [(NOW_US, "mask", 6)]


async def test_requests_are_kept_once_and_read_by_their_team_alone(engine: AsyncEngine) -> None:
    """Also where teams of two organisations ask under one id."""
    store = FindingStore(engine)
    for each in (kept("r1"), kept("r1"), kept("r2", NOW_US + 1), kept("r1", team_id="second"), kept("x" * 300)):
        await store.keep(each)
    assert [each.request_id for each in await store.newest("acme", "team", 2)] == ["r2", "x" * 200]
    assert set(await store.of_requests("acme", "team", ["r1", "r2", "r3"])) == {"r1", "r2"}
    assert await store.of_requests("acme", "team", ["x" * 300]) != {}
    assert await store.of_requests("rival", "team", ["r1"]) == {}
    assert await store.newest("rival", "second", 9) == ()
    assert await store.of_requests("acme", "team", []) == {}


async def test_requests_have_a_bound(engine: AsyncEngine) -> None:
    """The newest of each team stay, for a month."""
    store = FindingStore(engine)
    many = tuple(kept(f"r{number}", NOW_US + number).requests[0] for number in range(MOST_PER_TEAM + 7))
    await store.keep(FindingsTold("b", (), 1, many))
    await store.roll_up(NOW_US)
    assert await store.of_requests("acme", "team", ["r6", "r7"]) == {"r7": many[7].findings}
    await store.roll_up(NOW_US + MOST_PER_TEAM + 7 + REQUESTS_KEPT_US)
    assert await store.newest("acme", "team", 9) == ()
