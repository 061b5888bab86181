"""The table of requests that ill targets hurt: written from the workers' counts, read by incidents."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import msgspec
from sqlalchemy import Table, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.times import DAY_US, HOUR_US
from proxy.settle.hurt.counting import Fate, HurtCount
from proxy.settle.hurt.tables import MODEL_CHARS, TARGETS_CHARS, HurtRow

MINUTES_FOR_US: Final = 2 * DAY_US
"""The time for which each minute is kept by itself: until then incidents count from the minute of their beginning."""
KEPT_US: Final = 31 * DAY_US
_MOST_ROWS: Final = 20_000

_table: Final[Table] = HurtRow.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
_WHO: Final = ("organisation_id", "team_id", "key_id", "model", "targets", "fate")
_KEY: Final = ("span", "start_us", "boot_id", *_WHO)


class HurtSum(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one caller that the same targets hurt in the same way."""

    start_us: int
    """Beginning of their minute, or of their hour."""
    is_minute: bool
    organisation_id: str
    team_id: str
    key_id: str
    model: str
    targets: tuple[str, ...]
    fate: Fate
    requests: int


class HurtStore:
    """The only writer and reader of `hurt_count`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def keep(self, boot_id: str, told: Sequence[HurtCount]) -> None:
        """Keep a process's counts. One that is kept already is replaced by a larger one, so twice is once."""
        # Names that are cut may be alike.
        rows: dict[tuple[Any, ...], int] = {}
        for each in told:
            hurt = each.hurt
            key = (
                "minute",
                hurt.minute_us,
                boot_id,
                hurt.organisation_id,
                hurt.team_id,
                hurt.key_id,
                hurt.model[:MODEL_CHARS],
                _as_lines(hurt.targets),
                hurt.fate,
            )
            rows[key] = rows.get(key, 0) + each.count
        if not rows:
            return
        insert = self._insert(_table)
        larger = insert.on_conflict_do_update(
            index_elements=_KEY,
            set_={"requests": insert.excluded.requests},
            where=insert.excluded.requests > _table.c.requests,
        )
        async with self._engine.begin() as connection:
            await connection.execute(larger, _as_rows(rows))

    async def roll_up(self, now_us: int) -> None:
        """Add minutes that are long over to their hours, and delete hours after a month."""
        over = (_table.c.span == "minute", _table.c.start_us < now_us - MINUTES_FOR_US)
        names = [_table.c[name] for name in ("start_us", *_WHO, "requests")]
        async with self._engine.begin() as connection:
            # Only the process that deletes a minute adds it, so two control planes do not add it twice.
            taken = (await connection.execute(delete(_table).where(*over).returning(*names))).all()
            hours: dict[tuple[Any, ...], int] = {}
            for start_us, *who, requests in taken:
                key = ("hour", start_us - start_us % HOUR_US, "", *who)
                hours[key] = hours.get(key, 0) + requests
            if hours:
                insert = self._insert(_table)
                added = insert.on_conflict_do_update(
                    index_elements=_KEY, set_={"requests": _table.c.requests + insert.excluded.requests}
                )
                await connection.execute(added, _as_rows(hours))
            await connection.execute(delete(_table).where(_table.c.start_us < now_us - KEPT_US))

    async def read(self, since_us: int) -> list[HurtSum]:
        """Return what was hurt since the hour of that time, of all processes, by minute, or by hour once that is long over."""
        total = func.sum(_table.c.requests)
        group = [_table.c[name] for name in ("start_us", "span", *_WHO)]
        query = select(*group, total).where(_table.c.start_us >= since_us - since_us % HOUR_US).group_by(*group)
        query = query.order_by(_table.c.start_us.desc(), total.desc()).limit(_MOST_ROWS)
        async with self._engine.connect() as connection:
            rows: Sequence[Any] = (await connection.execute(query)).all()
        return [
            HurtSum(
                start_us=int(start_us),
                is_minute=span == "minute",
                organisation_id=organisation_id,
                team_id=team_id,
                key_id=key_id,
                model=model,
                targets=tuple(targets.split("\n")),
                fate=cast(Fate, fate),
                requests=int(requests),
            )
            for start_us, span, organisation_id, team_id, key_id, model, targets, fate, requests in rows
        ]


def _as_lines(targets: Iterable[str]) -> str:
    """Return the names a line each, whole names alone."""
    lines = ""
    for each in targets:
        longer = f"{lines}\n{each}" if lines else each
        if len(longer) > TARGETS_CHARS:
            break
        lines = longer
    return lines


def _as_rows(counts: dict[tuple[Any, ...], int]) -> list[dict[str, Any]]:
    # In one order, so that two processes that write at once do not wait for each other in a circle.
    return [
        {**dict(zip(_KEY, key, strict=True)), "requests": count}
        for key, count in sorted(counts.items(), key=lambda item: [str(part) for part in item[0]])
    ]
