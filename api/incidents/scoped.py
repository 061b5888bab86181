"""Incidents as one organisation or team may see them: its own share of each, or all of it for operators."""

import msgspec

from api.incidents.kept import KeptIncident, Share
from api.incidents.store import MOST_READ, IncidentStore


class ScopedIncident(msgspec.Struct, frozen=True, kw_only=True):
    """An incident, with the numbers of those whom it hurt that the reader may see."""

    kept: KeptIncident
    requests: int | None
    refused: int | None
    teams: int | None
    hurt: tuple[Share, ...]


async def read_incidents(
    store: IncidentStore,
    since_us: int,
    *,
    organisation_id: str | None = None,
    team_id: str | None = None,
    most: int = MOST_READ,
) -> list[ScopedIncident]:
    """Return the incidents that were open at any time since then, open ones first, then the newest. Of an organisation or team those that hurt it,
    with its own requests alone; for None all, whole.
    """
    found = await store.recent(since_us, most, organisation_id, team_id)
    shares = await store.shares([each.incident_id for each in found], organisation_id, team_id)
    return [_scoped(each, shares.get(each.incident_id, ()), is_all=organisation_id is None) for each in found]


async def read_incident(store: IncidentStore, incident_id: str) -> ScopedIncident | None:
    """Return one incident whole; None when there is none of this id."""
    kept = await store.one(incident_id)
    if kept is None:
        return None
    return _scoped(kept, (await store.shares([kept.incident_id])).get(kept.incident_id, ()), is_all=True)


def _scoped(kept: KeptIncident, hurt: tuple[Share, ...], *, is_all: bool) -> ScopedIncident:
    if is_all:
        return ScopedIncident(kept=kept, requests=kept.requests, refused=kept.refused, teams=kept.teams, hurt=hurt)
    return ScopedIncident(
        kept=kept,
        requests=sum(each.requests for each in hurt),
        refused=sum(each.refused for each in hurt),
        teams=len({each.team_id for each in hurt}),
        hurt=hurt,
    )
