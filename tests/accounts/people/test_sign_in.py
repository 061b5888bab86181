"""Signing in with a password, on SQLite and on PostgreSQL."""

import asyncio
import threading

import pytest
from argon2 import PasswordHasher
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.people.passwords import Passwords
from accounts.people.people_errors import Locked, PasswordsOff, SignInBusy, WrongCredentials
from accounts.people.sign_in import SignIn
from accounts.people.sign_in_config import SignInSection
from tests.accounts.people.cheap import GOOD, PEPPERS, CountingHasher, Door

WRONG = "a wrong password"


async def _fail(door: Door, email: str, address: str = "192.0.2.1") -> WrongCredentials:
    with pytest.raises(WrongCredentials) as told:
        await door.sign_in.check(email, WRONG, address)
    return told.value


async def test_the_right_password_lets_in(door: Door) -> None:
    """In whatever case the address is typed."""
    ada = await door.person()
    assert (await door.sign_in.check(" ADA@acme.test", GOOD, "::1")).person_id == ada.person_id


async def test_nobody_learns_who_has_an_account(door: Door) -> None:
    """Unknown, invited, disabled and known people get the same answer after the same work and the same statements, and
    the same locks.
    """
    await door.person("ada@acme.test")
    await door.people.create("default", "invited@acme.test", "Invited")
    disabled = await door.person("disabled@acme.test")
    await door.people.disable(disabled.person_id, organisation_id="default")
    asked: list[str] = []
    event.listen(door.engine.sync_engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    # What is done now and then is done now.
    await _fail(door, "somebody@acme.test", "another address")
    seen = set()
    for email in ("ada@acme.test", "invited@acme.test", "disabled@acme.test", "nobody@acme.test", "no address"):
        asked.clear()
        before = len(door.hasher.verified)
        failures = [await _fail(door, email, f"{email}-{number}") for number in range(door.section.failures)]
        with pytest.raises(Locked) as told:
            await door.sign_in.check(email, GOOD, "elsewhere")
        seen.add(
            (
                str(failures[0]),
                tuple(each.locked for each in failures),
                len(door.hasher.verified) - before,
                str(told.value),
                tuple(asked),
            )
        )
    assert len(seen) == 1


async def test_a_disabled_person_is_not_let_in(door: Door) -> None:
    """With the right password, the answer is that of a wrong one."""
    ada = await door.person()
    await door.people.disable(ada.person_id, organisation_id="default")
    with pytest.raises(WrongCredentials):
        await door.sign_in.check(ada.email, GOOD, "::1")


async def test_an_account_is_locked_for_longer_and_longer(door: Door) -> None:
    """Each further failure doubles the lock, up to sixteen times; even the right password waits."""
    ada = await door.person()
    told = [await _fail(door, ada.email, f"address {number}") for number in range(door.section.failures)]
    assert [each.locked for each in told] == [False] * (door.section.failures - 1) + [True]
    assert told[0].person == ada
    for doubled in (1, 2, 4, 8, 16, 16):
        with pytest.raises(Locked) as locked:
            await door.sign_in.check(ada.email, GOOD, "another address")
        assert locked.value.retry_after_s == door.section.lock_s * doubled
        door.clock.turn(locked.value.retry_after_s)
        assert (await _fail(door, ada.email, "a third address")).locked
    door.clock.turn(door.section.lock_s * 16)
    assert (await door.sign_in.check(ada.email, GOOD, "another address")).email == ada.email
    # And everything is forgotten.
    assert not (await _fail(door, ada.email)).locked


async def test_attempts_while_locked_do_not_prolong_it(door: Door) -> None:
    """Somebody who knocks all the time cannot keep the door shut for ever."""
    ada = await door.person()
    for _ in range(door.section.failures):
        await _fail(door, ada.email)
    for _ in range(20):
        with pytest.raises(Locked):
            await door.sign_in.check(ada.email, WRONG, "192.0.2.9")
    door.clock.turn(door.section.lock_s)
    assert (await door.sign_in.check(ada.email, GOOD, "::1")).email == ada.email


async def test_an_address_is_locked_whatever_account_it_tries(engine: AsyncEngine) -> None:
    """One password on many accounts is stopped too; an IPv6 network counts as one address, and others get in."""
    door = Door(engine, SignInSection(failures=3))
    ada = await door.person()
    told = [await _fail(door, f"person{number}@acme.test", f"2001:db8::{number:x}") for number in range(15)]
    assert [each.locked for each in told] == [False] * 14 + [True]
    with pytest.raises(Locked):
        await door.sign_in.check(ada.email, GOOD, "2001:db8::ffff")
    assert (await door.sign_in.check(ada.email, GOOD, "2001:db8:0:1::1")).email == ada.email


async def test_ones_own_account_gives_no_guesses_at_others(engine: AsyncEngine) -> None:
    """Signing in between guesses does not start an address's count anew."""
    door = Door(engine, SignInSection(failures=3))
    eve = await door.person("eve@acme.test")
    for number in range(15):
        await door.sign_in.check(eve.email, GOOD, "192.0.2.1")
        await _fail(door, f"person{number}@acme.test")
    with pytest.raises(Locked):
        await door.sign_in.check(eve.email, GOOD, "192.0.2.1")


async def test_who_is_let_in_takes_no_lock_off_that_came_meanwhile(engine: AsyncEngine) -> None:
    """Otherwise whoever has one account could end an address's lock after each guess at another one."""
    door = Door(engine, SignInSection(failures=3))
    eve, counted, gate = await door.person("eve@acme.test"), threading.Event(), threading.Event()

    class Slow(CountingHasher):
        def verify(self, hash: str, password: str) -> bool:  # noqa: A002 - argon2's own name
            counted.set()
            gate.wait(30)
            return super().verify(hash, password)

    slow = SignIn(engine, door.section, PEPPERS, Passwords(min_chars=12, hasher=Slow()), now_us=door.clock)
    for number in range(13):
        await _fail(door, f"person{number}@acme.test")
    entering = asyncio.ensure_future(slow.check(eve.email, GOOD, "192.0.2.1"))
    assert await asyncio.to_thread(counted.wait, 30)
    assert (await _fail(door, "ada@acme.test")).locked
    gate.set()
    assert (await entering).email == eve.email
    with pytest.raises(Locked):
        await door.sign_in.check("bob@acme.test", WRONG, "192.0.2.1")


async def test_who_finds_no_room_takes_no_lock_off_that_came_meanwhile(door: Door) -> None:
    """Otherwise a flood that is refused would end the locks of those that it guesses at."""
    ada, counted, refused = await door.person(), asyncio.Event(), asyncio.Event()

    class Full(Passwords):
        async def matches(self, password: str, stored: str | None) -> bool:
            counted.set()
            await refused.wait()
            raise SignInBusy

    full = SignIn(door.engine, door.section, PEPPERS, Full(min_chars=12), now_us=door.clock)
    waiting = asyncio.ensure_future(full.check(ada.email, WRONG, "192.0.2.2"))
    await counted.wait()
    told = [(await _fail(door, ada.email)).locked for _ in range(door.section.failures - 1)]
    assert told[-1]
    refused.set()
    with pytest.raises(SignInBusy):
        await waiting
    with pytest.raises(Locked):
        await door.sign_in.check(ada.email, WRONG, "192.0.2.3")


async def test_guesses_at_once_are_counted_one_by_one(door: Door) -> None:
    """A burst gets as many tries as if it had come slowly."""
    ada = await door.person()
    before = len(door.hasher.verified)
    attempts = [door.sign_in.check(ada.email, WRONG, f"192.0.2.{number}") for number in range(30)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert sum(isinstance(each, WrongCredentials) for each in outcomes) == door.section.failures
    assert sum(isinstance(each, Locked) for each in outcomes) == 30 - door.section.failures
    assert len(door.hasher.verified) - before == door.section.failures


async def test_failures_are_forgotten_after_a_day(door: Door) -> None:
    """Somebody who mistypes now and then is never locked out, and old rows are removed."""
    ada = await door.person()
    for _ in range(3 * door.section.failures):
        assert not (await _fail(door, ada.email)).locked
        door.clock.turn(86_401)
    await _fail(door, "bob@acme.test", "192.0.2.2")
    async with door.engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM sign_in_failure")) == 2


async def test_the_failures_tell_nobody_who_tried(door: Door) -> None:
    """Neither the account nor the address stands in the table."""
    await _fail(door, "ada@acme.test", "192.0.2.77")
    async with door.engine.connect() as connection:
        rows = str((await connection.execute(text("SELECT * FROM sign_in_failure"))).all())
    assert "ada" not in rows
    assert "192.0.2" not in rows


async def test_too_many_at_once_are_refused_without_a_failure(engine: AsyncEngine) -> None:
    """Who finds no room to be checked has not failed."""
    door = Door(engine)
    ada = await door.person()
    gate = threading.Event()

    class Slow(CountingHasher):
        def verify(self, hash: str, password: str) -> bool:  # noqa: A002 - argon2's own name
            gate.wait(30)
            return super().verify(hash, password)

    passwords = Passwords(min_chars=12, hasher=Slow(), waiting=0)
    full = SignIn(engine, door.section, PEPPERS, passwords, now_us=door.clock)
    taking_room = [asyncio.ensure_future(passwords.matches(GOOD, None)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(SignInBusy):
        await full.check(ada.email, GOOD, "::1")
    gate.set()
    await asyncio.gather(*taking_room)
    assert (await full.check(ada.email, GOOD, "::1")).email == ada.email
    async with engine.connect() as connection:
        assert not await connection.scalar(text("SELECT sum(failures) FROM sign_in_failure"))


async def test_a_weaker_hash_is_made_anew(door: Door) -> None:
    """The parameters are read back from the hash; who signs in gets today's."""
    ada = await door.person()
    weaker = PasswordHasher(time_cost=1, memory_cost=16, parallelism=2).hash(GOOD)
    await door.sign_in.set_password(ada.person_id, weaker)
    assert (await door.sign_in.check(ada.email, GOOD, "::1")).email == ada.email
    async with door.engine.connect() as connection:
        stored = await connection.scalar(text("SELECT password FROM person"))
    assert "m=8,t=1,p=1" in str(stored)
    assert (await door.sign_in.check(ada.email, GOOD, "::1")).email == ada.email


async def test_a_new_password_ends_open_links(door: Door) -> None:
    """A link that was made before cannot replace it."""
    ada = await door.person()
    token = await door.links.make(ada.person_id)
    await door.sign_in.set_password(ada.person_id, await door.sign_in.hashed(ada, "another good password"))
    assert await door.links.peek(token) is None
    assert (await door.sign_in.check(ada.email, "another good password", "::1")).email == ada.email


async def test_passwords_can_be_switched_off(engine: AsyncEngine) -> None:
    """Then none is checked."""
    door = Door(engine, SignInSection(passwords=False))
    ada = await door.person()
    before = len(door.hasher.verified)
    with pytest.raises(PasswordsOff):
        await door.sign_in.check(ada.email, GOOD, "::1")
    assert len(door.hasher.verified) == before


async def test_unlocking_lets_in_at_once(door: Door) -> None:
    """An operator can help somebody who is locked out."""
    ada = await door.person()
    for _ in range(door.section.failures):
        await _fail(door, ada.email)
    await door.sign_in.unlock(ada.email)
    assert (await door.sign_in.check(ada.email, GOOD, "::1")).email == ada.email
