"""Sums of refusals as plain values, for GET /v1/operations, the operators' pages and a team's page."""

import asyncio
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from api.web.gateway import Gateway
from proxy.settle.refusals.store import RefusalSum

WINDOW_US: Final = 600_000_000
_PATIENCE_S: Final = 2.0
_MOST_ROWS: Final = 200
_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)


async def refusals_snapshot(gateway: Gateway, now_us: int) -> dict[str, Any]:
    """Return the refusals of all processes in the last ten minutes, most frequent first; `data` is None while they
    cannot be read.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S), gateway.finance.reads:
            found = await gateway.views.refusals.read(now_us - WINDOW_US, most=_MOST_ROWS)
    except _FAILS:
        return {"window_s": WINDOW_US // 1_000_000, "refusals": None, "data": None}
    return {
        "window_s": WINDOW_US // 1_000_000,
        "refusals": sum(each.refusals for each in found),
        "data": [refusal_as_json(each) for each in found],
    }


def refusal_as_json(each: RefusalSum) -> dict[str, Any]:
    """Return one sum as plain values; what is not known is None."""
    return {
        "organisation_id": each.organisation_id or None,
        "team_id": each.team_id or None,
        "key_id": each.key_id or None,
        "model": each.model or None,
        "reason": each.reason,
        "status": each.status,
        "refusals": each.refusals,
        "last_us": each.last_us,
    }
