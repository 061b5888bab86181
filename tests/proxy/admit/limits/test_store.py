"""Limits that people set are kept exactly, in both databases, and one organisation's are its own."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.errors import AccountsError
from accounts.keys import Pepper
from accounts.store import AccountStore
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.limit_tables import LimitRule
from proxy.admit.limits.rules import ANY_ID, BadLimit, Place, Rule, UnknownLimit
from proxy.admit.limits.store import MAX_RULES, LimitStore

PEPPER = Pepper(id="p1", secret=b"p" * 32)
TEAM = Place("team", "team_a")
NOW_US = 1_000_000


@pytest.fixture
async def accounts(engine: AsyncEngine) -> AccountStore:
    made = AccountStore(engine)
    await made.create_team("team_a")
    await made.create_organisation("rival")
    await made.create_team("team_r", organisation_id="rival")
    return made


@pytest.fixture
def store(engine: AsyncEngine, accounts: AccountStore) -> LimitStore:
    assert accounts is not None
    return LimitStore(engine, lambda: NOW_US)


def rule(place: Place, **limits: int | None) -> Rule:
    return Rule(place=place, limits=Limits(**limits))


def largest() -> Limits:
    return Limits(
        requests_per_minute=100_000_000,
        request_burst=100_000_000,
        tokens_per_minute=100_000_000_000,
        token_burst=100_000_000_000,
        concurrency=1_000_000,
    )


async def test_what_is_put_is_there(store: LimitStore) -> None:
    """The largest values too; a second one for the same takes the first one's place."""
    assert await store.put(Rule(place=TEAM, limits=largest()))
    assert [each.limits for each in await store.all()] == [largest()]
    assert not await store.put(rule(TEAM, requests_per_minute=0))
    (kept,) = await store.all()
    assert (kept.place, kept.limits, kept.updated_us) == (TEAM, Limits(requests_per_minute=0), NOW_US + 1)


async def test_values_change_one_at_a_time(store: LimitStore) -> None:
    """What is not named stays, None takes the configuration's again, and a rule that says nothing is gone."""
    await store.change(TEAM, {"requests_per_minute": 60, "concurrency": 3})
    made = await store.change(TEAM, {"requests_per_minute": 0, "request_burst": None})
    assert made.limits == Limits(requests_per_minute=0, concurrency=3)
    assert await store.all() == [made]
    await store.change(TEAM, {"concurrency": None})
    assert (await store.change(TEAM, {"requests_per_minute": None})).limits == Limits()
    assert await store.all() == []
    assert (await store.change(TEAM, {"concurrency": None})).limits == Limits()


async def test_removing(store: LimitStore) -> None:
    """Only the one that is named goes, and what is not there is told."""
    on_model = Place("team", "team_a", "gpt-4o")
    await store.put(rule(TEAM, concurrency=1))
    await store.put(rule(on_model, concurrency=2))
    assert (await store.remove(TEAM)).limits == Limits(concurrency=1)
    assert [each.place for each in await store.all()] == [on_model]
    for place in (TEAM, Place("key", "key_nowhere"), Place("model", ANY_ID, "gpt-4o")):
        with pytest.raises(UnknownLimit, match="there is no limit for"):
            await store.remove(place)


REFUSED: list[tuple[Place, dict[str, Any]]] = [
    (Place("tag", "x"), {"concurrency": 1}),  # type: ignore[arg-type]
    (Place("model", "team_a", "gpt-4o"), {"concurrency": 1}),
    (Place("model", ANY_ID), {"concurrency": 1}),
    (Place("team", ANY_ID, "gpt-4o"), {"concurrency": 1}),
    (Place("team", ""), {"concurrency": 1}),
    (Place("team", "a\x00b"), {"concurrency": 1}),
    (Place("team", "\udc80"), {"concurrency": 1}),
    (Place("team", "t" * 65), {"concurrency": 1}),
    (Place("model", ANY_ID, "m" * 129), {"concurrency": 1}),
    (Place("model", ANY_ID, "a\nb"), {"concurrency": 1}),
    (TEAM, {}),
    (TEAM, {"requests_per_minute": -1}),
    (TEAM, {"requests_per_minute": 100_000_001}),
    (TEAM, {"tokens_per_minute": 2**63}),
    (TEAM, {"request_burst": 0, "requests_per_minute": 5}),
    (TEAM, {"token_burst": 0}),
    (TEAM, {"concurrency": 1_000_001}),
    (Place("team", "team_a", "gpt-4o"), {"token_burst": 5}),
]


