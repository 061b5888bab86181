"""GET /v1/usage/movers: what changed most against the time before, by which factors, and since when."""

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from accounts.store import AccountStore
from api.usage.routes import FIELDS, TIME_ZONE, calendar_asked, filters_of
from api.web.changing import check_teams
from api.web.gateway import AuthenticatedCaller, gateway_of, read_scope
from api.web.openapi import described
from api.web.parameters import Parameter, Parameters, listed, moment, one_of, texts, whole
from api.web.reading import json_reply, known_usd, reading, sound_query
from cost.dimensions import BY_NAME, OFFERED, Dimension
from cost.prices import usd
from cost.reports.compared import (
    AGAINST,
    GROUPABLE,
    Against,
    ComparedQuery,
    ComparedReader,
    ComparedRow,
    Measured,
    longest_us,
    window_of,
)
from cost.reports.movers import Mover, Movers, read_movers, sentence
from cost.times import DAY_US, iso, wall_us
from proxy.errors import BadRequest

router = APIRouter(tags=["usage"])

_DAYS: Final = 7
_USUAL: Final[tuple[Dimension, ...]] = ("key", "model")
_MOST: Final = 50
_PLACES: Final = 4
Names = Mapping[Dimension, Mapping[str, str]]
"""Names for people by dimension and value."""
_PARAMETERS: Final[dict[str, Parameter]] = {
    "start": moment("The time's beginning, a day or a full hour; seven days before its end when left out."),
    "end": moment(
        "Its end, which is not in it; tomorrow when left out. What is not over yet is compared as far as it is."
    ),
    "against": one_of(
        "What it is compared with: the same length right before, or the same weekdays whole weeks before.",
        AGAINST,
        AGAINST[0],
    ),
    "group_by": listed("What a change is of; key and model when left out.", GROUPABLE),
    "limit": whole("How many of the largest changes.", least=1, most=_MOST, otherwise=10),
    "time_zone": TIME_ZONE,
    "team_id": texts("Only these teams."),
    **{each.field: texts(f"Only these {each.plural}.") for each in OFFERED if each.name not in {"team", "unit"}},
}


