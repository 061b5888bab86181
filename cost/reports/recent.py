"""Recent requests with all of their attempts, newest first or by cost, duration or tokens, as the ledger has them."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, assert_never, cast, get_args

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    String,
    and_,
    case,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy import tuple_ as sql_tuple
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.orm import aliased
from sqlmodel import col

from cost.dimensions import REQUEST_FILTERS
from cost.ledger.archived import archived_months
from cost.ledger.entries import TERMINAL, Entry
from cost.ledger.rows import ALL, read
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import HAS_END_USER, check_values
from cost.tables import EndUserMonth, LedgerEntry, rollup_day
from cost.usage import CONTINUED

Outcome = Literal["", "answered", "failed", "retried", "fell-back", "escalated", "estimated", "unpriced", "given-again"]
"""Filter by the outcome of a request's attempts; one request may match several. Empty matches all."""
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
Place = tuple[int, str]
"""Cursor: moment and request id of a page's last request."""

Order = Literal["", "cost", "-cost", "duration", "-duration", "tokens", "-tokens"]
"""Order of requests: empty is the newest first, with `-` the most first. Unknown values come last."""
ORDERS: Final[tuple[Order, ...]] = get_args(Order)

MAX_ROWS: Final = 200
MAX_NAMES: Final = 1_000
"""Most keys, or models, that one name may stand for."""
MAX_PAGE: Final = 100
"""Most pages of an order other than by time."""
SEARCHED: Final = 5_000
"""Most ends of attempts that a filtered page searches; beyond them there is a next page, not a longer wait."""
_ATTEMPTS: Final = 5
"""Attempts that a request has at most, nearly always; where it has more, a page is a little shorter."""
LEAST_STEP_US: Final = 1_000
"""What is shorter is no wait of a request's: it is the clock's reading."""
_FAILED_FROM: Final = 400
_NOT_AFTER_FAILURE: Final = ("escalated", "hedge", "agreement")
"""Reasons of further attempts that were not made because one had failed."""
_ENDS: Final = tuple(sorted({*TERMINAL, "cache"}))
"""An answer that was given again is a request that ended, though nobody was asked."""
_TRIED: Final = ("settle", "expire")
_STATUS: Final = re.compile(r"([1-5])(xx|[0-9]{2})", re.ASCII)
_CLASS: Final = 100


class Word(msgspec.Struct, frozen=True):
    """A word that is looked for as it is: at the beginning of a request's id or end user, or as one of the keys and models that are
    called so.
    """

    text: str
    end_user: str
    """The word as an end user is booked."""
    keys: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def is_in(self, entry: Entry) -> bool:
        """Return True if an attempt has it."""
        return (
            entry.request_id.startswith(self.text)
            or entry.end_user == self.end_user
            or entry.end_user.startswith(self.text)
            or entry.key_id in self.keys
            or entry.target_id in self.targets
        )


class RecentQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query of recent requests; an empty filter matches all. Construction raises BadQuery."""

    scope: ReadScope
    before: Place | None = None
    rows: int = 50
    outcome: Outcome = ""
    target: str = ""
    key: str = ""
    tag: str = ""
    tier: str = ""
    provider: str = ""
    end_user: str = ""
    keys: tuple[str, ...] | None = None
    """Any of these keys, of which there may be none; None does not filter."""
    targets: tuple[str, ...] | None = None
    words: tuple[Word, ...] = ()
    """Words that each have to be somewhere."""
    since_us: int | None = None
    until_us: int | None = None
    """End of the time in which attempts ended, itself excluded."""
    status: str = ""
    """A status such as `429`, or a class of them such as `5xx`, of any attempt."""
    slower_us: int | None = None
    """Least duration of an attempt."""
    faster_us: int | None = None
    """Greatest duration of an attempt."""
    dearer_nanousd: int | None = None
    """Least cost of an attempt."""
    cheaper_nanousd: int | None = None
    """Greatest cost of an attempt."""
    order: Order = ""
    page: int = 1
    """Page of an order other than by time, which has no `before`."""

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= MAX_ROWS:
            raise BadQuery(f"it must be from 1 to {MAX_ROWS}", param="rows")
        if self.outcome not in OUTCOMES:
            raise BadQuery(f"use one of {', '.join(filter(None, OUTCOMES))}", param="outcome")
        for name in REQUEST_FILTERS:
            check_values([getattr(self, name)], name)
        check_values([each.text for each in self.words], "words")
        for name in ("keys", "targets"):
            if len(getattr(self, name) or ()) > MAX_NAMES:
                raise BadQuery(f"more than {MAX_NAMES:,} are called so; write more of the name", param=name)
        if self.before is not None:
            check_values([self.before[1]], "before")
            if not 0 <= self.before[0] < 2**62:
                raise BadQuery("it is no moment", param="before")
        self._check_bounds()

    def _check_bounds(self) -> None:
        if self.order not in ORDERS:
            raise BadQuery(f"use one of {', '.join(filter(None, ORDERS))}", param="order")
        if not 1 <= self.page <= MAX_PAGE:
            raise BadQuery(f"it must be from 1 to {MAX_PAGE}", param="page")
        if self.status and _STATUS.fullmatch(self.status) is None:
            raise BadQuery("use a status such as 429, or a class such as 5xx", param="status")
        for name in ("since_us", "until_us", "slower_us", "faster_us", "dearer_nanousd", "cheaper_nanousd"):
            bound = getattr(self, name)
            if bound is not None and not 0 <= bound < 2**62:
                raise BadQuery("it is out of range", param=name)

    @property
    def filtered(self) -> bool:
        """True if any filter is set that rows are searched by; the time is none, as an index finds it."""
        bounds = (self.slower_us, self.faster_us, self.dearer_nanousd, self.cheaper_nanousd, self.keys, self.targets)
        texts = (self.outcome, self.status, *(getattr(self, name) for name in REQUEST_FILTERS))
        return any(texts) or bool(self.words) or any(bound is not None for bound in bounds)

    @property
    def statuses(self) -> tuple[int, int] | None:
        """The least and the greatest status wanted, both included; None where any is."""
        if not self.status:
            return None
        low = int(self.status.replace("xx", "00"))
        return low, low + _CLASS - 1 if self.status.endswith("xx") else low


Way = Literal["first", "retry", "fallback", "continued", "escalated", "hedge", "agreement"]
"""How an attempt came about: the first one, after a failure at the same model or at another one, or for another reason."""


def way_of(entry: Entry, attempts: Sequence[Entry]) -> Way:
    """Return how an attempt of a request came about, among all `attempts` of it."""
    if CONTINUED in entry.flags:
        return "continued"
    if entry.reason in _NOT_AFTER_FAILURE:
        return cast("Way", entry.reason)
    if entry.attempt == 1:
        return "first"
    earlier = [each.target_id for each in attempts if each.attempt < entry.attempt]
    return "retry" if entry.target_id in earlier else "fallback"


def _end_us(entry: Entry) -> int | None:
    return None if entry.began_us is None or entry.duration_us is None else entry.began_us + entry.duration_us


class RecentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's request with the ends of its attempts, in the order in which they were made."""

    request_id: str
    attempts: tuple[Entry, ...]

    @property
    def last(self) -> Entry:
        """The attempt made last."""
        return self.attempts[-1]

    @property
    def served(self) -> Entry | None:
        """The attempt whose answer the caller got, whole; None if there is none."""
        return next((each for each in self.attempts if each.served), None)

    @property
    def told(self) -> Entry:
        """The attempt that decided what the caller saw: the served one, else the last."""
        return self.served or self.last

    @property
    def at_us(self) -> int:
        """Moment at which its last attempt ended, in microseconds since 1970."""
        return max(each.at_us for each in self.attempts)

    @property
    def was_given_again(self) -> bool:
        """True if its answer was one that was kept."""
        return self.last.entry == "cache"

    @property
    def status(self) -> int:
        """HTTP status that the caller saw; 0 if unknown."""
        return self.told.status

    @property
    def cost_nanousd(self) -> int | None:
        """Cost of all attempts; None when one of them has no price."""
        costs = [each.cost_nanousd for each in self.attempts]
        return None if None in costs else sum(cost for cost in costs if cost is not None)

    @property
    def baseline_nanousd(self) -> int | None:
        """Cost of the answer at the reference; None without an answer or a reference."""
        return self.told.baseline_nanousd

    @property
    def saving_nanousd(self) -> int | None:
        """Baseline less cost; negative if the reference would have been cheaper. None if either is unknown."""
        cost, baseline = self.cost_nanousd, self.baseline_nanousd
        return None if cost is None or baseline is None else baseline - cost

    @property
    def took_us(self) -> int | None:
        """Time from its arrival to the end of its last attempt; None if it is unknown. Of one that was booked before the arrival
        was, the time of its attempts, without queueing.
        """
        ends = [_end_us(each) for each in self.attempts]
        if None not in ends:
            return max(end for end in ends if end is not None)
        begun_us = self._begun_us
        if begun_us is not None:
            return self.at_us - begun_us
        durations = [each.duration_us for each in self.attempts]
        return None if None in durations else sum(duration for duration in durations if duration is not None)

    @property
    def first_token_us(self) -> int | None:
        """Time from its arrival to the caller's first token, of a streamed answer, also one that broke off; else None. Of one that
        was booked before that was, the time from its first attempt's start.
        """
        given = next((each.given_us for each in self.attempts if each.given_us is not None), None)
        if given is not None:
            return given if self.told.stream else None
        told = self._opening
        if told is None or not told.stream or told.ttft_us is None or told.duration_us is None or self.took_us is None:
            return None
        begun_us = self._begun_us
        if begun_us is not None:
            return told.at_us - told.duration_us + told.ttft_us - begun_us
        before = [each.duration_us or 0 for each in self.attempts if each.attempt < told.attempt]
        return sum(before) + told.ttft_us

    @property
    def _opening(self) -> Entry | None:
        """The attempt that gave the first token of the served answer; None without one."""
        told = self.served
        if told is None or CONTINUED not in told.flags:
            return told
        began = (each for each in self.attempts if each.ttft_us is not None and "hedge_lost" not in each.flags)
        return next(began, told)

    @property
    def was_retried(self) -> bool:
        """True if a model was asked once more after it had failed."""
        return any(each == "retry" for each in self.ways)

    @property
    def fell_back(self) -> bool:
        """True if another model was asked after one had failed."""
        return any(each == "fallback" for each in self.ways)

    @property
    def ways(self) -> tuple["Way", ...]:
        """How each of its attempts came about, in their order."""
        return tuple(way_of(each, self.attempts) for each in self.attempts)

    @property
    def was_hedged(self) -> bool:
        """True if an attempt was made beside another one, which was late."""
        return any(each.reason == "hedge" for each in self.attempts)

    @property
    def asked_two(self) -> bool:
        """True if two cheap models were asked beside each other first."""
        return any(each.reason == "agreement" for each in self.attempts)

    @property
    def _begun_us(self) -> int | None:
        """Start of the first attempt where some ran beside each other, in microseconds since 1970; None for others or if unknown."""
        first, beside = self.attempts[0], self.was_hedged or self.asked_two
        return first.at_us - first.duration_us if beside and first.duration_us is not None else None

    @property
    def was_held(self) -> bool:
        """True if the answer was judged before it was given, so that the first token was given later than it was made."""
        return self.held_us is not None or any(
            each.reason in {"escalated", "agreement"} or "discarded" in each.flags for each in self.attempts
        )

    @property
    def held_us(self) -> int | None:
        """Time for which the answer that was given was held back; None where it was not, or that is not known."""
        given = next((each for each in self.attempts if each.given_us is not None), None)
        if given is None or given.given_us is None or given.began_us is None or given.ttft_us is None:
            return None
        held_us = given.given_us - given.began_us - given.ttft_us
        return held_us if held_us >= LEAST_STEP_US else None

    @property
    def estimated(self) -> bool:
        """True if some of its tokens are estimates."""
        return any(each.usage_source == "estimated" for each in self.attempts)


class RecentPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of requests. `reached_us` is set if a search ended at its bound: how far back it went."""

    requests: tuple[RecentRequest, ...]
    next_place: Place | None = None
    reached_us: int | None = None
    has_more: bool = False
    """True if another order than by time has a next page."""
    places: tuple[Place, ...] = ()
    """Place of each of the requests, by its newest matching attempt; empty in another order than by time."""
    archived: tuple[int, ...] = ()
    """UTC months in the time gone through whose requests are missing, as they stand in files."""


class RecentReader:
    """A reader of a bounded number of the newest ledger rows, whatever the ledger's size."""

    def __init__(self, engine: AsyncEngine, *, searched: int = SEARCHED) -> None:
        self._engine = engine
        self._searched = searched

    async def page(self, query: RecentQuery) -> RecentPage:
        """Return the requests after the query's place, by the end of their last attempt, or those of a page of another
        order, from the matching ones among a bounded number of the newest attempts.
        """
        if query.order:
            return await self._ordered(query)
        most = (query.rows + 1) * _ATTEMPTS
        depth = self._searched if query.filtered else most
        async with self._engine.connect() as connection:
            found_rows = (await connection.execute(_search(query, depth, most))).all()
            matching = [(int(row.at_us), str(row.request_id)) for row in found_rows if row.at_us is not None]
            places = _first_places(matching)
            shown = places[: query.rows]
            found = await _read_requests(connection, query.scope, [request_id for _, request_id in shown])
            # A request is shown on the page of its newest matching attempt; leave it out on later pages.
            there = tuple(each for each in shown if each[1] in found and not _was_shown(found[each[1]], query))
            requests = tuple(found[request_id] for _, request_id in there)
            # The place where a search hit its bound; None if there is nothing more.
            last = found_rows[0]
            bound = (int(last.last_us), str(last.last_id)) if last.looked_at == depth else None
            reached_us = None
            if len(places) > query.rows:
                bound = shown[-1]
            elif len(matching) == most:
                bound = matching[-1]
            elif bound is not None:
                reached_us = bound[0]
            archived = await _missing(connection, query, None if bound is None else bound[0])
        return RecentPage(requests=requests, next_place=bound, reached_us=reached_us, places=there, archived=archived)

    async def _ordered(self, query: RecentQuery) -> RecentPage:
        async with self._engine.connect() as connection:
            rows = (await connection.execute(_ordered_search(query, self._searched))).all()
            ids = [str(row.request_id) for row in rows if row.request_id is not None]
            shown = ids[: query.rows]
            found = await _read_requests(connection, query.scope, shown)
            last = rows[0]
            reached_us = int(last.last_us) if last.looked_at == self._searched else None
            archived = await _missing(connection, query, reached_us)
        return RecentPage(
            requests=tuple(found[each] for each in shown if each in found),
            reached_us=reached_us,
            archived=archived,
            has_more=len(ids) > query.rows and query.page < MAX_PAGE,
        )

    async def knows_end_user(self, scope: ReadScope, end_user: str) -> bool:
        """Return True if an end user of this name ever called, also in months that stand in files."""
        if not end_user:
            return False
        check_values([end_user], "end_user")
        statement = (
            select(_AT).where(*_scope_conditions(scope), col(LedgerEntry.end_user) == end_user, HAS_END_USER).limit(1)
        )
        rolled_up = select(col(EndUserMonth.month_us)).where(
            col(EndUserMonth.end_user) == end_user,
            col(EndUserMonth.team_id).in_([scope.team_id] if scope.team_id is not None else _teams_of(scope)),
        )
        async with self._engine.connect() as connection:
            for query in (statement, rolled_up.limit(1)):
                if (await connection.execute(query)).first() is not None:
                    return True
        return False

    async def one(self, scope: ReadScope, request_id: str) -> RecentRequest | None:
        """Return one request, however old; None when the ledger has none of that id in the scope."""
        check_values([request_id], "request_id")
        async with self._engine.connect() as connection:
            return (await _read_requests(connection, scope, [request_id])).get(request_id)


