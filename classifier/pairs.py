"""Two cheap answers before a dear one: what a pair of targets is expected to keep and to cost, and which pair is asked.

With a and b the chances that two targets' answers are right, p that of the better target's, and c their costs, each by the worse
assumption of what two wrong answers do:

    quality  ab + (1 - ab - (1-a)(1-b)) p      they always say the same, so the better target is not asked
    cost     c_a + c_b + (1 - ab) c_p          they never say the same, so it is

That the chances of one prompt are independent is assumed of right answers; how far that holds shows the measure on known outcomes
(`classifier/training/cascade.py`). Of two models that are both wrong about a question with four options, 60 of 100 give the same wrong
answer (Kim et al., Correlated Errors in Large Language Models, ICML 2025).
"""

from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = NDArray[np.intp]
Number = TypeVar("Number", float, Floats)

PART_OF_COST: Final = 0.5
"""A target is asked as one of two only where it costs less than this part of the planned one."""

MOST_WRONG_UNASKED: Final = 0.02
"""Where nobody opted in, two are asked only if both are wrong with at most this chance. On known outcomes that lost nothing beyond noise,
whatever two wrong answers say, at minimums from 99 % on; without it up to 1.3 points.
"""


def expected_quality(one: Number, other: Number, planned: Number) -> Number:
    """The chance of a right answer where two are asked first."""
    both = one * other
    return both + (1 - both - (1 - one) * (1 - other)) * planned


def expected_cost(costs: Number, both: Number, planned: Number) -> Number:
    """What all calls cost together: `costs` are the two's, `both` is the chance that they agree, `planned` the planned target's cost."""
    return costs + (1 - both) * planned


class Pairs(msgspec.Struct, frozen=True):
    """For each of n prompts the columns of the two that are asked first; -1 where the planned target is asked at once."""

    first: Columns
    second: Columns

    @property
    def used(self) -> NDArray[np.bool_]:
        """(n,): the prompts for which two are asked."""
        return np.asarray(self.first >= 0)


def choose_pairs(
    adequate: Floats,
    cost: Floats,
    planned: Columns,
    reference: Floats,
    tolerance: float,
    most_wrong: float = 1.0,
) -> Pairs:
    """The pair of least expected cost for each prompt that keeps what the plan had to keep and costs less than what was planned.

    `adequate` and `cost` are (prompts, targets), `planned` the column of the planned target, `reference` the chance of the one that quality
    is measured against, `most_wrong` the greatest chance that both of a pair are wrong.
    """
    rows = np.arange(len(planned))
    right, price = adequate[rows, planned], cost[rows, planned]
    # Whom it does not fit is no alternative.
    right = np.where(np.isfinite(right), right, 0.0)
    least = np.minimum(reference - tolerance, right)
    best = price.astype(np.float64).copy()
    first, second = (np.full(len(rows), -1, np.intp) for _ in range(2))
    open_to = (cost < PART_OF_COST * price[:, None]) & np.isfinite(adequate) & (adequate != right[:, None])
    open_to &= (right > 0)[:, None]
    columns = adequate.shape[1]
    for one in range(columns):
        for other in range(one + 1, columns):
            a, b = (np.where(np.isfinite(adequate[:, each]), adequate[:, each], 0.0) for each in (one, other))
            spent = expected_cost(cost[:, one] + cost[:, other], a * b, price)
            # One model under two names has one chance, and agrees with itself.
            pays = open_to[:, one] & open_to[:, other] & (a != b) & (spent < best)
            pays &= (expected_quality(a, b, right) >= least) & ((1 - a) * (1 - b) <= most_wrong)
            best = np.where(pays, spent, best)
            better, lesser = np.where(a >= b, one, other), np.where(a >= b, other, one)
            first, second = np.where(pays, better, first), np.where(pays, lesser, second)
    return Pairs(first, second)
