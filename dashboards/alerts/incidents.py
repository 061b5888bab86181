"""The incidents that an alert tells of, and its messages."""

from typing import Any, Final, Literal, assert_never

from sqlalchemy.ext.asyncio import AsyncEngine

from api.incidents.scoped import ScopedIncident, read_incidents
from api.incidents.store import IncidentStore
from cost.times import DAY_US, iso
from dashboards.alerts.alert import Alert
from dashboards.ui import formats
from dashboards.ui.incident_words import KINDS, hit_words, models_hurt, sentence

Happened = Literal["opened", "closed"]
LOOKED_BACK_US: Final = DAY_US
"""The age of a closed incident up to which its end is told."""


async def incidents_of(engine: AsyncEngine, alert: Alert, operator: str, since_us: int) -> list[ScopedIncident]:
    """Return the incidents that the alert is about: all for the operators' organisation, those that hurt it for another one or a
    team, each from the alert's number of requests on.
    """
    whole = alert.organisation_id == operator and not alert.team_id
    found = await read_incidents(
        IncidentStore(engine),
        since_us,
        organisation_id=None if whole else alert.organisation_id,
        team_id=alert.team_id or None,
    )
    return [each for each in found if (each.requests or 0) >= alert.threshold]


def happened(incident: ScopedIncident) -> Happened:
    """Return the latest that happened to it."""
    return "opened" if incident.kept.is_open else "closed"


def message_id(alert: Alert, incident: ScopedIncident, what: Happened) -> str:
    """Return the id that every process derives alike."""
    again = f"/{incident.kept.closed_us}" if what == "closed" else ""
    return f"incident/{alert.alert_id}/{incident.kept.incident_id}/{what}{again}"


def body(alert: Alert, incident: ScopedIncident, what: Happened, *, whole: bool) -> dict[str, Any]:
    """Return the message's data. Only operators are told where it is and the upstream's words: `whole`."""
    kept = incident.kept
    return {
        "text": _words(alert, incident, what, whole=whole),
        "alert_id": alert.alert_id,
        "name": alert.name,
        "organisation_id": alert.organisation_id,
        "team_id": alert.team_id or None,
        "incident_id": kept.incident_id,
        "kind": kept.kind,
        "severity": kept.severity,
        "subject": _where(incident, whole=whole),
        "since": iso(kept.opened_us),
        "closed_at": iso(kept.closed_us) if kept.closed_us else None,
        "requests": incident.requests,
        "refused": incident.refused,
        "teams": incident.teams,
    }


def _words(alert: Alert, incident: ScopedIncident, what: Happened, *, whole: bool) -> str:
    kept = incident.kept
    hit = hit_words({"requests": incident.requests, "refused": incident.refused, "teams": incident.teams})
    whom = f" Hurt: {hit}." if hit else ""
    cause = f" {sentence(kept.text)}" if whole else ""
    named = f"{alert.name}: {KINDS[kept.kind].lower()}, {_where(incident, whole=whole)}"
    match what:
        case "opened":
            return f"{named}, since {iso(kept.opened_us)}.{cause}{whom}"
        case "closed":
            lasted = formats.seconds((kept.closed_us - kept.opened_us) / 1_000_000)
            return f"{named}, is over after {lasted}.{cause}{whom}"
        case _:
            assert_never(what)


def _where(incident: ScopedIncident, *, whole: bool) -> str:
    return incident.kept.subject if whole else models_hurt(incident.hurt)
