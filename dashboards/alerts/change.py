"""Changes of alerts, each with its audit entry."""

from typing import Any

import msgspec

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from api.web.changing import changing
from api.webhooks.addresses import BadCallbackUrl
from api.webhooks.outbox import Outbox
from api.webhooks.sealed_addresses import SealedAddresses
from api.webhooks.team_addresses import host_of
from cost.times import MINUTE_US
from dashboards.alerts.alert import Alert
from dashboards.alerts.store import MOST, MOST_OF_TEAM, add_alert, remove_alert
from proxy.errors import BadRequest


async def put_new_alert(log: AuditLog, actor: Actor, alert: Alert, sealed: SealedAddresses | None) -> None:
    """Add an alert. Raises BadRequest where its team or organisation has as many as it may."""
    async with changing(log, actor, "alert.added", alert.organisation_id, team_id=alert.team_id) as change:
        async with change.within.begin() as connection:
            added = await add_alert(connection, alert)
        if not added:
            raise BadRequest(
                f"A team has at most {MOST_OF_TEAM} alerts, and an organisation {MOST}; remove one first.", param="name"
            )
        change.tell("alert", alert.alert_id, None, audit_record(alert, sealed))


async def take_alert(
    log: AuditLog, actor: Actor, organisation_id: str, team_id: str, alert_id: str, sealed: SealedAddresses | None
) -> Alert | None:
    """Remove an alert of this team, or of the organisation; None where there was none."""
    async with changing(log, actor, "alert.removed", organisation_id, team_id=team_id) as change:
        async with change.within.begin() as connection:
            alert = await remove_alert(connection, organisation_id, team_id, alert_id)
        if alert is not None:
            change.tell("alert", alert_id, audit_record(alert, sealed), None)
    return alert


async def send_test(log: AuditLog, actor: Actor, outbox: Outbox, alert: Alert, now_us: int) -> bool:
    """Put a test message for an alert into the outbox; False where it is full, or one was sent in this minute."""
    async with changing(log, actor, "alert.tested", alert.organisation_id, team_id=alert.team_id) as change:
        message_id = f"alert-test/{alert.alert_id}/{now_us // MINUTE_US}"
        body = {"text": f"A test of the alert “{alert.name}”.", "alert_id": alert.alert_id}
        async with change.within.begin() as connection:
            put = await outbox.put_in(
                connection,
                message_id,
                alert.destination,
                "weighbridge.test",
                body,
                url=alert.address or None,
                team_id=alert.team_id or None,
            )
        if put:
            change.tell("alert", alert.alert_id, None, {"name": alert.name})
    return put


def host_in(sealed: SealedAddresses | None, alert: Alert) -> str | None:
    """Return the host of an alert's own address; None where nobody can open it any more."""
    try:
        return None if sealed is None else host_of(sealed.opened(alert.team_id, alert.address))
    except BadCallbackUrl:
        return None


def audit_record(alert: Alert, sealed: SealedAddresses | None) -> dict[str, Any]:
    """Return an alert as its audit entry stores it."""
    whole = msgspec.structs.asdict(alert)
    record = {name: whole[name] for name in ("name", "team_id", "measure", "threshold", "window_s", "destination")}
    # The rest of an address may be a secret.
    return record | ({"host": host_in(sealed, alert)} if alert.address else {})
