"""One-time links, on SQLite and on PostgreSQL."""

import asyncio

import pytest
from sqlalchemy import text

from accounts.people.people_errors import LinkUnusable, UnknownPerson, WeakPassword, WrongCredentials
from accounts.people.person import Person
from tests.accounts.people.cheap import GOOD, Door


async def test_a_link_sets_the_password_once(door: Door) -> None:
    """Looking uses nothing up; using does."""
    ada = await door.people.create("default", "ada@acme.test", "Ada")
    token = await door.links.make(ada.person_id)
    assert await door.links.peek(token) == ada
    assert await door.links.peek(token) == ada
    assert (await door.links.use(token, GOOD)).has_password
    assert (await door.sign_in.check("ada@acme.test", GOOD, "::1")).person_id == ada.person_id
    assert await door.links.peek(token) is None
    with pytest.raises(LinkUnusable):
        await door.links.use(token, "another good password")


async def test_of_two_at_once_one_uses_it(door: Door) -> None:
    """A link is used once, however many come with it in the same moment."""
    ada = await door.people.create("default", "ada@acme.test", "Ada")
    token = await door.links.make(ada.person_id)
    hashed = await door.links.hashed(token, GOOD)
    outcomes = await asyncio.gather(*(door.links.accept(token, hashed) for _ in range(4)), return_exceptions=True)
    assert sum(isinstance(each, Person) for each in outcomes) == 1
    assert sum(isinstance(each, LinkUnusable) for each in outcomes) == 3


async def test_a_newer_link_ends_the_older(door: Door) -> None:
    """A link that went to the wrong place is taken back by making another."""
    ada = await door.people.create("default", "ada@acme.test", "Ada")
    older, newer = await door.links.make(ada.person_id), await door.links.make(ada.person_id)
    assert await door.links.peek(older) is None
    assert await door.links.peek(newer) == ada


async def test_an_old_link_is_worth_nothing(door: Door) -> None:
    """It ends after `link_s`."""
    ada = await door.people.create("default", "ada@acme.test", "Ada")
    token = await door.links.make(ada.person_id)
    door.clock.turn(door.section.link_s - 1)
    assert await door.links.peek(token)
    door.clock.turn(1)
    assert await door.links.peek(token) is None
    with pytest.raises(LinkUnusable):
        await door.links.use(token, GOOD)


async def test_a_new_password_ends_sessions_and_locks(door: Door) -> None:
    """Whoever had the old password or a session has nothing any more; who was locked out is let in."""
    ada = await door.person()
    cookie = await door.cookie(ada)
    for _ in range(door.section.failures):
        with pytest.raises(WrongCredentials):
            await door.sign_in.check(ada.email, "a wrong password", "::1")
    await door.links.use(await door.links.make(ada.person_id), "another good password")
    assert await door.sessions.find(cookie) is None
    assert (await door.sign_in.check(ada.email, "another good password", "::1")).email == ada.email


async def test_a_weak_password_leaves_the_link_usable(door: Door) -> None:
    """Who is told to choose a better one can choose it."""
    ada = await door.people.create("default", "ada@acme.test", "Ada")
    token = await door.links.make(ada.person_id)
    with pytest.raises(WeakPassword):
        await door.links.use(token, "short")
    assert await door.links.peek(token) == ada


async def test_the_database_has_no_token(door: Door) -> None:
    """A stolen database opens no link."""
    ada = await door.people.create("default", "ada@acme.test", "Ada")
    token = await door.links.make(ada.person_id)
    async with door.engine.connect() as connection:
        assert token not in str((await connection.execute(text("SELECT * FROM one_time_link"))).all())


async def test_who_is_disabled_gets_no_link(door: Door) -> None:
    """Nor does nobody."""
    ada = await door.person()
    await door.people.disable(ada.person_id, organisation_id="default")
    for person_id in (ada.person_id, "person_0"):
        with pytest.raises(UnknownPerson):
            await door.links.make(person_id)


@pytest.mark.parametrize("wrong", ["", "x", "a" * 43, "../" * 20])
async def test_what_is_no_token_opens_nothing(door: Door, wrong: str) -> None:
    """Whatever was never given out is nobody's."""
    await door.links.make((await door.person()).person_id)
    assert await door.links.peek(wrong) is None
