"""GET /v1/usage: tokens, requests and cost of a day or a range, grouped; as JSON, CSV or NDJSON."""

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.datastructures import QueryParams
from starlette.responses import Response

from api.usage.usage_types import UsageDay, UsagePageOut
from api.web.accept import best_kind
from api.web.changing import check_teams
from api.web.gateway import AuthenticatedCaller, Gateway, check_reads, gateway_of, read_scope
from api.web.openapi import described
from api.web.parameters import Parameter, Parameters, day, listed, moment, text, texts, whole
from api.web.reading import JSON, Export, json_bytes, json_reply, known_usd, reading, sound_query
from cost.calendar import Calendar, UnknownTimeZone, check_time_zone
from cost.calendars import calendar_of
from cost.currency import SecondCurrency, second_currency
from cost.dimensions import OFFERED, TIMES, Dimension, UsageFilters
from cost.prices import usd
from cost.reports.cells import Cell, csv_line
from cost.reports.scope import ReadScope
from cost.reports.usage import MAX_DAYS, UsagePage, UsageQuery, UsageRow, UsageSums
from cost.tables import ROLLUP_SUMS
from cost.times import DAY_US, iso, wall_us
from proxy.errors import BadRequest, UsageUnavailable

router = APIRouter(tags=["usage"])

CSV: Final = "text/csv"
NDJSON: Final = "application/x-ndjson"

MAX_LIMIT: Final = 1_000
_DEFAULT_LIMIT: Final = 100
_EXPORT_ROWS: Final = 1_000
_LEDGER_ROWS: Final = 10_000
"""Rows of an export that are read at once from the ledger, which is summed up anew for each page."""
_MAX_EXPORT_PAGES: Final = 1_000
_GROUPS: Final[Mapping[str, Dimension]] = {name: name for name in (*(each.name for each in OFFERED), *TIMES)}
FIELDS: Final = {each.name: each.field for each in OFFERED}
"""Parameters that filter, by dimension; the fields of rows are called the same."""
TIME_ZONE: Final = text(
    "The zone that days are cut by, such as Europe/Berlin; the organisation's own when left out, which is UTC unless set."
)
_RANGE: Final[Mapping[str, Parameter]] = {
    "start": moment("The range's beginning, a day or a full hour; today when left out."),
    "end": moment("Its end, which is not in it; tomorrow when left out."),
    "group_by": listed("What a row is of; one row of everything when left out.", _GROUPS),
    "limit": whole("Rows on a page. For JSON only.", least=1, most=MAX_LIMIT, otherwise=_DEFAULT_LIMIT),
    "page": text("The `next_page` of the page before; the other parameters stay. For JSON only."),
    **{
        each.field: texts(f"Only these {each.plural}{f', such as `{each.example}`' if each.example else ''}.")
        for each in OFFERED
        if each.name != "team"
    },
}
_PARAMETERS: Final[Mapping[str, Parameter]] = {
    "team_id": texts("Only these teams; a single one where one day is asked for."),
    "date": day(
        "One day, by model; today when left out. Not with the parameters of a range, which are all but `team_id` and `time_zone`."
    ),
    "time_zone": TIME_ZONE,
    **_RANGE,
}


@router.get(
    "/v1/usage",
    **described("Read usage", gives={200: (UsageDay, UsagePageOut)}, files=(CSV, NDJSON), query=_PARAMETERS),
)
async def usage(request: Request, caller: AuthenticatedCaller) -> Response:
    """Return usage of one day of a team (default: today, the key's own), or of a range grouped by `group_by`. Days are the organisation's."""
    scope = read_scope(caller)
    parameters = Parameters(request.query_params, _PARAMETERS)
    await check_teams(gateway_of(request), scope, parameters.texts("team_id"))
    kind = best_kind(request.headers.get("accept"), (JSON, CSV, NDJSON))
    with_range = any(name in parameters for name in _RANGE)
    if with_range and "date" in parameters:
        raise BadRequest("`date` asks for one day; leave it out with the parameters of a range.", param="date")
    if with_range and kind == JSON:
        return await _range_reply(request, scope, parameters)
    if kind == JSON:
        return await _day_reply(request, scope, parameters)
    for name in ("limit", "page"):
        if name in parameters:
            raise BadRequest(f"`{name}` is for JSON; {kind} comes whole.", param=name)
    calendar = await calendar_asked(gateway_of(request), scope, parameters)
    query = _range_query(scope, parameters, calendar) if with_range else _day_query(scope, parameters, calendar)
    return await _export(gateway_of(request), query, kind)


async def usage_export(gateway: Gateway, scope: ReadScope, given: QueryParams, kind: str) -> Response:
    """Return a range, grouped and complete, as CSV or NDJSON. The caller has checked that the scope may be read."""
    parameters = Parameters(given, ("team_id", "time_zone", *_RANGE))
    return await _export(
        gateway, _range_query(scope, parameters, await calendar_asked(gateway, scope, parameters)), kind
    )


