"""People for the tests: a clock that is turned by hand, and Argon2id so cheap that tests do not wait for it."""

from datetime import UTC, datetime, timedelta
from typing import Final

from argon2 import PasswordHasher
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.keys import Pepper
from accounts.people.links import OneTimeLinks
from accounts.people.passwords import Passwords
from accounts.people.people import PeopleStore
from accounts.people.person import Person
from accounts.people.sessions import Sessions
from accounts.people.sign_in import SignIn
from accounts.people.sign_in_config import SignInSection
from accounts.store import AccountStore

PEPPERS: Final = (Pepper(id="p1", secret=b"a" * 32),)
GOOD: Final = "seven quiet herons"
NOON_US: Final = 1_775_390_400_000_000
SECOND_US: Final = 1_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """Stands still until it is turned."""

    def __init__(self) -> None:
        self.us = NOON_US

    def __call__(self) -> int:
        return self.us

    def moment(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.us)

    def turn(self, seconds: float) -> None:
        self.us += round(seconds * SECOND_US)


class CountingHasher:
    """Counts what it does: work that is equal takes equal time."""

    def __init__(self) -> None:
        self.verified: list[str] = []
        self.hashed = 0
        self._cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)

    def hash(self, password: str) -> str:
        self.hashed += 1
        return self._cheap.hash(password)

    def verify(self, hash: str, password: str) -> bool:  # noqa: A002 - argon2's own name
        self.verified.append(hash)
        return self._cheap.verify(hash, password)

    def check_needs_rehash(self, hash: str) -> bool:  # noqa: A002 - as above
        return self._cheap.check_needs_rehash(hash)


class Door:
    """Everything that somebody needs to get in."""

    def __init__(
        self,
        engine: AsyncEngine,
        section: SignInSection | None = None,
        peppers: tuple[Pepper, ...] = PEPPERS,
        clock: Clock | None = None,
    ) -> None:
        self.engine = engine
        self.clock = clock or Clock()
        self.section = section or SignInSection()
        self.hasher = CountingHasher()
        self.passwords = Passwords(min_chars=self.section.password_min_chars, hasher=self.hasher)
        self.people = PeopleStore(engine, clock=self.clock.moment)
        self.accounts = AccountStore(engine, clock=self.clock.moment)
        self.sessions = Sessions(engine, self.section, peppers, now_us=self.clock)
        self.links = OneTimeLinks(engine, self.section, peppers, self.passwords, now_us=self.clock)
        self.sign_in = SignIn(engine, self.section, peppers, self.passwords, now_us=self.clock)

    async def person(self, email: str = "ada@acme.test", *, organisation_id: str = "default") -> Person:
        """Somebody with the password GOOD."""
        person = await self.people.create(organisation_id, email, "Ada")
        return await self.links.use(await self.links.make(person.person_id), GOOD)

    async def cookie(self, person: Person, *, agent: str = "a browser") -> str:
        """Sign somebody in."""
        return await self.sessions.open(person.person_id, via="password", address="192.0.2.1", agent=agent)
