"""The database store of limit rules."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from accounts.errors import UnknownKeyId
from accounts.store import AccountStore
from accounts.tables import ApiKey, Team
from cost.times import wall_us
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.limit_tables import LimitRule
from proxy.admit.limits.rules import (
    BadLimit,
    Place,
    Rule,
    UnknownLimit,
    check_limits,
    check_place,
    says_nothing,
    team_of,
)

MAX_RULES: Final = 10_000
_PLACE: Final = Place.__struct_fields__
_LIMITS: Final = Limits.__struct_fields__
_COLUMNS: Final = tuple(col(getattr(LimitRule, name)) for name in (*_PLACE, *_LIMITS, "updated_us"))
_FOLD: Final = 1_000_000_007
_MARK: Final = select(
    func.count(),
    func.coalesce(func.max(col(LimitRule.updated_us)), 0),
    func.coalesce(func.sum(col(LimitRule.updated_us) % _FOLD), 0),
).select_from(LimitRule)
"""The query for the fingerprint, made once: every process asks it every few seconds."""


class TableVersion(msgspec.Struct, frozen=True):
    """A fingerprint of the rule table that changes with every change of the table."""

    rules: int
    newest_us: int
    folded: int
    """The sum of all change times, each reduced modulo a prime so that it cannot overflow."""


class LimitStore:
    """The only writer of the table `limit_rule`."""

    def __init__(self, engine: AsyncEngine, now_us: Callable[[], int] = wall_us) -> None:
        self._engine = engine
        self._now_us = now_us
        self._insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert

    async def put(self, rule: Rule) -> bool:
        """Insert or replace a rule; return True when it is new. Raises BadLimit, and an AccountsError when the
        organisation, team or key does not exist.
        """
        if says_nothing(rule.limits):
            raise BadLimit("a limit says at least one thing; to have the configuration's again, remove it")
        await self._check(rule.place)
        check_limits(rule.place, rule.limits)
        async with self._engine.begin() as connection:
            found = await _find(connection, rule.place)
            await self._write(connection, rule.place, rule.limits, found)
        return found is None

    async def change(self, place: Place, changes: Mapping[str, int | None]) -> Rule:
        """Change the given values of a rule, which is created if necessary; other values stay. A rule without any
        value left is removed. Raises as `put` does.
        """
        await self._check(place)
        async with self._engine.begin() as connection:
            found = await _find(connection, place)
            limits = msgspec.structs.replace(Limits() if found is None else found.limits, **changes)
            check_limits(place, limits)
            if says_nothing(limits):
                await connection.execute(delete(LimitRule).where(_at(place)))
                return Rule(place=place, limits=limits)
            return await self._write(connection, place, limits, found)

    async def remove(self, place: Place) -> Rule:
        """Delete a rule and return it; the configured limits apply again. Raises UnknownLimit."""
        async with self._engine.begin() as connection:
            found = await _find(connection, place)
            if found is None:
                raise UnknownLimit(
                    f"there is no limit for {str(place)[:250]!r}; `weighbridge limits list` has them all"
                )
            await connection.execute(delete(LimitRule).where(_at(place)))
        return found

    async def all(self) -> list[Rule]:
        """Return all rules of all organisations, for operators and serving processes."""
        return await self._select()

    async def of_organisation(self, organisation_id: str) -> list[Rule]:
        """Return the rules of an organisation, its teams, their keys and end users. Models' rules concern everybody and are left
        out.
        """
        teams = select(col(Team.team_id)).where(col(Team.organisation_id) == organisation_id)
        keys = select(col(ApiKey.key_id)).where(col(ApiKey.team_id).in_(teams))
        scope, scope_id = col(LimitRule.scope), col(LimitRule.scope_id)
        prefix = col(Team.team_id) + "/"
        of_end_users = exists(teams.where(func.substr(scope_id, 1, func.length(prefix)) == prefix).correlate(LimitRule))
        return await self._select(
            or_(
                and_(scope == "organisation", scope_id == organisation_id),
                and_(scope == "team", scope_id.in_(teams)),
                and_(scope == "key", scope_id.in_(keys)),
                and_(scope == "end_user", of_end_users),
            )
        )

    async def of_team(self, organisation_id: str, team_id: str) -> list[Rule]:
        """Return the rules of a team, its keys and its end users; none when the team belongs to another organisation."""
        team = and_(col(Team.team_id) == team_id, col(Team.organisation_id) == organisation_id)
        teams = select(col(Team.team_id)).where(team)
        keys = select(col(ApiKey.key_id)).where(col(ApiKey.team_id).in_(teams))
        scope, scope_id = col(LimitRule.scope), col(LimitRule.scope_id)
        return await self._select(
            or_(
                and_(scope == "team", scope_id.in_(teams)),
                and_(scope == "key", scope_id.in_(keys)),
                and_(scope == "end_user", scope_id.startswith(f"{team_id}/", autoescape=True), exists(teams)),
            )
        )

    async def at(self, place: Place) -> Rule | None:
        """Return the rule of a place, if there is one. Raises BadLimit for an invalid place."""
        check_place(place)
        found = await self._select(_at(place))
        return found[0] if found else None

    async def mark(self) -> TableVersion:
        """Return the table's fingerprint, which is much cheaper than reading all rules."""
        async with self._engine.connect() as connection:
            return await _mark(connection)

    async def _select(self, *where: ColumnElement[bool]) -> list[Rule]:
        order = (col(LimitRule.scope), col(LimitRule.scope_id), col(LimitRule.model))
        query = select(*_COLUMNS).where(*where).order_by(*order).limit(MAX_RULES)
        async with self._engine.connect() as connection:
            return [_rule(tuple(row)) for row in await connection.execute(query)]

    async def _check(self, place: Place) -> None:
        check_place(place)
        accounts = AccountStore(self._engine)
        match place.scope:
            case "organisation":
                await accounts.check_organisation(place.scope_id)
            case "team" | "end_user":
                await accounts.get_team(team_of(place))
            case "key":
                await self._check_key(place.scope_id)
            case "model":
                # Any name: a model may be limited before it is configured.
                return

    async def _check_key(self, key_id: str) -> None:
        question = select(exists().select_from(ApiKey).where(col(ApiKey.key_id) == key_id))
        async with self._engine.connect() as connection:
            if not await connection.scalar(question):
                raise UnknownKeyId(f"there is no key {key_id!r}")

    async def _write(self, connection: AsyncConnection, place: Place, limits: Limits, found: Rule | None) -> Rule:
        mark = await _mark(connection)
        if found is None and mark.rules >= MAX_RULES:
            # Each process reads them all.
            raise BadLimit(f"there are {MAX_RULES} limits already; remove some first")
        # A clock that stands still or goes back must not hide a change.
        now_us = max(self._now_us(), mark.newest_us + 1)
        changes = {**msgspec.structs.asdict(limits), "updated_us": now_us}
        row = self._insert(LimitRule).values(**msgspec.structs.asdict(place), **changes)
        await connection.execute(row.on_conflict_do_update(index_elements=list(_PLACE), set_=changes))
        return Rule(place=place, limits=limits, updated_us=now_us)


def _at(place: Place) -> ColumnElement[bool]:
    return and_(*(col(getattr(LimitRule, name)) == getattr(place, name) for name in _PLACE))


async def _find(connection: AsyncConnection, place: Place) -> Rule | None:
    check_place(place)
    row = (await connection.execute(select(*_COLUMNS).where(_at(place)).with_for_update())).first()
    return None if row is None else _rule(tuple(row))


async def _mark(connection: AsyncConnection) -> TableVersion:
    return TableVersion(*map(int, (await connection.execute(_MARK)).one()))


def _rule(row: tuple[object, ...]) -> Rule:
    fields = dict(zip((*_PLACE, *_LIMITS, "updated_us"), row, strict=True))
    updated_us = fields.pop("updated_us")
    place = {name: fields.pop(name) for name in _PLACE}
    return msgspec.convert({"place": place, "limits": fields, "updated_us": updated_us}, Rule)
