"""The history of incidents: one outage is one, over hosts, restarts and an absent database, and its numbers never become less."""

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from api.incidents.history import History
from api.incidents.kept import AGAIN_US, QUIET_US, Share
from api.incidents.scoped import read_incident, read_incidents
from api.incidents.store import KEPT_US, IncidentStore
from cost.times import DAY_US
from gateway.database import make_engine
from tests.api.incidents.seen import seen

NOW_US = 1_775_390_400_000_000
SECOND_US = 1_000_000


async def test_an_incident_opens_and_closes_once(engine: AsyncEngine) -> None:
    """It ends when it was seen last, two quiet minutes later; and is the same one when it comes back soon."""
    history = History(engine)
    await history.note([seen(since_us=NOW_US - 5)], "here", NOW_US)
    (kept,) = history.open
    assert (kept.opened_us, kept.requests, kept.refused, kept.teams, kept.keys) == (NOW_US - 5, 138, 130, 2, 2)
    await history.note([seen()], "here", NOW_US + 10 * SECOND_US)
    quiet_us = NOW_US + 10 * SECOND_US + QUIET_US
    await history.note([], "here", quiet_us)
    assert history.open
    await history.note([], "here", quiet_us + 1)
    assert history.open == []
    (closed,) = await history.store.recent(0)
    assert (closed.incident_id, closed.closed_us) == (kept.incident_id, NOW_US + 10 * SECOND_US)
    await history.note([seen()], "here", quiet_us + SECOND_US)
    assert [each.incident_id for each in history.open] == [kept.incident_id]
    await history.note([], "here", quiet_us + AGAIN_US)
    later_us = quiet_us + 3 * AGAIN_US
    await history.note([seen()], "here", later_us)
    assert [each.opened_us for each in history.open] == [later_us]
    assert len(await history.store.recent(0)) == 2


async def test_a_restart_and_another_host_know_it(engine: AsyncEngine) -> None:
    """What both see is one incident, from its earliest beginning on; what one alone sees stays open."""
    here, there = History(engine), History(engine)
    await here.note([seen(since_us=NOW_US - 5)], "here", NOW_US)
    await there.note([seen(since_us=NOW_US - 9, hurt=())], "there", NOW_US + 1)
    (kept,) = there.open
    assert (kept.opened_us, kept.requests) == (NOW_US - 9, 138)
    await here.note([], "here", NOW_US + QUIET_US)
    assert here.open
    assert here.open[0].is_there("here", NOW_US + SECOND_US)
    again = History(engine)
    await again.read(NOW_US)
    assert again.open == here.open


async def test_what_turns_out_to_be_one_outage_is_one(engine: AsyncEngine) -> None:
    """Two models, then their provider, then one model again: the oldest goes on, the other is a part of it."""
    history = History(engine)
    large = seen("target/large", since_us=NOW_US - 50, targets=("large",))
    await history.note([large, seen()], "here", NOW_US)
    whole = seen(
        "provider/openai", places=("provider/openai", "target/large", "target/small"), targets=("large", "small")
    )
    await history.note([whole], "here", NOW_US + SECOND_US)
    (kept,) = history.open
    assert (kept.subject, kept.opened_us, kept.targets) == ("openai", NOW_US - 50, ("large", "small"))
    assert [each.subject for each in await history.store.recent(0)] == ["openai"]
    weak = msgspec.structs.replace(seen(), severity="warn", text="5% of its last 30 attempts failed", hurt=())
    await history.note([weak], "here", NOW_US + 2 * SECOND_US)
    (kept,) = history.open
    assert (kept.severity, kept.text, kept.requests) == ("bad", whole.text, 138)


async def test_what_happened_without_a_database_is_known_after_it(engine: AsyncEngine) -> None:
    """That it was away, too: the incident is kept with its time once it can be."""
    away = make_engine("postgresql://nobody@127.0.0.1:1/none")
    history = History(away)
    down = seen("database", subject="database", kind="unreachable", targets=(), hurt=(), since_us=NOW_US)
    await history.note([down], "here", NOW_US)
    await away.dispose()
    history.store = IncidentStore(engine)  # type: ignore[misc]
    await history.note([seen()], "here", NOW_US + 10 * SECOND_US)
    assert {each.subject for each in history.open} == {"database", "small"}
    await history.note([], "here", NOW_US + DAY_US)
    ended = {each.subject: each.closed_us for each in await history.store.recent(0)}
    assert ended == {"database": NOW_US, "small": NOW_US + 10 * SECOND_US}


async def test_a_team_sees_its_own_share(engine: AsyncEngine) -> None:
    """And nothing of an incident that did not hurt it, nor of another organisation's team of the same name."""
    history = History(engine)
    rival = Share(organisation_id="rival", team_id="team_a", model="x", requests=7, refused=7)
    await history.note([seen(), seen("target/x", targets=("x",), hurt=(rival,))], "here", NOW_US)
    (own,) = await read_incidents(history.store, 0, organisation_id="default", team_id="team_b")
    assert (own.requests, own.refused, own.teams, [each.team_id for each in own.hurt]) == (48, 40, 1, ["team_b"])
    assert await read_incidents(history.store, 0, organisation_id="default", team_id="team_c") == []
    assert {each.requests for each in await read_incidents(history.store, 0)} == {138, 7}
    whole = await read_incident(history.store, own.kept.incident_id)
    assert whole is not None
    assert [each.team_id for each in whole.hurt] == ["team_a", "team_b"]
    assert await read_incident(history.store, "inc_none") is None


async def test_a_team_finds_its_own_behind_many_of_others(engine: AsyncEngine) -> None:
    """However many came after it: the newest of its own are read, not its own among the newest."""
    history = History(engine)
    ours = Share(organisation_id="default", team_id="team_c", model="m", requests=1, refused=1)
    await history.note([seen("target/old", targets=("old",), hurt=(ours,), since_us=NOW_US - 10**9)], "here", NOW_US)
    theirs = Share(organisation_id="default", team_id="team_b", model="m", requests=1, refused=1)
    for number in range(5):
        place = f"target/{number}"
        await history.note([seen(place, targets=(place,), hurt=(theirs,))], "here", NOW_US + number * SECOND_US)
    (found,) = await read_incidents(history.store, 0, organisation_id="default", team_id="team_c", most=3)
    assert found.kept.place == "target/old"
    assert len(await read_incidents(history.store, 0, organisation_id="default", most=3)) == 3


async def test_old_ones_are_forgotten_with_their_victims(engine: AsyncEngine) -> None:
    """After 90 days; what is open stays."""
    history = History(engine)
    await history.note([seen(), seen("target/x", targets=("x",))], "here", NOW_US)
    await history.note([seen()], "here", NOW_US + QUIET_US + 1)
    await history.store.forget(NOW_US + KEPT_US)
    assert len(await history.store.recent(0)) == 2
    await history.store.forget(NOW_US + KEPT_US + 1)
    (left,) = await history.store.recent(0)
    assert left.subject == "small"
    assert set(await history.store.shares(["inc_none", left.incident_id])) == {left.incident_id}
