"""The budget and its status: scope, period, limit, and what is spent and held of it."""

import re
from decimal import Decimal
from typing import Final, Literal

import msgspec

from cost.budgets.budget_errors import BadBudget, UnknownBudget
from cost.budgets.periods import PERIODS, Period, end_us, start_us
from cost.calendar import UTC_CALENDAR, Calendar
from cost.ledger.entries import TAG, TAG_RULE
from cost.prices import NANO_PER_USD, nanousd
from settings.key_ids import first_id

Scope = Literal["organisation", "team", "key", "tag"]
RAISE_FIELDS: Final = frozenset({"raised_nanousd", "raised_until_us"})
"""Fields that setting a budget leaves as they are: a raise is set for itself."""
Kind = Literal["hard", "soft"]
OnExhausted = Literal["refuse", "downgrade"]
State = Literal["open", "warning", "spent"]

THRESHOLDS_PERCENT: Final = (50, 80, 100)
_WARNING_PERCENT: Final = 80
MAX_LIMIT_NANOUSD: Final = 10**18
"""Largest limit: a billion dollars, far below what a 64-bit column holds, so that sums of several fit too."""
_LIMIT: Final = "a limit is at least 0 and at most a billion dollars"
_PERCENT: Final = 100
_SHARE: Final = Decimal("0.0001")
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_WEBHOOK: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_MAX_SCOPE_ID: Final = 200


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Spending limit of one organisation, team, key or tag in each period.

    The `scope_id` of a tag is `organisation/tag`. A `soft` budget only warns; a `hard` one is never overrun. `webhook`
    names the configured destination of its warnings; empty sends none.
    """

    budget_id: str
    organisation_id: str
    scope: Scope
    scope_id: str
    period: Period
    kind: Kind
    limit_nanousd: int
    on_exhausted: OnExhausted = "refuse"
    webhook: str = ""
    raised_nanousd: int = 0
    """Limit that holds instead before `raised_until_us`."""
    raised_until_us: int = 0

    def __post_init__(self) -> None:
        if self.scope == "key":
            # A rotated key goes on with the budget of the first.
            msgspec.structs.force_setattr(self, "scope_id", first_id(self.scope_id))

    @property
    def hard(self) -> bool:
        """True for a hard budget: it refuses attempts that it has no room for."""
        return self.kind == "hard"

    def limit_at(self, at_us: int) -> int:
        """Return the limit in force at a moment: a raise ends by itself."""
        return self.raised_nanousd if at_us < self.raised_until_us else self.limit_nanousd

    @property
    def shown_id(self) -> str:
        """Scope id without the organisation in front of a tag, which everybody who may see the budget knows."""
        return self.scope_id.removeprefix(f"{self.organisation_id}/") if self.scope == "tag" else self.scope_id


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A budget's standing at the moment `at_us` (microseconds since 1970), as the database has it."""

    budget: Budget
    at_us: int
    spent_nanousd: int
    """Booked in the period that `at_us` lies in."""
    held_nanousd: int = 0
    """Granted to processes: held by running requests, kept for the next ones, or settled and not yet in the database.
    """

    calendar: Calendar = UTC_CALENDAR

    @property
    def limit_nanousd(self) -> int:
        """The limit in force."""
        return self.budget.limit_at(self.at_us)

    @property
    def start_us(self) -> int:
        """First microsecond of the current period."""
        return start_us(self.budget.period, self.at_us, self.calendar)

    @property
    def resets_us(self) -> int:
        """First microsecond of the next period; `NEVER_US` where none follows."""
        return end_us(self.budget.period, self.at_us, self.calendar)

    @property
    def renews_us(self) -> int | None:
        """The same; None where no period follows."""
        return self.resets_us if PERIODS[self.budget.period].renews else None

    @property
    def share(self) -> Decimal | None:
        """Spent / limit from 0 up, to four places, rounded down; None for a limit of 0."""
        limit = self.limit_nanousd
        return (Decimal(self.spent_nanousd) / limit).quantize(_SHARE, "ROUND_DOWN") if limit else None

    def reached(self, percent: int) -> bool:
        """Return True if something was spent and it is at least `percent` of the limit."""
        return self.spent_nanousd > 0 and self.spent_nanousd * _PERCENT >= self.limit_nanousd * percent

    @property
    def state(self) -> State:
        """`spent` from 100 % of the limit on, `warning` from 80 % on, else `open`."""
        if self.spent_nanousd >= self.limit_nanousd:
            return "spent"
        return "warning" if self.reached(_WARNING_PERCENT) else "open"


def tag_id(organisation_id: str, tag: str) -> str:
    """Return a tag's scope id, `organisation/tag`, since two organisations may use the same tag."""
    return f"{organisation_id}/{tag}"


def limit_from_usd(dollars: Decimal | str | int) -> int:
    """Return a dollar limit in nano-dollars. Raises BadBudget if it is no number, too fine, negative or too large."""
    try:
        exact = Decimal(dollars)
        # Compared first: a whole number of a million digits takes a while to make.
        if not 0 <= exact <= MAX_LIMIT_NANOUSD // NANO_PER_USD:
            raise BadBudget(_LIMIT)
        return nanousd(exact)
    except (ValueError, ArithmeticError) as error:
        raise BadBudget("a limit is an amount of dollars such as 500 or 0.25, with at most 9 decimals") from error


def check_id(budget_id: str) -> None:
    """Raise UnknownBudget for text that no budget id can be; PostgreSQL would fail on some of it, such as a NUL."""
    if not _ID.match(budget_id):
        raise UnknownBudget(f"there is no budget {budget_id[:80]!r}")


def checked(budget: Budget) -> Budget:
    """Return the budget unchanged. Raises BadBudget when one of its fields is not valid."""
    if not _ID.match(budget.budget_id):
        raise BadBudget("a budget's id has 1 to 64 letters, digits, `_`, `.` or `-`")
    if not 0 < len(budget.scope_id) <= _MAX_SCOPE_ID or not budget.scope_id.isprintable():
        raise BadBudget(f"the id of a budget's {budget.scope} has 1 to {_MAX_SCOPE_ID} printable characters")
    if budget.scope == "organisation" and budget.scope_id != budget.organisation_id:
        raise BadBudget("an organisation's budget is its own")
    if budget.scope == "tag" and not _is_tag(budget):
        raise BadBudget(f"a budget's tag is one that requests can have: {TAG_RULE}")
    if budget.webhook and not _WEBHOOK.match(budget.webhook):
        raise BadBudget("a webhook's name has 1 to 64 of a-z, 0-9, _ and -, as in the configuration")
    check_limit(budget.limit_nanousd)
    return budget


def check_limit(limit_nanousd: int) -> None:
    """Raise BadBudget for a limit that none can be."""
    if not 0 <= limit_nanousd <= MAX_LIMIT_NANOUSD:
        raise BadBudget(_LIMIT)


def _is_tag(budget: Budget) -> bool:
    tag = budget.scope_id.removeprefix(f"{budget.organisation_id}/")
    return tag != budget.scope_id and TAG.fullmatch(tag) is not None
