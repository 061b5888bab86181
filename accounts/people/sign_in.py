"""Sign-in with a password.

Guessing is slowed down per account and per network address. An account that does not exist is treated like one that
does: the same answer, the same work, the same locks.
"""

import ipaddress
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sqlalchemy import and_, case, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from accounts.keys import Pepper
from accounts.people.digests import Digests
from accounts.people.links import known_of
from accounts.people.passwords import Passwords
from accounts.people.people import PERSON_COLUMNS, normal_email, person_of
from accounts.people.people_errors import BadEmail, Locked, PasswordsOff, SignInBusy, UnknownPerson, WrongCredentials
from accounts.people.person import Person
from accounts.people.sign_in_config import SignInSection
from accounts.people.tables import OneTimeLinkRow, PersonRow, SignInFailureRow

_US: Final = 1_000_000
_FAILURE_TTL_US: Final = 86_400 * _US
_PURGED_EVERY_US: Final = 3600 * _US
_MAX_DOUBLINGS: Final = 4
# Many people share the address of an office.
_ADDRESS_FACTOR: Final = 5
# A customer gets a whole /64 of IPv6 addresses.
_IPV6_NETWORK: Final = 64


class _CountedAttempt(NamedTuple):
    """An attempt, counted before its outcome is known: a thousand guesses at once count a thousand."""

    account: str
    address: str
    locked: frozenset[str]
    """Digests, of the account or the address, that this attempt locked."""

    @property
    def locks(self) -> bool:
        """True when the account or the address is locked if this attempt fails."""
        return bool(self.locked)


