"""The read-only look-ups behind the tools: each is one of the functions that pages and the usage API have, within the asker's scope."""

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlencode

import msgspec

from api.ask.asker import Asker, OutOfScope
from api.ask.found import MOST_ROWS, Figure, Found, Kind, Value, plain
from api.budgets.listing import budget_as_json, member_budget_as_json
from api.operations.snapshot import operations_snapshot
from api.prices.listing import prices_as_json
from api.web.reading import known_usd, reading, sound_query
from cost.budgets.store import BudgetStore
from cost.calendar import Days as CalendarDays
from cost.dimensions import BY_NAME, ON_PAGES, Dimension, UsageFilters
from cost.ledger.archived import all_archived, told_months
from cost.ledger.entries import Entry
from cost.prices import usd
from cost.reports.compared import Against, ComparedQuery, ComparedReader, ComparedRow, longest_us, window_of
from cost.reports.movers import read_movers, sentence, told_window
from cost.reports.recent import Outcome, RecentQuery, RecentReader, RecentRequest
from cost.reports.request_search import FIELDS, MOST_CHARS, parse
from cost.reports.scope import ReadScope
from cost.reports.searched import narrowed
from cost.reports.usage import MAX_DAYS, UsageQuery, UsageSums
from cost.times import DAY_US, first_and_last, in_us, iso
from proxy.plan.route_plan import may_use

_MOST_GROUPS: Final = 10_000
_MOST_TEAMS: Final = 20
_US: Final = 1_000_000
_PRICES: Final = "/dashboard/finance/prices"
_PLACES: Final = Decimal("0.0001")
_PERCENT: Final = Decimal("0.01")
_NANO: Final = Decimal("0.000000001")
_HUNDRED: Final = 100
_FILTERS: Final[tuple[Dimension, ...]] = ("key", "model", "provider", "tier", "tag", "end_user")

PeriodName = Literal[
    "today", "yesterday", "last_7_days", "previous_7_days", "last_30_days", "this_month", "last_month", "last_90_days"
]
_LAST: Final[Mapping[str, int]] = {"today": 1, "last_7_days": 7, "last_30_days": 30, "last_90_days": 90}
Rows = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]
Name = Annotated[str, msgspec.Meta(max_length=200)]


class BadLookUp(Exception):
    """A look-up was asked for in a way that has no answer; the message says how to ask."""


