"""The budgets that an alert warns of: a team's, those of its keys and parts, or every one of an organisation."""

from collections.abc import Iterator
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore
from cost.budgets.alerts import Alert as BudgetWarning
from cost.budgets.alerts import warning_of
from cost.budgets.budget import BudgetStatus
from cost.budgets.store import BudgetStore
from cost.scopes import ROWS
from dashboards.alerts.alert import MILLION, Alert

PERCENT: Final = MILLION // 100
"""A percent in an alert's unit."""


async def budgets_of(engine: AsyncEngine, alert: Alert) -> list[BudgetStatus]:
    """Return the budgets that the alert is about. A tag's holds the spending of other teams, too, and is no team's."""
    store, owner = BudgetStore(engine), alert.organisation_id
    found = [each for each in await store.standings_of(owner) if not each.budget.for_each]
    if not alert.team_id:
        return found
    of_keys = [each.budget.scope_id for each in found if each.budget.scope == "key"]
    keys = await AccountStore(engine).named_keys(owner, of_keys) if of_keys else {}

    def is_ours(standing: BudgetStatus) -> bool:
        budget = standing.budget
        if budget.scope == "key":
            return keys.get(budget.scope_id, ("", ""))[1] == alert.team_id
        return ROWS[budget.scope].team_in(budget.scope_id) == alert.team_id

    return list(filter(is_ours, found))


def warnings_of(alert: Alert, standings: list[BudgetStatus]) -> Iterator[tuple[str, BudgetWarning]]:
    """Yield the message id and the warning of each budget that has reached the alert's share, once in its period."""
    percent = alert.threshold // PERCENT
    for each in standings:
        if each.reached(percent):
            found = warning_of(each, percent, alert.destination)
            yield f"alert/{alert.alert_id}/{found.message_id}", found


def largest_share(standings: list[BudgetStatus]) -> int | None:
    """Return the share spent of the most used budget, in parts of a million; None without one."""
    shares = [int(each.share * MILLION) for each in standings if each.share is not None]
    return max(shares, default=None)
