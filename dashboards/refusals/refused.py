"""Who is refused, of what and why: as plain values for the operators' pages, GET /v1/operations and a team's page."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from api.web.gateway import Gateway
from dashboards.ui.tables import Column, Table
from proxy.settle.refusals.store import RefusalSum

WINDOW_US: Final = 600_000_000
_PATIENCE_S: Final = 2.0
_MOST_ROWS: Final = 200
_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)
_COLUMNS: Final = (
    Column("team", "Team", "link"),
    Column("key", "Key"),
    Column("model", "Model"),
    Column("reason", "Why"),
    Column("status", "Status"),
    Column("refusals", "Refused", "number"),
    Column("last", "Last", "time", "The minute, or the hour, of the latest"),
)
NOBODY: Final = "Before the key was known"


async def refusals_snapshot(gateway: Gateway, now_us: int) -> dict[str, Any]:
    """Refusals of all processes in the last ten minutes, most frequent first; `data` is None while they cannot be read."""
    try:
        async with asyncio.timeout(_PATIENCE_S), gateway.reads:
            found = await gateway.refusals.read(now_us - WINDOW_US, most=_MOST_ROWS)
    except _FAILS:
        return {"window_s": WINDOW_US // 1_000_000, "refusals": None, "data": None}
    return {
        "window_s": WINDOW_US // 1_000_000,
        "refusals": sum(each.refusals for each in found),
        "data": [refusal_as_json(each) for each in found],
    }


def refusal_as_json(each: RefusalSum) -> dict[str, Any]:
    """One sum as plain values; what is not known is None."""
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


def refusals_table(
    found: Iterable[Mapping[str, Any]],
    query: Mapping[str, str],
    *,
    names: Mapping[str, str] | None = None,
    within_team: bool = False,
) -> Table:
    """The table of refusals; `names` are of keys, by id."""
    rows = [
        {
            "team": each["team_id"] or NOBODY,
            "team_href": f"/dashboard/teams/{each['team_id']}" if each["team_id"] else None,
            "key": (names or {}).get(each["key_id"] or "", each["key_id"]),
            "model": each["model"],
            "reason": each["reason"].replace("_", " "),
            "status": str(each["status"]),
            "refusals": each["refusals"],
            "last": each["last_us"],
        }
        for each in found
    ]
    return Table.of(
        _COLUMNS[1:] if within_team else _COLUMNS,
        rows,
        query,
        name="refusals",
        caption="Refused requests",
        sort="-refusals",
        page_rows=10,
        empty="Nothing was refused in this time.",
    )
