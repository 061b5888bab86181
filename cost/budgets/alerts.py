"""Warnings at 50, 80 and 100 %: one message for each budget, period and threshold, whoever notices first."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from cost.budgets.budget import THRESHOLDS_PERCENT, BudgetStatus
from cost.prices import usd
from cost.times import iso, moment

_log: Final = logging.getLogger(__name__)

TYPE: Final = "budget.threshold_reached"

Put = Callable[[str, str, str, Mapping[str, Any]], Awaitable[bool]]
"""Puts a message (its id, destination, type and body) into an outbox where its id is unique."""


Key = tuple[str, int, int]
"""A warning's budget, the start of its period, and the threshold."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a destination should get."""

    key: Key
    destination: str
    body: dict[str, Any]

    @property
    def message_id(self) -> str:
        """The same for whoever notices it."""
        budget_id, start_us, percent = self.key
        return f"budget/{budget_id}/{moment(start_us):%Y-%m-%d}/{percent}"


def due(standings: Iterable[BudgetStatus], destinations: Collection[str], told: Collection[Key]) -> Iterator[Alert]:
    """The warnings of budgets that have one of these webhooks, less those whose keys are in `told`."""
    for each in standings:
        if each.budget.webhook in destinations:
            for percent in THRESHOLDS_PERCENT:
                if each.reached(percent) and (key := _key(each, percent)) not in told:
                    yield Alert(key=key, destination=each.budget.webhook, body=_body(each, percent))


class Alerts:
    """Remembers what this process has put, so that it asks the outbox once."""

    def __init__(self, put: Put, destinations: Collection[str]) -> None:
        self._put = put
        self._destinations = destinations
        self._told: set[Key] = set()
        self._unknown: set[str] = set()

    async def tell(self, standings: Sequence[BudgetStatus]) -> None:
        """Put what is due. What the outbox could not take is due again the next time."""
        self._tell_of_unknown({each.budget.webhook for each in standings} - {"", *self._destinations})
        for warning in due(standings, self._destinations, self._told):
            await self._put(warning.message_id, warning.destination, TYPE, warning.body)
            self._told.add(warning.key)
        # Periods that are over never come back.
        periods = {(each.budget.budget_id, each.start_us) for each in standings}
        self._told = {key for key in self._told if key[:2] in periods}

    def _tell_of_unknown(self, names: set[str]) -> None:
        for name in sorted(names - self._unknown):
            _log.warning("a budget's webhook %r is not configured here: nobody is told of it", name)
        self._unknown = names


def _key(standing: BudgetStatus, percent: int) -> Key:
    return standing.budget.budget_id, standing.start_us, percent


def _body(standing: BudgetStatus, percent: int) -> dict[str, Any]:
    """Amounts are decimal text: a number would lose digits in most readers."""
    budget = standing.budget
    return {
        "budget_id": budget.budget_id,
        "organisation_id": budget.organisation_id,
        "scope": budget.scope,
        "scope_id": budget.shown_id,
        "period": budget.period,
        "period_start": iso(standing.start_us),
        "resets_at": iso(standing.resets_us),
        "kind": budget.kind,
        "limit_usd": dollars(budget.limit_nanousd),
        "spent_usd": dollars(standing.spent_nanousd),
        "share": None if standing.share is None else f"{standing.share:f}",
        "threshold": f"{Decimal(percent) / 100:.2f}",
    }


def dollars(amount_nanousd: int) -> str:
    """An exact amount as decimal text, never with an exponent."""
    return f"{usd(amount_nanousd):f}"
