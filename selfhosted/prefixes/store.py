"""The table `prompt_habit`: what each process counted is added to the same rows, and the report reads them."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Table, case, delete, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cost.reports.scope import ReadScope
from cost.times import DAY_US, wall_us
from selfhosted.prefixes.tracker import HabitDelta
from selfhosted.tables import PromptHabit

_log: Final = logging.getLogger("weighbridge.prefixes")

KEPT_DAYS: Final = 92
MOST_ROWS: Final = 50_000
"""The most rows that a report reads; of more, those with the most requests."""
MOST_AT_ONCE: Final = 1_000
"""The most rows that a process hands over at once."""
_BATCH: Final = 200
_KINDS_CHARS: Final = 128
_TARGET_CHARS: Final = 128
_WRITE_TIMEOUT_S: Final = 10.0
_CLOSE_S: Final = 5.0
_LOOK_S: Final = 0.25
_IDLE_LOOKS: Final = 4
_PRUNE_S: Final = 3_600.0
_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)

_table: Final[Table] = PromptHabit.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
_KEY: Final = ("day_us", "team_id", "target_id", "skeleton")
_ADDED: Final = ("requests", "prompt_tokens", "broken", "broken_tokens")


class PrefixUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Totals over some days of one way in which a team begins its prompts to a target."""

    organisation_id: str
    team_id: str
    target_id: str
    skeleton: str
    first_day_us: int
    requests: int
    prompt_tokens: int
    broken: int
    broken_tokens: int
    first_break_tokens: int
    kinds: tuple[str, ...]


class PrefixStore:
    """The only writer and reader of `prompt_habit`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def add(self, deltas: Sequence[HabitDelta], committing: Callable[[], None] = lambda: None) -> None:
        """Add the deltas in one transaction. `committing` is called just before the commit, after which it may be
        unknown whether they were written.
        """
        # Of two processes neither waits for a row of the other's while it holds one that the other waits for.
        ordered = sorted(deltas, key=_row_key)
        async with self._engine.connect() as connection:
            for start in range(0, len(ordered), _BATCH):
                await self._add(connection, ordered[start : start + _BATCH])
            committing()
            await connection.commit()

    async def _add(self, connection: AsyncConnection, deltas: Sequence[HabitDelta]) -> None:
        keys = [(each.day_us, each.team_id, each.target_id[:_TARGET_CHARS], each.skeleton) for each in deltas]
        columns = [_table.c[name] for name in _KEY]
        found = await connection.execute(select(*columns, _table.c.kinds).where(tuple_(*columns).in_(keys)))
        known = {tuple(row[:-1]): set(filter(None, row[-1].split(","))) for row in found}
        rows = [
            {
                **{name: getattr(each, name) for name in (*_ADDED, "first_break_tokens", "organisation_id")},
                **dict(zip(_KEY, key, strict=True)),
                # A kind that another process adds meanwhile is overwritten, and comes back with its next deltas.
                "kinds": ",".join(sorted(known.get(key, set()) | set(each.kinds)))[:_KINDS_CHARS],
            }
            for key, each in zip(keys, deltas, strict=True)
        ]
        insert = self._insert(_table)
        changed: dict[str, Any] = {name: _table.c[name] + insert.excluded[name] for name in _ADDED}
        changed |= {"kinds": insert.excluded.kinds, "first_break_tokens": _smaller_break(insert.excluded)}
        await connection.execute(insert.on_conflict_do_update(index_elements=_KEY, set_=changed), rows)

    async def read(self, scope: ReadScope, start_us: int, end_us: int) -> list[PrefixUsage]:
        """Return the totals over the days from `start_us` to before `end_us`, as far as the scope may read them."""
        wanted: list[ColumnElement[bool]] = [
            _table.c.organisation_id == scope.organisation_id,
            _table.c.day_us >= start_us,
            _table.c.day_us < end_us,
        ]
        if scope.team_id is not None:
            wanted.append(_table.c.team_id == scope.team_id)
        asked = select(_table).where(*wanted).order_by(_table.c.requests.desc()).limit(MOST_ROWS)
        async with self._engine.connect() as connection:
            rows = (await connection.execute(asked)).mappings().all()
        return _totals([dict(row) for row in rows])

    async def prune(self, before_us: int) -> None:
        """Delete the rows of days before `before_us`."""
        async with self._engine.begin() as connection:
            await connection.execute(delete(_table).where(_table.c.day_us < before_us))


class HabitSink(Protocol):
    """The receiver of a process's counts: the store itself, or a way to it."""

    async def add(self, deltas: Sequence[HabitDelta], committing: Callable[[], None] = ...) -> None:
        """Add the deltas to the table, all or none. `committing` is called before the moment from which it may be
        unknown whether they were. Raises an OSError, TimeoutError or SQLAlchemyError.
        """
        ...


class Counted(Protocol):
    """What is added to a row."""

    @property
    def requests(self) -> int: ...


_D = TypeVar("_D", bound=Counted)
_D_contra = TypeVar("_D_contra", bound=Counted, contravariant=True)


class Counts(Protocol[_D]):
    """Counts of one process, of what is analysed later."""

    @property
    def waiting(self) -> int: ...

    def digest(self, most: int = 16) -> int:
        """Analyse at most so many that wait, up to a millisecond or two each, and return their number."""
        ...

    def take(self, *, everything: bool = False) -> tuple[_D, ...]: ...

    def put_back(self, deltas: Iterable[_D]) -> None: ...


