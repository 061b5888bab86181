"""The tables of what the guard found: written by the control plane from the processes' counts, read by pages."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Table, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cost.calendars import read_calendars
from cost.times import DAY_US, HOUR_US
from guard.ruleset import Finding
from proxy.settle.findings.counting import FindingsTold, GuardedRequest
from proxy.settle.findings.tables import NAME_CHARS, REQUEST_CHARS, GuardedRequestRow, GuardFinding

KEPT_US: Final = 92 * DAY_US
"""Time for which counts are kept."""
HOURS_FOR_US: Final = 2 * DAY_US
"""The time for which each hour is kept by itself; then it is added to its organisation's day."""
REQUESTS_KEPT_US: Final = 31 * DAY_US
MOST_PER_TEAM: Final = 2_000
"""The number of a team's newest requests that stay."""
MOST_ROWS: Final = 1_000
_APART_US: Final = 3 * HOUR_US
"""From the beginning of an hour until its processes' counts are added up: none of them counts in it by then."""
_MOST_REQUESTS: Final = 500
_MOST_TEAMS: Final = 1_000

_table: Final[Table] = GuardFinding.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
_requests: Final[Table] = GuardedRequestRow.__table__  # type: ignore[attr-defined]
_WHAT: Final = ("team_id", "name", "label", "action", "side")
_WHO: Final = ("start_us", "organisation_id", *_WHAT)
_KEY: Final = ("span", "start_us", "boot_id", "organisation_id", *_WHAT)
_SUMS: Final = ("requests", "findings")
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(tuple[Finding, ...]).decode


class FindingSum(msgspec.Struct, frozen=True, kw_only=True):
    """What one team's requests were found to have, over some time. An empty name is for those beyond the bounds of a count."""

    team_id: str
    name: str
    label: str
    action: str
    side: str
    requests: int
    findings: int