class MeasuredOut(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one of the two times."""

    cost_usd: Decimal | None
    requests: int
    attempts: int
    served: int
    input_tokens: int
    output_tokens: int
    unpriced_attempts: int


class PartsOut(msgspec.Struct, frozen=True, kw_only=True):
    """The change by what caused it, in dollars; they add up to it."""

    requests_usd: Decimal
    tokens_usd: Decimal
    price_usd: Decimal
    posted_usd: Decimal


class FactorsOut(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts, tokens an attempt and price a token as multiples of those before, to four places."""

    attempts: Decimal | None
    tokens: Decimal | None
    price: Decimal | None


class ChangeOut(msgspec.Struct, frozen=True, kw_only=True):
    """A change of cost."""

    now: MeasuredOut
    before: MeasuredOut
    change_usd: Decimal
    change_share: Decimal | None
    parts: PartsOut
    factors: FactorsOut


class MoverOut(ChangeOut, frozen=True, kw_only=True):
    """One group's change, and since when; null where that is not beyond noise."""

    group: dict[str, str]
    since: str | None
    how: Literal["step", "new", "gone"] | None
    sentence: str


class MoversOut(msgspec.Struct, frozen=True, kw_only=True):
    """The largest changes, the change of everything, and that of what is not in the list."""

    object: Literal["usage.movers"]
    start: str
    end: str
    time_zone: str
    before_start: str
    before_end: str
    group_by: list[str]
    data: list[MoverOut]
    others: ChangeOut
    total: ChangeOut


@router.get("/v1/usage/movers", **described("Read what changed", gives={200: MoversOut}, query=_PARAMETERS))
async def movers(request: Request, caller: AuthenticatedCaller) -> Response:
    """Return what changed most against the time before, by key and model or as grouped, with the causes of each change, which add up
    to it.
    """
    gateway, scope = gateway_of(request), read_scope(caller)
    parameters = Parameters(request.query_params, _PARAMETERS)
    group_by = parameters.listed("group_by", GROUPABLE) or _USUAL
    filters = filters_of(scope, parameters)
    await check_teams(gateway, scope, filters.team)
    calendar = await calendar_asked(gateway, scope, parameters)
    now_us = wall_us()
    end_us = parameters.moment_us("end", calendar)
    end_us = calendar.start(calendar.day(now_us) + timedelta(days=1)) if end_us is None else end_us
    start_us = parameters.moment_us("start", calendar)
    start_us = calendar.start(calendar.day(end_us - 1) - timedelta(days=_DAYS - 1)) if start_us is None else start_us
    against: Against = parameters.one_of("against", AGAINST[0], AGAINST)
    longest = longest_us(filters, group_by, start_us, end_us)
    window = window_of(start_us, end_us, now_us, against, calendar, longest_us=longest)
    if not window.is_compared:
        told = f"both times together have at most {longest // DAY_US} days, and the later one has begun at least an hour ago"
        raise BadRequest(f"This time cannot be compared: {told}.", param="start")
    with sound_query():
        query = ComparedQuery(
            scope=scope,
            window=window,
            group_by=group_by,
            filters=filters,
            limit=parameters.whole("limit", 10, least=1, most=_MOST),
        )
    async with reading(gateway):
        found = await read_movers(ComparedReader(gateway.database), query)
        names = await names_of(gateway.identity.accounts, query, found)
    return json_reply(movers_as_json(query, found, names, now_us))


def movers_as_json(query: ComparedQuery, found: Movers, names: Names, now_us: int) -> dict[str, Any]:
    """Return what changed as `MoversOut`."""
    window = query.window
    return {
        "object": "usage.movers",
        "start": iso(window.start_us),
        "end": iso(window.end_us),
        "time_zone": window.calendar.at(window.end_us - 1).time_zone,
        "before_start": iso(window.previous_start_us),
        "before_end": iso(window.previous_end_us),
        "group_by": query.group_by,
        "data": [_mover(each, query, names, now_us) for each in found.movers],
        "others": _change(found.others),
        "total": _change(found.compared.whole),
    }


async def names_of(accounts: AccountStore, query: ComparedQuery, found: Movers) -> Names:
    """Return the names of keys by id; all others are called as they are."""
    if "key" not in query.group_by:
        return {}
    place = query.group_by.index("key")
    keys = await accounts.named_keys(
        query.scope.organisation_id, filter(None, (each.row.group[place] for each in found.movers))
    )
    return {"key": {key_id: name for key_id, (name, _) in keys.items()}}


def _mover(mover: Mover, query: ComparedQuery, names: Names, now_us: int) -> dict[str, Any]:
    since = mover.since
    return {
        "group": {
            FIELDS.get(name, BY_NAME[name].column): value
            for name, value in zip(query.group_by, mover.row.group, strict=True)
        },
        "since": None if since is None else iso(since.at_us),
        "how": None if since is None else since.how,
        "sentence": sentence(
            mover,
            query.group_by,
            lambda name, value: names.get(name, {}).get(value, value),
            now_us,
            query.window.calendar,
        ),
        **_change(mover.row),
    }


def _change(row: ComparedRow) -> dict[str, Any]:
    parts = row.parts
    return {
        "now": _measured(row.now),
        "before": _measured(row.before),
        "change_usd": usd(row.change_nanousd),
        "change_share": _rounded(row.change_share),
        "parts": {
            "requests_usd": usd(parts.requests_nanousd),
            "tokens_usd": usd(parts.tokens_nanousd),
            "price_usd": usd(parts.price_nanousd),
            "posted_usd": usd(parts.posted_nanousd),
        },
        "factors": {
            "attempts": _rounded(parts.requests),
            "tokens": _rounded(parts.tokens),
            "price": _rounded(parts.price),
        },
    }


def _measured(found: Measured) -> dict[str, Any]:
    return {
        "cost_usd": known_usd(found.known_cost_nanousd),
        "requests": found.requests,
        "attempts": found.attempts,
        "served": found.served,
        "input_tokens": found.input_tokens,
        "output_tokens": found.output_tokens,
        "unpriced_attempts": found.unpriced_attempts,
    }


def _rounded(ratio: Fraction | None) -> Decimal | None:
    return None if ratio is None else Decimal(round(ratio * 10**_PLACES)).scaleb(-_PLACES)
