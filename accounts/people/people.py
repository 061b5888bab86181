"""People and their team memberships in the database. Every value is a bound parameter.

Every change names the organisation in its statement: another organisation's person is not found, whoever asks.
"""

import contextlib
import re
import secrets
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, cast, get_args

import msgspec
from sqlalchemy import ColumnElement, Row, and_, delete, exists, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from accounts.access import OrganisationRole, TeamRole
from accounts.errors import BadName, BadSetting, OrganisationExists, UnknownTeam
from accounts.people.people_errors import BadEmail, PersonExists, UnknownPerson
from accounts.people.person import Member, Person, Source
from accounts.people.tables import EMAIL_CHARS, OneTimeLinkRow, PersonRow, SessionRow, TeamMemberRow
from accounts.store import DEFAULT_ORGANISATION, AccountStore, utc_now
from accounts.tables import NAME_CHARS, Team

MAX_PEOPLE: Final = 10_000
_ID_BYTES: Final = 8
# Nothing that would need quoting, and no slash or per cent sign: an address stands in paths.
_EMAIL: Final = re.compile(
    r"[a-z0-9.!#$&'*+=?^_`{|}~-]{1,64}@(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?",
    re.ASCII,
)


def normal_email(text: str) -> str:
    """Return the address in lower case, as it is stored and looked up. Raises BadEmail."""
    email = text.strip().lower()
    if len(email) > EMAIL_CHARS or _EMAIL.fullmatch(email) is None:
        raise BadEmail("an e-mail address looks like name@example.com")
    return email


