"""Incidents in the database: 90 days of them, with the teams that each hurt."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Table, delete, exists, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from api.incidents.kept import AGAIN_US, Change, KeptIncident, Share
from api.incidents.tables import IncidentRow, IncidentShare
from cost.times import DAY_US

KEPT_US: Final = 90 * DAY_US
MOST_KEPT: Final = 5_000
"""The most closed incidents that are kept: the newest."""
MOST_READ: Final = 500
_MOST_OPEN: Final = 1_000

_incident: Final[Table] = IncidentRow.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
_share: Final[Table] = IncidentShare.__table__  # type: ignore[attr-defined]
_NAMES: Final = KeptIncident.__struct_fields__
_LISTS: Final = ("places", "targets", "also")
_SHARE_KEY: Final = ("incident_id", "organisation_id", "team_id", "model")


class IncidentStore:
    """The only writer and reader of `incident` and `incident_share`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def current(self, now_us: int) -> list[KeptIncident]:
        """Return those that are open, or were until just now."""
        now = or_(_incident.c.closed_us == 0, _incident.c.closed_us > now_us - AGAIN_US)
        return await self._read([now, _incident.c.part_of == ""], _MOST_OPEN)

    async def recent(
        self, since_us: int, most: int = MOST_READ, organisation_id: str | None = None, team_id: str | None = None
    ) -> list[KeptIncident]:
        """Return those that were open at any time since then, the newest first, without parts of others; of one organisation or team
        those that hurt it.
        """
        where = [or_(_incident.c.closed_us == 0, _incident.c.closed_us >= since_us), _incident.c.part_of == ""]
        if organisation_id is not None:
            theirs = [_share.c.organisation_id == organisation_id, _share.c.requests > 0]
            if team_id is not None:
                theirs.append(_share.c.team_id == team_id)
            where.append(exists().where(_share.c.incident_id == _incident.c.incident_id, *theirs))
        return await self._read(where, most)

    async def one(self, incident_id: str) -> KeptIncident | None:
        """Return the incident of this id; None when there is none."""
        found = await self._read([_incident.c.incident_id == incident_id[:64]], 1)
        return found[0] if found else None

    async def parts(self, incident_id: str) -> list[KeptIncident]:
        """Return the incidents that turned out to be a part of it."""
        return await self._read([_incident.c.part_of == incident_id[:64]], MOST_READ)

    async def shares(
        self, incident_ids: Sequence[str], organisation_id: str | None = None, team_id: str | None = None
    ) -> dict[str, tuple[Share, ...]]:
        """Return whom these hurt by their ids, those with most first; of one organisation or team where it is given."""
        query = select(*(_share.c[name] for name in (*_SHARE_KEY, "requests", "refused")))
        query = query.where(_share.c.incident_id.in_(incident_ids))
        if organisation_id is not None:
            query = query.where(_share.c.organisation_id == organisation_id)
        if team_id is not None:
            query = query.where(_share.c.team_id == team_id)
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query.order_by(_share.c.requests.desc(), *_share.primary_key))).mappings()
            found: dict[str, list[Share]] = {}
            for row in rows:
                told = dict(row)
                found.setdefault(told.pop("incident_id"), []).append(Share(**told))
        return {incident_id: tuple(shares) for incident_id, shares in found.items()}

    async def save(self, changed: Sequence[Change]) -> None:
        """Save incidents, and those whom they hurt: a number never becomes less."""
        rows = [_as_row(each.kept) for each in changed]
        shares = [
            {
                "incident_id": each.kept.incident_id,
                "organisation_id": share.organisation_id,
                "team_id": share.team_id,
                "model": share.model[:200],
                "requests": share.requests,
                "refused": share.refused,
            }
            for each in changed
            for share in each.hurt
        ]
        if not rows:
            return
        insert = self._insert(_incident)
        put = insert.on_conflict_do_update(
            index_elements=("incident_id",),
            set_={name: insert.excluded[name] for name in _NAMES if name != "incident_id"},
            # Another host may have seen it in the meantime.
            where=or_(insert.excluded.closed_us == 0, insert.excluded.seen_us >= _incident.c.seen_us),
        )
        async with self._engine.begin() as connection:
            await connection.execute(put, sorted(rows, key=lambda row: str(row["incident_id"])))
            if shares:
                insert = self._insert(_share)
                larger = insert.on_conflict_do_update(
                    index_elements=_SHARE_KEY,
                    set_={"requests": insert.excluded.requests, "refused": insert.excluded.refused},
                    where=insert.excluded.requests >= _share.c.requests,
                )
                ordered = sorted(shares, key=lambda row: [str(row[name]) for name in _SHARE_KEY])
                await connection.execute(larger, ordered)

    async def forget(self, now_us: int) -> None:
        """Delete what was closed 90 days ago, and of more than MOST_KEPT closed ones the oldest."""
        closed = _incident.c.closed_us > 0
        newest = select(_incident.c.closed_us).where(closed).order_by(_incident.c.closed_us.desc())
        async with self._engine.begin() as connection:
            last = await connection.scalar(newest.offset(MOST_KEPT - 1).limit(1))
            until_us = max(now_us - KEPT_US, int(last or 0))
            await connection.execute(delete(_incident).where(closed, _incident.c.closed_us < until_us))
            there = select(_incident.c.incident_id)
            await connection.execute(delete(_share).where(_share.c.incident_id.not_in(there)))

    async def _read(self, where: Sequence[ColumnElement[bool]], most: int) -> list[KeptIncident]:
        query = select(*(_incident.c[name] for name in _NAMES)).where(*where)
        # Open ones first, then the newest.
        query = query.order_by(_incident.c.closed_us != 0, _incident.c.opened_us.desc(), _incident.c.incident_id)
        async with self._engine.connect() as connection:
            return [_as_kept(row) for row in (await connection.execute(query.limit(most))).all()]


def _as_row(kept: KeptIncident) -> dict[str, Any]:
    row = {name: getattr(kept, name) for name in _NAMES}
    return row | {name: "\n".join(row[name]) for name in _LISTS}


def _as_kept(row: Row[Any]) -> KeptIncident:
    told = dict(zip(_NAMES, row, strict=True))
    return KeptIncident(**told | {name: tuple(told[name].split("\n")) if told[name] else () for name in _LISTS})