async def calendar_asked(gateway: Gateway, scope: ReadScope, parameters: Parameters) -> Calendar:
    """Return the calendar that a range is cut by: of the zone that was asked for, or the organisation's own."""
    named = parameters.text("time_zone") if "time_zone" in parameters else None
    if named is not None:
        try:
            return Calendar(check_time_zone(named))
        except UnknownTimeZone as error:
            raise BadRequest(f"{str(error)[0].upper()}{str(error)[1:]}.", param="time_zone") from error
    async with reading(gateway):
        return await calendar_of(gateway.database, scope.organisation_id)


async def _day_reply(request: Request, scope: ReadScope, parameters: Parameters) -> Response:
    calendar = await calendar_asked(gateway_of(request), scope, parameters)
    query = _day_query(scope, parameters, calendar)
    page = await _first_page(gateway_of(request), query, with_totals=True)
    teams = query.filters.team
    body = {
        "team_id": query.scope.team_id or (teams[0] if teams else None),
        "date": calendar.day(query.start_us).isoformat(),
        **_day_sums(page.totals or UsageSums()),
        "models": [{"model": row.group[0], **_day_sums(row.sums)} for row in page.rows],
    }
    return json_reply(body)


async def _range_reply(request: Request, scope: ReadScope, parameters: Parameters) -> Response:
    calendar = await calendar_asked(gateway_of(request), scope, parameters)
    query = _range_query(scope, parameters, calendar)
    page = await _first_page(gateway_of(request), query, with_totals=True)
    body = {
        "object": "usage.page",
        "start": iso(query.start_us),
        "end": iso(query.end_us),
        "time_zone": calendar.at(query.end_us - 1).time_zone,
        "group_by": query.group_by,
        "data": [_as_row(row, query) for row in page.rows],
        "totals": _figures(page.totals or UsageSums()),
        "has_more": page.next_cursor is not None,
        "next_page": page.next_cursor,
    }
    return json_reply(body)


def _day_query(scope: ReadScope, parameters: Parameters, calendar: Calendar) -> UsageQuery:
    day = parameters.day("date") or calendar.day(wall_us())
    start_us, end_us = calendar.days(day, day)
    return _query(
        scope=scope,
        start_us=start_us,
        end_us=end_us,
        offsets=_offsets(calendar, start_us, end_us),
        group_by=("model",),
        filters=UsageFilters(team=_one_team(scope, parameters)),
        limit=MAX_LIMIT,
    )


def _offsets(calendar: Calendar, start_us: int, end_us: int) -> tuple[tuple[int, int], ...]:
    """Return the offsets of a range; none for one that is refused anyway."""
    is_range = 0 <= start_us < end_us <= start_us + (MAX_DAYS + 1) * DAY_US
    return calendar.offsets(start_us, end_us) if is_range else ()


def _range_query(scope: ReadScope, parameters: Parameters, calendar: Calendar) -> UsageQuery:
    today = calendar.day(wall_us())
    start_us, end_us = parameters.moment_us("start", calendar), parameters.moment_us("end", calendar)
    start_us = calendar.start(today) if start_us is None else start_us
    end_us = calendar.start(today + timedelta(days=1)) if end_us is None else end_us
    names = parameters.listed("group_by", _GROUPS)
    return _query(
        scope=scope,
        start_us=start_us,
        end_us=end_us,
        offsets=_offsets(calendar, start_us, end_us),
        group_by=tuple(_GROUPS[name] for name in names),
        filters=filters_of(scope, parameters),
        limit=parameters.whole("limit", _DEFAULT_LIMIT, least=1, most=MAX_LIMIT),
        cursor=parameters.text("page"),
    )


def _query(**fields: Any) -> UsageQuery:
    with sound_query():
        return UsageQuery(**fields)


def filters_of(scope: ReadScope, parameters: Parameters) -> UsageFilters:
    """Return the filters of an address. Raises TeamNotFound for a team that the scope does not have."""
    filters = UsageFilters(**{name: parameters.texts(field) for name, field in FIELDS.items()})
    for team_id in filters.team:
        check_reads(scope, team_id)
    return filters


def _one_team(scope: ReadScope, parameters: Parameters) -> tuple[str, ...]:
    team_id = parameters.text("team_id")
    if team_id is None:
        return ()
    check_reads(scope, team_id)
    return (team_id,)


async def _first_page(gateway: Gateway, query: UsageQuery, *, with_totals: bool) -> UsagePage:
    async with reading(gateway):
        return await gateway.finance.usage.page(query, with_totals=with_totals)


