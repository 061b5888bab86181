"""The holdout experiment: two equal random shares of `auto` traffic, one sent to the reference, one routed as usual.

The baseline in the ledger is a model: what the same tokens would have cost elsewhere. Another model writes longer or
shorter answers, so only requests that really went there tell what they cost. Requests are the unit: all of a request's
attempts count, and one that nobody settled does not.

Requests are booked at the planned rate. Spending beside requests (idle GPUs, the true-up, shadow calls, the gateway)
belongs to usual routing, so each request of the control carries its part of it; the reference needs none of it.
"""

import hashlib
import math
from typing import Final

import msgspec

from cost.ledger.entries import Arm

_KEY: Final = b"weighbridge holdout"
"""Hash key that makes this draw independent of every other draw from a request's id."""
_SPAN: Final = 1 << 64
FEWEST_IN_AN_ARM: Final = 30
"""Fewest requests in each arm: below this the interval's normal approximation means nothing."""
_Z95: Final = 1.959963984540054
MOST_SHARE: Final = 0.5


def arm_of(request_id: str, share: float) -> Arm:
    """Return a request's arm, drawn from a hash of its id: `share` of them `holdout`, as many `control`, else empty."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=8, key=_KEY).digest()
    width = int(min(share, MOST_SHARE) * _SPAN)
    place = int.from_bytes(digest, "big")
    if place < width:
        return "holdout"
    return "control" if place < 2 * width else ""


class ArmSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over one arm's priced requests: count, cost, and sum of squared costs in nano-dollars squared."""

    requests: int = 0
    cost_nanousd: int = 0
    squares: float = 0.0
    unpriced: int = 0
    """Requests left out of the figures above: at least one of their attempts has no price."""

    def plus(self, more: "ArmSums") -> "ArmSums":
        """Return the sums of both."""
        return ArmSums(
            requests=self.requests + more.requests,
            cost_nanousd=self.cost_nanousd + more.cost_nanousd,
            squares=self.squares + more.squares,
            unpriced=self.unpriced + more.unpriced,
        )


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The measured saving per request as a share of the holdout's cost, with its 95 % confidence interval."""

    saving: float
    low: float
    high: float
    beside_nanousd: int = 0
    """Nano-dollars of spending beside requests that were added to each request of the control."""


def measured(holdout: ArmSums, control: ArmSums, beside_nanousd: int = 0) -> Measured | None:
    """Return 1 - mean(control) / mean(holdout) with a 95 % interval; None while an arm is too small or costs nothing.

    `beside_nanousd` comes on top of each request of the control. With R the ratio of the means, log R is close to
    normal with the variance s_c² / (n_c·m_c²) + s_h² / (n_h·m_h²): the delta method on the logarithm, as for the log
    response ratio in Hedges, Gurevitch and Curtis (1999), "The meta-analysis of response ratios in experimental
    ecology", Ecology 80(4), 1150-1156. The interval R·exp(±1.96·error) never claims that a request costs less than
    nothing.
    """
    if min(holdout.requests, control.requests) < FEWEST_IN_AN_ARM:
        return None
    elsewhere = holdout.cost_nanousd / holdout.requests
    here = control.cost_nanousd / control.requests + beside_nanousd
    if elsewhere <= 0 or here <= 0:
        return None
    ratio = here / elsewhere
    error = math.sqrt(_variance_of_mean(holdout) / elsewhere**2 + _variance_of_mean(control) / here**2)
    return Measured(
        saving=1 - ratio,
        low=1 - ratio * math.exp(_Z95 * error),
        high=1 - ratio * math.exp(-_Z95 * error),
        beside_nanousd=beside_nanousd,
    )


def _variance_of_mean(arm: ArmSums) -> float:
    """Return the variance of the arm's mean cost: sample variance / n."""
    mean = arm.cost_nanousd / arm.requests
    return max(0.0, arm.squares - arm.cost_nanousd * mean) / (arm.requests - 1) / arm.requests
