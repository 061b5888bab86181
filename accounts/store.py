"""Organisations, teams and keys in the database. Every value is a bound parameter."""

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import ColumnElement, Row, and_, bindparam, delete, exists, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import aliased
from sqlmodel import col

from accounts.caller import CacheUse, Caller, Escalation, Learning, Role, TeamSettings, narrowed
from accounts.errors import (
    BadId,
    BadName,
    BadSetting,
    KeyExists,
    OrganisationExists,
    TeamExists,
    UnknownKeyId,
    UnknownOrganisation,
    UnknownTeam,
)
from accounts.keys import MintedKey, Pepper, imported_key, mint_key
from accounts.secret_shapes import mask_text
from accounts.tables import ID_CHARS, NAME_CHARS, WHOLE_ORGANISATION, ApiKey, GuardRules, Organisation, Team
from settings.key_ids import SEPARATOR, first_id
from settings.words import closest

DEFAULT_ORGANISATION: Final = "default"
MAX_WEIGHT: Final = 1_000.0
"""Upper bound of a team's weight; beyond it, a team of weight 1 would starve beside it."""
MAX_CACHE_TTL_S: Final = 30 * 24 * 3600
MAX_KEYS_OF_TEAM: Final = 10_000
"""Keys of a team that are listed at most."""
_MOST_OF_A_FAMILY: Final = 100
_MOST_TO_COMPARE: Final = 2_000
_ID: Final = re.compile(rf"[a-z0-9_-]{{1,{ID_CHARS}}}", re.ASCII)


class OrganisationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An organisation as stored."""

    organisation_id: str
    name: str
    created_at: datetime


class TeamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A team as stored."""

    team_id: str
    organisation_id: str
    name: str
    allowed_models: frozenset[str] | None
    created_at: datetime
    settings: TeamSettings = TeamSettings()
    blocked_at: datetime | None = None
    """Since when its keys are refused for now."""


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key as lists show it, without the key and without its digest."""

    key_id: str
    team_id: str
    name: str
    last4: str
    pepper_id: str
    role: Role
    created_at: datetime
    revoked_at: datetime | None
    expires_at: datetime | None
    models: list[str] | None = None
    """The only models it may use, of its team's; None for all of those."""
    blocked_at: datetime | None = None
    """Since when it is refused for now."""
    read_day_us: int | None = None
    """Start of the UTC day of its last request that asked no model, in microseconds since 1970; None for none."""

    def works_at(self, moment: datetime) -> bool:
        """Return True when the key is neither revoked nor expired at that moment; a block is for now only."""
        return self.revoked_at is None and (self.expires_at is None or moment < self.expires_at)


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key and its team, as authentication needs them."""

    key_id: str
    name: str
    digest: str
    pepper_id: str
    team_id: str
    organisation_id: str
    allowed_models: frozenset[str] | None
    revoked_at: datetime | None
    expires_at: datetime | None
    settings: TeamSettings = TeamSettings()
    role: Role = "member"
    models: list[str] | None = None
    blocked_at: datetime | None = None
    team_blocked_at: datetime | None = None
    organisation_guard: str | None = None
    team_guard: str | None = None

    @property
    def blocked(self) -> bool:
        """True while the key or its team is blocked."""
        return self.blocked_at is not None or self.team_blocked_at is not None

    @property
    def caller(self) -> Caller:
        """Whom the key stands for."""
        return Caller(
            key_id=self.key_id,
            key_name=self.name,
            team_id=self.team_id,
            organisation_id=self.organisation_id,
            allowed_models=narrowed(self.allowed_models, self.models),
            settings=self.settings,
            role=self.role,
            guard=(self.organisation_guard or "", self.team_guard or "")
            if self.organisation_guard or self.team_guard
            else None,
        )


def utc_now() -> datetime:
    """Return the current time in UTC, with its zone."""
    return datetime.now(UTC)


class AccountStore:
    """The store of organisations, teams and API keys, for the command line, the admin API and the directory."""

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

    async def create_organisation(self, organisation_id: str, name: str | None = None) -> None:
        """Add an organisation. The one called `default` is created on first use.

        Raises OrganisationExists, BadId or BadName.
        """
        values = {
            "organisation_id": checked_id(organisation_id),
            "name": checked_name(name or organisation_id),
            "created_at": self._clock(),
        }
        try:
            async with self._engine.begin() as connection:
                await connection.execute(insert(Organisation).values(values))
        except IntegrityError as failure:
            raise OrganisationExists(f"organisation {organisation_id!r} exists already") from failure

    async def list_organisations(self) -> list[OrganisationRecord]:
        """Return all organisations, by id."""
        query = select(*_ORGANISATION_COLUMNS).order_by(col(Organisation.organisation_id))
        async with self._engine.connect() as connection:
            return [OrganisationRecord(**row._mapping) for row in await connection.execute(query)]  # noqa: SLF001

    async def check_organisation(self, organisation_id: str) -> None:
        """Raise UnknownOrganisation unless it exists; `default` passes before its first use too."""
        found = organisation_id == DEFAULT_ORGANISATION
        if not found and not await self._exists(Organisation, col(Organisation.organisation_id) == organisation_id):
            raise UnknownOrganisation(f"there is no organisation {organisation_id!r}")

    async def create_team(
        self,
        team_id: str,
        name: str | None = None,
        *,
        organisation_id: str = DEFAULT_ORGANISATION,
        allowed_models: Iterable[str] | None = None,
    ) -> TeamRecord:
        """Add a team; `allowed_models` None lets it use every model.

        Raises TeamExists, UnknownOrganisation, BadId or BadName.
        """
        team = TeamRecord(
            team_id=checked_id(team_id),
            organisation_id=checked_id(organisation_id),
            name=checked_name(name or team_id),
            allowed_models=None if allowed_models is None else frozenset(allowed_models),
            created_at=self._clock(),
        )
        await self._ensure_default_organisation(organisation_id)
        models = None if team.allowed_models is None else sorted(team.allowed_models)
        values = {**msgspec.structs.asdict(team), "allowed_models": models}
        values |= msgspec.structs.asdict(values.pop("settings"))
        try:
            async with self._engine.begin() as connection:
                await connection.execute(insert(Team).values(values))
        except IntegrityError as failure:
            if await self._exists(Organisation, col(Organisation.organisation_id) == organisation_id):
                raise TeamExists(f"team {team_id!r} exists already") from failure
            raise UnknownOrganisation(f"there is no organisation {organisation_id!r}") from failure
        return team

    async def list_teams(self) -> list[TeamRecord]:
        """Return all teams, by id."""
        query = select(*_TEAM_COLUMNS).order_by(col(Team.team_id))
        async with self._engine.connect() as connection:
            return [_team_record(row) for row in await connection.execute(query)]

    async def get_team(self, team_id: str) -> TeamRecord:
        """Return one team of any organisation; raises UnknownTeam."""
        query = select(*_TEAM_COLUMNS).where(col(Team.team_id) == team_id)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).first()
        if row is None:
            raise await self._no_team(team_id)
        return _team_record(row)

    async def teams_of(self, organisation_id: str) -> list[TeamRecord]:
        """Return an organisation's teams, by id."""
        query = select(*_TEAM_COLUMNS).where(col(Team.organisation_id) == organisation_id).order_by(col(Team.team_id))
        async with self._engine.connect() as connection:
            return [_team_record(row) for row in await connection.execute(query)]

    async def names_of(self, organisation_id: str, team_ids: Iterable[str]) -> dict[str, str]:
        """Name by team id, of those of these teams that belong to the organisation, by id."""
        query = (
            select(col(Team.team_id), col(Team.name))
            .where(col(Team.team_id).in_(sorted(set(team_ids))), col(Team.organisation_id) == organisation_id)
            .order_by(col(Team.team_id))
        )
        async with self._engine.connect() as connection:
            return {row[0]: row[1] for row in await connection.execute(query)}

    async def team_names(self, organisation_id: str) -> dict[str, str]:
        """Return the names of an organisation's teams by id, for pages that name any of thousands."""
        query = select(col(Team.team_id), col(Team.name)).where(col(Team.organisation_id) == organisation_id)
        async with self._engine.connect() as connection:
            return {row[0]: row[1] for row in await connection.execute(query.order_by(col(Team.team_id)))}

    async def team_of(self, organisation_id: str, team_id: str) -> TeamRecord:
        """Return one of an organisation's teams. Raises UnknownTeam, for another organisation's team too."""
        query = select(*_TEAM_COLUMNS).where(col(Team.team_id) == team_id, col(Team.organisation_id) == organisation_id)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).first()
        if row is None:
            raise UnknownTeam(f"there is no team {team_id[:80]!r}")
        return _team_record(row)

    async def update_team(
        self,
        team_id: str,
        *,
        organisation_id: str | None = None,
        name: str | UnsetType = UNSET,
        allowed_models: Iterable[str] | UnsetType | None = UNSET,
        quality_floor: float | UnsetType | None = UNSET,
        escalation: Escalation | UnsetType = UNSET,
        learning: Learning | UnsetType = UNSET,
        shadow_share: float | UnsetType = UNSET,
        weight: float | UnsetType = UNSET,
        spill_over: bool | UnsetType = UNSET,
        continue_streams: bool | UnsetType = UNSET,
        cache: CacheUse | UnsetType = UNSET,
        cache_ttl_s: int | UnsetType | None = UNSET,
    ) -> TeamRecord:
        """Change a team; what is left out stays. Servers follow within `accounts.fresh_s`.

        With an `organisation_id`, another organisation's team raises UnknownTeam as a missing one does. Raises
        BadSetting or BadName for a value that is not allowed.
        """
        given = {
            "quality_floor": quality_floor,
            "escalation": escalation,
            "learning": learning,
            "shadow_share": shadow_share,
            "weight": weight,
            "spill_over": spill_over,
            "continue_streams": continue_streams,
            "cache": cache,
            "cache_ttl_s": cache_ttl_s,
        }
        changes: dict[str, Any] = {field: value for field, value in given.items() if value is not UNSET}
        query = select(*_TEAM_COLUMNS).where(col(Team.team_id) == team_id).with_for_update()
        if organisation_id is not None:
            query = query.where(col(Team.organisation_id) == organisation_id)
        async with self._engine.begin() as connection:
            row = (await connection.execute(query)).first()
            if row is None:
                raise UnknownTeam(f"there is no team {team_id[:80]!r}")
            team = _team_record(row)
            settings = checked_settings(msgspec.structs.replace(team.settings, **changes))
            # Name and allowed models are columns of the team that TeamSettings does not have.
            if not isinstance(name, UnsetType):
                changes["name"] = checked_name(name)
            if not isinstance(allowed_models, UnsetType):
                changes["allowed_models"] = None if allowed_models is None else sorted(set(allowed_models))
            if changes:
                await connection.execute(update(Team).where(col(Team.team_id) == team_id).values(changes))
        return msgspec.structs.replace(
            team,
            settings=settings,
            name=changes.get("name", team.name),
            allowed_models=_model_set(changes["allowed_models"])
            if "allowed_models" in changes
            else team.allowed_models,
        )

    async def flush_cache(self, organisation_id: str, team_id: str) -> TeamRecord:
        """Have nothing that was kept of a team's answers given again. Servers follow within `accounts.fresh_s`. Raises UnknownTeam."""
        mine = (col(Team.team_id) == team_id, col(Team.organisation_id) == organisation_id)
        async with self._engine.begin() as connection:
            await connection.execute(update(Team).where(*mine).values(cache_epoch=col(Team.cache_epoch) + 1))
        return await self.team_of(organisation_id, team_id)

    async def block_team(self, organisation_id: str, team_id: str, *, blocked: bool) -> TeamRecord:
        """Refuse all of a team's keys from now on, or let them work again; a second block keeps the first time. Raises UnknownTeam."""
        mine = (col(Team.team_id) == team_id, col(Team.organisation_id) == organisation_id)
        other = col(Team.blocked_at).is_(None) if blocked else col(Team.blocked_at).is_not(None)
        async with self._engine.begin() as connection:
            moment = self._clock() if blocked else None
            await connection.execute(update(Team).where(*mine, other).values(blocked_at=moment))
        return await self.team_of(organisation_id, team_id)

    async def learning_of(self, team_ids: Iterable[str]) -> dict[str, str]:
        """Return each team's current learning setting, by team id; teams that do not exist are left out."""
        async with self._engine.connect() as connection:
            found = await connection.execute(_LEARNING_OF, {"team_ids": sorted(set(team_ids))})
            return {row[0]: row[1] for row in found}

    async def create_key(
        self,
        team_id: str,
        name: str,
        pepper: Pepper,
        *,
        expires_at: datetime | None = None,
        role: Role = "member",
        models: Iterable[str] | None = None,
        replaces: str = "",
    ) -> MintedKey:
        """Create a key for a team, for some of its models only if they are given. The plaintext is in the result and is stored nowhere.
        `replaces` is the id of the key that it follows.

        Raises UnknownTeam, BadName or BadSetting.
        """
        minted = mint_key(pepper, replaces=replaces, random_bytes=self._random_bytes)
        await self._add_key(team_id, name, minted, expires_at=expires_at, role=role, models=models)
        return minted

    async def import_key(
        self,
        team_id: str,
        name: str,
        pepper: Pepper,
        token: str,
        *,
        last4: str,
        expires_at: datetime | None = None,
        role: Role = "member",
        models: Iterable[str] | None = None,
        blocked: bool = False,
    ) -> str:
        """Store another gateway's key by the SHA-256 of it, and return its id here.

        Raises UnknownTeam, BadName, BadSetting, KeyExists, or MalformedKey where `token` is no SHA-256.
        """
        made = imported_key(token, last4, pepper, self._random_bytes)
        blocked_at = self._clock() if blocked else None
        await self._add_key(team_id, name, made, expires_at=expires_at, role=role, models=models, blocked_at=blocked_at)
        return made.key_id

    async def _add_key(
        self,
        team_id: str,
        name: str,
        minted: MintedKey,
        *,
        expires_at: datetime | None,
        role: Role,
        models: Iterable[str] | None,
        blocked_at: datetime | None = None,
    ) -> None:
        values = {
            "key_id": minted.key_id,
            "team_id": team_id,
            "name": checked_name(name),
            "digest": minted.digest,
            "pepper_id": minted.pepper_id,
            "last4": minted.last4,
            "role": _checked_role(role),
            "created_at": self._clock(),
            "expires_at": expires_at,
            "models": None if models is None else sorted(set(models)),
            "blocked_at": blocked_at,
        }
        try:
            async with self._engine.begin() as connection:
                await connection.execute(insert(ApiKey).values(values))
        except IntegrityError as failure:
            if not await self._exists(Team, col(Team.team_id) == team_id):
                raise await self._no_team(team_id) from failure
            if await self._exists(ApiKey, col(ApiKey.digest) == minted.digest):
                raise KeyExists("this key is known already") from failure
            raise

    async def list_keys(self, team_id: str | None = None) -> list[KeyRecord]:
        """Return the keys of one team, or of all teams, oldest first."""
        query = select(*_KEY_COLUMNS).order_by(col(ApiKey.created_at), col(ApiKey.key_id))
        if team_id is not None:
            query = query.where(col(ApiKey.team_id) == team_id)
        async with self._engine.connect() as connection:
            return list(map(_key_record, await connection.execute(query)))

    async def keys_by_pepper(self) -> dict[str, int]:
        """Return how many keys that were not revoked and have not expired there are, by the id of their pepper."""
        query = select(col(ApiKey.pepper_id), func.count()).group_by(col(ApiKey.pepper_id))
        lasting = or_(col(ApiKey.expires_at).is_(None), col(ApiKey.expires_at) > self._clock())
        query = query.where(col(ApiKey.revoked_at).is_(None), lasting)
        async with self._engine.connect() as connection:
            return {row[0]: row[1] for row in await connection.execute(query)}

    async def keys_of(self, organisation_id: str, team_id: str, only: Collection[str] | None = None) -> list[KeyRecord]:
        """Return the keys of an organisation's team, oldest first, or those of these ids alone; none when the team is another
        organisation's.
        """
        query = select(*_KEY_COLUMNS).where(col(ApiKey.team_id) == team_id, _in_organisation(organisation_id))
        if only is not None:
            query = query.where(col(ApiKey.key_id).in_(sorted(only)))
        query = query.order_by(col(ApiKey.created_at), col(ApiKey.key_id)).limit(MAX_KEYS_OF_TEAM)
        async with self._engine.connect() as connection:
            return list(map(_key_record, await connection.execute(query)))

    async def working_keys(
        self, organisation_id: str, team_id: str, *, role: Role | None = None, most: int = MAX_KEYS_OF_TEAM
    ) -> list[tuple[str, str, str]]:
        """Return id, name and last four characters of a team's keys that work now, of all roles or of one, newest first."""
        lasting = or_(col(ApiKey.expires_at).is_(None), col(ApiKey.expires_at) > self._clock())
        query = (
            select(col(ApiKey.key_id), col(ApiKey.name), col(ApiKey.last4))
            .where(col(ApiKey.team_id) == team_id, _in_organisation(organisation_id))
            .where(col(ApiKey.revoked_at).is_(None), lasting)
            .order_by(col(ApiKey.created_at).desc(), col(ApiKey.key_id).desc())
            .limit(most)
        )
        if role is not None:
            query = query.where(col(ApiKey.role) == role)
        async with self._engine.connect() as connection:
            return [(row[0], row[1], row[2]) for row in await connection.execute(query)]

    async def key_names(self, organisation_id: str, team_id: str) -> dict[str, str]:
        """Return the names of a team's keys by id, revoked ones included, oldest first."""
        query = select(col(ApiKey.key_id), col(ApiKey.name)).where(
            col(ApiKey.team_id) == team_id, _in_organisation(organisation_id)
        )
        query = query.order_by(col(ApiKey.created_at), col(ApiKey.key_id)).limit(MAX_KEYS_OF_TEAM)
        async with self._engine.connect() as connection:
            return {str(key_id): str(name) for key_id, name in await connection.execute(query)}

    async def has_key(self, organisation_id: str) -> bool:
        """Return True if a team of the organisation has a key, also a revoked one."""
        return await self._exists(ApiKey, _in_organisation(organisation_id))

    async def named_keys(self, organisation_id: str, key_ids: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Name and team id by key id, of those of these keys that belong to the organisation."""
        query = select(col(ApiKey.key_id), col(ApiKey.name), col(ApiKey.team_id)).where(
            col(ApiKey.key_id).in_(sorted(set(key_ids))), _in_organisation(organisation_id)
        )
        async with self._engine.connect() as connection:
            return {row[0]: (row[1], row[2]) for row in await connection.execute(query)}

    async def key_family(self, organisation_id: str, key_id: str) -> tuple[str, ...]:
        """Return a key's id and those that replaced it or that it replaced: they are one key's spending."""
        first = first_id(key_id)
        family = or_(col(ApiKey.key_id) == first, col(ApiKey.key_id).startswith(f"{first}{SEPARATOR}", autoescape=True))
        query = select(col(ApiKey.key_id)).where(family, _in_organisation(organisation_id)).order_by(col(ApiKey.key_id))
        async with self._engine.connect() as connection:
            return tuple(await connection.scalars(query.limit(_MOST_OF_A_FAMILY))) or (key_id,)

    async def key_of(self, organisation_id: str, team_id: str | None, key_id: str) -> KeyRecord:
        """Return one key of an organisation's team, or of any of its teams. Raises UnknownKeyId."""
        query = select(*_KEY_COLUMNS).where(col(ApiKey.key_id) == key_id, _in_organisation(organisation_id))
        if team_id is not None:
            query = query.where(col(ApiKey.team_id) == team_id)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).first()
        if row is None:
            raise UnknownKeyId(f"there is no key {key_id[:80]!r}")
        return _key_record(row)

    async def rotate_key(
        self, organisation_id: str, team_id: str, key_id: str, pepper: Pepper, *, overlap_s: int
    ) -> MintedKey:
        """Create a key of the same name, role, expiry and models. The old one works for `overlap_s` more; with 0 it is
        revoked.

        Raises UnknownKeyId, also for a key that is revoked or expired already.
        """
        now = self._clock()
        old = await self.key_of(organisation_id, team_id, key_id)
        if not old.works_at(now):
            raise UnknownKeyId(f"the key {key_id[:80]!r} is revoked or expired; make a new one")
        minted = await self.create_key(
            team_id,
            old.name,
            pepper,
            expires_at=old.expires_at,
            role=old.role,
            models=old.models,
            replaces=key_id,
        )
        if overlap_s <= 0:
            await self.revoke_key(key_id)
            return minted
        ends = now + timedelta(seconds=overlap_s)
        # It never works longer than it would have.
        await self.set_expiry(
            organisation_id, team_id, key_id, ends if old.expires_at is None else min(ends, old.expires_at)
        )
        return minted

    async def set_expiry(
        self, organisation_id: str, team_id: str, key_id: str, expires_at: datetime | None
    ) -> KeyRecord:
        """Set the moment at which a key expires; None removes it. Raises UnknownKeyId, also for a revoked key."""
        return await self._change_key(organisation_id, team_id, key_id, expires_at=expires_at)

    async def set_key_models(
        self, organisation_id: str, team_id: str, key_id: str, models: Iterable[str] | None
    ) -> KeyRecord:
        """Set the only models that a key may use; None for all of its team's. Raises UnknownKeyId, also for a revoked key."""
        listed = None if models is None else sorted(set(models))
        return await self._change_key(organisation_id, team_id, key_id, models=listed)

    async def block_key(self, organisation_id: str, team_id: str, key_id: str, *, blocked: bool) -> KeyRecord:
        """Refuse a key from now on, or let it work again, with those that it replaced or was replaced by: during a rotation the same
        people have both. A second block keeps the first time. Raises UnknownKeyId, also for a revoked key.
        """
        found = await self.key_of(organisation_id, team_id, key_id)
        if found.revoked_at is not None:
            raise UnknownKeyId(f"there is no key {key_id[:80]!r} that is not revoked")
        first, its_id = first_id(key_id), col(ApiKey.key_id)
        change = update(ApiKey).where(
            or_(its_id == first, its_id.startswith(f"{first}{SEPARATOR}", autoescape=True)),
            col(ApiKey.team_id) == team_id,
            col(ApiKey.revoked_at).is_(None),
            col(ApiKey.blocked_at).is_(None) if blocked else col(ApiKey.blocked_at).is_not(None),
            _in_organisation(organisation_id),
        )
        async with self._engine.begin() as connection:
            await connection.execute(change.values(blocked_at=self._clock() if blocked else None))
        return await self.key_of(organisation_id, team_id, key_id)

    async def _change_key(self, organisation_id: str, team_id: str, key_id: str, **values: object) -> KeyRecord:
        change = update(ApiKey).where(
            col(ApiKey.key_id) == key_id,
            col(ApiKey.team_id) == team_id,
            col(ApiKey.revoked_at).is_(None),
            _in_organisation(organisation_id),
        )
        async with self._engine.begin() as connection:
            changed = await connection.execute(change.values(**values))
        if changed.rowcount == 0:
            raise UnknownKeyId(f"there is no key {key_id[:80]!r} that is not revoked")
        return await self.key_of(organisation_id, team_id, key_id)

    async def revoke_key(self, key_id: str) -> None:
        """Revoke a key; a second revocation keeps the first time. Raises UnknownKeyId."""
        change = update(ApiKey).where(col(ApiKey.key_id) == key_id, col(ApiKey.revoked_at).is_(None))
        async with self._engine.begin() as connection:
            changed = await connection.execute(change.values(revoked_at=self._clock()))
        if changed.rowcount == 0 and not await self._exists(ApiKey, col(ApiKey.key_id) == key_id):
            raise UnknownKeyId(f"there is no key {key_id!r}")

    async def caller_of(self, key_id: str) -> Caller | None:
        """Return the caller that a key stands for, for work that was ordered with it; None when it is no longer valid. A block is for
        now only: see `is_blocked`.
        """
        query = _STORED_KEYS.where(col(ApiKey.key_id) == key_id)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).first()
        key = None if row is None else StoredKey(**_with_settings(row._mapping))  # noqa: SLF001
        if key is None or key.revoked_at is not None:
            return None
        return None if key.expires_at is not None and key.expires_at <= self._clock() else key.caller

    async def is_blocked(self, key_id: str) -> bool:
        """Return True while a key or its team is blocked: work that was ordered with it waits."""
        blocked = or_(col(ApiKey.blocked_at).is_not(None), col(Team.blocked_at).is_not(None))
        query = select(col(ApiKey.key_id)).join(Team, col(Team.team_id) == col(ApiKey.team_id))
        async with self._engine.connect() as connection:
            return (await connection.scalar(query.where(col(ApiKey.key_id) == key_id, blocked))) is not None

    async def find_keys(self, digests: Sequence[str]) -> list[StoredKey | None]:
        """Return the keys with these digests and their teams, in the same order and in one query; None for what is no key."""
        async with self._engine.connect() as connection:
            rows = (await connection.execute(_KEYS_OF, {"digests": digests})).all()
        found = {key.digest: key for key in (StoredKey(**_with_settings(row._mapping)) for row in rows)}  # noqa: SLF001
        return [found.get(digest) for digest in digests]

    async def find_named_key(self, team_id: str, name: str) -> StoredKey | None:
        """Return the newest key of a team by its name that is not revoked; None where there is none."""
        query = (
            _STORED_KEYS.where(
                col(ApiKey.team_id) == team_id, col(ApiKey.name) == name, col(ApiKey.revoked_at).is_(None)
            )
            .order_by(col(ApiKey.created_at).desc(), col(ApiKey.key_id))
            .limit(1)
        )
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else StoredKey(**_with_settings(row._mapping))  # noqa: SLF001

    async def guard_of(
        self, organisation_id: str, team_id: str = WHOLE_ORGANISATION, *, to_change: bool = False
    ) -> str:
        """Return the guard's rules of an organisation, or of one of its teams, as JSON; empty for none. `to_change`, of who is about to
        set them, waits for others who are.
        """
        query = select(col(GuardRules.rules)).where(
            col(GuardRules.organisation_id) == organisation_id, col(GuardRules.team_id) == team_id
        )
        if to_change:
            query = query.with_for_update()
        async with self._engine.connect() as connection:
            return await connection.scalar(query) or ""

    async def set_guard(self, organisation_id: str, team_id: str, rules: str) -> None:
        """Replace the guard's rules of an organisation, or of one of its teams; empty takes them away. Servers follow within
        `accounts.fresh_s`.
        """
        place = {"organisation_id": organisation_id, "team_id": team_id}
        mine = (col(GuardRules.organisation_id) == organisation_id, col(GuardRules.team_id) == team_id)
        async with self._engine.begin() as connection:
            await connection.execute(delete(GuardRules).where(*mine))
            if rules:
                await connection.execute(insert(GuardRules).values(**place, rules=rules, updated_at=self._clock()))

    async def _exists(self, table: type[Organisation | Team | ApiKey], condition: ColumnElement[bool]) -> bool:
        async with self._engine.connect() as connection:
            return bool(await connection.scalar(select(exists().select_from(table).where(condition))))

    async def _no_team(self, team_id: str) -> UnknownTeam:
        """Return the error for a team that no organisation has, with the id that was probably meant. Operators alone name teams of
        any organisation, so nobody learns of another one's.
        """
        ids = select(col(Team.team_id)).order_by(col(Team.team_id)).limit(_MOST_TO_COMPARE)
        async with self._engine.connect() as connection:
            near = closest(team_id[:80], list(await connection.scalars(ids)))
        return UnknownTeam(f"there is no team {team_id[:80]!r}" + (f"; did you mean {near!r}?" if near else ""))

    async def _ensure_default_organisation(self, organisation_id: str) -> None:
        if organisation_id != DEFAULT_ORGANISATION:
            return
        if not await self._exists(Organisation, col(Organisation.organisation_id) == organisation_id):
            try:
                await self.create_organisation(DEFAULT_ORGANISATION, "Default")
            except OrganisationExists:
                return  # Another process made it in between.


