"""What can go wrong with the books."""

from datetime import datetime
from decimal import Decimal


class LedgerUnavailable(Exception):
    """An attempt cannot be booked, so it must not be made: the journal is full, closed or cannot be written."""


class EntriesRefused(Exception):
    """The database answers, and will never take at least one of these entries as it is."""


class StoreUnreachable(Exception):
    """The database does not answer; what was to be written stays in the journal."""


_ADJECTIVES = {"day": "daily", "week": "weekly", "month": "monthly"}


class BudgetExceeded(Exception):
    """A hard budget has no room for an attempt, so it must not be made. The message is safe to show its caller."""

    def __init__(
        self,
        *,
        scope: str,
        scope_id: str,
        period: str,
        limit_nanousd: int,
        resets_at: datetime,
        downgrade: bool = False,
        spent: bool = True,
        retry_after_s: float = 0.0,
    ) -> None:
        exact = Decimal(limit_nanousd) / 1_000_000_000
        limit = f"${exact:,.2f}" if exact == round(exact, 2) else f"${exact:,f}"
        whose = f"The {_ADJECTIVES.get(period, period)} budget of {scope} `{scope_id}` ({limit})"
        why = "is used up." if spent else "has no room left for what this request may cost."
        hint = "" if spent else " A smaller `max_tokens` or a cheaper model may still fit."
        super().__init__(f"{whose} {why}{hint} It resets at {resets_at:%Y-%m-%dT%H:%M:%SZ}.")
        self.spent = spent
        """Nothing fits any more, rather than this one request."""
        self.retry_after_s = retry_after_s
        self.scope = scope
        self.scope_id = scope_id
        self.period = period
        self.limit_nanousd = limit_nanousd
        self.resets_at = resets_at
        self.downgrade = downgrade
        """Its owner would rather have the cheapest capable target than a refusal."""


class BudgetsUnavailable(Exception):
    """Whether a hard budget has room cannot be told now, so the attempt must not be made."""


class UnpricedUnderBudget(Exception):
    """A target without a price cannot be held against a hard budget, so it must not be called."""


class PriceError(Exception):
    """Something about a price that its reader can mend. The message says what."""


class PriceTableMissing(PriceError):
    """litellm's table of prices cannot be had."""


class UnknownPrice(PriceError):
    """No such version of a target's price, or no such name in a table."""


class PriceRefused(PriceError):
    """A price cannot be entered or taken back as asked."""
