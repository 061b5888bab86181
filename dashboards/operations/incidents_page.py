"""/dashboard/operations/incidents: the incidents of 90 days and whom each hurt; those that hurt one organisation or one of its
teams, on their own pages.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.incidents.kept import Share
from api.incidents.scoped import ScopedIncident, read_incident, read_incidents
from api.incidents.store import KEPT_US
from api.web.reading import reading
from cost.times import DAY_US
from dashboards.operations.overview_page import HOME
from dashboards.ui.charts import Chart, Series
from dashboards.ui.incident_words import KINDS, hit_words, models_hurt, sentence
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest
from proxy.errors import IncidentNotFound

router: Final = APIRouter(include_in_schema=False)
PLACE: Final = f"{HOME}/incidents"
_DAYS: Final = KEPT_US // DAY_US
_OPEN: Final = ("Open", "bad")
_CLOSED: Final = ("Closed", "quiet")

INCIDENTS: Final = (
    Column("subject", "Where", "link"),
    Column("state", "State", "badge"),
    Column("kind", "What", "badge"),
    Column("opened", "Since", "time"),
    Column("closed", "Until", "time"),
    Column("lasted", "Lasted", "seconds"),
    Column("requests", "Requests hurt", "number"),
    Column(
        "refused",
        "Refused",
        "number",
        "Their callers were told an error; the others waited, or another try answered them",
    ),
    Column("teams", "Teams", "number"),
    Column("text", "Cause", usual=False),
)
OF_TEAM: Final = (
    Column("subject", "Model"),
    *(each for each in INCIDENTS if each.key not in {"subject", "teams", "text"}),
)
OF_ORGANISATION: Final = (*OF_TEAM, Column("whom", "Teams"))
HURT: Final = (
    Column("organisation", "Organisation", "code"),
    Column("team", "Team", "link"),
    Column("model", "Asked for"),
    Column("requests", "Requests", "number"),
    Column("refused", "Refused", "number"),
)


@router.get(PLACE)
async def show_incidents(view: Annotated[PageRequest, Depends(allowed("operations.read"))]) -> Response:
    """Show all incidents of 90 days, open ones first."""
    async with reading(view.gateway, on=True):
        store = view.gateway.views.operations.history.store
        found = await read_incidents(store, view.now_us - KEPT_US)
    table = Table.of(
        INCIDENTS,
        [_row(each, view.now_us) for each in found],
        view.query,
        name="incidents",
        caption="Incidents",
        search=("subject", "text"),
        empty="There was no incident in the last 90 days.",
    )
    return view.csv_asked("incidents", table) or view.page(
        "operations/incidents.html", title="Incidents", table=table, chart=_chart(found, view.now_us), days=_DAYS
    )


@router.get(f"{PLACE}/{{incident_id}}")
async def show_incident(
    view: Annotated[PageRequest, Depends(allowed("operations.read"))], incident_id: str
) -> Response:
    """Show one incident with everybody whom it hurt."""
    async with reading(view.gateway, on=True):
        found = await read_incident(view.gateway.views.operations.history.store, incident_id)
    if found is None:
        raise IncidentNotFound(
            f"There is no incident `{incident_id[:64]}`; they are kept for {_DAYS} days.", param="incident_id"
        )
    hurt = Table.of(
        HURT,
        [_share_row(each) for each in found.hurt],
        view.query,
        name="hurt",
        caption="Hurt",
        sort="-requests",
        search=("team", "model"),
        empty="Nobody was hurt, as far as it is counted.",
    )
    return view.csv_asked(f"incident-{incident_id[:64]}", hurt) or view.page(
        "operations/incident.html",
        title=f"Incident: {found.kept.subject}",
        incident=_row(found, view.now_us),
        kept=found.kept,
        text=sentence(found.kept.text),
        hit=hit_words(_numbers(found)) or "nobody is counted",
        hurt=hurt,
    )


@router.get("/dashboard/teams/{team_id}/incidents")
async def show_of_team(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show the incidents that hurt the team, with its own requests alone."""
    return await _show_own(view, OF_TEAM, view.the_team.team_id, {})


@router.get("/dashboard/incidents")
async def show_of_organisation(
    view: Annotated[PageRequest, Depends(allowed("organisation.read"))],
) -> Response:
    """Show the incidents that hurt the organisation's teams, with its own requests alone."""
    async with reading(view.gateway, on=True):
        teams = await view.gateway.identity.accounts.team_names(view.principal.organisation_id)
    return await _show_own(view, OF_ORGANISATION, None, teams)


async def _show_own(
    view: PageRequest, columns: Sequence[Column], team_id: str | None, names: Mapping[str, str]
) -> Response:
    """Show the incidents that hurt the viewer's organisation or one of its teams: no place and no cause, which are the operators'."""
    async with reading(view.gateway, on=True):
        found = await read_incidents(
            view.gateway.views.operations.history.store,
            view.now_us - KEPT_US,
            organisation_id=view.principal.organisation_id,
            team_id=team_id,
        )
    table = Table.of(
        columns,
        [_own_row(each, view.now_us, names) for each in found],
        view.query,
        name="incidents",
        caption="Incidents",
        search=("subject", "whom") if team_id is None else (),
        empty=f"No incident hurt {'your teams' if team_id is None else 'this team'} in the last {_DAYS} days.",
    )
    return view.csv_asked("incidents", table) or view.page(
        "operations/team_incidents.html", title="Incidents", table=table, chart=_chart(found, view.now_us), days=_DAYS
    )


def _own_row(found: ScopedIncident, now_us: int, names: Mapping[str, str]) -> dict[str, Any]:
    teams = dict.fromkeys(names.get(each.team_id, each.team_id) for each in found.hurt if each.team_id)
    return {**_row(found, now_us), "subject": models_hurt(found.hurt), "whom": ", ".join(teams)}


def _row(found: ScopedIncident, now_us: int) -> dict[str, Any]:
    kept = found.kept
    return {
        "subject": kept.subject,
        "subject_href": f"{PLACE}/{kept.incident_id}",
        "state": _OPEN if kept.is_open else _CLOSED,
        "kind": (KINDS.get(kept.kind, kept.kind), kept.severity),
        "opened": kept.opened_us,
        "closed": kept.closed_us or None,
        "lasted": ((kept.closed_us or now_us) - kept.opened_us) / 1_000_000,
        "text": sentence(kept.text),
        **_numbers(found),
    }


def _numbers(found: ScopedIncident) -> Mapping[str, int | None]:
    return {"requests": found.requests, "refused": found.refused, "teams": found.teams}


def _share_row(share: Share) -> dict[str, Any]:
    return {
        "organisation": share.organisation_id,
        "team": share.team_id or "unknown",
        "team_href": f"/dashboard/teams/{share.team_id}" if share.team_id else None,
        "model": share.model or "another name",
        "requests": share.requests,
        "refused": share.refused,
    }


def _chart(found: Sequence[ScopedIncident], now_us: int) -> Chart:
    """Return the time line: the incidents that began on each day."""
    last = now_us - now_us % DAY_US
    days = range(last - (_DAYS - 1) * DAY_US, last + 1, DAY_US)

    def begun(severity: str) -> list[float | None]:
        opened = [each.kept.opened_us // DAY_US * DAY_US for each in found if each.kept.severity == severity]
        return [opened.count(day) for day in days]

    return Chart(
        shape="stacked",
        title="Incidents that began on each day",
        x=days,
        series=[Series("Grave", begun("bad"), "bad"), Series("Warnings", begun("warn"), "warn")],
        caption=f"The last {_DAYS} days.",
    )
