"""Budget warnings at 50, 80 and 100 %: one message per budget, period and threshold, however many processes notice."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from cost.budgets.budget import THRESHOLDS_PERCENT, BudgetStatus
from cost.budgets.periods import PERIODS
from cost.prices import usd
from cost.shown import fine_money, nano_money
from cost.times import DAY_US, iso, moment

_log: Final = logging.getLogger(__name__)

TYPE: Final = "budget.threshold_reached"

Put = Callable[[str, str, str, Mapping[str, Any]], Awaitable[bool]]
"""Puts a message (id, destination, type, body) into an outbox in which ids are unique; awaits whether it was new."""


Key = tuple[str, int, int]
"""Identifies a warning: budget id, start of the period in microseconds since 1970 (of what never renews, its limit), threshold in percent."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A warning addressed to one webhook destination."""

    key: Key
    destination: str
    body: dict[str, Any]

    @property
    def message_id(self) -> str:
        """Id that every process derives alike (`budget/ID/DAY/PERCENT`), so that the outbox keeps one message."""
        budget_id, since, percent = self.key
        named = f"{moment(since):%Y-%m-%d}" if since % DAY_US == 0 else f"{since}"
        return f"budget/{budget_id}/{named}/{percent}"


def due(standings: Iterable[BudgetStatus], destinations: Collection[str], told: Collection[Key]) -> Iterator[Alert]:
    """Yield the warnings whose threshold is reached, for budgets with one of these webhooks, less the keys in `told`."""
    for each in standings:
        if each.budget.webhook in destinations:
            for percent in THRESHOLDS_PERCENT:
                if each.reached(percent) and _key(each, percent) not in told:
                    yield warning_of(each, percent, each.budget.webhook)


def warning_of(standing: BudgetStatus, percent: int, destination: str) -> Alert:
    """Return the warning that a budget has reached a part of its limit."""
    return Alert(key=_key(standing, percent), destination=destination, body=_body(standing, percent))


class Alerts:
    """The sender of budget warnings. It remembers which keys this process has put, so that the outbox is asked once for
    each.
    """

    def __init__(self, put: Put, destinations: Collection[str]) -> None:
        self._put = put
        self._destinations = destinations
        self._put_keys: set[Key] = set()
        self._unknown_webhooks: set[str] = set()

    async def tell(self, standings: Sequence[BudgetStatus]) -> None:
        """Put every due warning into the outbox.

        If `put` raises, that warning and later ones are due again next time.
        """
        self._warn_of_unknown({each.budget.webhook for each in standings} - {"", *self._destinations})
        for warning in due(standings, self._destinations, self._put_keys):
            await self._put(warning.message_id, warning.destination, TYPE, warning.body)
            self._put_keys.add(warning.key)
        # Periods that are over never come back.
        periods = {_key(each, 0)[:2] for each in standings}
        self._put_keys = {key for key in self._put_keys if key[:2] in periods}

    def _warn_of_unknown(self, names: set[str]) -> None:
        for name in sorted(names - self._unknown_webhooks):
            _log.warning("a budget's webhook %r is not configured here: nobody is told of it", name)
        self._unknown_webhooks = names


def _key(standing: BudgetStatus, percent: int) -> Key:
    # What never renews warns anew at another limit, such as after a top-up.
    since = standing.budget.limit_nanousd | 1 if standing.renews_us is None else standing.start_us
    return standing.budget.budget_id, since, percent


def _body(standing: BudgetStatus, percent: int) -> dict[str, Any]:
    """Return the message's JSON body. Amounts are decimal text: as numbers they would lose digits in most readers."""
    budget = standing.budget
    return {
        "text": _text(standing, percent),
        "budget_id": budget.budget_id,
        "organisation_id": budget.organisation_id,
        "scope": budget.scope,
        "scope_id": budget.shown_id,
        "period": budget.period,
        "period_start": iso(standing.start_us),
        "resets_at": None if standing.renews_us is None else iso(standing.renews_us),
        "kind": budget.kind,
        "limit_usd": dollars(standing.limit_nanousd),
        "spent_usd": dollars(standing.spent_nanousd),
        "share": None if standing.share is None else f"{standing.share:f}",
        "threshold": f"{Decimal(percent) / 100:.2f}",
    }


def _text(standing: BudgetStatus, percent: int) -> str:
    """Return the warning in one or two sentences, with what happens to requests."""
    budget = standing.budget
    if budget.on_exhausted == "downgrade":
        then = f"{'Requests now' if percent >= THRESHOLDS_PERCENT[-1] else 'Once it is spent, requests'} go to the cheapest capable model."
    elif budget.kind == "soft":
        then = "It is soft: it warns and refuses nothing."
    else:
        then = "It is hard: what it has no room for is refused."
    spent, limit = nano_money(standing.spent_nanousd), fine_money(standing.limit_nanousd)
    return f"The budget of {budget.in_words} has reached {percent} %: {spent} of {limit} {PERIODS[budget.period].amount_per}. {then}"


def dollars(amount_nanousd: int) -> str:
    """Return an exact dollar amount as decimal text without an exponent."""
    return f"{usd(amount_nanousd):f}"
