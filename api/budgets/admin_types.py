"""Reply types of the admin API's budgets."""

from decimal import Decimal

import msgspec


class BudgetOut(msgspec.Struct, frozen=True, kw_only=True):
    """A budget and its standing, with exact amounts."""

    id: str
    scope: str
    scope_id: str
    period: str
    kind: str
    limit_usd: Decimal
    on_exhausted: str
    webhook: str | None
    spent_usd: Decimal | None
    held_usd: Decimal | None
    left_usd: Decimal | None
    share: Decimal | None
    state: str
    forecast_usd: Decimal | None
    """Expected by the reset, from the last 28 days; null where that is not known, or nothing resets."""
    lasts: bool | None
    """Whether it is expected to last until then; null where that is not known."""
    runs_out_on: str | None
    """The UTC day on which it is expected to be used up before that."""
    period_start: str | None
    """Null for what never renews."""
    resets_at: str | None
    time_zone: str
    raised_limit_usd: Decimal | None
    """The limit in force before `raised_until`."""
    raised_until: str | None
    object: str = "budget"


class TopupOut(msgspec.Struct, frozen=True, kw_only=True):
    """An amount paid into a prepaid budget."""

    id: str
    amount_usd: Decimal
    note: str
    at: str
    object: str = "budget.topup"
