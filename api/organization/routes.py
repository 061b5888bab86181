"""OpenAI's organization usage and cost API, read-only, so that tools made for it read these books.

A project is a team. There are no users: bookings name teams and keys only.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.datastructures import QueryParams
from starlette.responses import Response

from api.organization.organization_types import BucketPage, CompletionsResult, CostsResult, EmbeddingsResult
from api.web.gateway import FinanceReader, Gateway, gateway_of
from api.web.openapi import described
from api.web.parameters import Parameter, Parameters, flag, listed, one_of, text, texts, whole
from api.web.reading import json_reply, known_usd, reading, sound_query
from cost.dimensions import Dimension, UsageFilters
from cost.ledger.rollups import SPENT_ORIGINS
from cost.reports.attempts import MINUTE_US, AttemptReader
from cost.reports.cells import exact
from cost.reports.cursor import decode_cursor, encode_cursor
from cost.reports.daily import meters_of
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageQuery, UsageRow, UsageSums, added
from cost.times import DAY_US, HOUR_US, wall_us
from proxy.errors import BadRequest

router = APIRouter(tags=["organization"])

MAX_ROWS: Final = 10_000
"""Most groups in a page, over all of its buckets."""
_BATCH: Final = "batch"
_LAST_S: Final = 253_370_764_800
"""The year 9999; later values are refused as likely milliseconds."""
_PAGE: Final = "page_"
_NO_USERS: Final = "user_ids"
"""OpenAI's parameter that is accepted only to be refused with a reason."""
_FILTER_PARAMETERS: Final[Mapping[str, Parameter]] = {
    "project_ids": texts("Only these teams."),
    "api_key_ids": texts("Only these keys, by id."),
    "models": texts("Only these models."),
    "batch": flag("Only work of the batch tier, or only other work."),
}
_FILTERS: Final[Mapping[str, str]] = {"project_ids": "team", "api_key_ids": "key", "models": "model"}

Width = Literal["1m", "1h", "1d"]


class Kind(msgspec.Struct, frozen=True):
    """One route of the API: its groupings, filters and buckets."""

    path: str
    groups: Mapping[str, Dimension | None]
    filters: tuple[str, ...]
    limits: Mapping[Width, tuple[int, int]]
    """Default and largest number of buckets, by width."""
    day_step_us: int
    """Step that a range's ends are rounded to when buckets are days."""


_USAGE_LIMITS: Final[Mapping[Width, tuple[int, int]]] = {"1m": (60, 1_440), "1h": (24, 168), "1d": (7, 31)}
COMPLETIONS: Final = Kind(
    path="completions",
    groups={
        "project_id": "team",
        "user_id": None,
        "api_key_id": "key",
        "model": "model",
        "batch": "tier",
        "service_tier": "tier",
    },
    filters=("project_ids", "user_ids", "api_key_ids", "models", "batch"),
    limits=_USAGE_LIMITS,
    day_step_us=HOUR_US,
)
EMBEDDINGS: Final = Kind(
    path="embeddings",
    groups={"project_id": "team", "user_id": None, "api_key_id": "key", "model": "model"},
    filters=("project_ids", "user_ids", "api_key_ids", "models"),
    limits=_USAGE_LIMITS,
    day_step_us=HOUR_US,
)
COSTS: Final = Kind(
    path="costs",
    groups={"project_id": "team", "line_item": "model", "api_key_id": "key"},
    filters=("project_ids", "api_key_ids"),
    limits={"1d": (7, 180)},
    day_step_us=DAY_US,
)


def _parameters_of(kind: Kind) -> dict[str, Parameter]:
    """Return the parameters of a route."""
    seconds = functools.partial(whole, least=0, most=_LAST_S)
    usual = ", ".join(f"{usual} of {width}" for width, (usual, _) in kind.limits.items())
    most = ", ".join(f"{most} of {width}" for width, (_, most) in kind.limits.items())
    return {
        "start_time": seconds("The beginning, in seconds since 1970.", is_needed=True),
        "end_time": seconds("The end, which is not in it; now when left out."),
        "bucket_width": one_of("How long a bucket is.", kind.limits, "1d"),
        "limit": whole(
            f"Buckets on a page; {usual} when left out, at most {most}.",
            least=1,
            most=max(most for _, most in kind.limits.values()),
        ),
        "page": text("The `next_page` of the page before; the other parameters stay."),
        "group_by": listed("What a result is of.", kind.groups),
        **{name: _FILTER_PARAMETERS[name] for name in kind.filters if name != _NO_USERS},
    }


