"""The budget and its status: scope, period, limit, and what is spent and held of it."""

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Final, Literal

import msgspec

from cost.amounts import BadAmount, amount_in
from cost.budgets.budget_errors import BadBudget, UnknownBudget
from cost.budgets.periods import PERIODS, Period, end_us, start_us
from cost.calendar import UTC_CALENDAR, Calendar
from cost.end_users import BOOKED
from cost.ledger.entries import TAG, TAG_RULE
from cost.prices import NANO_PER_USD, nanousd
from cost.scopes import ANY, LONGEST_ID, ROWS, Scope
from settings.key_ids import first_id

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


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Spending limit of one scope (`cost.scopes`) in each period.

    A `soft` budget only warns; a `hard` one is never overrun. `webhook` names the configured destination of its warnings; empty
    sends none.
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
        if at_us >= self.raised_until_us:
            return self.limit_nanousd
        # The budget's own may have been set, or topped up, above it since.
        return max(self.raised_nanousd, self.limit_nanousd)

    @property
    def shown_id(self) -> str:
        """Scope id as people write it: without the organisation, which everybody who may see the budget knows."""
        return ROWS[self.scope].shown(self.scope_id, self.organisation_id)

    @property
    def in_words(self) -> str:
        """Whose budget it is, such as: model `gpt-4o` of team `payments`."""
        return ROWS[self.scope].in_words(self.shown_id)

    @property
    def for_each(self) -> bool:
        """True if it is one budget for each value that has none of its own, and so has no spending itself."""
        row = ROWS[self.scope]
        return row.each and (self.shown_id == ANY or self.scope_id.endswith(f"/{ANY}"))

    def of_each(self, scope_id: str) -> "Budget":
        """Return this budget as it holds for one of those that it is for."""
        return msgspec.structs.replace(self, budget_id=f"{self.budget_id}/{scope_id}", scope_id=scope_id)


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected of a budget (`cost.budgets.outlook`)."""

    expected_nanousd: int | None
    """Counted by the end of the period; None where none ends."""
    runs_out_us: int | None
    """First microsecond of the UTC day on which the limit is reached; None if not before the reset."""


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
    outlook: Outlook | None = None
    """None where it is not known, or nobody asked for it."""

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
    def lasts(self) -> bool | None:
        """True if it is expected to last until its reset, or as far as is looked; None where that is not known."""
        if self.state == "spent":
            return False
        return None if self.outlook is None else self.outlook.runs_out_us is None

    @property
    def expected_nanousd(self) -> int | None:
        """Expected to be counted by the end of the period; None where that is not known, or no period ends."""
        return None if self.outlook is None else self.outlook.expected_nanousd

    @property
    def runs_out_us(self) -> int | None:
        """Day on which it is expected to be used up; None where it is already, or is not expected to be."""
        return None if self.outlook is None or self.state == "spent" else self.outlook.runs_out_us

    @property
    def state(self) -> State:
        """`spent` from 100 % of the limit on, `warning` from 80 % on, else `open`."""
        if self.spent_nanousd >= self.limit_nanousd:
            return "spent"
        return "warning" if self.reached(_WARNING_PERCENT) else "open"


def nearest(*levels: Iterable[Budget]) -> Iterator[Budget]:
    """Yield the budgets that hold: of each period and kind those of the first level that has any."""
    seen: set[tuple[Period, Kind]] = set()
    for level in levels:
        for budget in level:
            if (kind := (budget.period, budget.kind)) not in seen:
                seen.add(kind)
                yield budget


def split_id(budget_id: str) -> tuple[str, str]:
    """Return the id of the stored budget, and the scope id of the one that `of_each` made it for; empty for none."""
    stored, _, scope_id = budget_id.partition("/")
    return stored, scope_id


def limit_from_usd(dollars: Decimal | str | int) -> int:
    """Return a dollar limit in nano-dollars. Raises BadBudget if it is no number, too fine, negative or too large."""
    try:
        exact = amount_in(dollars) if isinstance(dollars, str) else Decimal(dollars)
        # Compared first: a whole number of a million digits takes a while to make.
        if not 0 <= exact <= MAX_LIMIT_NANOUSD // NANO_PER_USD:
            raise BadBudget(_LIMIT)
        return nanousd(exact)
    except BadAmount as error:
        raise BadBudget(str(error)) from error
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
    if not 0 < len(budget.scope_id) <= LONGEST_ID or not budget.scope_id.isprintable():
        raise BadBudget(f"the id of a budget's {budget.scope} has 1 to {LONGEST_ID} printable characters")
    if problem := _part_problem(budget):
        raise BadBudget(problem)
    if budget.scope == "organisation" and budget.scope_id != budget.organisation_id:
        raise BadBudget("an organisation's budget is its own")
    if budget.scope == "tag" and not _is_tag(budget):
        raise BadBudget(f"a budget's tag is one that requests can have: {TAG_RULE}")
    if budget.webhook and not _WEBHOOK.match(budget.webhook):
        raise BadBudget("a webhook's name has 1 to 64 of a-z, 0-9, _ and -, as in the configuration")
    if budget.webhook and budget.for_each:
        raise BadBudget("a budget for each one warns nobody: that would be a message for each of them")
    if budget.period == "prepaid" and budget.for_each:
        raise BadBudget("what is paid in is one's own: a budget for each one is for a time")
    check_limit(budget.limit_nanousd)
    return budget


def check_limit(limit_nanousd: int) -> None:
    """Raise BadBudget for a limit that none can be."""
    if not 0 <= limit_nanousd <= MAX_LIMIT_NANOUSD:
        raise BadBudget(_LIMIT)


def _part_problem(budget: Budget) -> str:
    """Return what is wrong with the id of a part of somebody's spending; empty for nothing."""
    row = ROWS[budget.scope]
    if row.owner is None or (row.each and budget.shown_id == ANY):
        return ""
    owner, _, value = budget.scope_id.partition("/")
    if not value or not owner or owner == ANY or (row.owner == "organisation" and owner != budget.organisation_id):
        every = f", TEAM/{ANY} for each one of a team, or {ANY} for each one of every team" if row.each else ""
        within = "TEAM/" if row.owner == "team" else ""
        return f"the id of the budget of one {row.label} is {within}{row.dimension.upper()}{every}"
    if value == ANY and not row.each:
        return f"there is no budget for each {row.label}: name one"
    if row.each and value != ANY and BOOKED.fullmatch(value) is None:
        return "an end user is as the books have it; GET /v1/usage?group_by=end_user has those that called"
    if row.of_target and budget.kind == "soft" and budget.on_exhausted == "downgrade":
        return f"a soft budget of one {row.label} only warns; a hard one sends requests elsewhere"
    return ""


def _is_tag(budget: Budget) -> bool:
    tag = budget.scope_id.removeprefix(f"{budget.organisation_id}/")
    return tag != budget.scope_id and TAG.fullmatch(tag) is not None
