"""The worth of an hour of one more replica: the spending elsewhere that it would save, beside its price.

The work that arrives is cut into grains of some seconds. Of each, a replica of rank r (the r-th that is up) carries what lies
above r - 1 replicas' throughput, up to its own. So its hours earn their keep when the share of time in which it would
have work, times what that work costs elsewhere, is above its price: newsvendor's rule, rank by rank.

How much of the past tells what comes differs: a day's course, a level that moved, bursts that are over before a
replica has started. Nobody knows which it is, so several rules run beside each other, each with a fleet on paper that
pays for its replicas from the order on, waits a cold start for each, and pays elsewhere for what it cannot carry. The
pool follows the rule whose fleet had the smallest bill. A rule that orders for bursts, which arrives too late for each,
pays twice on paper, and is not followed; nor is one that holds on to a fleet when the day is over. In the long run the
bill is about that of the best of them, and one of them holds a fleet still.
"""

import math
from collections.abc import Callable
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from cost.shown import percent

GRAIN_S: Final = 5.0
"""Time over which arriving work is averaged."""
DECIDE_S: Final = 15.0
"""Time between two looks of the rules at it."""
MOST_RANKS: Final = 1_024
"""Replicas whose worth is computed; more are not bought by it."""
HOLD_S: Final = 3_600.0
"""Time for which a replica is bought: it has to earn its price over that, with the cold start before it."""
_RECENT: Final = 720
_QUICK: Final = 120
# The long view, and the memory of the bills on paper, reach back about a day.
_LONG_S: Final = 86_400.0
# Ranks are bought and given up at different shares of busy time, so that noise moves nothing.
_BUY_ABOVE: Final = 1.02
_KEEP_ABOVE: Final = 0.9
# Another rule is followed when its bill is smaller by more than this part.
_BETTER_BY: Final = 0.02
# Time beyond a cold start for which a rule's replicas may lose before the rule is left.
_TRIAL_S: Final = 600.0
_MOST_RATIO: Final = 10.0
# A distribution's mean by its values at three points (Gauss and Hermite), in standard deviations, with their weights.
_POINTS: Final = ((-math.sqrt(3), 1 / 6), (0.0, 2 / 3), (math.sqrt(3), 1 / 6))
_LOOKS: Final = (0.0, 1 / 3, 2 / 3, 1.0)
_MOST_SAVED: Final = 4 * MOST_RANKS
_LARGEST: Final = 1e18
"""No saved number is as large, and none below it overflows."""

Busy = NDArray[np.float64]
"""The share of time, 0 to 1, in which the replica of each rank has work."""
RuleName = Literal["long", "season", "quick", "least"]
RULES: Final[tuple[RuleName, ...]] = ("long", "season", "quick", "least")
"""The last day; the last hour, scaled by what is usual then; the last ten minutes; the least that is allowed."""
_SAID: Final[dict[RuleName, str]] = {
    "long": "as the last day was",
    "season": "as the last hour was, and this time usually is",
    "quick": "as the last ten minutes were",
    "least": "as nothing more has been worth its hours",
}