async def _missing(connection: AsyncConnection, query: RecentQuery, reached_us: int | None) -> tuple[int, ...]:
    """Return the months in files of the time that a page goes through: from where it reached, or the query's beginning, to its end."""
    start_us = max(query.since_us or 0, reached_us or 0)
    end_us = min(
        2**62 if query.until_us is None else query.until_us, 2**62 if query.before is None else query.before[0]
    )
    return tuple(await archived_months(connection, start_us, end_us))


def _teams_of(scope: ReadScope) -> Select[Any]:
    """Select the teams that anything was booked for."""
    return select(rollup_day.c.team_id).where(rollup_day.c.organisation_id == scope.organisation_id).distinct()


def _was_shown(request: RecentRequest, query: RecentQuery) -> bool:
    place = query.before
    return place is not None and any(
        (each.at_us, each.request_id) >= place and matches(each, query, request.attempts) for each in request.attempts
    )


def _first_places(places: Iterable[Place]) -> list[Place]:
    """Return each request once, at its first place."""
    seen: dict[str, int] = {}
    for at_us, request_id in places:
        seen.setdefault(request_id, at_us)
    return [(at_us, request_id) for request_id, at_us in seen.items()]


def _scope_conditions(scope: ReadScope) -> list[ColumnElement[bool]]:
    where = [
        col(LedgerEntry.organisation_id) == scope.organisation_id,
        col(LedgerEntry.entry).in_(_ENDS),
        col(LedgerEntry.origin) == "caller",
    ]
    return where if scope.team_id is None else [*where, col(LedgerEntry.team_id) == scope.team_id]


