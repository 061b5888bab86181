"""Cost of a million tokens on one's own GPUs, and the utilisation at which that saves money. Dollars are exact.

A GPU costs its hours up, busy or not: so cost per token is what an hour costs by the tokens of that hour, and the
saving is decided by utilisation. What must be reached to save a share s against a price p is

    cost(fully used) / (p x (1 - s))

and more than 100 % of it is impossible.
"""

from decimal import Decimal
from typing import Final, Literal

import msgspec

from planner.plans.comparators import Comparator
from planner.plans.plan_errors import PlanRefused

SAVINGS_TARGET: Final = Decimal("0.40")
HOURS_A_YEAR: Final = 24 * 365
_HOUR_S: Final = 3_600
_MILLION: Final = 1_000_000

Verdict = Literal["met", "not met at this load", "impossible"]


def usd_per_million(
    *, gpus: int, usd_per_gpu_hour: Decimal, tokens_per_s: Decimal, overhead: Decimal = Decimal(1)
) -> Decimal:
    """Return the dollars per million tokens at a constant throughput. Raises PlanRefused when that is 0."""
    if tokens_per_s <= 0:
        raise PlanRefused("nothing flows, so a token has no cost")
    return gpus * usd_per_gpu_hour * overhead / (tokens_per_s * _HOUR_S) * _MILLION


def required_utilisation(
    full_usd_per_million: Decimal, comparator_usd_per_million: Decimal, saving: Decimal = SAVINGS_TARGET
) -> Decimal | None:
    """Return the utilisation at which the saving is reached, by the module's formula (above 1 is impossible); None
    against a price of 0.
    """
    allowed = comparator_usd_per_million * (1 - saving)
    return None if allowed <= 0 else full_usd_per_million / allowed


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """The cost compared with one provider's price."""

    comparator: str
    title: str
    as_of: str
    state: str
    comparator_usd_per_million: Decimal
    saving_at_planned_load: Decimal | None
    """1 - ours / theirs; negative where we cost more."""
    required_utilisation: Decimal | None
    verdict: Verdict


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a plan."""

    gpus: int
    usd_per_gpu_hour: Decimal
    price_source: str
    overhead: Decimal
    usd_per_hour: Decimal
    usd_per_month: Decimal
    usd_per_year: Decimal
    planned_tokens_per_s: Decimal
    full_tokens_per_s: Decimal
    utilisation: Decimal
    """Planned load as a fraction of what the GPUs would carry if latency did not matter."""
    usd_per_million_planned: Decimal
    usd_per_million_full: Decimal
    usd_per_million_output_full: Decimal
    """Dollars per million at full use when all cost is put on output tokens."""
    savings: tuple[Saving, ...]
    savings_target: Decimal
    batch: bool


def cost_of(
    *,
    gpus: int,
    usd_per_gpu_hour: Decimal,
    price_source: str,
    overhead: Decimal,
    requests_per_s: Decimal,
    full_requests_per_s: Decimal,
    input_tokens: int,
    output_tokens: int,
    comparators: tuple[Comparator, ...],
    cached_share: Decimal,
    saving: Decimal = SAVINGS_TARGET,
    batch: bool = False,
) -> Cost:
    """Compute the cost of a plan, per hour and per million tokens, and the saving against each comparator."""
    tokens = input_tokens + output_tokens

    def million(flow: Decimal) -> Decimal:
        return usd_per_million(gpus=gpus, usd_per_gpu_hour=usd_per_gpu_hour, tokens_per_s=flow, overhead=overhead)

    hour = gpus * usd_per_gpu_hour * overhead
    planned, full = million(requests_per_s * tokens), million(full_requests_per_s * tokens)
    utilisation = requests_per_s / full_requests_per_s
    return Cost(
        gpus=gpus,
        usd_per_gpu_hour=usd_per_gpu_hour,
        price_source=price_source,
        overhead=overhead,
        usd_per_hour=hour,
        usd_per_month=hour * HOURS_A_YEAR / 12,
        usd_per_year=hour * HOURS_A_YEAR,
        planned_tokens_per_s=requests_per_s * tokens,
        full_tokens_per_s=full_requests_per_s * tokens,
        utilisation=utilisation,
        usd_per_million_planned=planned,
        usd_per_million_full=full,
        usd_per_million_output_full=million(full_requests_per_s * output_tokens),
        savings=tuple(
            _saving(
                each,
                each.blended_usd(input_tokens, output_tokens, cached_share=cached_share, batch=batch),
                planned,
                full,
                utilisation,
                saving,
            )
            for each in comparators
        ),
        savings_target=saving,
        batch=batch,
    )


def _saving(
    comparator: Comparator, theirs: Decimal, planned: Decimal, full: Decimal, utilisation: Decimal, saving: Decimal
) -> Saving:
    needed = required_utilisation(full, theirs, saving)
    return Saving(
        comparator=comparator.name,
        title=comparator.title,
        as_of=comparator.as_of,
        state=comparator.state,
        comparator_usd_per_million=theirs,
        saving_at_planned_load=None if theirs <= 0 else 1 - planned / theirs,
        required_utilisation=needed,
        verdict=_verdict(needed, utilisation),
    )


def _verdict(needed: Decimal | None, utilisation: Decimal) -> Verdict:
    if needed is None or needed > 1:
        return "impossible"
    return "met" if utilisation >= needed else "not met at this load"
