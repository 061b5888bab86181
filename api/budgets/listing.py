"""JSON of budgets: the body that sets one, and its standing as the APIs return it."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Final

import msgspec

from api.web.api_types import Reason
from cost.budgets.alerts import dollars
from cost.budgets.budget import Budget, BudgetStatus, Kind, OnExhausted, limit_from_usd
from cost.budgets.budget_errors import BadBudget
from cost.budgets.periods import Period
from cost.budgets.topups import MAX_NOTE, Topup
from cost.scopes import LONGEST_ID, ROWS, Scope
from cost.times import day_of, in_us, iso
from settings.decoding import DECODE_ERRORS

_MAX_NAME: Final = 64


class EnteredBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /v1/budgets/{id}. `scope_id` is as people write it (`cost.scopes.ScopeRow.stored`)."""

    scope: Scope
    scope_id: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_ID)]
    period: Period
    limit_usd: Decimal
    kind: Kind = "soft"
    on_exhausted: OnExhausted = "refuse"
    webhook: Annotated[str, msgspec.Meta(max_length=_MAX_NAME)] = ""

    def budget(self, budget_id: str, organisation_id: str) -> Budget:
        """Return the body as a stored budget. Raises BadBudget."""
        return Budget(
            budget_id=budget_id,
            organisation_id=organisation_id,
            scope=self.scope,
            scope_id=ROWS[self.scope].stored(self.scope_id, organisation_id),
            period=self.period,
            kind=self.kind,
            limit_nanousd=limit_from_usd(self.limit_usd),
            on_exhausted=self.on_exhausted,
            webhook=self.webhook,
        )


class EnteredRaise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST …/budgets/{id}/raise: the limit until then. Without `until` a raise ends now."""

    limit_usd: Decimal | None = None
    until: Annotated[datetime, msgspec.Meta(tz=True, description="With its time zone.")] | None = None
    reason: Reason = ""

    @property
    def until_us(self) -> int:
        """Moment of its end in microseconds since 1970; 0 to end it now."""
        return 0 if self.until is None else in_us(self.until)


class EnteredTopup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST …/budgets/{id}/topups. The same `id` is paid in once, however often it is sent."""

    amount_usd: Annotated[Decimal, msgspec.Meta(description="Dollars; a negative amount takes back.")]
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_NAME)] | None = None
    note: Annotated[str, msgspec.Meta(max_length=MAX_NOTE)] = ""


def topup_as_json(topup: Topup) -> dict[str, Any]:
    """Return a top-up, with its exact amount as a Decimal."""
    return {
        "id": topup.topup_id,
        "object": "budget.topup",
        "amount_usd": Decimal(dollars(topup.amount_nanousd)),
        "note": topup.note,
        "at": iso(topup.at_us),
    }


def parse_budget(body: bytes) -> EnteredBudget:
    """Decode a body. Amounts are read as decimals, never through floats. Raises BadBudget."""
    try:
        return msgspec.json.decode(body, type=EnteredBudget)
    except DECODE_ERRORS as error:
        raise BadBudget(str(error)) from error


def member_budget_as_json(standing: BudgetStatus) -> dict[str, Any]:
    """Return a budget for a member key. A tag's spend is null, because it includes other teams' spend."""
    found = budget_as_json(standing)
    shared = ROWS[standing.budget.scope].owner == "organisation"
    hidden = dict.fromkeys(("spent_usd", "held_usd", "left_usd", "share", "forecast_usd", "lasts", "runs_out_on"))
    return {**found, **hidden} if shared else found


def budget_as_json(standing: BudgetStatus) -> dict[str, Any]:
    """Return a budget and its standing, with exact amounts as Decimals."""
    budget = standing.budget
    raised = standing.at_us < budget.raised_until_us
    return {
        "id": budget.budget_id,
        "object": "budget",
        "scope": budget.scope,
        "scope_id": budget.shown_id,
        "period": budget.period,
        "kind": budget.kind,
        "limit_usd": Decimal(dollars(budget.limit_nanousd)),
        "on_exhausted": budget.on_exhausted,
        "webhook": budget.webhook or None,
        # One for each end user has no spending itself.
        "spent_usd": None if budget.for_each else Decimal(dollars(standing.spent_nanousd)),
        "held_usd": None if budget.for_each else Decimal(dollars(standing.held_nanousd)),
        "left_usd": None if budget.for_each else Decimal(dollars(standing.limit_nanousd - standing.spent_nanousd)),
        "share": None if budget.for_each else standing.share,
        "state": standing.state,
        "forecast_usd": None if standing.expected_nanousd is None else Decimal(dollars(standing.expected_nanousd)),
        "lasts": standing.lasts,
        "runs_out_on": None if standing.runs_out_us is None else day_of(standing.runs_out_us).isoformat(),
        "period_start": None if standing.renews_us is None else iso(standing.start_us),
        "resets_at": None if standing.renews_us is None else iso(standing.renews_us),
        "time_zone": standing.calendar.at(standing.at_us).time_zone,
        "raised_limit_usd": Decimal(dollars(budget.raised_nanousd)) if raised else None,
        "raised_until": iso(budget.raised_until_us) if raised else None,
    }
