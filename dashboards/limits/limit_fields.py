"""Form fields of limits and budgets, shared by the pages of keys and of budgets."""

from decimal import Decimal
from typing import Any, Final

import msgspec

from cost.budgets.budget import limit_from_usd
from cost.budgets.budget_errors import BadBudget
from cost.budgets.periods import PERIODS
from dashboards.web.forms import Form, FormError
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.rules import LEAST, MOST, Rule

FIELDS: Final = (
    ("requests_per_minute", "Requests a minute", "0: no limit."),
    ("request_burst", "Requests at once after a pause", "A minute's worth when left empty."),
    ("tokens_per_minute", "Tokens a minute", "Prompt and answer together. 0: no limit."),
    ("token_burst", "Tokens at once after a pause", "A minute's worth when left empty."),
    ("concurrency", "Requests in flight", "At the same time. 0: no limit."),
)
"""A limit's values: name, label, and hint."""
HEADINGS: Final = {
    "requests_per_minute": "Requests/min",
    "request_burst": "Burst",
    "tokens_per_minute": "Tokens/min",
    "token_burst": "Token burst",
    "concurrency": "In flight",
}
"""Column headings by name."""
PERIOD_CHOICES: Final = tuple((name, row.every) for name, row in PERIODS.items())
KINDS: Final = (("soft", "Soft: only warns"), ("hard", "Hard: never overrun"))
KIND_NOTE: Final = (
    "A hard budget refuses what would overrun it; a soft one warns at 50, 80 and 100 % and refuses nothing."
)
ENDS: Final = (
    ("refuse", "Refuse (hard), warn (soft)"),
    ("downgrade", "Use the cheapest model"),
)
_MOST_USD: Final = Decimal(10) ** 9


def limits_in(form: Form) -> Limits:
    """Return limits from a form; empty fields fall back to the configuration's. Raises FormError."""
    return Limits(**{name: form.whole(name, least=LEAST[name], most=MOST[name]) for name, _, _ in FIELDS})


def limits_as_form(limits: Limits) -> dict[str, Any]:
    """Return limits as form values; '' where the configuration's apply."""
    return {name: "" if value is None else value for name, value in msgspec.structs.asdict(limits).items()}


def rule_in_words(rule: Rule) -> dict[str, str]:
    """Return a rule's values in words: `default` for the configuration's limit, `no limit` for 0."""
    values = msgspec.structs.asdict(rule.limits)
    return {
        name: "default" if value is None else f"{value:,}" if value else "no limit" for name, value in values.items()
    }


def dollars_in(form: Form, name: str) -> int | None:
    """Return an amount in nano-dollars, or None when the field is empty. Raises FormError."""
    amount = form.decimal(name, most=_MOST_USD)
    if amount is None:
        return None
    try:
        return limit_from_usd(amount)
    except BadBudget as error:
        raise FormError(name, "An amount of dollars such as 500 or 0.25, with at most 9 decimals.") from error
