"""The round that looks at alerts, and puts what passed its threshold into the outbox."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Protocol

from sqlalchemy.ext.asyncio import AsyncEngine

from api.webhooks.addresses import BadCallbackUrl
from api.webhooks.sealed_addresses import SealedAddresses
from api.webhooks.team_addresses import TeamAddresses
from cost.budgets.alerts import TYPE as BUDGET_TYPE
from dashboards.alerts.alert import Alert
from dashboards.alerts.budget_warnings import budgets_of, warnings_of
from dashboards.alerts.incidents import LOOKED_BACK_US, body, happened, incidents_of, message_id
from dashboards.alerts.measuring import measured
from dashboards.alerts.store import all_alerts, seal_addresses

_log: Final = logging.getLogger("weighbridge.alerts")

TYPE: Final = "alert.threshold_passed"
_MOST_WARNED: Final = 10_000
"""Most warnings of budgets that a process remembers."""


class Put(Protocol):
    """Puts a message into an outbox in which ids are unique."""

    def __call__(
        self,
        message_id: str,
        destination: str,
        type: str,  # noqa: A002 - the standard's word
        body: Mapping[str, Any],
        /,
        *,
        url: str | None = None,
        team_id: str | None = None,
    ) -> Awaitable[bool]: ...


class AlertRound:
    """A look at every alert. Any number of processes may take it: a message's id is the same in all of them."""

    def __init__(
        self,
        engine: AsyncEngine,
        put: Put,
        destinations: Collection[str],
        now_us: Callable[[], int],
        operator: str = "",
        addresses: TeamAddresses | None = None,
        sealed: SealedAddresses | None = None,
    ) -> None:
        """`operator` is the organisation that is told of all incidents. Without `addresses` and `sealed` no alert goes to an
        address of a team.
        """
        self._operator = operator
        self._engine = engine
        self._put = put
        self._destinations = destinations
        self._now_us = now_us
        self._addresses = addresses
        self._sealed = sealed
        self._told: dict[str, str] = {}
        self._warned: set[str] = set()
        self._all_sealed = False

    async def look(self) -> None:
        """Run one round. An alert whose destination is gone from the configuration is left out, and logged."""
        now_us = self._now_us()
        if self._sealed is not None and not self._all_sealed:
            await self._sealed.ready()
            # What was kept before addresses were sealed, or under a pepper that is replaced.
            self._all_sealed = not await seal_addresses(self._engine, self._sealed)
        alerts = await all_alerts(self._engine)
        for alert in alerts:
            if alert.address:
                why = address_refused(self._addresses, self._sealed, alert)
            else:
                is_named = alert.destination in self._destinations
                why = "" if is_named else f"no destination of `webhooks` is named {alert.destination!r}"
            if why:
                _log.warning("alert %s: %s", alert.alert_id, why)
            elif alert.measure == "incidents":
                await self._tell_incidents(alert, now_us)
            elif alert.measure == "budgets":
                await self._warn_of_budgets(alert)
            elif self._told.get(alert.alert_id) != alert.message_id(now_us):
                await self._look_at(alert, now_us)
        kept = {alert.alert_id for alert in alerts}
        self._told = {alert_id: told for alert_id, told in self._told.items() if alert_id in kept}

    async def _look_at(self, alert: Alert, now_us: int) -> None:
        found = await measured(self._engine, alert, now_us)
        if found is None or not found.passes(alert.threshold):
            return
        message_id = alert.message_id(now_us)
        await self._send(alert, message_id, TYPE, alert.body(found.value))
        self._told[alert.alert_id] = message_id

    async def _tell_incidents(self, alert: Alert, now_us: int) -> None:
        """Tell of each incident twice: when it opens, and when it is closed."""
        whole = alert.organisation_id == self._operator and not alert.team_id
        for each in await incidents_of(self._engine, alert, self._operator, now_us - LOOKED_BACK_US):
            what = happened(each)
            if (each.kept.closed_us or now_us) >= alert.created_us:
                told = body(alert, each, what, whole=whole)
                await self._send(alert, message_id(alert, each, what), f"incident.{what}", told)

    async def _warn_of_budgets(self, alert: Alert) -> None:
        """Warn of each budget once in its period."""
        for told, warning in warnings_of(alert, await budgets_of(self._engine, alert)):
            if told not in self._warned:
                await self._send(alert, told, BUDGET_TYPE, warning.body)
                self._warned.add(told)
        if len(self._warned) > _MOST_WARNED:
            # The outbox knows them, too.
            self._warned.clear()

    async def _send(self, alert: Alert, message_id: str, kind: str, told: Mapping[str, Any]) -> None:
        """Put a message where the alert goes: to a destination of the configuration, or to an address of its team."""
        address, team_id = alert.address or None, alert.team_id or None
        await self._put(message_id, alert.destination, kind, told, url=address, team_id=team_id)


def address_refused(addresses: TeamAddresses | None, sealed: SealedAddresses | None, alert: Alert) -> str:
    """Return why nothing may be sent to an address that was allowed once; empty where it may."""
    if addresses is None or sealed is None:
        return "addresses of teams are turned off (`webhooks.team_hosts`)"
    try:
        addresses.check(sealed.opened(alert.team_id, alert.address))
    except BadCallbackUrl as error:
        return f"its address {error}"
    return ""
