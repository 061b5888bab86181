"""/dashboard/alerts and /dashboard/teams/{team_id}/alerts: alerts of the organisation and of a team."""

import secrets
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.web.reading import reading
from api.webhooks.addresses import BadCallbackUrl
from api.webhooks.callbacks import DESTINATION
from api.webhooks.outbox import Outbox
from api.webhooks.sealed_addresses import MOST_CHARS, SealedAddresses
from api.webhooks.team_addresses import Shape, TeamAddresses, team_addresses
from dashboards.alerts.alert import MEASURE_WORDS, MEASURES, MILLION, WINDOWS_S, Alert, Measure, shown
from dashboards.alerts.budget_warnings import PERCENT
from dashboards.alerts.change import host_in, put_new_alert, send_test, take_alert
from dashboards.alerts.measuring import Measured, measured
from dashboards.alerts.store import read_alerts
from dashboards.alerts.telling import address_refused
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.forms import Form, FormError
from dashboards.web.view import PageRequest
from proxy.errors import BadRequest

router: Final = APIRouter(include_in_schema=False)

_ALL: Final = "/dashboard/alerts"
_TEAM: Final = "/dashboard/teams/{team_id}/alerts"
_NAME_CHARS: Final = 100
_UNITS: Final[Mapping[Measure, tuple[Decimal, Decimal]]] = {
    "spend": (Decimal(10) ** 9, Decimal(10) ** 8),
    "errors": (Decimal(MILLION) / 100, Decimal(100)),
    "latency": (Decimal(MILLION), Decimal(3_600)),
    "refusals": (Decimal(1), Decimal(10) ** 9),
    "no-room": (Decimal(1), Decimal(10) ** 6),
    "incidents": (Decimal(1), Decimal(10) ** 9),
    "budgets": (Decimal(PERCENT), Decimal(1_000)),
}
"""The factor of a number in the form, and the greatest one, by measure: dollars, percent, seconds, requests, attempts."""
_SHAPE_WORDS: Final[Mapping[Shape, str]] = {"standard": "A webhook", "slack": "Slack", "mail": "Mail"}
_COLUMNS: Final = (
    Column("name", "Name"),
    Column("measure", "Measure"),
    Column("window", "In the last"),
    Column("threshold", "Threshold"),
    Column("now", "Now"),
    Column("state", "State", "badge"),
    Column("destination", "Notify", "code"),
)


@router.get(_ALL)
async def list_all(view: Annotated[PageRequest, Depends(allowed("organisation.read"))]) -> Response:
    """Show the organisation's own alerts, and the form to add one."""
    return await _list(view, {}, {})