_AT: Final = col(LedgerEntry.at_us)
_REQUEST: Final = col(LedgerEntry.request_id)
_FILTER_COLUMNS: Final = tuple(
    getattr(LedgerEntry, name)
    for name in (
        *REQUEST_FILTERS.values(),
        "attempt",
        "entry",
        "status",
        "served",
        "reason",
        "usage_source",
        "cost_nanousd",
        "duration_us",
        "began_us",
        "input_tokens",
        "output_tokens",
        "flags",
    )
)
"""Columns that filters use."""


def _newest(query: RecentQuery, columns: Sequence[Any] = ()) -> Select[Any]:
    """Select the ends of attempts before the query's place, newest first."""
    statement: Select[Any] = select(_AT, _REQUEST, *columns).where(*_scope_conditions(query.scope))
    if query.end_user:
        # Has an index of its own: one of many is found however long ago it called. Said twice, as only so is the index used.
        statement = statement.where(col(LedgerEntry.end_user) == query.end_user, HAS_END_USER)
    if query.since_us is not None:
        statement = statement.where(query.since_us <= _AT)
    if query.until_us is not None:
        statement = statement.where(query.until_us > _AT)
    if query.before is not None and not query.order:
        at_us, last = query.before
        before = sql_tuple(_AT, _REQUEST) < sql_tuple(literal(at_us, BigInteger()), literal(last, String()))
        # Redundant, but only with this plain condition is the index used everywhere.
        statement = statement.where(at_us >= _AT, before)
    return statement.order_by(_AT.desc(), _REQUEST.desc())


def _search(query: RecentQuery, depth: int, most: int) -> Select[Any]:
    """Select the matching rows among the newest `depth` ends of attempts, newest first.

    Each row, also where nothing matches, has the number of rows searched and the last of them. They are read once: they
    lie all over a large ledger.
    """
    looked = _newest(query, _FILTER_COLUMNS).limit(depth).cte("looked")
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


