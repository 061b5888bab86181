"""GET /v1/usage: what a team used on one day, from the ledger."""

import asyncio
import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from cost.prices import usd
from cost.store import UsageReport
from proxy.errors import BadRequest, TeamNotFound, UsageUnavailable
from proxy.gateway import AuthenticatedCaller, gateway_of

router = APIRouter(tags=["usage"])

_PATIENCE_S = 3.0
# Money leaves as exact decimal numbers: a float would change the last digits.
_encoder = msgspec.json.Encoder(decimal_format="number")


@router.get("/v1/usage")
async def team_usage(
    request: Request,
    caller: AuthenticatedCaller,
    team_id: str | None = None,
    date: str | None = None,
) -> Response:
    """Tokens, cost, baseline and savings of one UTC day (default: today) of the key's own team."""
    wanted = team_id if team_id is not None else caller.team_id
    if wanted != caller.team_id:
        raise TeamNotFound(f"There is no team `{wanted}` for this key.", param="team_id")
    day = _day(date)
    gateway = gateway_of(request)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await gateway.ledger.drain()
            report = await gateway.usage.usage(wanted, day)
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise UsageUnavailable("The ledger's database does not answer; nothing is lost, try again shortly.") from error
    return Response(_encoder.encode(_shape(report, wanted, day)), media_type="application/json")


def _day(text: str | None) -> dt.date:
    if text is None:
        return dt.datetime.now(dt.UTC).date()
    try:
        return dt.date.fromisoformat(text)
    except ValueError as error:
        raise BadRequest("`date` must be a day like 2026-04-05 (UTC).", param="date") from error


def _shape(report: UsageReport, team_id: str, day: dt.date) -> dict[str, Any]:
    return {
        "team_id": team_id,
        "date": day.isoformat(),
        **_sums(report),
        "models": [{"model": model.target_id, **_sums(model)} for model in report.models],
    }


def _sums(row: Any) -> dict[str, Any]:
    cost, baseline = row.cost_nanousd, row.baseline_nanousd
    return {
        "requests": row.requests,
        "input_tokens": row.input_tokens,
        "cached_input_tokens": row.cached_input_tokens,
        "output_tokens": row.output_tokens,
        "cost_usd": usd(cost),
        "baseline_usd": usd(baseline),
        "savings_usd": usd(baseline - cost),
        "savings_share": _share(baseline - cost, baseline),
        "estimated_requests": row.estimated_requests,
        "unpriced_requests": row.unpriced_requests,
    }


def _share(part: int, whole: int) -> Decimal | None:
    """To four places; None when there is nothing to compare with."""
    return (Decimal(part) / Decimal(whole)).quantize(Decimal("0.0001")) if whole else None