@router.get(_TEAM)
async def list_of_team(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show the team's alerts, and the form to add one."""
    return await _list(view, {}, {})


@router.post(_ALL)
async def add_for_all(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Add an alert on everything that the organisation does."""
    return await _add(view)


@router.post(_TEAM)
async def add_for_team(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Add an alert on what the team does."""
    return await _add(view)


@router.post(f"{_ALL}/remove")
async def remove_of_all(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Remove one of the organisation's own alerts."""
    return await _remove(view)


@router.post(f"{_TEAM}/remove")
async def remove_of_team(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Remove one of the team's alerts."""
    return await _remove(view)


@router.post(f"{_ALL}/test")
async def test_of_all(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Send a test message to where one of the organisation's own alerts goes."""
    return await _test(view)


@router.post(f"{_TEAM}/test")
async def test_of_team(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Send a test message to where one of the team's alerts goes."""
    return await _test(view)


async def _test(view: PageRequest) -> Response:
    wanted = (await view.form()).text("alert_id")
    alerts = await read_alerts(view.gateway.database, view.principal.organisation_id, _team_id(view))
    alert = next((each for each in alerts if each.alert_id == wanted), None)
    if alert is None or _refused(view, alert):
        return view.redirect(_base(view), "There is no such alert, or nothing may be sent to its address.", "warn")
    outbox = Outbox(view.gateway.database)
    sent = await send_test(view.gateway.identity.audit, view.actor, outbox, alert, view.now_us)
    told = f"A test of “{alert.name}” is on its way." if sent else "A test was sent a moment ago; wait a minute."
    return view.redirect(_base(view), told, "good" if sent else "warn")


async def _add(view: PageRequest) -> Response:
    form = await view.form()
    try:
        await put_new_alert(view.gateway.identity.audit, view.actor, await _alert(view, form), _sealed(view))
    except FormError as error:
        return await _list(view, form.plain, {error.field: error.message})
    except BadRequest as error:
        return await _list(view, form.plain, {"name": error.message})
    return view.redirect(_base(view), "The alert is set; it is checked once a minute.")


async def _remove(view: PageRequest) -> Response:
    form = await view.form()
    found = await take_alert(
        view.gateway.identity.audit,
        view.actor,
        view.principal.organisation_id,
        _team_id(view),
        form.text("alert_id"),
        _sealed(view),
    )
    return view.redirect(_base(view), "There is no such alert." if found is None else f"“{found.name}” is removed.")


async def _alert(view: PageRequest, form: Form) -> Alert:
    """Return the alert of a form. Raises FormError."""
    measure = cast(Measure, form.one_of("measure", MEASURES))
    unit, most = _UNITS[measure]
    amount = form.decimal("threshold", most=most)
    threshold = 0 if amount is None else int(amount * unit)
    if threshold < 0 or (threshold == 0 and measure != "incidents"):
        raise FormError("threshold", "A number above 0: dollars, percent, seconds or a count.")
    if measure == "budgets" and threshold % PERCENT:
        raise FormError("threshold", "A whole number of percent, such as 80.")
    address = await _address(view, form)
    return Alert(
        alert_id=f"alert_{secrets.token_hex(8)}",
        organisation_id=view.principal.organisation_id,
        team_id=_team_id(view),
        name=form.text("name", most=_NAME_CHARS, required=True),
        measure=measure,
        threshold=threshold,
        window_s=int(form.one_of("window_s", tuple(map(str, WINDOWS_S)))),
        destination=DESTINATION if address else form.one_of("destination", tuple(sorted(view.gateway.webhooks))),
        created_us=view.now_us,
        address=address,
    )


async def _address(view: PageRequest, form: Form) -> str:
    """Return the team's own address of a form, sealed; empty where it chose a configured destination. Raises FormError."""
    rules, sealed, typed = _addresses(view), _sealed(view), form.text("address", most=MOST_CHARS)
    if rules is None or sealed is None or not typed:
        return ""
    try:
        plain = rules.made(cast(Shape, form.one_of("shape", rules.shapes)), typed)
        await sealed.ready()
        return sealed.sealed(_team_id(view), plain)
    except BadCallbackUrl as error:
        raise FormError("address", f"The address {error}.") from error


def _addresses(view: PageRequest) -> TeamAddresses | None:
    """Return the rules for addresses of teams; None where there are none, and for the whole organisation."""
    desk = view.gateway.jobs.callbacks
    if view.team is None or desk is None:
        return None
    return team_addresses(view.gateway.config().webhooks, desk.addresses)


def _sealed(view: PageRequest) -> SealedAddresses | None:
    desk = view.gateway.jobs.callbacks
    return None if desk is None else desk.sealed


def _refused(view: PageRequest, alert: Alert) -> bool:
    """Return True where nothing may be sent to where an alert goes."""
    if alert.address:
        return bool(address_refused(_addresses(view), _sealed(view), alert))
    return alert.destination not in view.gateway.webhooks


def _team_id(view: PageRequest) -> str:
    return "" if view.team is None else view.team.team_id


def _base(view: PageRequest) -> str:
    return _ALL if view.team is None else f"/dashboard/teams/{view.team.team_id}/alerts"


async def _list(view: PageRequest, values: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    may_change = view.may("organisation.change" if view.team is None else "team.change")
    addresses = _addresses(view)
    async with reading(view.gateway, on=True):
        alerts = await read_alerts(view.gateway.database, view.principal.organisation_id, _team_id(view))
        values_now = await _values(view, alerts)
    table = Table.of(
        _COLUMNS,
        [_row(view, each, values_now[each.measure, each.window_s, each.threshold]) for each in alerts],
        view.query,
        name="alerts",
        caption="Alerts",
        sort="name",
        empty="No alert yet. Budgets notify at 50, 80 and 100 % without one.",
    )
    return view.csv_asked("alerts", table) or view.page(
        "alerts/alerts.html",
        title="Alerts",
        status=400 if errors else 200,
        table=table,
        base=_base(view),
        may_change=may_change,
        destinations=[(name, name) for name in sorted(view.gateway.webhooks)],
        measures=[(measure, MEASURE_WORDS[measure]) for measure in MEASURES],
        windows=[(str(window_s), words) for window_s, words in WINDOWS_S.items()],
        hosts=() if addresses is None else addresses.hosts,
        shapes=() if addresses is None else [(shape, _SHAPE_WORDS[shape]) for shape in addresses.shapes],
        values=values,
        errors=errors,
    )


async def _values(view: PageRequest, alerts: list[Alert]) -> dict[tuple[Measure, int, int], Measured | None]:
    """Measure now, by measure, time and threshold: all alerts of a page are of the same team or organisation."""
    found: dict[tuple[Measure, int, int], Measured | None] = {}
    for each in alerts:
        if (each.measure, each.window_s, each.threshold) not in found:
            found[each.measure, each.window_s, each.threshold] = await measured(
                view.gateway.database, each, view.now_us, view.gateway.operator
            )
    return found


def _row(view: PageRequest, alert: Alert, found: Measured | None) -> dict[str, Any]:
    if _refused(view, alert):
        words = "Not sent: address not allowed" if alert.address else "Not sent: unknown destination"
        state = (words, "warn")
    elif found is None and alert.measure == "incidents":
        state = ("None open", "good")
    elif found is None and alert.measure == "budgets":
        state = ("No budget", "quiet")
    elif found is None:
        state = ("Too few attempts", "quiet")
    elif found.passes(alert.threshold):
        state = ("Above", "bad")
    else:
        state = ("Below", "good") if found.value < alert.threshold else ("Above, maybe by chance", "quiet")
    return {
        "id": alert.alert_id,
        "name": alert.name,
        "measure": MEASURE_WORDS[alert.measure],
        "window": None if alert.measure in {"incidents", "budgets"} else WINDOWS_S[alert.window_s],
        "threshold": shown(alert.measure, alert.threshold),
        "now": None if found is None else shown(alert.measure, found.value),
        "state": state,
        "destination": host_in(_sealed(view), alert) if alert.address else alert.destination,
    }