class LookUp(msgspec.Struct, frozen=True, kw_only=True):
    """One look-up: who asks, when, and the figures that were found before, by their references."""

    asker: Asker
    now_us: int
    figures: Mapping[str, Figure] = {}

    @property
    def today(self) -> dt.date:
        """The current day of the organisation's calendar."""
        return self.asker.calendar.day(self.now_us)


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class Days(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of a look-up over days of the organisation's calendar."""

    period: Annotated[PeriodName, msgspec.Meta(description="Or give first_day and last_day.")] = "last_7_days"
    first_day: Annotated[dt.date | None, msgspec.Meta(description="Both are included.")] = None
    last_day: dt.date | None = None
    team: Annotated[Name, msgspec.Meta(description="Id or name of a team; all that may be read when left out.")] = ""

    def span(self, look: LookUp) -> CalendarDays:
        """Return the days. Raises BadLookUp."""
        today = look.today
        first, last = self._named(today)
        if self.first_day is not None or self.last_day is not None:
            last = self.last_day or today
            first = self.first_day or last
        if not dt.date(2000, 1, 1) <= first <= last < dt.date(9000, 1, 1):
            raise BadLookUp("first_day must not be after last_day")
        if (last - first).days >= MAX_DAYS:
            raise BadLookUp(f"that is too long: at most {MAX_DAYS} days are looked at at once")
        return CalendarDays(first, last, look.asker.calendar)

    def _named(self, today: dt.date) -> tuple[dt.date, dt.date]:
        one, month = dt.timedelta(days=1), today.replace(day=1)
        match self.period:
            case "yesterday":
                return today - one, today - one
            case "previous_7_days":
                return today - 13 * one, today - 7 * one
            case "this_month":
                return month, today
            case "last_month":
                return (month - one).replace(day=1), month - one
            case _:
                return today - (_LAST[self.period] - 1) * one, today


class UsageAsked(Days, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `usage`."""

    by: Annotated[
        list[Literal["team", "key", "model", "provider", "tier", "tag", "end_user", "day", "hour"]],
        msgspec.Meta(max_length=2, description="What a row is of; one total when left out."),
    ] = []
    key: Annotated[Name, msgspec.Meta(description="Only this key: a key_id of a result.")] = ""
    model: Name = ""
    provider: Name = ""
    tier: Name = ""
    tag: Name = ""
    end_user: Name = ""
    rows: Rows = 10


class MoversAsked(Days, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `movers`."""

    by: Annotated[
        list[Literal["team", "key", "model", "provider", "tier", "tag", "end_user"]],
        msgspec.Meta(max_length=2, description="What a change is of; key and model when left out."),
    ] = []
    against: Annotated[
        Against, msgspec.Meta(description="As many days right before, or the same weekdays whole weeks before.")
    ] = "previous"
    key: Annotated[Name, msgspec.Meta(description="Only this key: a key_id of a result.")] = ""
    model: Name = ""
    provider: Name = ""
    tier: Name = ""
    tag: Name = ""
    end_user: Name = ""
    rows: Rows = 10


class SearchAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `search`."""

    line: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=MOST_CHARS,
            description=f"Words such as user:ann status:5xx cost>0.5 latency>2s at:2026-11-24T14:03 (UTC). Fields: {', '.join(FIELDS)}.",
        ),
    ]
    team: Annotated[Name, msgspec.Meta(description="Id or name of a team; all that may be read when left out.")] = ""
    rows: Rows = 10


class RequestsAsked(Days, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `requests`."""

    key: Annotated[Name, msgspec.Meta(description="Only this key: a key_id of a result.")] = ""
    model: Name = ""
    tag: Name = ""
    status: Annotated[str, msgspec.Meta(max_length=3, description="Such as 429 or 5xx.")] = ""
    outcome: Literal["", "answered", "failed", "fell-back", "escalated", "estimated", "unpriced"] = ""
    order: Annotated[
        Literal["newest", "dearest", "slowest", "longest"], msgspec.Meta(description="What comes first.")
    ] = "newest"
    rows: Rows = 10


class OfTeam(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of a look-up of now."""

    team: Annotated[Name, msgspec.Meta(description="Id or name of a team; all that may be read when left out.")] = ""


class PricesAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `prices`."""

    model: Annotated[Name, msgspec.Meta(description="A part of the model's name; all models when left out.")] = ""


class CalculateAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `calculate`."""

    operation: Literal["sum", "mean", "difference", "ratio", "percent_of", "percent_change"]
    """A difference is the first less the second; a ratio, the first over the second; a change, from the first to the second."""
    figures: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=80)]],
        msgspec.Meta(
            min_length=1,
            max_length=MOST_ROWS,
            description="References such as r1.2.cost_usd (result 1, row 2) or r1.total.requests.",
        ),
    ]


async def teams(look: LookUp, _asked: Nothing) -> Found:
    """Return the teams that the asker may read."""
    shown = sorted(look.asker.teams.items(), key=lambda each: each[1].casefold())
    return Found(
        title="Teams",
        rows=[{"team": name, "team_id": team_id} for team_id, name in shown[:MOST_ROWS]],
        hrefs=[f"/dashboard/teams/{team_id}" for team_id, _ in shown[:MOST_ROWS]],
        href="/dashboard/teams",
        more=len(shown) > MOST_ROWS,
    )


async def usage(look: LookUp, asked: UsageAsked) -> Found:
    """Return usage and cost, grouped, as GET /v1/usage."""
    asker, span = look.asker, asked.span(look)
    by: tuple[Dimension, ...] = tuple(dict.fromkeys(asked.by))
    query = _usage_query(asker, asked, by, span)
    async with reading(asker.gateway):
        page = await asker.gateway.finance.usage.page(query)
    total = page.totals or UsageSums()
    rows = [{**_names(by, row.group), **_sums(row.sums), **_share(row.sums, total, by)} for row in page.rows]
    order = sorted(range(len(rows)), key=lambda at: _rank(rows[at], by))
    kept = order[: asked.rows]
    named = await _named(asker, [rows[at] for at in kept])
    is_whole = page.next_cursor is None
    return Found(
        title=_title("Usage", by),
        rows=named if by else [],
        hrefs=[_row_page(asker, asked, row, span) for row in named] if by else (),
        href=_whole_page(asker, asked, by, span),
        total=_sums(total),
        days=(span.first, span.last),
        more=len(kept) < len(order) or not is_whole,
        note=_note(look, span, is_whole=is_whole),
    )


async def movers(look: LookUp, asked: MoversAsked) -> Found:
    """Return what changed most, why and since when, as GET /v1/usage/movers."""
    asker, span = look.asker, asked.span(look)
    by: tuple[Dimension, ...] = tuple(dict.fromkeys(asked.by)) or ("key", "model")
    scope, filters = _scope_and_filters(asker, asked)
    longest = longest_us(filters, by, span.start_us, span.end_us)
    window = window_of(span.start_us, span.end_us, look.now_us, asked.against, span.calendar, longest_us=longest)
    if not window.is_compared:
        raise BadLookUp(
            f"both times together have at most {longest // DAY_US} days, and the later one has begun at least an hour ago"
        )
    with sound_query():
        query = ComparedQuery(scope=scope, window=window, group_by=by, filters=filters, limit=asked.rows)
    async with reading(asker.gateway):
        found = await read_movers(ComparedReader(asker.gateway.database), query)
    rows = await _named(asker, [{**_names(by, each.row.group), **_compared(each.row)} for each in found.movers])
    called: dict[Dimension, dict[str, str]] = {
        name: {str(row[f"{name}_id"]): str(row[name]) for row in rows if row.get(name) and row.get(f"{name}_id")}
        for name in ("team", "key")
    }
    told = [
        {
            **row,
            "text": sentence(
                mover, by, lambda name, value: called.get(name, {}).get(value, value), look.now_us, span.calendar
            ),
        }
        for row, mover in zip(rows, found.movers, strict=True)
    ]
    before = (span.calendar.day(window.previous_start_us), span.calendar.day(window.previous_end_us - 1))
    return Found(
        title=_title("What changed", by),
        rows=told,
        hrefs=[_spend_page(asker, asked, span, row) for row in told],
        href=_spend_page(asker, asked, span, {}),
        total=_compared(found.compared.whole),
        days=(span.first, span.last),
        before=before,
        more=len(found.compared.rows) >= asked.rows,
        note=f"Compared: {told_window(window)}.",
    )


async def requests(look: LookUp, asked: RequestsAsked) -> Found:
    """Return single requests, as the page of requests."""
    asker, span = look.asker, asked.span(look)
    orders: Mapping[str, Any] = {"newest": "", "dearest": "-cost", "slowest": "-duration", "longest": "-tokens"}
    outcome: Outcome = asked.outcome
    scopes = [
        ReadScope(organisation_id=asker.organisation_id, team_id=team_id)
        for team_id in ([None] if asker.reads_all and not asked.team else asker.chosen(asked.team)[:_MOST_TEAMS])
    ]
    found: list[RecentRequest] = []
    archived: set[int] = set()
    more = False
    with sound_query():
        queries = [
            RecentQuery(
                scope=scope,
                rows=asked.rows,
                outcome=outcome,
                target=asked.model,
                key=asked.key,
                tag=asked.tag,
                status=asked.status,
                order=orders[asked.order],
                since_us=max(0, span.start_us),
                until_us=span.end_us,
            )
            for scope in scopes
        ]
    async with reading(asker.gateway):
        for query in queries:
            page = await RecentReader(asker.gateway.database).page(query)
            found += page.requests
            archived.update(page.archived)
            more = more or page.next_place is not None or page.has_more
    found.sort(key=_request_order(asked.order))
    named = await _named(asker, [_request_row(each) for each in found[: asked.rows]])
    team_id = asker.one(asked.team)
    kept = {"key": asked.key, "target": asked.model, "tag": asked.tag, "status": asked.status, "outcome": asked.outcome}
    return Found(
        title="Requests",
        rows=named,
        hrefs=[_request_page(str(row["team_id"]), str(row["request_id"])) for row in named],
        href=_requests_page(team_id, span, kept, sort=orders[asked.order]) if team_id else "/dashboard/teams",
        days=(span.first, span.last),
        more=more or len(found) > asked.rows,
        note=_lacking(archived),
    )


async def search(look: LookUp, asked: SearchAsked) -> Found:
    """Return the requests that a line of search finds, as the search field of requests."""
    asker, line = look.asker, asked.line.strip()
    found = parse(line)
    if found.refusal:
        raise BadLookUp(found.refusal)
    team_ids = asker.chosen(asked.team)
    targets = {name: name for name in asker.gateway.rules().catalog.targets}
    reader, accounts = RecentReader(asker.gateway.database), asker.gateway.identity.accounts
    sought = found.request_id or (found.words[0] if len(found.words) == 1 and not found.fields else "")
    hits: dict[str, RecentRequest] = {}
    problems, more = dict.fromkeys(found.problems), len(team_ids) > _MOST_TEAMS
    archived: set[int] = set()
    async with reading(asker.gateway):
        if found.request_id:
            archived.update(await all_archived(asker.gateway.database))
        for team_id in team_ids[:_MOST_TEAMS]:
            scope = ReadScope(organisation_id=asker.organisation_id, team_id=team_id)
            with sound_query():
                one = await reader.one(scope, sought) if sought else None
                if one is not None or found.request_id:
                    hits |= {} if one is None else {one.request_id: one}
                    continue
                query = RecentQuery(scope=scope, rows=asked.rows, **found.fields)
                query, untold = await narrowed(
                    reader, found, query, await accounts.key_names(asker.organisation_id, team_id), targets
                )
            page = await reader.page(query)
            hits |= {each.request_id: each for each in page.requests}
            archived.update(page.archived)
            problems |= dict.fromkeys(untold)
            more = more or page.next_place is not None
    shown = sorted(hits.values(), key=_request_order("newest"))[: asked.rows]
    named = await _named(asker, [_request_row(each) for each in shown])
    team_id = asker.one(asked.team)
    return Found(
        title=f"Requests found by {plain(line)}",
        rows=named,
        hrefs=[_request_page(str(row["team_id"]), str(row["request_id"])) for row in named],
        href=f"/dashboard/teams/{quote(team_id, safe='')}/requests?{urlencode({'q': line})}"
        if team_id
        else "/dashboard/teams",
        more=more or len(hits) > len(shown),
        note=" ".join(filter(None, (*problems, _lacking(() if found.request_id and hits else archived)))),
    )


def _lacking(months: Collection[int]) -> str:
    """Return the sentence that requests of these months are missing; empty for none."""
    return f"Not all are here: {told_months(sorted(months))}." if months else ""


async def refusals(look: LookUp, asked: Days) -> Found:
    """Return how many requests were refused before a model, by team, key, model and reason."""
    asker, span = look.asker, asked.span(look)
    if span.last < look.today:
        raise BadLookUp("refusals are counted up to now; leave out last_day, or ask for today")
    whole = asker.reads_all and not asked.team
    store, since_us = asker.gateway.views.refusals, max(0, span.start_us)
    async with reading(asker.gateway, on=True):
        sums = [
            each
            for team_id in ([None] if whole else asker.chosen(asked.team)[:_MOST_TEAMS])
            for each in await store.read(
                since_us, organisation_id=asker.organisation_id, team_id=team_id, most=MOST_ROWS
            )
        ]
    sums.sort(key=lambda each: -each.refusals)
    rows: list[dict[str, Value]] = [
        {
            "team_id": each.team_id,
            "key_id": each.key_id,
            "model_asked_for": each.model,
            "reason": each.reason,
            "status": str(each.status),
            "refusals": each.refusals,
        }
        for each in sums[:MOST_ROWS]
    ]
    named = await _named(asker, rows)
    return Found(
        title="Refused requests",
        rows=named,
        hrefs=[
            _requests_page(str(row["team_id"]), span, {"outcome": "refused"}) if row.get("team_id") else ""
            for row in named
        ],
        href=_requests_page(asker.one(asked.team), span, {"outcome": "refused"})
        if asker.one(asked.team)
        else "/dashboard/teams",
        total={"refusals": sum(each.refusals for each in sums)},
        days=(span.first, span.last),
        more=len(sums) >= MOST_ROWS,
    )


async def budgets(look: LookUp, asked: OfTeam) -> Found:
    """Return budgets with their standing, as GET /v1/budgets."""
    asker = look.asker
    store = BudgetStore(asker.gateway.database)
    whole = asker.reads_all and not asked.team
    async with reading(asker.gateway):
        if whole:
            told = [("", budget_as_json(each)) for each in await store.of_organisation(asker.organisation_id)]
        else:
            as_json = budget_as_json if asker.reads_all else member_budget_as_json
            told = [
                (team_id, as_json(each))
                for team_id in asker.chosen(asked.team)[:_MOST_TEAMS]
                for each in await store.of_team(asker.organisation_id, team_id, [])
            ]
    told.sort(key=lambda each: -(each[1]["share"] or 0))
    return Found(
        title="Budgets",
        rows=[_budget_row(each) for _, each in told[:MOST_ROWS]],
        hrefs=[
            _budgets_page(team_id or (each["scope_id"] if each["scope"] == "team" else ""))
            for team_id, each in told[:MOST_ROWS]
        ],
        href=_budgets_page(asker.one(asked.team)),
        more=len(told) > MOST_ROWS,
    )


async def prices(look: LookUp, asked: PricesAsked) -> Found:
    """Return what models cost now, as GET /v1/prices."""
    asker, gateway = look.asker, look.asker.gateway
    catalog = gateway.rules().catalog.targets
    wanted = asked.model.casefold()
    pages: dict[str, str] = {}
    if asker.reads_all:
        pages = {name: f"{_PRICES}/{quote(name, safe='')}" for name in catalog}
    for team_id in () if asker.reads_all else tuple(asker.teams)[:_MOST_TEAMS]:
        allowed = (await gateway.identity.accounts.team_of(asker.organisation_id, team_id)).allowed_models
        of_team = (name for name, target in catalog.items() if may_use(allowed, target))
        pages = {name: f"/dashboard/teams/{team_id}/models/{quote(name, safe='')}" for name in of_team} | pages
    names = [name for name in catalog if name in pages and wanted in name.casefold()]
    return Found(
        title="Prices",
        rows=[_price_row(prices_as_json(gateway.finance.prices.book, name, look.now_us)) for name in names[:MOST_ROWS]],
        hrefs=[pages[name] for name in names[:MOST_ROWS]],
        href=_PRICES if asker.reads_all else "/dashboard/teams",
        more=len(names) > MOST_ROWS,
    )


async def savings(look: LookUp, asked: Days) -> Found:
    """Return what was saved against each comparator, as GET /v1/savings."""
    asker, span = look.asker, asked.span(look)
    team_id = asker.one(asked.team)
    if not team_id and not asker.reads_all:
        raise OutOfScope("Name one team.")
    scope = ReadScope(organisation_id=asker.organisation_id, team_id=team_id or None)
    calculator = asker.gateway.finance.savings
    async with reading(asker.gateway):
        inputs = await calculator.inputs(scope, span)
        told = calculator.as_json(scope, await calculator.report(scope, inputs))
    query = _query_of(span)
    return Found(
        title="Savings",
        rows=[
            {
                "compared_with": each["comparator"],
                "baseline_usd": each["baseline_usd"],
                "cost_usd": each["cost_usd"],
                "savings_usd": each["savings_usd"],
                "savings_percent": _percent(each["savings_share"]),
                "verdict": each["verdict"],
            }
            for each in told["comparisons"]
        ],
        href=f"/dashboard/teams/{team_id}?{query}" if team_id else f"/dashboard/finance?{query}",
        total={
            "cost_usd": told["cost_usd"],
            "served_requests": told["served_requests"],
            "target_percent": _percent(told["target_share"]),
            "verdict": told["verdict"],
        },
        days=(span.first, span.last),
    )


async def incidents(look: LookUp, _asked: Nothing) -> Found:
    """Return what is wrong with the gateway now, as the operators' overview."""
    told = (await operations_snapshot(look.asker.gateway))["incidents"]
    return Found(
        title="Incidents now",
        rows=[
            {
                "subject": each["subject"],
                "kind": each["kind"],
                "severity": "severe" if each["severity"] == "bad" else "warning",
                "text": f"{each['text']}. {each['advice']}",
                "since": each["since"],
                "requests": each["requests"],
                "teams_hit": each["teams"],
            }
            for each in told[:MOST_ROWS]
        ],
        hrefs=[each["href"] for each in told[:MOST_ROWS]],
        href="/dashboard/operations",
        more=len(told) > MOST_ROWS,
    )


async def calculate(look: LookUp, asked: CalculateAsked) -> Found:
    """Return what follows from figures that were found before: no other number can be put in."""
    missing = [ref for ref in asked.figures if ref not in look.figures]
    if missing:
        raise BadLookUp(f"there is no figure {missing[0]!r}; use references of results, such as r1.2.cost_usd")
    if len(set(asked.figures)) < len(asked.figures):
        raise BadLookUp("name each figure once")
    given = [look.figures[ref] for ref in asked.figures]
    if asked.operation not in {"sum", "mean"} and len(given) != 2:  # noqa: PLR2004
        raise BadLookUp(f"{asked.operation} takes two figures")
    kinds = {each.kind for each in given}
    if len(kinds) > 1 and not (asked.operation == "ratio" and given[1].kind == ""):
        raise BadLookUp("these figures are of different units")
    value, kind = _calculated(asked.operation, given)
    column = "result" + {"usd": "_usd", "percent": "_percent", "s": "_s", "": ""}[kind]
    return Found(
        title=f"{asked.operation.replace('_', ' ').capitalize()} of {', '.join(asked.figures)}",
        rows=[{column: value}],
        hrefs=[given[0].href],
        href=given[0].href,
    )


def _calculated(operation: str, given: Sequence[Figure]) -> tuple[Decimal, Kind]:
    values, kind = [each.value for each in given], given[0].kind
    if operation == "sum":
        return sum(values, Decimal(0)), kind
    if operation == "mean":
        return (sum(values, Decimal(0)) / len(values)).quantize(_NANO if kind == "usd" else _PLACES), kind
    first, second = values
    if operation == "difference":
        return first - second, kind
    divisor = first if operation == "percent_change" else second
    if not divisor:
        raise BadLookUp("that would divide by zero")
    if operation == "ratio":
        # Dollars over a number are dollars each; of one unit a ratio is a plain number.
        ratio_kind: Kind = kind if given[1].kind != kind else ""
        return (first / second).quantize(_NANO if ratio_kind == "usd" else _PLACES), ratio_kind
    part = first if operation == "percent_of" else second - first
    return (part / divisor * _HUNDRED).quantize(_PERCENT), "percent"


def _title(what: str, by: Sequence[Dimension]) -> str:
    named = [BY_NAME[each].label.lower() if each in BY_NAME else each for each in by]
    return f"{what} by {' and '.join(named)}" if named else what


def _scope_and_filters(asker: Asker, asked: UsageAsked | MoversAsked) -> tuple[ReadScope, UsageFilters]:
    scope, filters = asker.scope(asked.team)
    wanted = {name: getattr(asked, name) for name in _FILTERS}
    return scope, msgspec.structs.replace(filters, **{name: (value,) for name, value in wanted.items() if value})


def _usage_query(asker: Asker, asked: UsageAsked, by: tuple[Dimension, ...], span: CalendarDays) -> UsageQuery:
    scope, filters = _scope_and_filters(asker, asked)
    start_us = max(0, span.start_us)
    # More days than are read at once are refused.
    offsets = span.offsets if len(span) <= MAX_DAYS else ()
    with sound_query():
        return UsageQuery(
            scope=scope,
            start_us=start_us,
            end_us=span.end_us,
            offsets=offsets,
            group_by=by,
            filters=filters,
            limit=_MOST_GROUPS,
        )


def _names(by: Sequence[Dimension], group: Sequence[str | int]) -> dict[str, Value]:
    names: dict[str, Value] = {}
    for name, value in zip(by, group, strict=True):
        text = (iso(value)[:10] if name == "day" else iso(value)) if isinstance(value, int) else value
        names[f"{name}_id" if name in {"team", "key"} else name] = text or BY_NAME[name].nobody
    return names


def _sums(sums: UsageSums) -> dict[str, Value]:
    told: dict[str, Value] = {
        "cost_usd": known_usd(sums.known_cost_nanousd),
        "requests": sums.requests,
        "answered": sums.served,
        "input_tokens": sums.input_tokens,
        "cached_input_tokens": sums.cached_input_tokens,
        "output_tokens": sums.output_tokens,
    }
    if sums.baseline_rows:
        told["savings_usd"] = known_usd(sums.savings_nanousd)
    if sums.unpriced_attempts:
        told["attempts_without_a_price"] = sums.unpriced_attempts
    return told


def _share(sums: UsageSums, total: UsageSums, by: Sequence[Dimension]) -> dict[str, Value]:
    if not by or total.cost_nanousd <= 0:
        return {}
    return {"cost_share_percent": _percent(Decimal(sums.cost_nanousd) / total.cost_nanousd)}


def _compared(row: ComparedRow) -> dict[str, Value]:
    """Return what it is, what it was before, and how it changed; no percentage from nothing."""
    now, before, parts = row.now, row.before, row.parts
    return {
        "cost_usd": known_usd(now.known_cost_nanousd),
        "cost_before_usd": known_usd(before.known_cost_nanousd),
        "cost_change_usd": usd(row.change_nanousd),
        "cost_change_percent": _percent(None if row.change_share is None else float(row.change_share)),
        "by_requests_usd": usd(parts.requests_nanousd),
        "by_tokens_usd": usd(parts.tokens_nanousd),
        "by_price_usd": usd(parts.price_nanousd),
        "by_postings_usd": usd(parts.posted_nanousd),
        "requests": now.requests,
        "requests_before": before.requests,
        "requests_change": now.requests - before.requests,
    }


def _rank(row: Mapping[str, Value], by: Sequence[Dimension]) -> tuple[Any, ...]:
    times = tuple(str(row[each]) for each in by if each in {"day", "hour"})
    return (*times, -abs(Decimal(row.get("cost_usd") or 0)), *(str(value) for value in row.values()))


def _percent(share: Any) -> Decimal | None:
    return None if share is None else (Decimal(str(share)) * _HUNDRED).quantize(_PERCENT)


async def _named(asker: Asker, rows: Sequence[dict[str, Value]]) -> list[dict[str, Value]]:
    """Return rows with the names of their teams and keys before their ids; a key's team is told with it."""
    key_ids = [str(row["key_id"]) for row in rows if row.get("key_id")]
    known = await asker.gateway.identity.accounts.named_keys(asker.organisation_id, key_ids) if key_ids else {}
    named: list[dict[str, Value]] = []
    for row in rows:
        name, team_of_key = known.get(str(row.get("key_id")), (None, None))
        team_id = row.get("team_id") or team_of_key
        names = {"key_id": name, "team_id": None if team_id is None else asker.teams.get(str(team_id))}
        told: dict[str, Value] = {}
        for column, value in {**row, "team_id": team_id}.items():
            if column in names:
                told[column.removesuffix("_id")] = names[column]
            told[column] = value
        # An unknown cost is told as unknown; other columns may be missing.
        named.append({column: value for column, value in told.items() if value is not None or column == "cost_usd"})
    return named


def _note(look: LookUp, span: CalendarDays, *, is_whole: bool) -> str:
    told = [] if is_whole else [f"Only the first {_MOST_GROUPS:,} groups were looked at; ask for less."]
    if span.last >= look.today:
        told.append("Today is not over.")
    return " ".join(told)


def _query_of(span: CalendarDays, **others: str) -> str:
    named = {"from": span.first.isoformat(), "to": span.last.isoformat(), **others}
    return urlencode({name: value for name, value in named.items() if value})


def _requests_page(team_id: str, span: CalendarDays, filters: Mapping[str, str], *, sort: str = "") -> str:
    # Requests are searched by times of UTC.
    first, last = first_and_last(span.start_us, span.end_us)
    asked = {"from": first, "to": last, **filters, "sort": sort}
    query = urlencode({name: value for name, value in asked.items() if value})
    return f"/dashboard/teams/{quote(team_id, safe='')}/requests?{query}"


def _spend_page(asker: Asker, asked: MoversAsked, span: CalendarDays, row: Mapping[str, Value]) -> str:
    """Return the page of spend that a row of movers is a part of, or all of them."""
    nobody = {BY_NAME[name].nobody for name in _FILTERS}
    values = {name: str(row.get(f"{name}_id" if name == "key" else name) or getattr(asked, name)) for name in _FILTERS}
    query = _query_of(span, **{name: value for name, value in values.items() if value not in nobody})
    team_id = str(row.get("team_id") or asker.one(asked.team))
    if team_id in asker.teams:
        return f"/dashboard/teams/{quote(team_id, safe='')}/spend?{query}"
    return f"/dashboard/finance/spend?{query}" if asker.reads_all else "/dashboard/teams"


def _request_page(team_id: str, request_id: str) -> str:
    return f"/dashboard/teams/{quote(team_id, safe='')}/requests/{quote(request_id, safe='')}"


def _budgets_page(team_id: str) -> str:
    return f"/dashboard/teams/{quote(team_id, safe='')}/budgets" if team_id else "/dashboard/budgets"


def _whole_page(asker: Asker, asked: UsageAsked, by: Sequence[Dimension], span: CalendarDays) -> str:
    team_id = asker.one(asked.team)
    shown = next((each for each in by if each in ON_PAGES), "team")
    if asker.reads_all:
        return f"/dashboard/finance/showback?{_query_of(span, by=shown, team=team_id)}"
    return f"/dashboard/teams/{team_id}?{_query_of(span)}" if team_id else "/dashboard/teams"


def _row_page(asker: Asker, asked: UsageAsked, row: Mapping[str, Value], span: CalendarDays) -> str:
    """Return the requests of a row where they are of one team, otherwise the page with its sums."""
    team_id = str(row.get("team_id") or asker.one(asked.team))
    day = dt.date.fromisoformat(str(row["day"])) if "day" in row else None
    if "hour" in row and day is None:
        day = span.calendar.day(in_us(dt.datetime.fromisoformat(str(row["hour"]))))
    within = span if day is None else CalendarDays(day, day, span.calendar)
    if team_id in asker.teams:
        filters = {
            parameter: str(row.get(column) or asked_for)
            for parameter, column, asked_for in (
                ("key", "key_id", asked.key),
                ("target", "model", asked.model),
                ("tier", "tier", asked.tier),
                ("tag", "tag", asked.tag),
            )
            if row.get(column) or asked_for
        }
        return _requests_page(team_id, within, filters)
    by: list[Dimension] = [each for each in asked.by if each in ON_PAGES]
    return _whole_page(asker, asked, by, within)


def _request_row(found: RecentRequest) -> dict[str, Value]:
    told: Entry = found.told
    return {
        "request_id": found.request_id,
        "at": iso(found.at_us),
        "team_id": told.team_id,
        "key_id": told.key_id,
        "model": told.target_id,
        "asked_for": told.alias,
        "tag": told.tag or None,
        "answered": "yes" if told.served else "no",
        "status": str(found.status),
        "attempts": len(found.attempts),
        "cost_usd": known_usd(found.cost_nanousd),
        "duration_s": _seconds(found.took_us),
        "first_token_s": _seconds(found.first_token_us),
        "input_tokens": sum(each.input_tokens for each in found.attempts),
        "output_tokens": sum(each.output_tokens for each in found.attempts),
    }


def _request_order(order: str) -> Any:
    """Return the key by which requests of several teams are brought into one order."""
    return {
        "newest": lambda each: -each.at_us,
        "dearest": lambda each: -(each.cost_nanousd or 0),
        "slowest": lambda each: -(each.took_us or 0),
        "longest": lambda each: -sum(one.input_tokens + one.output_tokens for one in each.attempts),
    }[order]


def _seconds(time_us: int | None) -> Decimal | None:
    return None if time_us is None else Decimal(time_us) / _US


def _budget_row(told: Mapping[str, Any]) -> dict[str, Value]:
    return {
        "scope": told["scope"],
        "of": told["scope_id"],
        "period": told["period"],
        "kind": told["kind"],
        "limit_usd": told["raised_limit_usd"] or told["limit_usd"],
        "spent_usd": told["spent_usd"],
        "left_usd": told["left_usd"],
        "used_percent": _percent(told["share"]),
        "state": told["state"],
        "resets_at": told["resets_at"],
    }


def _price_row(told: Mapping[str, Any]) -> dict[str, Value]:
    per_million = told["usd_per_million_tokens"] or {}
    return {
        "model": told["target"],
        **{
            f"{name}_usd_per_million_tokens": Decimal(figure) for name, figure in per_million.items() if Decimal(figure)
        },
        "request_usd": None if told["usd_per_request"] is None else Decimal(told["usd_per_request"]) or None,
    }


def texts(results: Iterable[Found]) -> frozenset[str]:
    """Return the names that stand in results."""
    return frozenset(name for found in results for name in found.names())