class PeopleStore:
    """The only writer of the tables `person` (but for passwords) and `team_member`."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        clock: Callable[[], datetime] = utc_now,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._random_bytes = random_bytes
        self._insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert

    async def create(
        self,
        organisation_id: str,
        email: str,
        name: str,
        *,
        role: OrganisationRole = "",
        source: Source = "local",
        issuer: str | None = None,
        subject: str | None = None,
    ) -> Person:
        """Add a person, without a password. Raises PersonExists, BadEmail, BadName, BadSetting or UnknownOrganisation."""
        person = Person(
            person_id=f"person_{self._random_bytes(_ID_BYTES).hex()}",
            organisation_id=organisation_id,
            email=normal_email(email),
            name=_checked_name(name),
            role=_checked_choice(role, OrganisationRole),
            source=_checked_choice(source, Source),
            created_at=self._clock(),
            disabled_at=None,
            signed_in_at=None,
            has_password=False,
        )
        await self._ensure_organisation(organisation_id)
        values = msgspec.structs.asdict(person) | {"issuer": issuer, "subject": subject}
        del values["has_password"]
        try:
            async with self._engine.begin() as connection:
                await connection.execute(insert(PersonRow).values(values))
        except IntegrityError as failure:
            raise PersonExists(f"somebody with the address {person.email} is known already") from failure
        return person

    async def get(self, person_id: str, *, organisation_id: str | None = None) -> Person:
        """Return one person; raises UnknownPerson."""
        person = await self._find_one(col(PersonRow.person_id) == person_id, organisation_id)
        if person is None:
            raise UnknownPerson("there is no such person")
        return person

    async def find(self, email: str, *, organisation_id: str | None = None) -> Person | None:
        """Return the person with this e-mail address, or None; None for a malformed address too."""
        try:
            wanted = normal_email(email)
        except BadEmail:
            return None
        return await self._find_one(col(PersonRow.email) == wanted, organisation_id)

    async def find_subject(self, issuer: str, subject: str) -> Person | None:
        """Return the person linked to this subject of an OpenID provider, or None."""
        return await self._find_one(and_(col(PersonRow.issuer) == issuer, col(PersonRow.subject) == subject), None)

    async def of_organisation(self, organisation_id: str, *, limit: int = MAX_PEOPLE) -> list[Person]:
        """Return an organisation's people by e-mail address, disabled ones included."""
        return await self._people(col(PersonRow.organisation_id) == organisation_id, limit)

    async def all(self, *, limit: int = MAX_PEOPLE) -> list[Person]:
        """Return everybody by e-mail address, for the command line."""
        return await self._people(None, limit)

    async def members_of(self, team_id: str) -> list[Member]:
        """Return a team's members by e-mail address, disabled ones included."""
        return await self._members(col(TeamMemberRow.team_id) == team_id)

    async def memberships_of(self, person_id: str) -> list[Member]:
        """Return a person's memberships, by team id."""
        return await self._members(col(TeamMemberRow.person_id) == person_id)

    async def teams_of(self, person_ids: Iterable[str]) -> dict[str, dict[str, TeamRole]]:
        """Return the role by team id, for each of these people; every id asked for is a key of the result."""
        wanted = sorted(set(person_ids))
        found: dict[str, dict[str, TeamRole]] = {person_id: {} for person_id in wanted}
        columns: tuple[Any, ...]
        columns = (col(TeamMemberRow.person_id), col(TeamMemberRow.team_id), col(TeamMemberRow.role))
        query = select(*columns).where(col(TeamMemberRow.person_id).in_(wanted)).order_by(col(TeamMemberRow.team_id))
        async with self._engine.connect() as connection:
            for person_id, team_id, role in await connection.execute(query):
                found[person_id][team_id] = role
        return found

    async def rename(self, person_id: str, name: str, *, organisation_id: str) -> Person:
        """Set a person's name. Raises BadName or UnknownPerson."""
        return await self._update(person_id, organisation_id, {"name": _checked_name(name)})

    async def set_role(
        self, person_id: str, role: OrganisationRole, *, organisation_id: str, source: Source | None = None
    ) -> Person:
        """Set a person's role in the organisation, and its `source` if given. Raises BadSetting or UnknownPerson."""
        changes: dict[str, Any] = {"role": _checked_choice(role, OrganisationRole)}
        if source is not None:
            changes["source"] = _checked_choice(source, Source)
        return await self._update(person_id, organisation_id, changes)

    async def link_subject(self, person_id: str, issuer: str, subject: str, *, organisation_id: str) -> Person:
        """Let an OpenID provider's subject sign in as this person. Raises PersonExists or UnknownPerson."""
        try:
            return await self._update(person_id, organisation_id, {"issuer": issuer, "subject": subject})
        except IntegrityError as failure:
            raise PersonExists("somebody else signs in with this account of the provider already") from failure

    async def disable(self, person_id: str, *, organisation_id: str) -> Person:
        """Disable a person, which ends sessions and open links. A second call keeps the first time."""
        async with self._engine.begin() as connection:
            person = await self._lock_person(connection, person_id, organisation_id)
            if person.disabled_at is None:
                person = msgspec.structs.replace(person, disabled_at=self._clock())
                change = update(PersonRow).where(_person_is(person_id, organisation_id))
                await connection.execute(change.values(disabled_at=person.disabled_at))
            await connection.execute(delete(SessionRow).where(col(SessionRow.person_id) == person_id))
            open_links = and_(col(OneTimeLinkRow.person_id) == person_id, col(OneTimeLinkRow.used_us).is_(None))
            await connection.execute(delete(OneTimeLinkRow).where(open_links))
        return person

    async def enable(self, person_id: str, *, organisation_id: str) -> Person:
        """Let a disabled person sign in again."""
        return await self._update(person_id, organisation_id, {"disabled_at": None})

    async def put_member(
        self, person_id: str, team_id: str, role: TeamRole, *, organisation_id: str, source: Source = "local"
    ) -> Member:
        """Give a person a membership in a team of the same organisation, or another role there.

        A membership from a provider's group (`oidc`) does not replace a `local` one; the other way round it does.
        Raises UnknownTeam, UnknownPerson or BadSetting.
        """
        role, source = _checked_choice(role, TeamRole), _checked_choice(source, Source)
        values = {"person_id": person_id, "team_id": team_id, "role": role, "source": source}
        row = self._insert(TeamMemberRow).values(values)
        kept = col(TeamMemberRow.source) == "oidc" if source == "oidc" else None
        async with self._engine.begin() as connection:
            person = await self._lock_person(connection, person_id, organisation_id)
            own = and_(col(Team.team_id) == team_id, col(Team.organisation_id) == organisation_id)
            if not await connection.scalar(select(exists().select_from(Team).where(own))):
                raise UnknownTeam(f"there is no team {team_id[:80]!r}")
            await connection.execute(
                row.on_conflict_do_update(
                    index_elements=("person_id", "team_id"), set_={"role": role, "source": source}, where=kept
                )
            )
            stands = select(col(TeamMemberRow.role), col(TeamMemberRow.source)).where(
                _membership_is(person_id, team_id)
            )
            now = (await connection.execute(stands)).one()
        return Member(person=person, team_id=team_id, role=now.role, source=now.source)

    async def remove_member(
        self, person_id: str, team_id: str, *, organisation_id: str, source: Source | None = None
    ) -> bool:
        """End a membership, or only one of this `source`; return False when there was none."""
        own = select(col(Team.team_id)).where(col(Team.organisation_id) == organisation_id)
        places = delete(TeamMemberRow).where(_membership_is(person_id, team_id), col(TeamMemberRow.team_id).in_(own))
        if source is not None:
            places = places.where(col(TeamMemberRow.source) == source)
        async with self._engine.begin() as connection:
            return bool((await connection.execute(places)).rowcount)

    async def _find_one(self, condition: ColumnElement[bool], organisation_id: str | None) -> Person | None:
        query = select(*PERSON_COLUMNS).where(condition)
        if organisation_id is not None:
            query = query.where(col(PersonRow.organisation_id) == organisation_id)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else person_of(row)

    async def _people(self, condition: ColumnElement[bool] | None, limit: int) -> list[Person]:
        query = select(*PERSON_COLUMNS).order_by(col(PersonRow.email)).limit(limit)
        if condition is not None:
            query = query.where(condition)
        async with self._engine.connect() as connection:
            return [person_of(row) for row in await connection.execute(query)]

    async def _members(self, condition: ColumnElement[bool]) -> list[Member]:
        place = (col(TeamMemberRow.team_id), col(TeamMemberRow.role), col(TeamMemberRow.source))
        query = (
            select(*PERSON_COLUMNS, place[0], place[1].label("team_role"), place[2].label("team_source"))
            .join_from(TeamMemberRow, PersonRow, col(TeamMemberRow.person_id) == col(PersonRow.person_id))
            .where(condition)
            .order_by(col(PersonRow.email), place[0])
            .limit(MAX_PEOPLE)
        )
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).all()
        return [
            Member(person=person_of(row), team_id=row.team_id, role=row.team_role, source=row.team_source)
            for row in rows
        ]

    async def _update(self, person_id: str, organisation_id: str, changes: dict[str, Any]) -> Person:
        async with self._engine.begin() as connection:
            await connection.execute(update(PersonRow).where(_person_is(person_id, organisation_id)).values(changes))
            return await self._lock_person(connection, person_id, organisation_id)

    async def _lock_person(self, connection: AsyncConnection, person_id: str, organisation_id: str) -> Person:
        query = select(*PERSON_COLUMNS).where(_person_is(person_id, organisation_id)).with_for_update()
        row = (await connection.execute(query)).first()
        if row is None:
            raise UnknownPerson("there is no such person")
        return person_of(row)

    async def _ensure_organisation(self, organisation_id: str) -> None:
        accounts = AccountStore(self._engine, clock=self._clock)
        await accounts.check_organisation(organisation_id)
        if organisation_id == DEFAULT_ORGANISATION:
            # It is there from its first use on.
            with contextlib.suppress(OrganisationExists):
                await accounts.create_organisation(DEFAULT_ORGANISATION, "Default")