class FindingStore:
    """The only writer and reader of `guard_finding` and `guarded_request`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def keep(self, told: FindingsTold) -> None:
        """Keep a process's counts and requests. A count that is kept already is replaced by a larger one, so twice is once."""
        # Names that are cut may be alike.
        rows: dict[tuple[Any, ...], tuple[int, int]] = {}
        for each in told.counts:
            found = each.found
            key = (
                "process",
                found.hour_us,
                told.boot_id,
                found.organisation_id,
                found.team_id,
                found.name[:NAME_CHARS],
                found.label[:NAME_CHARS],
                found.action,
                found.side,
            )
            requests, findings = rows.get(key, (0, 0))
            rows[key] = requests + each.requests, findings + each.findings
        if rows:
            insert = self._insert(_table)
            larger = insert.on_conflict_do_update(
                index_elements=_KEY,
                set_={name: insert.excluded[name] for name in _SUMS},
                where=insert.excluded.findings > _table.c.findings,
            )
            async with self._engine.begin() as connection:
                await connection.execute(larger, _as_rows(rows))
        await self._keep_requests(told.requests)

    async def _keep_requests(self, told: Sequence[GuardedRequest]) -> None:
        rows = [
            {
                "team_id": each.team_id,
                "request_id": each.request_id[:REQUEST_CHARS],
                "at_us": each.at_us,
                "organisation_id": each.organisation_id,
                "findings": _encode(each.findings).decode(),
            }
            for each in told
        ]
        if rows:
            async with self._engine.begin() as connection:
                await connection.execute(self._insert(_requests).on_conflict_do_nothing(), rows)

    async def roll_up(self, now_us: int) -> None:
        """Add up the processes' counts of hours that are long over, and hours to their organisation's days; delete what is too old."""
        async with self._engine.begin() as connection:
            calendars = await read_calendars(connection)

            def day(at_us: int, organisation_id: str) -> int:
                calendar = calendars.of(organisation_id)
                return calendar.start(calendar.day(at_us))

            await self._fold(connection, "process", now_us - _APART_US, "hour", lambda at_us, _of: at_us)
            await self._fold(connection, "hour", now_us - HOURS_FOR_US, "day", day)
            await connection.execute(delete(_table).where(_table.c.span == "day", _table.c.start_us < now_us - KEPT_US))
        await self._forget_requests(now_us)

    async def _fold(
        self,
        connection: AsyncConnection,
        span: str,
        before_us: int,
        into: str,
        start: Callable[[int, str], int],
    ) -> None:
        """Move counts from before a time from one span to another. `start` returns where that begins, of a time and an organisation."""
        # Only the process that deletes a count adds it, so two control planes do not add it twice.
        over = (
            delete(_table)
            .where(_table.c.span == span, _table.c.start_us < before_us)
            .returning(*_columns(*_WHO, *_SUMS))
        )
        whole: dict[tuple[Any, ...], tuple[int, int]] = {}
        for at_us, of, *what, requests, findings in (await connection.execute(over)).all():
            key = (into, start(int(at_us), of), "", of, *what)
            before = whole.get(key, (0, 0))
            whole[key] = before[0] + requests, before[1] + findings
        if not whole:
            return
        insert = self._insert(_table)
        added = insert.on_conflict_do_update(
            index_elements=_KEY, set_={name: _table.c[name] + insert.excluded[name] for name in _SUMS}
        )
        await connection.execute(added, _as_rows(whole))

    async def _forget_requests(self, now_us: int) -> None:
        of_team, at_us = _requests.c.team_id, _requests.c.at_us
        crowded = select(of_team).group_by(of_team).having(func.count() > MOST_PER_TEAM).limit(_MOST_TEAMS)
        async with self._engine.begin() as connection:
            await connection.execute(delete(_requests).where(at_us < now_us - REQUESTS_KEPT_US))
            for (team_id,) in (await connection.execute(crowded)).all():
                newest = select(at_us).where(of_team == team_id).order_by(at_us.desc())
                last = (await connection.execute(newest.offset(MOST_PER_TEAM - 1).limit(1))).scalar_one()
                await connection.execute(delete(_requests).where(of_team == team_id, at_us < last))

    async def read(
        self, organisation_id: str, team_id: str | None, start_us: int, end_us: int
    ) -> tuple[FindingSum, ...]:
        """Return what was found in hours and days that began within that time, the most frequent first; of all teams for None."""
        group = _columns(*_WHAT)
        requests, findings = (func.sum(_table.c[name]) for name in _SUMS)
        query = select(*group, requests, findings).where(*_within(organisation_id, team_id, start_us, end_us))
        query = query.group_by(*group).order_by(findings.desc(), *group).limit(MOST_ROWS)
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).all()
        return tuple(
            FindingSum(**dict(zip(_WHAT, what, strict=True)), requests=int(requests), findings=int(findings))
            for *what, requests, findings in rows
        )

    async def by_hour(
        self, organisation_id: str, team_id: str | None, start_us: int, end_us: int
    ) -> list[tuple[int, str, int]]:
        """Return how often something was found, by what was done: by hour, or by day once that is long over."""
        group = _columns("start_us", "action")
        query = select(*group, func.sum(_table.c.findings)).where(*_within(organisation_id, team_id, start_us, end_us))
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query.group_by(*group))).all()
        return [(int(row[0]), str(row[1]), int(row[2])) for row in rows]

    async def newest(self, organisation_id: str, team_id: str, most: int) -> tuple[GuardedRequest, ...]:
        """Return a team's newest requests in which something was found."""
        return await self._read_requests(organisation_id, team_id, None, min(most, _MOST_REQUESTS))

    async def of_requests(
        self, organisation_id: str, team_id: str, request_ids: Iterable[str]
    ) -> dict[str, tuple[Finding, ...]]:
        """Return what was found in these requests of a team, by id. Those in which nothing was found, or that were not kept, are left out."""
        ids = [each[:REQUEST_CHARS] for each in request_ids][:_MOST_REQUESTS]
        if not ids:
            return {}
        found = await self._read_requests(organisation_id, team_id, _requests.c.request_id.in_(ids), len(ids))
        return {each.request_id: each.findings for each in found}

    async def _read_requests(
        self, organisation_id: str, team_id: str, which: ColumnElement[bool] | None, most: int
    ) -> tuple[GuardedRequest, ...]:
        names = ("request_id", "at_us", "organisation_id", "team_id", "findings")
        query = select(*(_requests.c[name] for name in names)).where(
            _requests.c.organisation_id == organisation_id, _requests.c.team_id == team_id
        )
        if which is not None:
            query = query.where(which)
        query = query.order_by(_requests.c.at_us.desc(), _requests.c.request_id.desc()).limit(most)
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return tuple(GuardedRequest(**{**row, "findings": _decode(row["findings"])}) for row in rows)


def _within(organisation_id: str, team_id: str | None, start_us: int, end_us: int) -> list[ColumnElement[bool]]:
    where = [
        _table.c.organisation_id == organisation_id,
        _table.c.start_us >= start_us,
        _table.c.start_us < end_us,
    ]
    if team_id is not None:
        where.append(_table.c.team_id == team_id)
    return where


def _columns(*names: str) -> list[Any]:
    return [_table.c[name] for name in names]


def _as_rows(counts: dict[tuple[Any, ...], tuple[int, int]]) -> list[dict[str, Any]]:
    # In one order, so that two processes that write at once do not wait for each other in a circle.
    return [
        {**dict(zip(_KEY, key, strict=True)), **dict(zip(_SUMS, sums, strict=True))}
        for key, sums in sorted(counts.items(), key=lambda item: [str(part) for part in item[0]])
    ]