_PARAMETERS: Final = {kind.path: _parameters_of(kind) for kind in (COMPLETIONS, EMBEDDINGS, COSTS)}


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. `end_us` is None where the range ends now."""

    path: str
    scope: ReadScope
    width_us: int
    start_us: int
    end_us: int | None
    group_by: tuple[str, ...]
    filters: UsageFilters


class _Bucket(msgspec.Struct, frozen=True):
    start_us: int
    end_us: int
    rows: list[UsageRow]


_Page = tuple[list[_Bucket], int | None]
"""Buckets, and the start of the next page or None."""


@router.get(
    "/v1/organization/usage/completions",
    **described(
        "Read completions as OpenAI tells them",
        gives={200: BucketPage[CompletionsResult]},
        query=_PARAMETERS[COMPLETIONS.path],
    ),
)
async def completions(request: Request, scope: FinanceReader) -> Response:
    """Return the tokens and requests by bucket, of all targets except those that embed."""
    return await organization_reply(COMPLETIONS, gateway_of(request), scope, request.query_params)


@router.get(
    "/v1/organization/usage/embeddings",
    **described(
        "Read embeddings as OpenAI tells them",
        gives={200: BucketPage[EmbeddingsResult]},
        query=_PARAMETERS[EMBEDDINGS.path],
    ),
)
async def embeddings(request: Request, scope: FinanceReader) -> Response:
    """Return the tokens and requests by bucket, of the targets that embed."""
    return await organization_reply(EMBEDDINGS, gateway_of(request), scope, request.query_params)


@router.get(
    "/v1/organization/costs",
    **described("Read costs as OpenAI tells them", gives={200: BucketPage[CostsResult]}, query=_PARAMETERS[COSTS.path]),
)
async def costs(request: Request, scope: FinanceReader) -> Response:
    """Return the dollars by day."""
    return await organization_reply(COSTS, gateway_of(request), scope, request.query_params)


async def organization_reply(kind: Kind, gateway: Gateway, scope: ReadScope, given: QueryParams) -> Response:
    """Return the reply of one of the routes for a scope that the caller may read. Raises BadRequest."""
    question, limit, start_us = _parse(given, scope, kind)
    buckets, next_us = await _read(gateway, question, kind, start_us, limit)
    results = {COMPLETIONS.path: _completion_results, EMBEDDINGS.path: _embedding_results, COSTS.path: _cost_results}
    data = [
        {
            "object": "bucket",
            "start_time": bucket.start_us // 1_000_000,
            "end_time": bucket.end_us // 1_000_000,
            "results": results[kind.path](question, bucket.rows),
        }
        for bucket in buckets
    ]
    next_page = None if next_us is None else _PAGE + encode_cursor(question, [next_us])
    return json_reply({"object": "page", "data": data, "has_more": next_page is not None, "next_page": next_page})


def _parse(given: QueryParams, scope: ReadScope, kind: Kind) -> tuple[_Question, int, int]:
    """Return the parsed request, its number of buckets, and the start of the first. Raises BadRequest."""
    parameters = Parameters(given, (*_PARAMETERS[kind.path], *kind.filters))
    width = parameters.one_of("bucket_width", "1d", kind.limits)
    usual, most = kind.limits[width]
    width_us = {"1m": MINUTE_US, "1h": HOUR_US, "1d": DAY_US}[width]
    step_us = kind.day_step_us if width == "1d" else width_us
    if "start_time" not in parameters:
        raise BadRequest("`start_time` is needed: seconds since 1970.", param="start_time")
    start_us = parameters.whole("start_time", 0, least=0, most=_LAST_S) * 1_000_000
    end_us = None
    if "end_time" in parameters:
        end_us = _round_up(parameters.whole("end_time", 0, least=0, most=_LAST_S) * 1_000_000, step_us)
    question = _Question(
        path=kind.path,
        scope=scope,
        width_us=width_us,
        start_us=start_us - start_us % step_us,
        end_us=end_us,
        group_by=parameters.listed("group_by", kind.groups),
        filters=_filters(parameters),
    )
    if end_us is not None and end_us <= question.start_us:
        raise BadRequest("`end_time` must be after `start_time`.", param="end_time")
    limit = parameters.whole("limit", usual, least=1, most=most)
    return question, limit, _page_start_us(question, parameters.text("page"))


def _filters(parameters: Parameters) -> UsageFilters:
    if parameters.texts(_NO_USERS):
        raise BadRequest("`user_ids` is not supported: the books know teams and keys, no users.", param=_NO_USERS)
    batch = parameters.flag("batch") if "batch" in parameters else None
    chosen = {name: parameters.texts(param) for param, name in _FILTERS.items()}
    return UsageFilters(**chosen, tier=(_BATCH,) if batch else (), not_tier=(_BATCH,) if batch is False else ())


def _page_start_us(question: _Question, page: str | None) -> int:
    if page is None:
        return question.start_us
    with sound_query():
        (at_us,) = decode_cursor(page.removeprefix(_PAGE), question, (int,))
        if (
            not isinstance(at_us, int)
            or at_us % question.width_us
            or not question.start_us < at_us < _range_end_us(question)
        ):
            raise BadQuery("it is not one of ours", param="page")
    return at_us


def _range_end_us(question: _Question) -> int:
    return _round_up(wall_us(), question.width_us) if question.end_us is None else question.end_us


def _round_up(at_us: int, step_us: int) -> int:
    return -(-at_us // step_us) * step_us


def _buckets(question: _Question, start_us: int, limit: int) -> _Page:
    """Empty buckets and the start of the next page. They are aligned to minutes, hours or days; the range may cut the
    first and the last short.
    """
    buckets: list[_Bucket] = []
    end_us, width_us = _range_end_us(question), question.width_us
    while start_us < end_us and len(buckets) < limit:
        next_us = min(start_us - start_us % width_us + width_us, end_us)
        buckets.append(_Bucket(start_us, next_us, []))
        start_us = next_us
    return buckets, start_us if start_us < end_us else None


async def _read(gateway: Gateway, question: _Question, kind: Kind, start_us: int, limit: int) -> _Page:
    buckets, next_us = _buckets(question, start_us, limit)
    if not buckets:
        return [], None
    groups = [kind.groups[name] for name in question.group_by]
    dimensions = tuple(dict.fromkeys(group for group in groups if group is not None))
    filters = _route_filters(question, _embedders(gateway))
    if filters is None:
        return buckets, next_us
    async with reading(gateway):
        rows = await _rows(gateway, question, filters, buckets, dimensions)
    by_start = {bucket.start_us - bucket.start_us % question.width_us: bucket for bucket in buckets}
    for row in rows[:MAX_ROWS]:
        by_start[int(row.group[0])].rows.append(row)
    if len(rows) <= MAX_ROWS:
        return buckets, next_us
    return _cut_to_whole_buckets(buckets, int(rows[MAX_ROWS].group[0]))


def _cut_to_whole_buckets(buckets: list[_Bucket], cut_us: int) -> _Page:
    """Return the page cut to complete buckets before the row limit. Raises BadRequest when not even one fits."""
    whole = [bucket for bucket in buckets if bucket.end_us <= cut_us]
    if not whole:
        raise BadRequest(f"One bucket has more than {MAX_ROWS} groups; group by less, or filter.", param="group_by")
    return whole, whole[-1].end_us


def _embedders(gateway: Gateway) -> tuple[str, ...]:
    """Return the targets that embed. Bookings do not record the kind of a request, but each target serves only one
    kind.
    """
    targets = gateway.rules().catalog.targets.values()
    return tuple(sorted(target.target_id for target in targets if "embeddings" in target.capabilities))


def _route_filters(question: _Question, embedders: tuple[str, ...]) -> UsageFilters | None:
    """Return the filters of a route; None where nothing can match.

    Targets that left the catalog count as completions, so that each token is counted by exactly one of the two routes.
    """
    filters = question.filters
    if question.path == COSTS.path:
        return filters
    # Cost without a request, such as idle GPUs, is in `costs` only.
    filters = msgspec.structs.replace(filters, origin=SPENT_ORIGINS)
    if question.path == COMPLETIONS.path:
        return msgspec.structs.replace(filters, not_model=embedders)
    asked = tuple(name for name in embedders if not filters.model or name in filters.model)
    return msgspec.structs.replace(filters, model=asked) if asked else None


async def _rows(
    gateway: Gateway,
    question: _Question,
    filters: UsageFilters,
    buckets: list[_Bucket],
    dimensions: tuple[Dimension, ...],
) -> tuple[UsageRow, ...]:
    start_us, end_us = buckets[0].start_us, buckets[-1].end_us
    if question.width_us == MINUTE_US:
        reader = AttemptReader(gateway.database)
        return await reader.by_minute(
            question.scope, start_us, end_us, group_by=dimensions, filters=filters, limit=MAX_ROWS + 1
        )
    time_of: Dimension = "hour" if question.width_us == HOUR_US else "day"
    query = UsageQuery(
        scope=question.scope,
        start_us=start_us,
        end_us=end_us,
        group_by=(time_of, *dimensions),
        filters=filters,
        limit=MAX_ROWS + 1,
    )
    return (await gateway.finance.usage.page(query, with_totals=False)).rows


def _completion_results(question: _Question, rows: list[UsageRow]) -> list[dict[str, Any]]:
    return [_completion(group, sums) for group, sums in _results(question, COMPLETIONS, rows)]


def _embedding_results(question: _Question, rows: list[UsageRow]) -> list[dict[str, Any]]:
    return [
        {
            "object": "organization.usage.embeddings.result",
            "input_tokens": sums.input_tokens,
            "num_model_requests": sums.attempts,
            **group,
        }
        for group, sums in _results(question, EMBEDDINGS, rows)
    ]


def _results(question: _Question, kind: Kind, rows: list[UsageRow]) -> list[tuple[dict[str, Any], UsageSums]]:
    """Sum by group. Rows whose groups look the same in the reply, such as two tiers that are not batch, are added."""
    by_group: dict[tuple[Any, ...], list[UsageSums]] = {}
    for row in rows:
        by_group.setdefault(tuple(_group_fields(question, kind, row).values()), []).append(row.sums)
    named = [(dict(zip(kind.groups, group, strict=True)), added(sums)) for group, sums in by_group.items()]
    return [(group, sums) for group, sums in named if sums.attempts or sums.input_tokens]


def _completion(group: dict[str, Any], sums: UsageSums) -> dict[str, Any]:
    """Return a group's result. Bookings do not separate text, images and audio, so fields of only one of them are left out."""
    uncached = sums.input_tokens - sums.cached_input_tokens - sums.cache_write_tokens
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": sums.input_tokens,
        "input_cached_tokens": sums.cached_input_tokens,
        "input_cache_write_tokens": sums.cache_write_tokens,
        "input_uncached_tokens": uncached,
        "output_tokens": sums.output_tokens,
        "num_model_requests": sums.attempts,
        **group,
    }


