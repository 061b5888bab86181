"""Errors of the ledger, of budgets and of prices that other packages handle."""

from datetime import datetime

from cost.scopes import ROWS, Scope
from cost.shown import fine_money


class LedgerUnavailable(Exception):
    """The attempt cannot be booked and must not be made: the journal is full, closed or cannot be written."""


class EntriesRefused(Exception):
    """The database will never take at least one of these entries as it is; retrying is useless."""


class StoreUnreachable(Exception):
    """The database did not answer; what was to be written stays in the journal."""


class BudgetExceeded(Exception):
    """A hard budget has no room for the attempt, which must not be made. The message is safe to show its caller."""

    def __init__(
        self,
        *,
        scope: Scope,
        scope_id: str,
        period_adjective: str,
        limit_nanousd: int,
        resets_at: datetime | None,
        downgrade: bool = False,
        spent: bool = True,
        retry_after_s: float = 0.0,
        left_nanousd: int = 0,
    ) -> None:
        budget = f"The {period_adjective} budget of {ROWS[scope].in_words(scope_id)} ({fine_money(limit_nanousd)})"
        why = "is used up." if spent else "has no room left for what this request may cost."
        self._why = f"{budget} {why}"
        self.advice = "" if spent else "A smaller `max_tokens` or a cheaper model may still fit."
        """What its caller may do; whoever knows the request says it better."""
        super().__init__(self._why)
        self.spent = spent
        """True if nothing fits any more; False if only this request is too large."""
        self.left_nanousd = left_nanousd
        """What an attempt may cost at most to fit, as far as the process knew."""
        self.retry_after_s = retry_after_s
        self.scope = scope
        self.scope_id = scope_id
        self.period_adjective = period_adjective
        self.limit_nanousd = limit_nanousd
        self.resets_at = resets_at
        self.downgrade = downgrade
        """True if the budget's owner prefers the cheapest capable target to a refusal."""

    def __str__(self) -> str:
        renewed = "It does not renew; its owner can raise it or pay in."
        if self.resets_at is not None:
            renewed = f"It resets at {self.resets_at:%Y-%m-%dT%H:%M:%SZ}."
        return " ".join(filter(None, (self._why, self.advice, renewed)))


class BudgetsUnavailable(Exception):
    """The database did not say in time whether a hard budget has room, so the attempt must not be made."""


class UnpricedUnderBudget(Exception):
    """The target has no price, so it cannot be held against a hard budget and must not be called."""


class PriceError(Exception):
    """Base of price errors; the message is for the operator and says what to change."""


class PriceTableMissing(PriceError):
    """litellm's price table is missing or cannot be read."""


class UnknownPrice(PriceError):
    """No such version of a target's price, or no such name in a price table."""


class PriceRefused(PriceError):
    """The price cannot be entered, corrected or withdrawn as asked."""