async def _export(gateway: Gateway, query: UsageQuery, kind: str) -> Response:
    """Read the first page before the reply starts, so that an unreachable database still gets an error status."""
    query = msgspec.structs.replace(query, limit=_LEDGER_ROWS if query.in_ledger else _EXPORT_ROWS)
    first = await _first_page(gateway, query, with_totals=False)
    headers = {"vary": "accept"}
    currency = second_currency(gateway.config().cost.shown_currency)
    if kind == CSV:
        name = f"usage-{iso(query.start_us)[:10]}-{iso(query.end_us)[:10]}.csv"
        headers["content-disposition"] = f'attachment; filename="{name}"'
        lines: Callable[[UsagePage], bytes] = lambda page: _csv_lines(page, query, currency)  # noqa: E731
        shown = [] if currency is None else [f"cost{currency.column}"]
        heading = csv_line([*_fields(query), *_FIGURES, *shown]).encode()
        media_type = "text/csv; charset=utf-8; header=present"
    else:
        lines, heading, media_type = (lambda page: _json_lines(page, query)), b"", NDJSON
    return Export(_pages(gateway, query, first, heading, lines), media_type=media_type, headers=headers)


async def _pages(
    gateway: Gateway, query: UsageQuery, page: UsagePage, heading: bytes, lines: Callable[[UsagePage], bytes]
) -> AsyncIterator[bytes]:
    """Yield the export's content, holding one page in memory. A failure raises, which cuts the connection, so that a
    truncated file is not taken for a complete one.
    """
    yield heading + lines(page)
    for _ in range(_MAX_EXPORT_PAGES):
        if page.next_cursor is None:
            return
        async with reading(gateway, on=True):
            page = await gateway.finance.usage.page(
                msgspec.structs.replace(query, cursor=page.next_cursor), with_totals=False
            )
        yield lines(page)
    raise UsageUnavailable(f"An export has at most {_EXPORT_ROWS * _MAX_EXPORT_PAGES} rows; ask for a shorter range.")


def _csv_lines(page: UsagePage, query: UsageQuery, currency: SecondCurrency | None) -> bytes:
    return "".join(csv_line(_cells(row, query, currency)) for row in page.rows).encode()


def _cells(row: UsageRow, query: UsageQuery, currency: SecondCurrency | None) -> list[Cell]:
    cells = list(_as_row(row, query).values())
    if currency is None:
        return cells
    cost = row.sums.known_cost_nanousd
    return [*cells, None if cost is None else currency.of(cost)]


def _json_lines(page: UsagePage, query: UsageQuery) -> bytes:
    return b"".join(json_bytes(_as_row(row, query)) + b"\n" for row in page.rows)


def _as_row(row: UsageRow, query: UsageQuery) -> dict[str, Cell]:
    return {**_groups(row, query), **_figures(row.sums, by_unit="unit" in query.group_by)}


def _groups(row: UsageRow, query: UsageQuery) -> dict[str, str]:
    return {field: _as_text(field, value) for field, value in zip(_fields(query), row.group, strict=True)}


def _fields(query: UsageQuery) -> list[str]:
    return [FIELDS.get(each, each) for each in query.group_by]


def _as_text(field: str, value: str | int) -> str:
    if isinstance(value, str):
        return value
    return iso(value)[:10] if field == "day" else iso(value)


def _figures(sums: UsageSums, *, by_unit: bool = False) -> dict[str, Cell]:
    """Return every figure of the roll-ups and the savings, amounts in dollars; None for an unknown cost, and for a
    quantity that may be of several units.
    """
    figures: dict[str, Cell] = {told: _amount(sums, name) for name, told in _TOLD.items()}
    figures[_QUANTITY] = Decimal(sums.quantity_milli) / _MILLI if by_unit else None
    return {**figures, "cost_usd": known_usd(sums.known_cost_nanousd), "savings_usd": known_usd(sums.savings_nanousd)}


def _amount(sums: UsageSums, name: str) -> int | Decimal:
    figure: int = getattr(sums, name)
    return usd(figure) if name.endswith("_nanousd") else figure


_QUANTITY: Final = "quantity"
_MILLI: Final = 1_000
_TOLD: Final = {name: name.replace("_nanousd", "_usd").replace("_milli", "") for name in ROLLUP_SUMS}
_FIGURES: Final = (*_TOLD.values(), "savings_usd")


def _day_sums(sums: UsageSums) -> dict[str, Any]:
    saved, baseline = sums.savings_nanousd, sums.baseline_nanousd
    return {
        "requests": sums.requests,
        "input_tokens": sums.input_tokens,
        "cached_input_tokens": sums.cached_input_tokens,
        "output_tokens": sums.output_tokens,
        "cost_usd": known_usd(sums.known_cost_nanousd),
        "baseline_usd": usd(baseline),
        "savings_usd": known_usd(saved),
        "savings_share": None if saved is None else _share(saved, baseline),
        "estimated_requests": sums.estimated_attempts,
        "unpriced_requests": sums.unpriced_attempts,
        "cache_hits": sums.cache_hits,
        "cache_saved_usd": usd(sums.cache_saved_nanousd),
    }


def _share(part: int, whole: int) -> Decimal | None:
    """Return the quotient to four decimals; None when `whole` is 0."""
    return (Decimal(part) / Decimal(whole)).quantize(Decimal("0.0001")) if whole else None
