"""Two verdicts on own GPUs: against the baseline model, and against what routing would have bought for the same requests without GPUs.

The first says what the promise was made about; the second what the GPUs themselves are worth, since routing alone saves most of the
first. Both hang on how busy replicas are, so both are told at every utilisation, with the one at which each is crossed.
"""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, Literal

import msgspec

from cost.fleet.bill import rate_of
from cost.fleet.pool_config import PoolSection
from cost.prices import usd
from cost.savings.comparisons import floor, needed_utilisation, saving_share

Against = Literal["reference", "routed"]
BUSY: Final = tuple(Decimal(each) / 100 for each in (10, 20, 30, 40, 50, 60, 70, 80, 90, 95))
"""Utilisations that the verdicts are told at."""
_US: Final = 1_000_000


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a pool that could be served otherwise, too: the cost there, and the time of replicas that they take here."""

    nanousd: int
    work_s: float

    def busy_nanousd(self, pool: PoolSection) -> Fraction:
        """Return the cost here on replicas that are busy all the time."""
        return rate_of(pool) * Fraction(self.work_s).limit_denominator(10**6) * _US


def verdict_of(baseline_nanousd: int, cost_nanousd: int | Fraction, target: Decimal) -> dict[str, Any]:
    """Return the share that is saved, rounded down, and whether that is the target."""
    if baseline_nanousd <= 0:
        return {"savings_share": None, "verdict": "nothing to compare with"}
    share = saving_share(baseline_nanousd, cost_nanousd)
    met = share is not None and share >= Fraction(target)
    return {"savings_share": None if share is None else floor(share), "verdict": "met" if met else "not met"}


def by_utilisation(pool: PoolSection, elsewhere: Mapping[Against, Elsewhere], target: Decimal) -> list[dict[str, Any]]:
    """Return both verdicts on the pool's requests at each of `BUSY`."""
    return [
        {
            "busy": busy,
            **{
                against: {
                    "usd": usd(round(each.busy_nanousd(pool) / Fraction(busy))),
                    **verdict_of(each.nanousd, each.busy_nanousd(pool) / Fraction(busy), target),
                }
                for against, each in elsewhere.items()
            },
        }
        for busy in BUSY
    ]


def crossings(pool: PoolSection, elsewhere: Mapping[Against, Elsewhere], target: Decimal) -> dict[str, Any]:
    """Return, of each comparison, the cost elsewhere and the utilisations from which on anything, and the target, is saved; above 1 none
    does, and None is where there is nothing to compare with.
    """
    return {
        against: {
            "elsewhere_usd": usd(each.nanousd),
            "break_even": _rounded(needed_utilisation(each.busy_nanousd(pool), each.nanousd, Decimal(0))),
            "target": _rounded(needed_utilisation(each.busy_nanousd(pool), each.nanousd, target)),
        }
        for against, each in elsewhere.items()
    }


def _rounded(value: Fraction | None) -> float | None:
    return None if value is None else round(float(value), 4)