class Market(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of an hour here and of the work elsewhere, at one moment."""

    replica_usd_per_s: float
    elsewhere_usd: float
    """Dollars per unit of work, at the cheapest capable alternative."""
    carries: float
    """Work per second of one busy replica."""

    @property
    def break_even(self) -> float:
        """Share of time that a replica must be busy to earn its price; above 1 it never does."""
        earns = self.elsewhere_usd * self.carries
        return self.replica_usd_per_s / earns if earns > 0 else math.inf


class _PaperFleet(msgspec.Struct):
    """A fleet on paper: its replicas, its orders, and its discounted bill."""

    ready: int = 0
    starting: list[float] = msgspec.field(default_factory=list)
    """Seconds until each of those that were ordered is ready."""
    usd: float = 0.0

    @property
    def supply(self) -> int:
        return self.ready + len(self.starting)

    def pay(self, replicas: float, market: Market, seconds: float, noise: float) -> None:
        """Pay for some seconds in which work for `replicas` replicas arrives, with a variance of `noise` for each."""
        self.starting = [left - seconds for left in self.starting]
        self.ready += sum(left <= 0 for left in self.starting)
        self.starting = [left for left in self.starting if left > 0]
        spread = math.sqrt(replicas * noise)
        more = sum([weight * max(0.0, replicas + point * spread - self.ready) for point, weight in _POINTS])
        overflow = min(replicas, more) * market.carries * market.elsewhere_usd
        self.usd += (self.supply * market.replica_usd_per_s + overflow) * seconds

    def order(self, replicas: int, cold_start_s: float) -> None:
        self.starting += [cold_start_s] * (replicas - self.supply)
        surplus = self.supply - replicas
        kept = max(0, len(self.starting) - max(0, surplus))
        self.ready -= max(0, surplus - len(self.starting))
        del self.starting[kept:]


class SavedWorth(msgspec.Struct):
    """The state that survives a restart."""

    grains: list[tuple[float, float | None]] = msgspec.field(default_factory=list)
    """Pairs of a grain's work per second, and what is usual at its time (None: unknown)."""
    busy: list[float] = msgspec.field(default_factory=list)
    weight: float = 0.0
    fleets: list[_PaperFleet] = msgspec.field(default_factory=list)
    follows: int = 0

    @property
    def sound(self) -> bool:
        """True when it can be worked with: the saved state may come from another version or be corrupt."""
        numbers = [self.weight, *self.busy, *(fleet.usd for fleet in self.fleets)]
        numbers += [each for grain in self.grains for each in grain if each is not None]
        numbers += [left for fleet in self.fleets for left in (fleet.ready, *fleet.starting)]
        small = len(self.grains) <= _RECENT and len(self.busy) <= MOST_RANKS and len(numbers) <= _MOST_SAVED
        whole = len(self.fleets) in {0, len(RULES)} and 0 <= self.follows < len(RULES)
        return small and whole and all(0 <= each < _LARGEST for each in numbers)


class Worth:
    """The number of replicas that is worth its hours, learned from the earnings that replicas would have had."""

    def __init__(
        self,
        *,
        least: int,
        most: int,
        cold_start_s: float,
        usual: Callable[[float], float | None],
        bears_s: float = math.inf,
        saved: SavedWorth | None = None,
    ) -> None:
        """`usual` tells the work per second that is usual at a time (seconds since the epoch); None when unknown. `bears_s` is
        the wait after which a request goes elsewhere.
        """
        self._least = least
        self._cold_start_s = cold_start_s
        self._usual = usual
        self._bears_s = max(bears_s, 1e-3)
        self._noise = 0.0
        self._ranks = np.arange(max(least, min(most, MOST_RANKS)), dtype=float)
        kept = saved if saved is not None and saved.sound else SavedWorth()
        self._grains = kept.grains
        self._busy = np.zeros(len(self._ranks))
        known = kept.busy[: len(self._ranks)]
        self._busy[: len(known)] = known
        self._weight = kept.weight
        self._fleets = kept.fleets or [_PaperFleet(ready=least) for _ in RULES]
        self._follows = kept.follows
        self._filling = (0.0, 0.0)
        self._undecided_s = 0.0
        self._decided = bool(kept.fleets)
        self._break_even = math.inf

    @property
    def wanted(self) -> int | None:
        """Replicas that are worth their hours, at least the minimum; None before the first decision."""
        return self._fleets[self._follows].supply if self._decided else None

    @property
    def why(self) -> str:
        """Explanation for people."""
        rule = RULES[self._follows]
        return f"an hour pays when {percent(self._break_even, 0)} of it is busy, expected {_SAID[rule]}"

    def saved(self) -> SavedWorth:
        busy = [float(f"{each:.4g}") for each in np.trim_zeros(self._busy, "b")]
        return SavedWorth(list(self._grains), busy, self._weight, list(self._fleets), self._follows)

    def observe(
        self, work_per_s: float, market: Market, seconds: float, wall_s: float, *, request_s: float = 0.0
    ) -> None:
        """Add the work that arrived per second over some seconds, ending at `wall_s`, wherever it was served. `request_s` is how
        long one request keeps a replica busy.
        """
        if not (math.isfinite(work_per_s) and market.carries > 0 and seconds > 0):
            return
        # Of requests that come independently, in the time that one can wait.
        self._noise = request_s / self._bears_s if math.isfinite(request_s) else 0.0
        work, held = self._filling
        self._filling = work + work_per_s * seconds, held + seconds
        work, held = self._filling
        if held >= GRAIN_S:
            self._filling = 0.0, 0.0
            self._grain_ended(work / held, market, held, wall_s)

    def _grain_ended(self, work: float, market: Market, seconds: float, wall_s: float) -> None:
        self._grains.append((work, self._usual(wall_s - seconds / 2)))
        del self._grains[:-_RECENT]
        replicas = work / market.carries
        keep = math.exp(-seconds / _LONG_S)
        self._busy = self._busy * keep + _busy(np.array([replicas]), self._ranks, self._noise) * (1 - keep)
        self._weight = self._weight * keep + 1 - keep
        self._break_even = market.break_even
        for fleet in self._fleets:
            fleet.usd *= keep
            fleet.pay(replicas, market, seconds, self._noise)
        self._undecided_s += seconds
        if self._undecided_s >= DECIDE_S:
            self._undecided_s, self._decided = 0.0, True
            for rule, fleet in zip(RULES, self._fleets, strict=True):
                fleet.order(self._wanted_by(rule, fleet.supply, market, wall_s), self._cold_start_s)
            self._follow_cheapest(market)

    def _follow_cheapest(self, market: Market) -> None:
        """Follow another rule once its bill is smaller by more than the cost of the change: until a fleet that was
        ordered has had the time to earn something, it always looks dearer than one that bought nothing.
        """
        followed = self._fleets[self._follows]
        cheapest = min(range(len(RULES)), key=lambda index: self._fleets[index].usd)
        fleet = self._fleets[cheapest]
        fewer = followed.supply - fleet.supply
        if fewer == 0:
            return
        trial_s = self._cold_start_s + _TRIAL_S if fewer > 0 else self._cold_start_s
        change_usd = abs(fewer) * market.replica_usd_per_s * trial_s
        if fleet.usd + change_usd < followed.usd * (1 - _BETTER_BY):
            self._follows = cheapest

    def _wanted_by(self, rule: RuleName, current: int, market: Market, wall_s: float) -> int:
        if rule == "least":
            return self._least
        if rule == "long":
            ahead = until = self._busy / self._weight
        elif rule == "quick":
            recent = np.array([work for work, _ in self._grains[-_QUICK:]])
            ahead = until = _busy(recent / market.carries, self._ranks, self._noise)
        else:
            # What is ordered now works from the end of its cold start on; what is kept, from now on.
            ahead = self._expected(market, wall_s + self._cold_start_s)
            until = self._expected(market, wall_s)
        return self._bought(ahead, until, current, market)

    def _bought(self, ahead: Busy, until: Busy, current: int, market: Market) -> int:
        """Buy rank by rank the replicas that earn their price and that of their cold start, and give up those that no
        longer do.
        """
        price = market.break_even
        # A rank that is always busy is bought whenever it earns its price at all.
        buy = min(price * _BUY_ABOVE * (1 + self._cold_start_s / HOLD_S), max(price, 1.0))
        wanted = max(current, self._least)
        while wanted < len(ahead) and ahead[wanted] >= buy:
            wanted += 1
        while wanted > self._least and (wanted > len(until) or until[wanted - 1] < price * _KEEP_ABOVE):
            wanted -= 1
        return wanted

    def _expected(self, market: Market, from_s: float) -> Busy:
        """Return the busy shares over the time that a replica is bought for, from a moment on."""
        usual = [self._usual(from_s + part * HOLD_S) for part in _LOOKS]
        work = np.array([grain for grain, _ in self._grains]) / market.carries
        if all(each is None for each in usual):
            return _busy(work, self._ranks, self._noise)
        before = np.array([math.nan if each is None else each for _, each in self._grains])
        expected = np.concatenate([work * _ratios(then, before) for then in usual])
        return _busy(expected, self._ranks, self._noise)


def _busy(replicas: NDArray[np.float64], ranks: NDArray[np.float64], noise: float) -> Busy:
    """Return the busy share of each rank, for grains in which so many replicas' work arrived, with a variance of
    `noise` for each.
    """
    spread = np.sqrt(replicas * noise)
    shares: Busy = np.zeros(len(ranks))
    for point, weight in _POINTS if noise else ((0.0, 1.0),):
        shares += weight * np.clip((replicas + point * spread)[:, None] - ranks, 0.0, 1.0).mean(axis=0)
    return shares


def _ratios(then: float | None, before: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ratio of the usual work then to the usual work before, within bounds; 1 where either is unknown or 0."""
    if then is None:
        return np.ones(len(before))
    known = before > 0
    ratios = np.clip(then / np.where(known, before, 1.0), 1 / _MOST_RATIO, _MOST_RATIO)
    return np.where(known, ratios, 1.0)
