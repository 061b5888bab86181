"""Two cheap answers before a dear one: what a pair of targets is expected to give and to cost, and which pair is asked.

Two targets are asked beside each other; what they agree on is the answer, and where they differ a third one, no worse than the plan's own
choice, is asked. The rule is that of `classifier/frontier.py`: of all pairs and the plan's own choice the one of the greatest net benefit.
With a and b the chances that the two answers are right, p that of the third, and c their costs, each by the worse assumption of what two
wrong answers do:

    quality  ab + (1 - ab - (1-a)(1-b)) p, and p at most      they always say the same, so the third is not asked
    cost     c_a + c_b + (1 - ab) c_p                         they never say the same, so it is

That the chances of one prompt are independent is assumed of right answers, and by that three models together would nearly always be
better than each. It does not hold so far: what one gets wrong is harder for the others, too. So a pair is a cheaper way to the third one's quality,
never to more. What comes of it shows the measure on known outcomes (`classifier/training/cascade.py`). Of two models that are both wrong
about a question with four options, 60 of 100 give the same wrong answer (Kim et al., Correlated Errors in Large Language Models, ICML 2025).
"""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.frontier import Columns, Floats, least_chance, likened

MOST_OPTIONS: Final = 8
"""The cheapest targets of a prompt that pairs are made of."""
MOST_THIRDS: Final = 4
"""The cheapest of those that may be asked where the two differ."""
MOST_WRONG_UNASKED: Final = 0.02
"""The most that two targets' chance of both being wrong may be where nobody opted in; nor may they cost more than the plan's own
choice.
"""


class Pairs(msgspec.Struct, frozen=True):
    """For each of n prompts the columns of the two that are asked first, the likelier one first, and of the one that is asked where they
    differ; -1 where the plan's own choice is asked at once.
    """

    first: Columns
    second: Columns
    third: Columns

    @property
    def used(self) -> NDArray[np.bool_]:
        """(n,): the prompts for which two are asked."""
        return np.asarray(self.first >= 0)


def choose_pairs(
    adequate: Floats,
    cost: Floats,
    planned: Columns,
    willingness: float,
    reference: Floats,
    most: float,
    *,
    unasked: bool = False,
    share: float = 1.0,
) -> Pairs:
    """Return for each prompt the pair of the greatest net benefit, where that is greater than the planned target's.

    `adequate` and `cost` are (n, T), with -inf for the chance of whom a prompt does not fit; `reference` is the reference's chance, `most` what one
    prompt may lose against it.
    `share` is what the chance of agreement is multiplied with, as answers of a form may agree more seldom than they are right.
    """
    rows = np.arange(len(planned))
    able = np.isfinite(adequate)
    chance, price = np.where(able, adequate, 0.0), np.where(able, cost, np.inf)
    right, now = chance[rows, planned], price[rows, planned]
    best = willingness * likened(right[:, None], reference, most)[:, 0] - now
    least = least_chance(adequate, reference, most)[:, None]
    found = tuple(np.full(len(rows), -1, np.intp) for _ in range(3))
    cheap = _cheapest(price, MOST_OPTIONS)
    thirds = _cheapest(np.where(chance >= right[:, None], price, np.inf), MOST_THIRDS)
    one, other = (cheap[:, each] for each in np.triu_indices(cheap.shape[1], 1))
    if not one.shape[1]:
        return Pairs(*found)
    a, b = (chance[rows[:, None], each] for each in (one, other))
    both, spent = share * a * b, price[rows[:, None], one] + price[rows[:, None], other]
    wrong = (1 - a) * (1 - b)
    # One model under two names has one chance, and agrees with itself.
    open_ = np.isfinite(spent) & (a != b)
    if unasked:
        open_ &= wrong <= MOST_WRONG_UNASKED
    for third in thirds.T:
        p, last = chance[rows, third][:, None], price[rows, third][:, None]
        may = (p >= right[:, None]) & np.isfinite(last)
        if not may.any():
            # They come in the order of their prices, those that are not good enough last.
            break
        quality = np.minimum(both + (1 - both - wrong) * p, p)
        expected = spent + (1 - both) * np.where(may, last, 0.0)
        pays = open_ & may & (a != p) & (b != p)
        pays &= quality >= least
        if unasked:
            pays &= expected <= now[:, None]
        benefit = np.where(
            pays, willingness * likened(quality, reference, most) - np.where(pays, expected, 0.0), -np.inf
        )
        at = benefit.argmax(axis=1)
        better = benefit[rows, at] > best
        best = np.where(better, benefit[rows, at], best)
        swapped = a[rows, at] < b[rows, at]
        two = (one[rows, at], other[rows, at])
        chosen = (np.where(swapped, two[1], two[0]), np.where(swapped, two[0], two[1]), third)
        found = tuple(np.where(better, new, old) for new, old in zip(chosen, found, strict=True))
    return Pairs(*found)


def _cheapest(price: Floats, most: int) -> Columns:
    """Return (n, most): the columns of the lowest prices, rising, the first of equals first. Where fewer are finite, a column
    comes again. To sort hundreds of them takes longer.
    """
    left, rows = price.copy(), np.arange(len(price))
    found = np.empty((len(price), min(most, price.shape[1])), dtype=np.intp)
    for place in range(found.shape[1]):
        found[:, place] = left.argmin(axis=1)
        left[rows, found[:, place]] = np.inf
    return found
