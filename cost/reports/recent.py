"""What was asked lately: requests with all of their attempts, newest first, as the ledger has them."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, get_args

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Select, String, and_, func, literal, or_, select, true
from sqlalchemy import tuple_ as sql_tuple
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.ledger.entries import TERMINAL, Entry
from cost.ledger.rows import ALL, read
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import check_values
from cost.tables import LedgerEntry

Outcome = Literal["", "answered", "failed", "fell-back", "escalated", "estimated", "unpriced"]
"""What to look for: by its attempts, so that one request may be several of these."""
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
Place = tuple[int, str]
"""Where a page ended: the moment and the id of its last request."""

MAX_ROWS: Final = 200
SEARCHED: Final = 5_000
"""Ends of attempts that one page looks through for what was asked. Beyond them there is a next page, not a longer wait."""
_ATTEMPTS: Final = 5
"""As many as a request has at most, nearly always; where it has more, a page is a little shorter."""
_FAILED_FROM: Final = 400
_ENDS: Final = tuple(sorted(TERMINAL))


class RecentQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests. An empty filter lets everything through. Raises BadQuery."""

    scope: ReadScope
    before: Place | None = None
    rows: int = 50
    outcome: Outcome = ""
    target: str = ""
    key: str = ""
    tag: str = ""
    tier: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= MAX_ROWS:
            raise BadQuery(f"it must be from 1 to {MAX_ROWS}", param="rows")
        if self.outcome not in OUTCOMES:
            raise BadQuery(f"use one of {', '.join(filter(None, OUTCOMES))}", param="outcome")
        for name in ("target", "key", "tag", "tier"):
            check_values([getattr(self, name)], name)
        if self.before is not None:
            check_values([self.before[1]], "before")
            if not 0 <= self.before[0] < 2**62:
                raise BadQuery("it is no moment", param="before")

    @property
    def filtered(self) -> bool:
        """Whether something is looked for."""
        return any((self.outcome, self.target, self.key, self.tag, self.tier))


class RecentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One caller's request: the ends of its attempts, in the order in which they were made."""

    request_id: str
    attempts: tuple[Entry, ...]

    @property
    def last(self) -> Entry:
        """The attempt that was made last."""
        return self.attempts[-1]

    @property
    def served(self) -> Entry | None:
        """The attempt whose answer the caller got, whole."""
        return next((each for each in self.attempts if each.served), None)

    @property
    def told(self) -> Entry:
        """The attempt that decided what the caller saw."""
        return self.served or self.last

    @property
    def at_us(self) -> int:
        """When its last attempt ended."""
        return max(each.at_us for each in self.attempts)

    @property
    def status(self) -> int:
        """What the caller saw; 0 where nobody knows."""
        return self.told.status

    @property
    def cost_nanousd(self) -> int | None:
        """All attempts together; None when one of them has no price."""
        costs = [each.cost_nanousd for each in self.attempts]
        return None if None in costs else sum(cost for cost in costs if cost is not None)

    @property
    def baseline_nanousd(self) -> int | None:
        """What the answer would have cost at the reference; None where nobody got one, or there is no reference."""
        return self.told.baseline_nanousd

    @property
    def saving_nanousd(self) -> int | None:
        """Below zero where the reference would have been cheaper."""
        cost, baseline = self.cost_nanousd, self.baseline_nanousd
        return None if cost is None or baseline is None else baseline - cost

    @property
    def took_us(self) -> int | None:
        """All attempts, which are made one after the other; without the wait in queues."""
        durations = [each.duration_us for each in self.attempts]
        return None if None in durations else sum(duration for duration in durations if duration is not None)

    @property
    def first_token_us(self) -> int | None:
        """From the first attempt's beginning to the first token of the answer that was given. Only of a streamed one."""
        told = self.served
        if told is None or not told.stream or told.ttft_us is None or told.duration_us is None or self.took_us is None:
            return None
        before = [each.duration_us or 0 for each in self.attempts if each.attempt < told.attempt]
        return sum(before) + told.ttft_us

    @property
    def was_held(self) -> bool:
        """Its answer was judged before it was given, so the first token came later than it was made."""
        return any(each.reason == "escalated" or "discarded" in each.flags for each in self.attempts)

    @property
    def estimated(self) -> bool:
        """Some of its tokens nobody counted."""
        return any(each.usage_source == "estimated" for each in self.attempts)


class RecentPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some requests. Where a search came to its bound before the page was full, `reached_us` says how far back it went."""

    requests: tuple[RecentRequest, ...]
    next_place: Place | None = None
    reached_us: int | None = None


class RecentReader:
    """Reads a bounded number of the newest rows, whatever the ledger's size."""

    def __init__(self, engine: AsyncEngine, *, searched: int = SEARCHED) -> None:
        self._engine = engine
        self._searched = searched

    async def page(self, query: RecentQuery) -> RecentPage:
        """The requests after the query's place, by the end of their last attempt."""
        most = (query.rows + 1) * _ATTEMPTS
        depth = self._searched if query.filtered else most
        async with self._engine.connect() as connection:
            found_rows = (await connection.execute(_looking(query, depth, most))).all()
            matching = [(int(row.at_us), str(row.request_id)) for row in found_rows if row.at_us is not None]
            places = _firsts(matching)
            shown = places[: query.rows]
            found = await _requests(connection, query.scope, [request_id for _, request_id in shown])
            # One that an attempt of stood on a page before was told there.
            requests = tuple(found[each] for _, each in shown if each in found and not _was_shown(found[each], query))
            if len(places) > query.rows:
                return RecentPage(requests=requests, next_place=shown[-1])
            if len(matching) == most:
                return RecentPage(requests=requests, next_place=matching[-1])
        # Where the search stopped because it had looked through enough; nowhere, where there is nothing more.
        last = found_rows[0]
        bound = (int(last.last_us), str(last.last_id)) if last.looked_at == depth else None
        return RecentPage(requests=requests, next_place=bound, reached_us=None if bound is None else bound[0])

    async def one(self, scope: ReadScope, request_id: str) -> RecentRequest | None:
        """One request, whenever it was; None when the scope has none of that id."""
        check_values([request_id], "request_id")
        async with self._engine.connect() as connection:
            return (await _requests(connection, scope, [request_id])).get(request_id)


def _was_shown(request: RecentRequest, query: RecentQuery) -> bool:
    place = query.before
    return place is not None and any(
        (each.at_us, each.request_id) >= place and matches(each, query) for each in request.attempts
    )


def _firsts(places: Iterable[Place]) -> list[Place]:
    """Each request once, where it comes first."""
    seen: dict[str, int] = {}
    for at_us, request_id in places:
        seen.setdefault(request_id, at_us)
    return [(at_us, request_id) for request_id, at_us in seen.items()]


def _mine(scope: ReadScope) -> list[ColumnElement[bool]]:
    where = [
        col(LedgerEntry.organisation_id) == scope.organisation_id,
        col(LedgerEntry.entry).in_(_ENDS),
        col(LedgerEntry.origin) == "caller",
    ]
    return where if scope.team_id is None else [*where, col(LedgerEntry.team_id) == scope.team_id]


_AT: Final = col(LedgerEntry.at_us)
_REQUEST: Final = col(LedgerEntry.request_id)
_LOOKED: Final = tuple(
    getattr(LedgerEntry, name)
    for name in (
        "attempt",
        "entry",
        "key_id",
        "tier",
        "target_id",
        "tag",
        "status",
        "served",
        "reason",
        "usage_source",
        "cost_nanousd",
    )
)
"""What filters look at."""


def _newest(query: RecentQuery, columns: Sequence[Any] = ()) -> Select[Any]:
    """The ends of attempts before the query's place, newest first."""
    statement: Select[Any] = select(_AT, _REQUEST, *columns).where(*_mine(query.scope))
    if query.before is not None:
        at_us, last = query.before
        before = sql_tuple(_AT, _REQUEST) < sql_tuple(literal(at_us, BigInteger()), literal(last, String()))
        # Said again by itself: only that makes the index serve everywhere.
        statement = statement.where(at_us >= _AT, before)
    return statement.order_by(_AT.desc(), _REQUEST.desc())