def _group_fields(question: _Question, kind: Kind, row: UsageRow) -> dict[str, Any]:
    """Return the value of each of the route's groupings, null where it was not requested."""
    asked = dict.fromkeys(group for name in question.group_by if (group := kind.groups[name]) is not None)
    values = dict(zip(asked, row.group[1:], strict=True))
    return {
        name: _as_value(name, values[group]) if name in question.group_by and group is not None else None
        for name, group in kind.groups.items()
    }


def _as_value(name: str, value: str | int) -> str | bool | None:
    if name == "batch":
        return value == _BATCH
    # Unassigned cost, such as idle GPUs, has no project and no key.
    return str(value) or None


def _cost_results(question: _Question, rows: list[UsageRow]) -> list[dict[str, Any]]:
    results = []
    for row in rows:
        group = _group_fields(question, COSTS, row)
        if "line_item" not in question.group_by:
            results.append(_cost(row.sums.known_cost_nanousd, group))
            continue
        model = group["line_item"] or "no model"
        for meter, amount, quantity, unit in _line_items(row.sums):
            item = {**group, "line_item": f"{model}, {meter}"}
            known = None if row.sums.known_cost_nanousd is None else amount
            results.append(_cost(known, item, quantity=quantity, quantity_unit=unit))
    return results


def _cost(
    amount_nanousd: int | None, group: dict[str, Any], quantity: int | None = None, quantity_unit: str | None = None
) -> dict[str, Any]:
    """Return a result of `costs`; an unknown price is null, never 0."""
    amount = known_usd(amount_nanousd)
    return {
        "object": "organization.costs.result",
        "amount": {"value": amount, "currency": "usd", "value_decimal": None if amount is None else exact(amount)},
        **group,
        "quantity": quantity,
        "quantity_unit": quantity_unit,
    }


def _line_items(sums: UsageSums) -> list[tuple[str, int, int | None, str | None]]:
    """Return the meters with cost or usage, and a remainder for cost outside meters, such as idle GPUs. They add up to
    the cost.
    """
    items: list[tuple[str, int, int | None, str | None]] = []
    for meter in meters_of(sums):
        # The API has no unit for requests.
        quantity = None if meter.name == "request" else meter.used
        if meter.cost_nanousd or quantity:
            unit = None if quantity is None else "tokens"
            items.append((meter.name.replace("_", " "), meter.cost_nanousd, quantity, unit))
    other = sums.cost_nanousd - sum(item[1] for item in items)
    return [*items, ("other", other, None, None)] if other else items