def _ordered_search(query: RecentQuery, depth: int) -> Select[Any]:
    """Select one page of the requests among the newest `depth` ends of attempts, in the query's order.

    Each row, also where nothing matches, has the number of rows searched and the moment of the last.
    """
    looked = _newest(query, _FILTER_COLUMNS).limit(depth).cte("looked")
    columns = looked.c
    amounts: dict[str, ColumnElement[Any]] = {
        # A sum of which one part is unknown is unknown.
        "cost": case((func.count(columns.cost_nanousd) == func.count(), func.sum(columns.cost_nanousd))),
        "duration": case(
            (
                func.count(columns.began_us + columns.duration_us) == func.count(),
                func.max(columns.began_us + columns.duration_us),
            ),
            (func.count(columns.duration_us) == func.count(), func.sum(columns.duration_us)),
        ),
        "tokens": func.sum(columns.input_tokens + columns.output_tokens),
    }
    amount = amounts[query.order.removeprefix("-")].label("amount")
    matching = (
        select(columns.request_id, func.max(columns.at_us).label("at_us"), amount)
        .where(*_filters(columns, query))
        .group_by(columns.request_id)
        .subquery("matching")
    )
    by = matching.c.amount.desc() if query.order.startswith("-") else matching.c.amount.asc()
    order = (by.nulls_last(), matching.c.at_us.desc(), matching.c.request_id)
    numbered = select(matching.c.request_id, func.row_number().over(order_by=order).label("place")).subquery("numbered")
    first = (query.page - 1) * query.rows
    found = (
        select(numbered).where(numbered.c.place > first, numbered.c.place <= first + query.rows + 1).subquery("found")
    )
    told = (
        select(func.count().label("looked_at"), func.min(columns.at_us).label("last_us"))
        .select_from(looked)
        .subquery("told")
    )
    return select(*told.c, found.c.request_id).select_from(told.outerjoin(found, true())).order_by(found.c.place)


def _filters(columns: Any, query: RecentQuery) -> list[ColumnElement[bool]]:
    asked = {column: getattr(query, name) for name, column in REQUEST_FILTERS.items()}
    conditions: list[ColumnElement[bool]] = [columns[column] == value for column, value in asked.items() if value]
    tried = columns.entry.in_(_TRIED)
    if query.statuses is not None:
        conditions.append(columns.status.between(*query.statuses))
    if query.slower_us is not None:
        conditions.append(columns.duration_us >= query.slower_us)
    if query.faster_us is not None:
        conditions.append(columns.duration_us <= query.faster_us)
    if query.dearer_nanousd is not None:
        conditions.append(columns.cost_nanousd >= query.dearer_nanousd)
    if query.cheaper_nanousd is not None:
        conditions.append(columns.cost_nanousd <= query.cheaper_nanousd)
    if query.keys is not None:
        conditions.append(columns.key_id.in_(query.keys))
    if query.targets is not None:
        conditions.append(columns.target_id.in_(query.targets))
    conditions += [_word_filter(columns, word) for word in query.words]
    return [*conditions, *_outcome_filters(columns, query.outcome, tried)]


def _word_filter(columns: Any, word: Word) -> ColumnElement[bool]:
    begins = [func.substr(columns[name], 1, len(word.text)) == word.text for name in ("request_id", "end_user")]
    return or_(
        *begins,
        columns.end_user == word.end_user,
        columns.key_id.in_(word.keys),
        columns.target_id.in_(word.targets),
    )


def _outcome_filters(columns: Any, outcome: Outcome, tried: ColumnElement[bool]) -> list[ColumnElement[bool]]:
    match outcome:
        case "":
            found: list[ColumnElement[bool]] = []
        case "answered":
            found = [columns.served]
        case "given-again":
            found = [columns.entry == "cache"]
        case "failed":
            found = [or_(columns.status >= _FAILED_FROM, columns.status == 0)]
        case "retried":
            found = [*_after_failure(columns), _asked_before(columns)]
        case "fell-back":
            found = [*_after_failure(columns), not_(_asked_before(columns))]
        case "escalated":
            found = [columns.reason == "escalated"]
        case "estimated":
            found = [columns.usage_source == "estimated"]
        case "unpriced":
            found = [and_(tried, columns.cost_nanousd.is_(None))]
        case _:
            assert_never(outcome)
    return found


