"""Sessions of people. The secret is in the browser's cookie; the database has its digest under the pepper."""

import base64
import hmac
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Self

import msgspec
from sqlalchemy import and_, delete, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from accounts.access import Principal, TeamRole
from accounts.keys import Pepper
from accounts.people.digests import Digests, is_secret, new_secret
from accounts.people.people import PERSON_COLUMNS, person_of
from accounts.people.people_errors import UnknownPerson
from accounts.people.person import Person
from accounts.people.sign_in_config import SignInSection
from accounts.people.tables import PersonRow, SessionRow, TeamMemberRow
from accounts.tables import NAME_CHARS

Via = Literal["password", "link", "oidc"]
MAX_SESSIONS: Final = 20
"""Sessions of one person; one more ends the least recently used."""
_US: Final = 1_000_000
_RENEWED_EVERY_US: Final = 60 * _US
_PURGED_EVERY_US: Final = 3600 * _US
REMEMBERED_US: Final = 900 * _US
"""Microseconds for which a process remembers a session while the database does not answer."""
_MAX_REMEMBERED: Final = 1_000
_ADDRESS_CHARS: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A signed-in person, as a request presents it."""

    digest: str
    person: Person
    teams: Mapping[str, TeamRole]
    csrf: str
    """CSRF token that forms have to send back: an HMAC of the cookie's secret, which it does not reveal."""
    created_us: int
    expires_us: int
    via: Via
    address: str

    def principal(self, operator: str) -> Principal:
        """Return the session's principal; `operator` is the id of the organisation that runs the gateway."""
        return Principal(
            kind="person",
            principal_id=self.person.person_id,
            name=self.person.name,
            organisation_id=self.person.organisation_id,
            role=self.person.role,
            teams=self.teams,
            of_operators=self.person.organisation_id == operator,
        )


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A session as lists show it. Its digest cannot be used as a cookie."""

    digest: str
    created_us: int
    seen_us: int
    expires_us: int
    via: Via
    address: str
    agent: str


class Sessions:
    """Writer of the table `session`; only disabling a person and setting a password end sessions elsewhere."""

    def __init__(
        self,
        engine: AsyncEngine,
        section: SignInSection,
        peppers: tuple[Pepper, ...],
        *,
        now_us: Callable[[], int],
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._engine = engine
        self._section = section
        self._peppers = peppers
        self._digests = Digests("session", peppers)
        self._now_us = now_us
        self._random_bytes = random_bytes
        self._purge_us = 0
        self._remembered: dict[str, tuple[int, Session]] = {}

    def within(self, engine: AsyncEngine) -> Self:
        """Return the same sessions, in a transaction that was begun elsewhere."""
        same = type(self)(engine, self._section, self._peppers, now_us=self._now_us, random_bytes=self._random_bytes)
        same._remembered = self._remembered  # noqa: SLF001
        return same

    async def open(self, person_id: str, *, via: Via, address: str, agent: str, replaces: str | None = None) -> str:
        """Sign a person in and return the value of the cookie, which is always a new one.

        `replaces` is the browser's earlier cookie, whose session ends. Raises UnknownPerson, also for a disabled one.
        """
        secret = new_secret(self._random_bytes)
        now_us = self._now_us()
        values = {
            "digest": self._digests.newest(secret),
            "person_id": person_id,
            "created_us": now_us,
            "seen_us": now_us,
            "expires_us": now_us + self._section.absolute_s * _US,
            "via": via,
            "address": address[:_ADDRESS_CHARS],
            "agent": _printable(agent)[:NAME_CHARS],
        }
        async with self._engine.begin() as connection:
            may_enter = and_(col(PersonRow.person_id) == person_id, col(PersonRow.disabled_at).is_(None))
            entering = update(PersonRow).where(may_enter).values(signed_in_at=_EPOCH + timedelta(microseconds=now_us))
            if not (await connection.execute(entering)).rowcount:
                raise UnknownPerson("there is no such person")
            if replaces is not None and is_secret(replaces):
                old = col(SessionRow.digest).in_(self._digests.any(replaces))
                await connection.execute(delete(SessionRow).where(old))
            await self._trim_sessions(connection, person_id, now_us)
            await connection.execute(insert(SessionRow).values(values))
        await self._purge(now_us)
        return secret

    async def find(self, cookie: str, *, renew: bool = True) -> Session | None:
        """Return the cookie's session with the person and all teams, in one query.

        None when it is unknown, ended, expired or idle too long, or the person is disabled. Without `renew` the session
        is not marked as used: a page that polls by itself keeps nobody signed in.
        """
        if not is_secret(cookie):
            return None
        now_us = self._now_us()
        columns = [col(getattr(SessionRow, name)) for name in SessionRecord.__struct_fields__]
        place: tuple[Any, ...]
        place = (col(TeamMemberRow.team_id).label("team_id"), col(TeamMemberRow.role).label("team_role"))
        query = (
            select(*PERSON_COLUMNS, *columns, *place)
            .join_from(SessionRow, PersonRow, col(SessionRow.person_id) == col(PersonRow.person_id))
            .outerjoin(TeamMemberRow, col(TeamMemberRow.person_id) == col(PersonRow.person_id))
            .where(col(SessionRow.digest).in_(self._digests.any(cookie)), col(PersonRow.disabled_at).is_(None))
            .where(col(SessionRow.expires_us) > now_us, col(SessionRow.seen_us) > now_us - self._idle_us)
        )
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).all()
        if not rows:
            self._evict_cookie(cookie)
            return None
        first = rows[0]
        if renew and now_us - first.seen_us >= _RENEWED_EVERY_US:
            await self._mark_used(first.digest, now_us)
        found = Session(
            digest=first.digest,
            person=person_of(first),
            teams={row.team_id: row.team_role for row in rows if row.team_id is not None},
            csrf=_csrf(cookie),
            created_us=first.created_us,
            expires_us=first.expires_us,
            via=first.via,
            address=first.address,
        )
        self._remembered.pop(found.digest, None)
        while len(self._remembered) >= _MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[found.digest] = (now_us, found)
        return found

    def remembered(self, cookie: str) -> Session | None:
        """Return the cookie's session as the database last confirmed it, REMEMBERED_US ago at most; else None.

        Only for looking at faults while the database does not answer: the session may have been ended meanwhile.
        """
        if not is_secret(cookie):
            return None
        now_us = self._now_us()
        known = (self._remembered.get(digest) for digest in self._digests.any(cookie))
        for told_us, session in filter(None, known):
            if now_us < min(told_us + REMEMBERED_US, told_us + self._idle_us, session.expires_us):
                return session
        return None

    def _evict_cookie(self, cookie: str) -> None:
        # By its digests, and not by looking through all: strangers send cookies by the thousand.
        for digest in self._digests.any(cookie):
            self._remembered.pop(digest, None)

    def _evict(self, ended: Callable[[str, Session], bool]) -> None:
        for digest, (_, session) in list(self._remembered.items()):
            if ended(digest, session):
                del self._remembered[digest]

    async def close(self, cookie: str) -> None:
        """Sign out the cookie's session."""
        if is_secret(cookie):
            self._evict_cookie(cookie)
            async with self._engine.begin() as connection:
                ended = col(SessionRow.digest).in_(self._digests.any(cookie))
                await connection.execute(delete(SessionRow).where(ended))

    async def close_all(self, person_id: str, *, but: str | None = None) -> int:
        """End all sessions of a person, or all but the one with the digest `but`; return how many."""
        ended = delete(SessionRow).where(col(SessionRow.person_id) == person_id)
        if but is not None:
            ended = ended.where(col(SessionRow.digest) != but)
        self._evict(lambda digest, session: session.person.person_id == person_id and digest != but)
        async with self._engine.begin() as connection:
            return (await connection.execute(ended)).rowcount

    async def close_one(self, person_id: str, digest: str) -> bool:
        """End one of a person's own sessions; return False when there was none."""
        ended = delete(SessionRow).where(col(SessionRow.person_id) == person_id, col(SessionRow.digest) == digest)
        self._evict(lambda known, session: session.person.person_id == person_id and known == digest)
        async with self._engine.begin() as connection:
            return bool((await connection.execute(ended)).rowcount)

    async def of_person(self, person_id: str) -> list[SessionRecord]:
        """Return a person's open sessions, most recently used first."""
        columns = [col(getattr(SessionRow, name)) for name in SessionRecord.__struct_fields__]
        now_us = self._now_us()
        query = (
            select(*columns)
            .where(col(SessionRow.person_id) == person_id)
            .where(col(SessionRow.expires_us) > now_us, col(SessionRow.seen_us) > now_us - self._idle_us)
            .order_by(col(SessionRow.seen_us).desc(), col(SessionRow.digest))
            .limit(MAX_SESSIONS)
        )
        async with self._engine.connect() as connection:
            return [SessionRecord(**row._mapping) for row in await connection.execute(query)]  # noqa: SLF001

    @property
    def _idle_us(self) -> int:
        return self._section.idle_s * _US

    async def _mark_used(self, digest: str, now_us: int) -> None:
        # Only forward: of two requests at once the later one counts, and a session that was ended stays ended.
        still = and_(col(SessionRow.digest) == digest, col(SessionRow.seen_us) < now_us)
        async with self._engine.begin() as connection:
            await connection.execute(update(SessionRow).where(still).values(seen_us=now_us))

    async def _trim_sessions(self, connection: AsyncConnection, person_id: str, now_us: int) -> None:
        own = col(SessionRow.person_id) == person_id
        ended = or_(col(SessionRow.expires_us) <= now_us, col(SessionRow.seen_us) <= now_us - self._idle_us)
        await connection.execute(delete(SessionRow).where(own, ended))
        newest = select(col(SessionRow.digest)).where(own).order_by(col(SessionRow.seen_us).desc())
        kept: list[Any] = list(await connection.scalars(newest.limit(MAX_SESSIONS - 1)))
        await connection.execute(delete(SessionRow).where(own, col(SessionRow.digest).not_in(kept)))

    async def _purge(self, now_us: int) -> None:
        """Delete expired sessions once an hour, in a transaction of its own so that no sign-in waits for it."""
        if now_us >= self._purge_us:
            self._purge_us = now_us + _PURGED_EVERY_US
            async with self._engine.begin() as connection:
                await connection.execute(delete(SessionRow).where(col(SessionRow.expires_us) <= now_us))


def _csrf(secret: str) -> str:
    digest = hmac.digest(secret.encode(), b"weighbridge form", "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _printable(text: str) -> str:
    return "".join(character for character in text[: 4 * NAME_CHARS] if character.isprintable())