async def test_what_cannot_be_kept_is_refused(store: LimitStore) -> None:
    """Also what the database itself would not take; nothing is kept of it."""
    for place, limits in REFUSED:
        with pytest.raises(BadLimit):
            await store.put(rule(place, **limits))
        if limits:
            with pytest.raises(BadLimit):
                await store.change(place, limits)
        assert await store.all() == [], (place, limits)


async def test_nobody_is_limited_who_is_not_there(store: LimitStore) -> None:
    """A misspelt id would limit nobody; a model may be limited before it is configured."""
    for place in (Place("organisation", "no"), Place("team", "team_z"), Place("key", "key_z")):
        with pytest.raises(AccountsError, match="there is no"):
            await store.put(rule(place, concurrency=1))
    await store.put(rule(Place("organisation", "default"), concurrency=1))
    assert await store.put(rule(Place("model", ANY_ID, "Größer/als 1"), concurrency=1))


async def test_an_organisation_has_its_own(store: LimitStore, accounts: AccountStore) -> None:
    """Its own, its teams' and their keys'; neither another's nor what is set for everybody together."""
    key = (await accounts.create_key("team_a", "ci", PEPPER)).key_id
    theirs = (await accounts.create_key("team_r", "ci", PEPPER)).key_id
    own = [Place("key", key), Place("key", key, "gpt-4o"), Place("organisation", "default"), TEAM]
    rivals = [Place("key", theirs), Place("organisation", "rival"), Place("team", "team_r")]
    for place in (*own, *rivals, Place("model", ANY_ID, "gpt-4o")):
        await store.put(rule(place, concurrency=1))
    assert [each.place for each in await store.of_organisation("default")] == own
    assert [each.place for each in await store.of_organisation("rival")] == rivals
    assert await store.of_organisation("nowhere") == []
    assert len(await store.all()) == 8


async def test_every_change_is_marked(store: LimitStore) -> None:
    """Though the clock stands still."""
    marks = [await store.mark()]
    for limit in (1, 2, 2):
        await store.put(rule(TEAM, concurrency=limit))
        marks.append(await store.mark())
    await store.put(rule(Place("organisation", "default"), concurrency=1))
    marks.append(await store.mark())
    await store.remove(TEAM)
    marks.append(await store.mark())
    assert len(set(marks)) == len(marks)
    assert await store.mark() == marks[-1]


async def test_two_who_set_the_same_at_once(store: LimitStore) -> None:
    """Neither fails, and one of them is what holds."""
    limits = range(1, 7)
    await asyncio.gather(*(store.put(rule(TEAM, concurrency=limit)) for limit in limits))
    (kept,) = await store.all()
    assert kept.limits.concurrency in limits


async def test_there_is_an_end_to_rules(store: LimitStore, engine: AsyncEngine) -> None:
    """Each process reads them all; what is there can still be changed."""
    nothing = dict.fromkeys(Limits.__struct_fields__)
    rows = [
        {"scope": "model", "scope_id": ANY_ID, "model": f"m{number}", **nothing, "concurrency": 1, "updated_us": 1}
        for number in range(MAX_RULES)
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(LimitRule), rows)
    with pytest.raises(BadLimit, match="remove some first"):
        await store.put(rule(TEAM, concurrency=1))
    assert not await store.put(rule(Place("model", ANY_ID, "m1"), concurrency=2))
    assert (await store.mark()).rules == len(await store.all()) == MAX_RULES