class SignIn:
    """The sign-in with a password: verification, counted failures, and changes of one's own password."""

    def __init__(
        self,
        engine: AsyncEngine,
        section: SignInSection,
        peppers: tuple[Pepper, ...],
        passwords: Passwords,
        *,
        now_us: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._section = section
        self._passwords = passwords
        self._accounts = Digests("account", peppers)
        self._addresses = Digests("address", peppers)
        self._now_us = now_us
        self._purge_us = 0
        self._insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert

    async def check(self, email: str, password: str, address: str) -> Person:
        """Return the person with this e-mail address and password.

        Raises WrongCredentials, Locked, SignInBusy or PasswordsOff.
        """
        if not self._section.passwords:
            raise PasswordsOff
        counted = await self._count_attempt(_account_name(email), address)
        person, stored = await self._find(email)
        entitled = None if person is None or person.disabled_at is not None else stored
        try:
            matches = await self._passwords.matches(password, entitled)
        except SignInBusy:
            # Nothing was tried.
            await self._take_back(counted, whole=False)
            raise
        if person is None or not matches:
            raise WrongCredentials(locked=counted.locks, person=person)
        await self._take_back(counted, whole=True)
        if entitled is not None and self._passwords.is_weaker(entitled):
            await self._replace_hash(person.person_id, entitled, await self._passwords.hash(password))
        return person

    async def check_own(self, person: Person, password: str, address: str) -> None:
        """Verify the password of a signed-in person again; it counts, and raises, like `check`."""
        await self.check(person.email, password, address)

    async def hashed(self, person: Person, password: str) -> str:
        """Return the hash of a person's new password for `set_password`; it takes time, so call it outside of any transaction.

        Raises WeakPassword or SignInBusy.
        """
        self._passwords.check(password, known=known_of(person))
        return await self._passwords.hash(password)

    async def set_password(self, person_id: str, hashed: str, *, engine: AsyncEngine | None = None) -> None:
        """Store the hash and end open links, in the transaction of `engine` if given. Raises UnknownPerson."""
        async with (engine or self._engine).begin() as connection:
            change = update(PersonRow).where(col(PersonRow.person_id) == person_id).values(password=hashed)
            if not (await connection.execute(change)).rowcount:
                raise UnknownPerson("there is no such person")
            open_links = and_(col(OneTimeLinkRow.person_id) == person_id, col(OneTimeLinkRow.used_us).is_(None))
            await connection.execute(delete(OneTimeLinkRow).where(open_links))

    async def unlock(self, email: str) -> None:
        """Delete the recorded failures of an account."""
        async with self._engine.begin() as connection:
            digests = self._accounts.any(_account_name(email))
            await connection.execute(delete(SignInFailureRow).where(col(SignInFailureRow.digest).in_(digests)))

    async def _find(self, email: str) -> tuple[Person | None, str | None]:
        query = select(*PERSON_COLUMNS, col(PersonRow.password).label("password"))
        async with self._engine.connect() as connection:
            row = (await connection.execute(query.where(col(PersonRow.email) == _account_name(email)))).first()
        return (None, None) if row is None else (person_of(row), row.password)

    async def _replace_hash(self, person_id: str, old: str, new: str) -> None:
        # Only the hash that was checked: a password chosen in between stays.
        same = (col(PersonRow.person_id) == person_id, col(PersonRow.password) == old)
        async with self._engine.begin() as connection:
            await connection.execute(update(PersonRow).where(*same).values(password=new))

    async def _count_attempt(self, account: str, address: str) -> _CountedAttempt:
        now_us = self._now_us()
        digests = self._accounts.newest(account), self._addresses.newest(_network_of(address))
        limits = self._section.failures, self._section.failures * _ADDRESS_FACTOR
        locked: set[str] = set()
        async with self._engine.begin() as connection:
            # Always accounts before addresses, so that two attempts wait for each other and do not deadlock.
            for digest, limit in zip(digests, limits, strict=True):
                if await self._count_for(connection, digest, limit, now_us):
                    locked.add(digest)
            if now_us >= self._purge_us:
                self._purge_us = now_us + _PURGED_EVERY_US
                too_old = col(SignInFailureRow.last_us) < now_us - _FAILURE_TTL_US
                await connection.execute(delete(SignInFailureRow).where(too_old))
        return _CountedAttempt(account=digests[0], address=digests[1], locked=frozenset(locked))

    async def _count_for(self, connection: AsyncConnection, digest: str, limit: int, now_us: int) -> bool:
        """Count one attempt; True when a failure now locks. Raises Locked, uncounted, when it is locked already."""
        failures, last, until = (
            col(getattr(SignInFailureRow, name)) for name in ("failures", "last_us", "locked_until_us")
        )
        same = col(SignInFailureRow.digest) == digest
        row = self._insert(SignInFailureRow).values(digest=digest, failures=1, last_us=now_us, locked_until_us=0)
        fresh = case((last < now_us - _FAILURE_TTL_US, 1), else_=failures + 1)
        upsert = row.on_conflict_do_update(
            index_elements=("digest",), set_={"failures": fresh, "last_us": now_us}, where=until <= now_us
        )
        count = (await connection.execute(upsert.returning(failures))).scalar()
        if count is None:
            locked_until_us = int(await connection.scalar(select(until).where(same)) or 0)
            raise Locked(max(1, -(-(locked_until_us - now_us) // _US)))
        if count < limit:
            return False
        lock_us = self._section.lock_s * 2 ** min(count - limit, _MAX_DOUBLINGS) * _US
        await connection.execute(update(SignInFailureRow).where(same).values(locked_until_us=now_us + lock_us))
        return True

    async def _take_back(self, counted: _CountedAttempt, *, whole: bool) -> None:
        """Take back an attempt that did not fail.

        `whole`, for a success, clears all failures of the account, but of the address only this attempt's: owning one
        account must not give endless guesses at the others.
        """
        async with self._engine.begin() as connection:
            if whole:
                account = col(SignInFailureRow.digest) == counted.account
                await connection.execute(delete(SignInFailureRow).where(account))
            else:
                await self._take_back_for(connection, counted.account, counted)
            await self._take_back_for(connection, counted.address, counted)

    async def _take_back_for(self, connection: AsyncConnection, digest: str, counted: _CountedAttempt) -> None:
        failures = col(SignInFailureRow.failures)
        changes: dict[str, Any] = {"failures": case((failures > 0, failures - 1), else_=0)}
        if digest in counted.locked:
            # Its own lock alone: one that came of the guesses beside it stays.
            changes["locked_until_us"] = 0
        same = col(SignInFailureRow.digest) == digest
        await connection.execute(update(SignInFailureRow).where(same).values(changes))


def _account_name(email: str) -> str:
    try:
        return normal_email(email)
    except BadEmail:
        # Nobody has it. It is counted like any other.
        return email[:254].strip().lower()


def _network_of(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, _IPV6_NETWORK), strict=False))
    return str(parsed)