PERSON_COLUMNS: Final[tuple[Any, ...]] = (
    col(PersonRow.person_id),
    col(PersonRow.organisation_id),
    col(PersonRow.email),
    col(PersonRow.name),
    col(PersonRow.role),
    col(PersonRow.source),
    col(PersonRow.created_at),
    col(PersonRow.disabled_at),
    col(PersonRow.signed_in_at),
    col(PersonRow.password).is_not(None).label("has_password"),
)


def person_of(row: Row[*tuple[Any, ...]]) -> Person:
    """Return the person in a row that has PERSON_COLUMNS."""
    columns = row._mapping  # noqa: SLF001
    values = {name: columns[name] for name in Person.__struct_fields__}
    return Person(**values | {"has_password": bool(values["has_password"])})


def _person_is(person_id: str, organisation_id: str) -> ColumnElement[bool]:
    return and_(col(PersonRow.person_id) == person_id, col(PersonRow.organisation_id) == organisation_id)


def _membership_is(person_id: str, team_id: str) -> ColumnElement[bool]:
    return and_(col(TeamMemberRow.person_id) == person_id, col(TeamMemberRow.team_id) == team_id)


def _checked_choice(value: Any, choices: Any) -> Any:
    if value not in get_args(choices):
        known = ", ".join(each or "none" for each in cast("tuple[str, ...]", get_args(choices)))
        raise BadSetting(f"one of {known} is expected, not {str(value)[:80]!r}")
    return value


def _checked_name(value: str) -> str:
    name = value.strip()
    if not name or len(name) > NAME_CHARS or not name.isprintable():
        raise BadName(f"a name has 1 to {NAME_CHARS} printable characters")
    return name
