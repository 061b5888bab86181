"""The table of traffic: written by the control plane from the workers' counts, read by the operators' page."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from sqlalchemy import Table, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.times import DAY_US, HOUR_US, MINUTE_US
from proxy.settle.traffic.counting import TrafficTold
from proxy.settle.traffic.tables import TrafficRow
from proxy.settle.traffic.waits import added

QUARTER_US: Final = 15 * MINUTE_US
KEPT_US: Final = 31 * DAY_US
MINUTES_FOR_US: Final = 2 * HOUR_US
_MOST_ROWS: Final = 20_000
"""The most rows that are read: two hours of minutes of 150 processes."""

_table: Final[Table] = TrafficRow.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
_KEY: Final = ("span", "start_us", "boot_id")
_SUMS: Final = ("requests", "errors", "refusals", "output_tokens", "priced_tokens", "cost_nanousd")
_FIGURES: Final = (*_SUMS, "waiting", "ttft")
_READ: Final = [_table.c[name] for name in ("start_us", *_FIGURES)]
_decode: Final = msgspec.json.Decoder(list[int]).decode


class TrafficInterval(msgspec.Struct, kw_only=True):
    """Traffic of all processes within one minute or one quarter of an hour; figures as in `Minute`."""

    start_us: int
    requests: int = 0
    errors: int = 0
    refusals: int = 0
    output_tokens: int = 0
    priced_tokens: int = 0
    cost_nanousd: int = 0
    waiting: int = 0
    """The most that waited at a time, over all processes: of each its own most within a minute, added up."""
    ttft: list[int] = msgspec.field(default_factory=list)

    def add(self, other: "TrafficInterval", *, waiting_adds: bool = False) -> None:
        """Add the other's figures. For `waiting` the larger one is taken; with `waiting_adds`, for another process,
        it is added.
        """
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.waiting = self.waiting + other.waiting if waiting_adds else max(self.waiting, other.waiting)
        self.ttft = added(self.ttft, other.ttft)


class TrafficStore:
    """The only writer and reader of `traffic`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert
        insert = self._insert(_table)
        # Made once: it is asked every second while there is traffic.
        self._later = insert.on_conflict_do_update(
            index_elements=_KEY,
            set_={name: insert.excluded[name] for name in ("mark", *_FIGURES)},
            where=insert.excluded.mark > _table.c.mark,
        )

    async def keep(self, told: TrafficTold) -> None:
        """Keep a process's minutes. One that is kept already is replaced by a later one, so twice is once."""
        rows = [
            {
                "span": "minute",
                "start_us": each.minute_us,
                "boot_id": told.boot_id,
                "mark": each.mark,
                **{name: getattr(each, name) for name in (*_SUMS, "waiting")},
                "ttft": _encoded(each.ttft),
            }
            for each in sorted(told.minutes, key=lambda each: each.minute_us)
        ]
        if not rows:
            return
        async with self._engine.begin() as connection:
            await connection.execute(self._later, rows)

    async def roll_up(self, now_us: int) -> None:
        """Add minutes that are long over to their quarters of an hour, and delete quarters after a month."""
        until_us = now_us - MINUTES_FOR_US
        until_us -= until_us % QUARTER_US
        over = (_table.c.span == "minute", _table.c.start_us < until_us)
        async with self._engine.begin() as connection:
            # Only the process that deletes a minute adds it, so two control planes do not add it twice.
            taken = (await connection.execute(delete(_table).where(*over).returning(*_READ))).all()
            if taken:
                quarters = intervals(taken, QUARTER_US)
                there = select(*_READ).where(
                    _table.c.span == "quarter", _table.c.start_us.in_([each.start_us for each in quarters])
                )
                before = (await connection.execute(there.with_for_update())).all()
                await self._write_quarters(connection, _merged([*map(_interval, before), *quarters], QUARTER_US))
            old = (_table.c.span == "quarter", _table.c.start_us < now_us - KEPT_US)
            await connection.execute(delete(_table).where(*old))

    async def _write_quarters(self, connection: Any, quarters: Iterable[TrafficInterval]) -> None:
        insert = self._insert(_table)
        whole = insert.on_conflict_do_update(
            index_elements=_KEY, set_={name: insert.excluded[name] for name in _FIGURES}
        )
        rows = [
            {"span": "quarter", "boot_id": "", "mark": 0, "start_us": each.start_us}
            | dict(zip(_FIGURES, _row(each)[1:], strict=True))
            for each in quarters
        ]
        await connection.execute(whole, rows)

    async def read(self, since_us: int, until_us: int, step_us: int) -> tuple[TrafficInterval, ...]:
        """Return the traffic from `since_us` until before `until_us`, in steps of a minute or a multiple of it; steps
        without a report are left out. Minutes are there for the last two hours, and quarters of an hour before.
        """
        query = (
            select(*_READ)
            .where(
                _table.c.span.in_(("minute", "quarter")), _table.c.start_us >= since_us, _table.c.start_us < until_us
            )
            .order_by(_table.c.start_us)
            .limit(_MOST_ROWS)
        )
        async with self._engine.connect() as connection:
            return intervals((await connection.execute(query)).all(), step_us)


def intervals(rows: Iterable[Any], step_us: int) -> tuple[TrafficInterval, ...]:
    """Return rows of processes as steps of all of them, in the order of time."""
    # Of processes at one time what waits is added, and of times in one step the most is taken.
    return _merged(_merged(map(_interval, rows), 1, waiting_adds=True), step_us)


def _merged(
    found: Iterable[TrafficInterval], step_us: int, *, waiting_adds: bool = False
) -> tuple[TrafficInterval, ...]:
    merged: dict[int, TrafficInterval] = {}
    for each in found:
        at_us = each.start_us - each.start_us % step_us
        merged.setdefault(at_us, TrafficInterval(start_us=at_us)).add(each, waiting_adds=waiting_adds)
    return tuple(merged[at_us] for at_us in sorted(merged))


def _interval(row: Any) -> TrafficInterval:
    start_us, *sums, waiting, ttft = row
    counts = dict(zip(_SUMS, map(int, sums), strict=True))
    return TrafficInterval(start_us=int(start_us), **counts, waiting=int(waiting), ttft=_decode(ttft))


def _row(interval: TrafficInterval) -> tuple[Any, ...]:
    return (interval.start_us, *(getattr(interval, name) for name in (*_SUMS, "waiting")), _encoded(interval.ttft))


def _encoded(counts: list[int]) -> str:
    return msgspec.json.encode(counts).decode()