_SETTINGS_COLUMNS: Final = (
    col(Team.quality_floor),
    col(Team.escalation),
    col(Team.learning),
    col(Team.shadow_share),
    col(Team.weight),
    col(Team.spill_over),
    col(Team.continue_streams),
    col(Team.cache),
    col(Team.cache_ttl_s),
    col(Team.cache_epoch),
)
_ORGANISATION_COLUMNS: Final = (
    col(Organisation.organisation_id),
    col(Organisation.name),
    col(Organisation.created_at),
)
_TEAM_COLUMNS: Final = (
    col(Team.team_id),
    col(Team.organisation_id),
    col(Team.name),
    col(Team.allowed_models),
    col(Team.created_at),
    col(Team.blocked_at),
    *_SETTINGS_COLUMNS,
)


def _key_record(row: Sequence[Any]) -> KeyRecord:
    """Return the key of a row of `_KEY_COLUMNS`. Ten thousand are made for one page, so this is fast."""
    return KeyRecord(**dict(zip(KeyRecord.__struct_fields__, row, strict=True)))


_KEY_COLUMNS: Final = [col(getattr(ApiKey, name)) for name in KeyRecord.__struct_fields__]
_FLOOR: Final[Any] = aliased(GuardRules)
_TEAMS_OWN: Final[Any] = aliased(GuardRules)
_STORED_COLUMNS: Final[tuple[Any, ...]] = (
    col(ApiKey.key_id),
    col(ApiKey.name),
    col(ApiKey.digest),
    col(ApiKey.pepper_id),
    col(ApiKey.team_id),
    col(ApiKey.role),
    col(ApiKey.revoked_at),
    col(ApiKey.expires_at),
    col(ApiKey.models),
    col(ApiKey.blocked_at),
    col(Team.blocked_at).label("team_blocked_at"),
    col(Team.organisation_id),
    col(Team.allowed_models),
    _FLOOR.rules.label("organisation_guard"),
    _TEAMS_OWN.rules.label("team_guard"),
    *_SETTINGS_COLUMNS,
)
_STORED_KEYS: Final = (
    select(*_STORED_COLUMNS)
    .join_from(ApiKey, Team, col(ApiKey.team_id) == col(Team.team_id))
    .outerjoin(_FLOOR, and_(_FLOOR.organisation_id == col(Team.organisation_id), _FLOOR.team_id == WHOLE_ORGANISATION))
    .outerjoin(
        _TEAMS_OWN,
        and_(_TEAMS_OWN.organisation_id == col(Team.organisation_id), _TEAMS_OWN.team_id == col(Team.team_id)),
    )
)
_KEYS_OF: Final = _STORED_KEYS.where(col(ApiKey.digest).in_(bindparam("digests", expanding=True)))
_LEARNING_OF: Final = select(col(Team.team_id), col(Team.learning)).where(
    col(Team.team_id).in_(bindparam("team_ids", expanding=True))
)
"""Made once, as the one before: both are asked several times a second."""