def _after_failure(columns: Any) -> list[ColumnElement[bool]]:
    return [
        columns.attempt > 1,
        columns.reason.not_in(_NOT_AFTER_FAILURE),
        columns.flags.not_like(f'%"{CONTINUED}"%'),
    ]


def _asked_before(columns: Any) -> ColumnElement[bool]:
    """Return the condition that an earlier attempt of the same request was made at the same model."""
    earlier = aliased(LedgerEntry)
    return exists().where(
        col(earlier.request_id) == columns.request_id,
        col(earlier.attempt) < columns.attempt,
        col(earlier.target_id) == columns.target_id,
        col(earlier.entry).in_(_ENDS),
    )


def matches(entry: Entry, query: RecentQuery, attempts: Sequence[Entry] = ()) -> bool:
    """Return whether an entry, one of the request's `attempts`, matches; the counterpart of `_filters` in Python."""
    asked = ((getattr(query, name), getattr(entry, column)) for name, column in REQUEST_FILTERS.items())
    if any(wanted not in {"", found} for wanted, found in asked) or not _is_within(entry, query):
        return False
    named = ((query.keys, entry.key_id), (query.targets, entry.target_id))
    if any(wanted is not None and found not in wanted for wanted, found in named):
        return False
    if not all(word.is_in(entry) for word in query.words):
        return False
    outcomes: dict[Outcome, bool] = {
        "": True,
        "answered": entry.served,
        "given-again": entry.entry == "cache",
        "failed": entry.status >= _FAILED_FROM or entry.status == 0,
        "retried": way_of(entry, attempts) == "retry",
        "fell-back": way_of(entry, attempts) == "fallback",
        "escalated": entry.reason == "escalated",
        "estimated": entry.usage_source == "estimated",
        "unpriced": entry.entry in _TRIED and entry.cost_nanousd is None,
    }
    return outcomes[query.outcome]


def _is_within(entry: Entry, query: RecentQuery) -> bool:
    bounds = ((query.slower_us, entry.duration_us), (query.dearer_nanousd, entry.cost_nanousd))
    if any(least is not None and (found is None or found < least) for least, found in bounds):
        return False
    most = ((query.faster_us, entry.duration_us), (query.cheaper_nanousd, entry.cost_nanousd))
    if any(bound is not None and (found is None or found > bound) for bound, found in most):
        return False
    if query.since_us is not None and entry.at_us < query.since_us:
        return False
    if query.until_us is not None and entry.at_us >= query.until_us:
        return False
    return query.statuses is None or query.statuses[0] <= entry.status <= query.statuses[1]


async def _read_requests(
    connection: AsyncConnection, scope: ReadScope, request_ids: Sequence[str]
) -> dict[str, RecentRequest]:
    if not request_ids:
        return {}
    mine = _scope_conditions(msgspec.structs.replace(scope, team_id=None))
    if scope.team_id is not None:
        # Written so that no index serves it: SQLite would rather go through all rows of a team than to fifty by their id.
        mine.append(col(LedgerEntry.team_id).concat("") == scope.team_id)
    ordered = ALL.where(*mine, col(LedgerEntry.request_id).in_(request_ids))
    entries = await read(connection, ordered.order_by(col(LedgerEntry.request_id), col(LedgerEntry.attempt)))
    attempts: dict[str, dict[int, Entry]] = {}
    for entry in entries:
        # An attempt whose host came back was expired and settled: the settlement counts.
        known = attempts.setdefault(entry.request_id, {})
        if entry.attempt not in known or known[entry.attempt].entry == "expire":
            known[entry.attempt] = entry
    return {each: RecentRequest(request_id=each, attempts=tuple(found.values())) for each, found in attempts.items()}
