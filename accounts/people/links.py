"""One-time links with which people set a password: the first one, or a new one."""

import secrets
from collections.abc import Callable
from typing import Final, Self

from sqlalchemy import ColumnElement, and_, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.keys import Pepper
from accounts.people.digests import Digests, is_secret, new_secret
from accounts.people.passwords import Passwords
from accounts.people.people import PERSON_COLUMNS, person_of
from accounts.people.people_errors import LinkUnusable, UnknownPerson
from accounts.people.person import Person
from accounts.people.sign_in_config import SignInSection
from accounts.people.tables import OneTimeLinkRow, PersonRow, SessionRow, SignInFailureRow

WELCOME: Final = "/dashboard/welcome"
_US: Final = 1_000_000
_KEPT_US: Final = 30 * 86_400 * _US


class OneTimeLinks:
    """Writer of the table `one_time_link`; only disabling a person and setting a password end links elsewhere."""

    def __init__(
        self,
        engine: AsyncEngine,
        section: SignInSection,
        peppers: tuple[Pepper, ...],
        passwords: Passwords,
        *,
        now_us: Callable[[], int],
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._engine = engine
        self._section = section
        self._peppers = peppers
        self._passwords = passwords
        self._digests = Digests("link", peppers)
        self._accounts = Digests("account", peppers)
        self._now_us = now_us
        self._random_bytes = random_bytes

    def within(self, engine: AsyncEngine) -> Self:
        """Return the same links, in a transaction that was begun elsewhere."""
        return type(self)(
            engine,
            self._section,
            self._peppers,
            self._passwords,
            now_us=self._now_us,
            random_bytes=self._random_bytes,
        )

    async def make(self, person_id: str) -> str:
        """Return a new link's token, which is returned and not stored. Earlier open links of this person end.

        Raises UnknownPerson, also for a disabled one.
        """
        token = new_secret(self._random_bytes)
        now_us = self._now_us()
        values = {
            "digest": self._digests.newest(token),
            "person_id": person_id,
            "created_us": now_us,
            "expires_us": now_us + self._section.link_s * _US,
            "used_us": None,
        }
        async with self._engine.begin() as connection:
            entitled = and_(col(PersonRow.person_id) == person_id, col(PersonRow.disabled_at).is_(None))
            # The person's row first, as everywhere: whoever locks in one order waits, and does not deadlock.
            if (
                await connection.execute(select(col(PersonRow.person_id)).where(entitled).with_for_update())
            ).first() is None:
                raise UnknownPerson("there is no such person, or they are disabled")
            open_ones = and_(col(OneTimeLinkRow.person_id) == person_id, col(OneTimeLinkRow.used_us).is_(None))
            await connection.execute(delete(OneTimeLinkRow).where(open_ones))
            long_over = col(OneTimeLinkRow.expires_us) <= now_us - _KEPT_US
            await connection.execute(
                delete(OneTimeLinkRow).where(col(OneTimeLinkRow.person_id) == person_id, long_over)
            )
            await connection.execute(insert(OneTimeLinkRow).values(values))
        return token

    async def peek(self, token: str) -> Person | None:
        """Return the person of a usable link, else None. Looking does not use it up: mail programs open links too."""
        if not is_secret(token):
            return None
        query = (
            select(*PERSON_COLUMNS)
            .join_from(OneTimeLinkRow, PersonRow, col(OneTimeLinkRow.person_id) == col(PersonRow.person_id))
            .where(self._usable(token), col(PersonRow.disabled_at).is_(None))
        )
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else person_of(row)

    async def use(self, token: str, password: str) -> Person:
        """Set the password with a link, which ends it. Raises LinkUnusable, WeakPassword or SignInBusy."""
        return await self.accept(token, await self.hashed(token, password))

    async def hashed(self, token: str, password: str) -> str:
        """Return the password's hash for `accept`, after link and password were checked.

        It takes time, so call it outside of any transaction. Raises LinkUnusable, WeakPassword or SignInBusy.
        """
        person = await self.peek(token)
        if person is None:
            raise LinkUnusable
        self._passwords.check(password, known=known_of(person))
        return await self._passwords.hash(password)

    async def accept(self, token: str, hashed: str) -> Person:
        """Use up the link: store the hash, end every session and lock of the person. Raises LinkUnusable."""
        async with self._engine.begin() as connection:
            person_id = await connection.scalar(select(col(OneTimeLinkRow.person_id)).where(self._usable(token)))
            entitled = and_(col(PersonRow.person_id) == person_id, col(PersonRow.disabled_at).is_(None))
            changed = await connection.execute(update(PersonRow).where(entitled).values(password=hashed))
            taken = await connection.execute(
                update(OneTimeLinkRow).where(self._usable(token)).values(used_us=self._now_us())
            )
            # Of two at once the second waits for the person's row, and then finds the link used.
            if not (changed.rowcount and taken.rowcount):
                raise LinkUnusable
            await connection.execute(delete(SessionRow).where(col(SessionRow.person_id) == person_id))
            query = select(*PERSON_COLUMNS).where(col(PersonRow.person_id) == person_id)
            person = person_of((await connection.execute(query)).one())
            failures = col(SignInFailureRow.digest).in_(self._accounts.any(person.email))
            await connection.execute(delete(SignInFailureRow).where(failures))
        return person

    def _usable(self, token: str) -> ColumnElement[bool]:
        return and_(
            col(OneTimeLinkRow.digest).in_(self._digests.any(token)),
            col(OneTimeLinkRow.used_us).is_(None),
            col(OneTimeLinkRow.expires_us) > self._now_us(),
        )


def known_of(person: Person) -> list[str]:
    """Return the words that others know of a person, which no password may be made of."""
    words = [person.email, person.email.partition("@")[0], person.organisation_id, "weighbridge", person.name]
    return [*words, *person.name.split()]


def own_address(host: str, port: int | None, scheme: str) -> str:
    """Return the address at which a browser on this machine finds a server that listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - only compared with
    bracketed = f"[{reachable}]" if ":" in reachable and not reachable.startswith("[") else reachable
    return f"{scheme}://{bracketed}" if port is None else f"{scheme}://{bracketed}:{port}"


def link_url(base: str, token: str) -> str:
    """Return the URL of a link. `base` is the gateway's public address, such as `sign_in.public_url`."""
    return f"{base.rstrip('/')}{WELCOME}/{token}"
