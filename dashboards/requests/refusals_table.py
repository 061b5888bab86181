"""The table of refused requests, on the operators' pages and on a team's page."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dashboards.ui.tables import Column, Table

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


def refusals_table(
    found: Iterable[Mapping[str, Any]],
    query: Mapping[str, str],
    *,
    names: Mapping[str, str] | None = None,
    within_team: bool = False,
) -> Table:
    """Return the table of refusals; `names` are of keys, by id."""
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
