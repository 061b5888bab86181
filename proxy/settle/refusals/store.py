"""The table of refusals: written by the control plane from the workers' counts, read by pages and APIs."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Table, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.times import DAY_US, HOUR_US
from proxy.settle.hurt.store import HurtStore
from proxy.settle.refusals.counting import RefusalsTold
from proxy.settle.refusals.refused_requests import RefusedRequestStore
from proxy.settle.refusals.tables import RefusalCount

KEPT_US: Final = 92 * DAY_US
_MINUTES_FOR_US: Final = 2 * HOUR_US
_MOST_ROWS: Final = 1_000
_ID_CHARS: Final = 200
_REASON_CHARS: Final = 64

_table: Final[Table] = RefusalCount.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
_WHO: Final = ("organisation_id", "team_id", "key_id", "model", "reason", "status")
_KEY: Final = ("span", "start_us", "boot_id", *_WHO)


class RefusalSum(msgspec.Struct, frozen=True, kw_only=True):
    """Refusals of one key, model and reason over some time."""

    organisation_id: str
    team_id: str
    key_id: str
    model: str
    reason: str
    status: int
    refusals: int
    last_us: int
    """Beginning of the latest minute or hour with one."""


class RefusalStore:
    """The only writer and reader of `refusal_count`; `requests` are those kept one by one, `hurt` those that ill targets hurt."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.requests: Final = RefusedRequestStore(engine)
        self.hurt: Final = HurtStore(engine)
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def keep(self, told: RefusalsTold) -> None:
        """Keep a process's counts and requests. A count that is kept already is replaced by a larger one, so twice is
        once.
        """
        await self.requests.keep(told.requests)
        await self.hurt.keep(told.boot_id, told.hurt)
        rows = [
            {
                "span": "minute",
                "start_us": each.refused.minute_us,
                "boot_id": told.boot_id,
                "organisation_id": each.refused.organisation_id,
                "team_id": each.refused.team_id,
                "key_id": each.refused.key_id,
                "model": each.refused.model[:_ID_CHARS],
                "reason": each.refused.reason[:_REASON_CHARS],
                "status": each.refused.status,
                "refusals": each.count,
            }
            for each in told.counts
        ]
        if not rows:
            return
        insert = self._insert(_table)
        larger = insert.on_conflict_do_update(
            index_elements=_KEY,
            set_={"refusals": insert.excluded.refusals},
            where=insert.excluded.refusals > _table.c.refusals,
        )
        async with self._engine.begin() as connection:
            await connection.execute(larger, sorted(rows, key=lambda row: [str(row[name]) for name in _KEY]))

    async def roll_up(self, now_us: int) -> None:
        """Add minutes that are long over to their hours, and delete hours after three months, requests before."""
        await self.requests.forget(now_us)
        await self.hurt.roll_up(now_us)
        over = (_table.c.span == "minute", _table.c.start_us < now_us - _MINUTES_FOR_US)
        names = [_table.c[name] for name in ("start_us", *_WHO, "refusals")]
        async with self._engine.begin() as connection:
            # Only the process that deletes a minute adds it, so two control planes do not add it twice.
            taken = (await connection.execute(delete(_table).where(*over).returning(*names))).all()
            hours: dict[tuple[Any, ...], int] = {}
            for start_us, *who, refusals in taken:
                key = (start_us - start_us % HOUR_US, *who)
                hours[key] = hours.get(key, 0) + refusals
            if hours:
                insert = self._insert(_table)
                added = insert.on_conflict_do_update(
                    index_elements=_KEY, set_={"refusals": _table.c.refusals + insert.excluded.refusals}
                )
                fields = ("start_us", *_WHO)
                rows = [
                    {"span": "hour", "boot_id": "", **dict(zip(fields, key, strict=True)), "refusals": count}
                    for key, count in sorted(hours.items())
                ]
                await connection.execute(added, rows)
            old = (_table.c.span == "hour", _table.c.start_us < now_us - KEPT_US)
            await connection.execute(delete(_table).where(*old))

    async def read(
        self, since_us: int, *, organisation_id: str | None = None, team_id: str | None = None, most: int = 200
    ) -> tuple[RefusalSum, ...]:
        """Return the refusals since then, the most frequent first; of all organisations for None. An hour counts from
        its beginning.
        """
        total = func.sum(_table.c.refusals)
        group = [_table.c[name] for name in _WHO]
        query = select(*group, total, func.max(_table.c.start_us)).where(
            _table.c.span.in_(("minute", "hour")), _table.c.start_us >= since_us
        )
        if organisation_id is not None:
            query = query.where(_table.c.organisation_id == organisation_id)
        if team_id is not None:
            query = query.where(_table.c.team_id == team_id)
        query = query.group_by(*group).order_by(total.desc(), *group).limit(min(most, _MOST_ROWS))
        async with self._engine.connect() as connection:
            rows: Sequence[Any] = (await connection.execute(query)).all()
        names = (*_WHO, "refusals", "last_us")
        return tuple(
            RefusalSum(**{**dict(zip(names, row, strict=True)), "refusals": int(row[len(_WHO)])}) for row in rows
        )
