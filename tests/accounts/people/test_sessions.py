"""Sessions, on SQLite and on PostgreSQL."""

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.keys import Pepper
from accounts.people.people_errors import UnknownPerson
from accounts.people.sessions import MAX_SESSIONS, REMEMBERED_US, Sessions
from accounts.people.sign_in_config import SignInSection
from tests.accounts.people.cheap import PEPPERS, SECOND_US, Door


async def test_a_cookie_brings_the_person_and_the_teams(door: Door) -> None:
    """One query answers who it is and where they belong."""
    ada = await door.person()
    for team_id, role in (("team_a", "admin"), ("team_b", "member")):
        await door.accounts.create_team(team_id)
        await door.people.put_member(ada.person_id, team_id, role, organisation_id="default")  # type: ignore[arg-type]
    cookie = await door.cookie(ada)
    asked: list[str] = []
    event.listen(door.engine.sync_engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    session = await door.sessions.find(cookie)
    assert len(asked) == 1
    assert session is not None
    assert session.teams == {"team_a": "admin", "team_b": "member"}
    assert session.person == await door.people.get(ada.person_id)
    assert session.person.signed_in_at == door.clock.moment()
    principal = session.principal("default")
    assert (principal.kind, principal.principal_id, principal.of_operators) == ("person", ada.person_id, True)
    assert not session.principal("elsewhere").of_operators


async def test_the_database_tells_no_secret(door: Door) -> None:
    """Neither the cookie nor its form's token stands in the database, and the token is not the cookie."""
    cookie = await door.cookie(await door.person())
    session = await door.sessions.find(cookie)
    assert session is not None
    async with door.engine.connect() as connection:
        rows = str((await connection.execute(text("SELECT * FROM session"))).all())
    assert cookie not in rows
    assert session.csrf not in rows
    assert cookie not in session.csrf
    assert len(session.csrf) >= 43


@pytest.mark.parametrize("wrong", ["", "x", "a" * 43, "a" * 10_000, "é" * 43, "' OR 1=1 --" + "a" * 32])
async def test_what_is_no_cookie_opens_nothing(door: Door, wrong: str) -> None:
    """Whatever was never given out is nobody's."""
    await door.cookie(await door.person())
    assert await door.sessions.find(wrong) is None
    await door.sessions.close(wrong)


async def test_unused_sessions_end(engine: AsyncEngine) -> None:
    """Use puts the idle end off, a page that asks by itself does not, and nothing puts off the absolute end."""
    door = Door(engine, SignInSection(idle_s=600, absolute_s=1800))
    ada = await door.person()
    used, polled = await door.cookie(ada), await door.cookie(ada)
    door.clock.turn(599)
    assert await door.sessions.find(used)
    assert await door.sessions.find(polled, renew=False)
    door.clock.turn(1)
    assert await door.sessions.find(polled) is None
    door.clock.turn(598)
    assert await door.sessions.find(used)
    door.clock.turn(599)
    assert await door.sessions.find(used)
    door.clock.turn(3)
    assert await door.sessions.find(used) is None


async def test_use_is_put_down_once_a_minute(door: Door) -> None:
    """A page of many parts does not write at each."""
    ada = await door.person()
    cookie = await door.cookie(ada)
    door.clock.turn(59)
    await door.sessions.find(cookie)
    assert (await door.sessions.of_person(ada.person_id))[0].seen_us == door.clock.us - 59 * SECOND_US
    door.clock.turn(1)
    await door.sessions.find(cookie)
    assert (await door.sessions.of_person(ada.person_id))[0].seen_us == door.clock.us


async def test_signing_in_gives_a_new_cookie_and_ends_the_old(door: Door) -> None:
    """A cookie that somebody planted before is worth nothing after."""
    ada = await door.person()
    old = await door.cookie(ada)
    new = await door.sessions.open(ada.person_id, via="password", address="::1", agent="b", replaces=old)
    assert new != old
    assert await door.sessions.find(old) is None
    assert await door.sessions.find(new)


async def test_sessions_are_ended_one_by_one_or_all(door: Door) -> None:
    """Only one's own; the one in hand may stay."""
    ada, bob = await door.person(), await door.person("bob@acme.test")
    first, second, third, bobs = [await door.cookie(each) for each in (ada, ada, ada, bob)]
    here = await door.sessions.find(first)
    there = await door.sessions.find(second)
    assert here is not None
    assert there is not None
    assert not await door.sessions.close_one(bob.person_id, there.digest)
    assert await door.sessions.close_one(ada.person_id, there.digest)
    assert await door.sessions.find(second) is None
    assert await door.sessions.close_all(ada.person_id, but=here.digest) == 1
    assert await door.sessions.find(third) is None
    assert await door.sessions.find(first)
    await door.sessions.close(first)
    assert await door.sessions.find(first) is None
    assert await door.sessions.find(bobs)
    assert await door.sessions.close_all(bob.person_id) == 1
    assert await door.sessions.of_person(bob.person_id) == []


async def test_somebodys_sessions_are_bounded(door: Door) -> None:
    """One more ends the one that was used least lately; a browser's name is cut and cleaned."""
    ada = await door.person()
    oldest = await door.cookie(ada)
    for _ in range(MAX_SESSIONS):
        door.clock.turn(1)
        await door.cookie(ada, agent="x\x00\n" + "y" * 5_000)
    assert await door.sessions.find(oldest) is None
    kept = await door.sessions.of_person(ada.person_id)
    assert len(kept) == MAX_SESSIONS
    assert kept[0].agent == "x" + "y" * 199


async def test_ended_sessions_are_forgotten(door: Door) -> None:
    """One's own at the next sign-in, anybody's some time after their absolute end."""
    ada, bob = await door.person(), await door.person("bob@acme.test")
    await door.cookie(ada)
    await door.cookie(bob)
    door.clock.turn(door.section.idle_s)
    await door.cookie(ada)
    assert await _rows(door) == 2
    door.clock.turn(door.section.absolute_s)
    await door.cookie(ada)
    assert await _rows(door) == 1


async def _rows(door: Door) -> int:
    async with door.engine.connect() as connection:
        return int(await connection.scalar(text("SELECT count(*) FROM session")) or 0)


async def test_who_is_disabled_or_unknown_gets_no_session(door: Door) -> None:
    """No way of signing in gets past it."""
    ada = await door.person()
    await door.people.disable(ada.person_id, organisation_id="default")
    for person_id in (ada.person_id, "person_0"):
        with pytest.raises(UnknownPerson):
            await door.sessions.open(person_id, via="oidc", address="", agent="")


async def test_a_pepper_may_be_rotated(engine: AsyncEngine) -> None:
    """Sessions under the older pepper go on while it is configured, and end with it."""
    new = Pepper(id="p2", secret=b"b" * 32)
    before = Door(engine)
    cookie = await before.cookie(await before.person())
    assert await Door(engine, peppers=(new, *PEPPERS)).sessions.find(cookie)
    assert await Door(engine, peppers=(new,)).sessions.find(cookie) is None


async def test_who_was_signed_in_is_remembered_for_a_while(door: Door) -> None:
    """For while the database is away; never what was unknown, ended here or found ended, and not past a session's end."""
    ada = await door.person()
    cookie, other, gone = [await door.cookie(ada) for _ in range(3)]
    assert door.sessions.remembered(cookie) is None, "nobody asked yet"
    for each in (cookie, other, gone):
        assert await door.sessions.find(each) == door.sessions.remembered(each)
    await door.sessions.within(door.engine).close(other)
    await Sessions(door.engine, SignInSection(), PEPPERS, now_us=door.clock).close(gone)
    assert door.sessions.remembered(other) is None
    assert door.sessions.remembered(gone) is not None, "another process ended it"
    assert await door.sessions.find(gone) is None
    assert door.sessions.remembered(gone) is None
    assert door.sessions.remembered("a" * 43) is None
    door.clock.turn(REMEMBERED_US // SECOND_US - 1)
    assert door.sessions.remembered(cookie) is not None
    door.clock.turn(1)
    assert door.sessions.remembered(cookie) is None
    assert await door.sessions.find(cookie) is not None
    await door.sessions.close_all(ada.person_id)
    assert door.sessions.remembered(cookie) is None