def _in_organisation(organisation_id: str) -> ColumnElement[bool]:
    """Return the SQL condition: the key's team belongs to this organisation."""
    owned = select(col(Team.team_id)).where(col(Team.organisation_id) == organisation_id)
    return col(ApiKey.team_id).in_(owned)


def _team_record(row: Row[*tuple[Any, ...]]) -> TeamRecord:
    return TeamRecord(**_with_settings(row._mapping))  # noqa: SLF001


def _with_settings(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a row's columns by name, with the team's settings gathered into one TeamSettings."""
    fields = {str(name): value for name, value in row.items()}
    settings = TeamSettings(**{name: fields.pop(name) for name in TeamSettings.__struct_fields__})
    return {**fields, "allowed_models": _model_set(fields["allowed_models"]), "settings": settings}


def checked_settings(settings: TeamSettings) -> TeamSettings:
    """Return the settings unchanged; raises BadSetting for a value out of range, NaN included."""
    floor, share = settings.quality_floor, settings.shadow_share
    if floor is not None and not 0 < floor <= 1:
        raise BadSetting(f"the minimum quality is a share of the baseline model's, above 0 and at most 1, not {floor}")
    if not 0 <= share <= 1:
        raise BadSetting(f"the shadow share is a share of the requests, from 0 to 1, not {share}")
    if not 0 < settings.weight <= MAX_WEIGHT:
        raise BadSetting(f"a team's weight is above 0 and at most {MAX_WEIGHT:g}, not {settings.weight}")
    for name, value, allowed in (
        ("escalation", settings.escalation, get_args(Escalation)),
        ("learning", settings.learning, get_args(Learning)),
        ("cache", settings.cache, get_args(CacheUse)),
    ):
        if value not in allowed:
            raise BadSetting(f"{name} is one of {', '.join(allowed)}, not {str(value)[:80]!r}")
    if settings.cache_ttl_s is not None and not 1 <= settings.cache_ttl_s <= MAX_CACHE_TTL_S:
        raise BadSetting(f"answers are kept for 1 to {MAX_CACHE_TTL_S} seconds, not {settings.cache_ttl_s}")
    if share > 0 and settings.learning == "off":
        raise BadSetting(
            "a team whose learning is off keeps no verdicts: set its shadow share to 0, or its learning on"
        )
    return settings


def _model_set(stored: list[str] | None) -> frozenset[str] | None:
    return None if stored is None else frozenset(stored)


def _checked_role(value: Role) -> Role:
    if value not in get_args(Role):
        raise BadSetting(f"a key's role is one of {', '.join(get_args(Role))}, not {str(value)[:80]!r}")
    return value


def checked_id(value: str) -> str:
    """Return an id unchanged. Raises BadId."""
    if _ID.fullmatch(value) is None:
        raise BadId(f"{value[:80]!r} is no id: use 1 to {ID_CHARS} of a-z, 0-9, _ and -")
    return value


def checked_name(value: str) -> str:
    """Return a name unchanged. Raises BadName."""
    if not value.strip() or len(value) > NAME_CHARS or not value.isprintable():
        raise BadName(f"a name has 1 to {NAME_CHARS} printable characters")
    if mask_text(value) != value:
        raise BadName("this name looks like a key or a password, and many people see names: choose another one")
    return value
