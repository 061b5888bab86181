"""Two of LiteLLM's spend routes, read-only, so that scripts written for LiteLLM read these books.

`api_key` is a key's id, never the key. LiteLLM's model group, the name that a caller sent, is only in the log of single
attempts.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from accounts.caller import Caller
from api.web.gateway import AuthenticatedCaller, Gateway, check_reads, gateway_of, read_scope
from api.web.openapi import described
from api.web.parameters import Parameters, day, flag, text, whole
from api.web.reading import json_reply, known_usd, reading, sound_query
from cost.dimensions import Dimension, UsageFilters
from cost.reports.attempts import MAX_LOG_DAYS, MAX_LOG_ROWS, AttemptReader, LoggedAttempt, LogQuery
from cost.reports.usage import MAX_DAYS, MAX_ROWS, UsagePage, UsageQuery, UsageRow, added
from cost.times import DAY_US, iso, start_of, wall_us
from proxy.errors import BadRequest

router = APIRouter(tags=["litellm"])

_DEFAULT_LOG_ROWS: Final = 1_000
_DEFAULT_PAGE_DAYS: Final = 10
_MAX_PAGE_DAYS: Final = 1_000
_LOG_PARAMETERS: Final = {
    "start_date": day("The first day. Both dates, or neither."),
    "end_date": day("The last day."),
    "summarize": flag("False gives single attempts also where both dates are given."),
    "request_id": text("The attempts of this request alone."),
    "api_key": text("Only this key: its id, such as key_1a2b, and never the key itself."),
    "user_id": text("Changes nothing: there are no users here."),
    "limit": whole("Single attempts on a page.", least=1, most=MAX_LOG_ROWS, otherwise=_DEFAULT_LOG_ROWS),
    "page": text("The header `x-next-page` of the page before."),
}
_ACTIVITY_PARAMETERS: Final = {
    "team_ids": text("Only these teams, with commas."),
    "exclude_team_ids": text("All but these teams, with commas."),
    "start_date": day("The first day.", is_needed=True),
    "end_date": day("The last day.", is_needed=True),
    "model": text("Only this model."),
    "api_key": text("Only this key: its id, such as key_1a2b, and never the key itself."),
    "page": whole("Which page.", least=1, most=MAX_DAYS, otherwise=1),
    "page_size": whole("Days on a page.", least=1, most=_MAX_PAGE_DAYS, otherwise=_DEFAULT_PAGE_DAYS),
}
_SENT_BY_CALLERS: Final = "caller"
_SUCCESS: Final = range(200, 300)


@router.get(
    "/spend/logs",
    **described("Read spend as LiteLLM logs it", gives={200: "A list, of days or of attempts"}, query=_LOG_PARAMETERS),
)
async def spend_logs(request: Request, caller: AuthenticatedCaller) -> Response:
    """Return spend by day when both dates are given and `summarize` is not false; otherwise single attempts, newest
    first.
    """
    parameters = Parameters(request.query_params, _LOG_PARAMETERS)
    days = _days(parameters)
    key_id = _key_id(parameters)
    request_id = parameters.text("request_id")
    if days is not None and request_id is None and parameters.flag("summarize") is not False:
        return await _spend_by_day(gateway_of(request), caller, days, key_id)
    start_us, end_us = _log_range(days, request_id)
    with sound_query():
        query = LogQuery(
            scope=read_scope(caller),
            start_us=start_us,
            end_us=end_us,
            request_id=request_id,
            key_id=key_id,
            limit=parameters.whole("limit", _DEFAULT_LOG_ROWS, least=1, most=MAX_LOG_ROWS),
            cursor=parameters.text("page"),
        )
    gateway = gateway_of(request)
    async with reading(gateway):
        page = await AttemptReader(gateway.database).page(query)
    reply = json_reply([_log_row(row, query.scope.organisation_id) for row in page.rows])
    if page.next_cursor is not None:
        reply.headers["x-litellm-spend-logs-truncated"] = "true"
        reply.headers["x-next-page"] = page.next_cursor
    return reply


@router.get(
    "/team/daily/activity",
    **described(
        "Read teams' days as LiteLLM tells them", gives={200: "The days, and sums of them"}, query=_ACTIVITY_PARAMETERS
    ),
)
async def team_daily_activity(request: Request, caller: AuthenticatedCaller) -> Response:
    """Return teams' activity by day, newest first, broken down by model, provider and key. A page has `page_size` days;
    `metadata` sums the page.
    """
    parameters = Parameters(request.query_params, _ACTIVITY_PARAMETERS)
    days = _days(parameters)
    if days is None:
        raise BadRequest("`start_date` and `end_date` are needed: days like 2026-04-05 (UTC).", param="start_date")
    start_us, end_us = days
    page = parameters.whole("page", 1, least=1, most=MAX_DAYS)
    size = parameters.whole("page_size", _DEFAULT_PAGE_DAYS, least=1, most=_MAX_PAGE_DAYS)
    all_days = (end_us - start_us) // DAY_US
    last_us = end_us - (page - 1) * size * DAY_US
    filters = _activity_filters(parameters, caller)
    rows: tuple[UsageRow, ...] = ()
    if last_us > start_us:
        rows = await _activity_rows(
            gateway_of(request), caller, max(start_us, last_us - size * DAY_US), last_us, filters
        )
    return json_reply(
        {
            "results": [_activity_day(day, found) for day, found in _by_first(rows, newest_first=True)],
            "metadata": {
                **{f"total_{name}": figure for name, figure in _metrics(rows).items()},
                "page": page,
                "total_pages": -(-all_days // size),
                "has_more": page * size < all_days,
            },
        }
    )


def _days(parameters: Parameters) -> tuple[int, int] | None:
    """Return the range in microseconds, its last day included; None without dates. Raises BadRequest."""
    first, last = parameters.day("start_date"), parameters.day("end_date")
    if first is None and last is None:
        return None
    if first is None or last is None:
        raise BadRequest("Give both `start_date` and `end_date`, or neither.", param="end_date")
    if not first <= last < first + timedelta(days=MAX_DAYS):
        raise BadRequest(
            f"`end_date` must not be before `start_date`; {MAX_DAYS} days can be asked for.", param="end_date"
        )
    return start_of(first), start_of(last) + DAY_US


def _key_id(parameters: Parameters) -> str | None:
    key_id = parameters.text("api_key")
    if key_id is not None and not key_id.startswith("key_"):
        raise BadRequest("`api_key` is the id of a key, such as key_1a2b…, and never the key itself.", param="api_key")
    return key_id


def _log_range(days: tuple[int, int] | None, request_id: str | None) -> tuple[int, int]:
    if days is not None:
        return days
    # The range ends in the future, so that a slow clock hides no bookings.
    end_us = wall_us() + DAY_US
    return (0 if request_id is not None else end_us - MAX_LOG_DAYS * DAY_US), end_us


async def _spend_by_day(gateway: Gateway, caller: Caller, days: tuple[int, int], key_id: str | None) -> Response:
    filters = UsageFilters(key=() if key_id is None else (key_id,))
    scope = read_scope(caller)

    async def spend_by(dimension: Dimension) -> tuple[UsageRow, ...]:
        groups: tuple[Dimension, ...] = ("day", dimension)
        query = UsageQuery(
            scope=scope, start_us=days[0], end_us=days[1], group_by=groups, filters=filters, limit=MAX_ROWS
        )
        return _all_rows(await gateway.finance.usage.page(query, with_totals=False))

    async with reading(gateway):
        by_key, by_model = await spend_by("key"), await spend_by("model")
    models = dict(_by_first(by_model))
    return json_reply(
        [
            {
                **{key: known_usd(cost) for key, cost in _spend(rows).items() if key},
                "startTime": iso(day)[:10],
                "spend": known_usd(added(row.sums for row in rows).known_cost_nanousd),
                "users": {},
                "models": {model: known_usd(cost) for model, cost in _spend(models[day]).items()},
            }
            for day, rows in _by_first(by_key)
        ]
    )


def _spend(rows: Iterable[UsageRow]) -> dict[str, int | None]:
    return {str(row.group[1]): row.sums.known_cost_nanousd for row in rows}


def _all_rows(page: UsagePage) -> tuple[UsageRow, ...]:
    if page.next_cursor is not None:
        raise BadRequest(f"That is more than {MAX_ROWS} groups; ask for fewer days.", param="end_date")
    return page.rows


def _by_first(rows: Iterable[UsageRow], *, newest_first: bool = False) -> list[tuple[int, list[UsageRow]]]:
    found: dict[int, list[UsageRow]] = {}
    for row in rows:
        found.setdefault(int(row.group[0]), []).append(row)
    return sorted(found.items(), reverse=newest_first)


def _log_row(row: LoggedAttempt, organisation_id: str) -> dict[str, Any]:
    """Return an attempt as LiteLLM logs a call. Prompts and answers are not stored."""
    start_us = row.at_us - (row.duration_us or 0)
    # The caller's first token, where it had one.
    first_us = None if row.ttft_us is None else start_us + row.ttft_us
    if row.given_us is not None and row.began_us is not None:
        first_us = max(start_us, start_us + row.given_us - row.began_us)
    return {
        "request_id": row.request_id,
        "litellm_call_id": f"{row.request_id}/{row.attempt}/{row.entry}",
        "call_type": "acompletion" if row.entry != "adjust" else "adjustment",
        "api_key": row.key_id,
        "spend": known_usd(row.cost_nanousd),
        "total_tokens": row.input_tokens + row.output_tokens,
        "prompt_tokens": row.input_tokens,
        "completion_tokens": row.output_tokens,
        "startTime": _iso(start_us),
        "endTime": _iso(row.at_us),
        "completionStartTime": None if first_us is None else _iso(first_us),
        "request_duration_ms": None if row.duration_us is None else row.duration_us // 1_000,
        "model": row.target_id,
        "model_id": row.deployment_id,
        "model_group": row.alias,
        "custom_llm_provider": row.provider,
        "api_base": "",
        "user": "",
        "end_user": row.end_user,
        "team_id": row.team_id,
        "organization_id": organisation_id,
        "request_tags": [row.tag] if row.tag else [],
        "cache_hit": "False",
        "cache_key": "",
        "requester_ip_address": None,
        "session_id": None,
        "status": "success" if row.status in _SUCCESS else "failure",
        "messages": {},
        "response": {},
        "metadata": {
            "attempt": row.attempt,
            "entry": row.entry,
            "origin": row.origin,
            "tier": row.tier,
            "stream": row.stream,
            "status_code": row.status,
            "usage_source": row.usage_source,
            "unpriced": row.cost_nanousd is None,
            "cache_read_input_tokens": row.cached_input_tokens,
            "cache_creation_input_tokens": row.cache_write_tokens,
            "reasoning_tokens": row.reasoning_tokens,
        },
    }


def _iso(at_us: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)).isoformat(timespec="microseconds")


def _activity_filters(parameters: Parameters, caller: Caller) -> UsageFilters:
    wanted = _listed(parameters, "team_ids")
    for team_id in wanted:
        check_reads(read_scope(caller), team_id, param="team_ids")
    key_id, model = _key_id(parameters), parameters.text("model")
    return UsageFilters(
        team=wanted,
        not_team=_listed(parameters, "exclude_team_ids"),
        key=() if key_id is None else (key_id,),
        model=() if model is None else (model,),
    )


def _listed(parameters: Parameters, name: str) -> tuple[str, ...]:
    given = parameters.text(name)
    return () if given is None else tuple(dict.fromkeys(each.strip() for each in given.split(",") if each.strip()))


async def _activity_rows(
    gateway: Gateway, caller: Caller, start_us: int, end_us: int, filters: UsageFilters
) -> tuple[UsageRow, ...]:
    with sound_query():
        query = UsageQuery(
            scope=read_scope(caller),
            start_us=start_us,
            end_us=end_us,
            group_by=("day", "team", "key", "model", "provider", "origin"),
            filters=filters,
            limit=MAX_ROWS,
        )
    async with reading(gateway):
        return _all_rows(await gateway.finance.usage.page(query, with_totals=False))


_TEAM, _KEY, _MODEL, _PROVIDER, _ORIGIN = range(1, 6)


def _activity_day(start_us: int, rows: list[UsageRow]) -> dict[str, Any]:
    models = _broken_down(rows, _MODEL)
    return {
        "date": iso(start_us)[:10],
        "metrics": _metrics(rows),
        "breakdown": {
            "models": models,
            "model_groups": models,
            "providers": _broken_down(rows, _PROVIDER),
            "api_keys": _keys(rows),
            "entities": {
                team: {**part, "metadata": {"team_alias": team}} for team, part in _broken_down(rows, _TEAM).items()
            },
            "mcp_servers": {},
            "endpoints": {},
        },
    }


def _broken_down(rows: list[UsageRow], place: int) -> dict[str, Any]:
    return {
        name or "Unassigned": {"metrics": _metrics(found), "metadata": {}, "api_key_breakdown": _keys(found)}
        for name, found in _parts(rows, place).items()
    }


def _keys(rows: list[UsageRow]) -> dict[str, Any]:
    return {
        key: {"metrics": _metrics(found), "metadata": {"key_alias": None, "team_id": found[0].group[_TEAM]}}
        for key, found in _parts(rows, _KEY).items()
        if key
    }


def _parts(rows: list[UsageRow], place: int) -> dict[str, list[UsageRow]]:
    parts: dict[str, list[UsageRow]] = {}
    for row in rows:
        parts.setdefault(str(row.group[place]), []).append(row)
    return parts


def _metrics(rows: Iterable[UsageRow]) -> dict[str, int | Decimal | None]:
    """Return spend of everything booked; request counts of callers' attempts only, split into answered and failed."""
    rows = list(rows)
    sums = added(row.sums for row in rows)
    attempts = sum(row.sums.attempts for row in rows if row.group[_ORIGIN] == _SENT_BY_CALLERS)
    return {
        "spend": known_usd(sums.known_cost_nanousd),
        "prompt_tokens": sums.input_tokens,
        "completion_tokens": sums.output_tokens,
        "cache_read_input_tokens": sums.cached_input_tokens,
        "cache_creation_input_tokens": sums.cache_write_tokens,
        "total_tokens": sums.input_tokens + sums.output_tokens,
        "successful_requests": sums.served,
        "failed_requests": attempts - sums.served,
        "api_requests": attempts,
    }
