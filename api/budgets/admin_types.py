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
    share: Decimal | None
    state: str
    period_start: str
    resets_at: str
    object: str = "budget"