class Sink(Protocol[_D_contra]):
    """As `HabitSink`, of any counts."""

    async def add(self, deltas: Sequence[_D_contra], committing: Callable[[], None] = ...) -> None: ...


class PrefixWriter(Generic[_D]):
    """A process's background loop: analyses what is new a few times a second, and hands the counts over every
    `every_s` seconds.
    """

    def __init__(
        self,
        habits: Counts[_D],
        sink: Sink[_D],
        *,
        every_s: float = 10.0,
        look_s: float = _LOOK_S,
        lost: Callable[[int], None] = lambda _requests: None,
        what: str = "how prompts begin",
    ) -> None:
        """`lost` is called with the number of requests whose counts may not have been written."""
        self._what = what
        self._habits = habits
        self._sink = sink
        self._every_s = every_s
        self._look_s = look_s
        self._lost = lost
        self._logged_failure: str | None = None

    async def run(self) -> None:
        """Run until it is cancelled; `aclose` then hands over the rest."""
        loop = asyncio.get_running_loop()
        flushed = loop.time()
        pause_s = self._look_s
        while True:
            await asyncio.sleep(pause_s)
            # Where nothing comes it looks less often.
            pause_s = self._look_s * (1 if await self._analyse_waiting() else _IDLE_LOOKS)
            if loop.time() - flushed >= self._every_s:
                await self.flush()
                flushed = loop.time()

    async def aclose(self) -> None:
        """Hand over everything that was counted; takes a few seconds at most."""
        self._habits.digest(self._habits.waiting)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.flush(everything=True)

    async def flush(self, *, everything: bool = False) -> None:
        """Hand over the counts so far, at most `MOST_AT_ONCE` rows at a time. Counts that were surely not written are
        kept for the next time; ones that may have been are dropped, so that no request counts twice.
        """
        deltas = self._habits.take(everything=everything)
        for start in range(0, len(deltas), MOST_AT_ONCE):
            end = start + MOST_AT_ONCE
            try:
                await self._hand_over(deltas[start:end])
            except BaseException as failure:
                self._habits.put_back(deltas[end:])
                if not isinstance(failure, _FAILS):
                    raise
                self._log_once(type(failure).__name__)
                return
        if deltas:
            self._logged_failure = None

    async def _hand_over(self, deltas: Sequence[_D]) -> None:
        sure = True

        def committing() -> None:
            nonlocal sure
            sure = False

        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                await self._sink.add(deltas, committing)
        except BaseException:
            if sure:
                self._habits.put_back(deltas)
            else:
                self._lost(sum(each.requests for each in deltas))
            raise

    async def _analyse_waiting(self) -> bool:
        """Analyse some of those that wait; False when none did."""
        # One at a time, so that requests are never kept for more than a millisecond.
        for done in range(16):
            if not self._habits.digest(1):
                return done > 0
            await asyncio.sleep(0)
        return True

    def _log_once(self, failure: str) -> None:
        """Log each kind of failure once, until a write succeeds."""
        if failure != self._logged_failure:
            self._logged_failure = failure
            _log.warning("%s is not written to the database for now (%s)", self._what, failure)


class Prunable(Protocol):
    """A table by day."""

    async def prune(self, before_us: int) -> None: ...


async def keep_pruned(store: Prunable, *, every_s: float = _PRUNE_S, now_us: Callable[[], int] = wall_us) -> None:
    """Delete rows that are older than `KEPT_DAYS`, now and then until it is cancelled."""
    while True:
        today_us = now_us() // DAY_US * DAY_US
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                await store.prune(today_us - KEPT_DAYS * DAY_US)
        except _FAILS as failure:
            _log.warning("old rows on prompts stay for now (%s)", type(failure).__name__)
        await asyncio.sleep(every_s)


def _row_key(delta: HabitDelta) -> tuple[int, str, str, str]:
    return delta.day_us, delta.team_id, delta.target_id, delta.skeleton


def _smaller_break(excluded: Any) -> ColumnElement[int]:
    """Return the SQL expression of the smaller first break, of the rows that have a break at all."""
    mine, other = _table.c.first_break_tokens, excluded.first_break_tokens
    return case((_table.c.broken == 0, other), (excluded.broken == 0, mine), (mine < other, mine), else_=other)


def _totals(rows: Sequence[dict[str, Any]]) -> list[PrefixUsage]:
    found: dict[tuple[str, str, str], PrefixUsage] = {}
    for row in rows:
        key = (row["team_id"], row["target_id"], row["skeleton"])
        row["kinds"] = tuple(filter(None, row["kinds"].split(",")))
        day_us = row.pop("day_us")
        fresh = PrefixUsage(first_day_us=day_us, **row)
        before = found.get(key)
        found[key] = fresh if before is None else _merged(before, fresh)
    return list(found.values())


def _merged(one: PrefixUsage, other: PrefixUsage) -> PrefixUsage:
    firsts = [each.first_break_tokens for each in (one, other) if each.broken]
    return msgspec.structs.replace(
        one,
        **{name: getattr(one, name) + getattr(other, name) for name in _ADDED},
        first_day_us=min(one.first_day_us, other.first_day_us),
        first_break_tokens=min(firsts, default=0),
        kinds=tuple(sorted({*one.kinds, *other.kinds})),
    )