def _looking(query: RecentQuery, depth: int, most: int) -> Select[Any]:
    """What fits among the newest `depth` ends of attempts, newest first; and on each row, also where nothing fits, how many
    were looked at, and the last of them. They are looked at once: they lie all over a large ledger.
    """
    looked = _newest(query, _LOOKED).limit(depth).cte("looked")
    found = (
        select(looked.c.at_us, looked.c.request_id)
        .where(*_filters(looked.c, query))
        .order_by(looked.c.at_us.desc(), looked.c.request_id.desc())
        .limit(most)
        .subquery("found")
    )
    last = [
        select(column).order_by(looked.c.at_us, looked.c.request_id).limit(1).scalar_subquery()
        for column in (looked.c.at_us, looked.c.request_id)
    ]
    told = (
        select(func.count().label("looked_at"), last[0].label("last_us"), last[1].label("last_id"))
        .select_from(looked)
        .subquery("told")
    )
    return (
        select(*told.c, *found.c)
        .select_from(told.outerjoin(found, true()))
        .order_by(found.c.at_us.desc(), found.c.request_id.desc())
    )


def _filters(columns: Any, query: RecentQuery) -> list[ColumnElement[bool]]:
    asked = {"key_id": query.key, "tier": query.tier, "target_id": query.target, "tag": query.tag}
    conditions: list[ColumnElement[bool]] = [columns[name] == value for name, value in asked.items() if value]
    tried = columns.entry.in_(("settle", "expire"))
    match query.outcome:
        case "answered":
            conditions.append(columns.served)
        case "failed":
            conditions.append(or_(columns.status >= _FAILED_FROM, columns.status == 0))
        case "fell-back":
            conditions.append(and_(columns.attempt > 1, columns.reason != "escalated"))
        case "escalated":
            conditions.append(columns.reason == "escalated")
        case "estimated":
            conditions.append(columns.usage_source == "estimated")
        case "unpriced":
            conditions.append(and_(tried, columns.cost_nanousd.is_(None)))
    return conditions


def matches(entry: Entry, query: RecentQuery) -> bool:
    """What `_filters` says in SQL, of an entry that was read."""
    asked = (
        (query.key, entry.key_id),
        (query.tier, entry.tier),
        (query.target, entry.target_id),
        (query.tag, entry.tag),
    )
    if any(wanted not in {"", found} for wanted, found in asked):
        return False
    outcomes: dict[Outcome, bool] = {
        "": True,
        "answered": entry.served,
        "failed": entry.status >= _FAILED_FROM or entry.status == 0,
        "fell-back": entry.attempt > 1 and entry.reason != "escalated",
        "escalated": entry.reason == "escalated",
        "estimated": entry.usage_source == "estimated",
        "unpriced": entry.entry != "void" and entry.cost_nanousd is None,
    }
    return outcomes[query.outcome]


async def _requests(
    connection: AsyncConnection, scope: ReadScope, request_ids: Sequence[str]
) -> dict[str, RecentRequest]:
    if not request_ids:
        return {}
    mine = _mine(msgspec.structs.replace(scope, team_id=None))
    if scope.team_id is not None:
        # Written so that no index serves it: SQLite would rather go through all rows of a team than to fifty by their id.
        mine.append(col(LedgerEntry.team_id).concat("") == scope.team_id)
    ordered = ALL.where(*mine, col(LedgerEntry.request_id).in_(request_ids))
    entries = await read(connection, ordered.order_by(col(LedgerEntry.request_id), col(LedgerEntry.attempt)))
    attempts: dict[str, dict[int, Entry]] = {}
    for entry in entries:
        # An attempt whose host came back was expired and settled: what it came to in the end is what holds.
        known = attempts.setdefault(entry.request_id, {})
        if entry.attempt not in known or known[entry.attempt].entry == "expire":
            known[entry.attempt] = entry
    return {each: RecentRequest(request_id=each, attempts=tuple(found.values())) for each, found in attempts.items()}
