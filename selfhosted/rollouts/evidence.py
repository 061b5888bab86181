"""Evidence that a version on trial is worse, which may be looked at as often as one likes. Pure.

Every few seconds a batch of new attempts of both versions is added. Within a batch, if the versions were alike, any of its
attempts could have been the candidate's: the number of the candidate's among those that failed is hypergeometric, whatever
the rate, the share and the hour. Against this stands an odds ratio above 1, under which the number follows Fisher's
noncentral hypergeometric distribution; the ratio of the two likelihoods is a fair bet. Bets on several odds ratios are
averaged, those on all figures too, and batches multiply. So the evidence of a version that is no worse is, at whatever
time one looks, at least `1 / share` with a chance of at most `share` (Ville's inequality; Ramdas et al., "Game-theoretic
statistics and safe anytime-valid inference", Statistical Science 38, 2023; for two proportions: Turner and Grünwald,
"Safe sequential testing and effect estimation in stratified count data", AISTATS 2023).

Times are compared by their ranks: those of the candidate, divided by what is tolerated, are put among the stable version's,
and what lies above the median and above the 90th percentile of all is counted like failures.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec

from selfhosted.rollouts.versions import Rule

ALARM: Final = 100.0
"""Evidence from which a version is rolled back: at most 1 of 100 sound versions ever gets there."""
Figure = Literal["failures", "escalations", "verdicts", "ttft_s", "tpot_s"]
ODDS: Final = (1.5, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0)
LEVELS: Final = (0.5, 0.9)
MOST_COUNTED: Final = 500
"""Up to so many attempts a bet is exact."""
FEWEST_TIMES: Final = 20
MOST_PENDING: Final = 500


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """New attempts that one version served."""

    attempts: int = 0
    failed: int = 0
    weak: int = 0
    """Whole answers that a better target's replaced."""
    judged: int = 0
    inadequate: int = 0
    """Of the judged answers."""
    ttft_s: tuple[float, ...] = ()
    """Of served streams, in the order of their ends; in seconds, as is the next."""
    tpot_s: tuple[float, ...] = ()


class Pending(msgspec.Struct):
    """Times that are too few for a bet yet."""

    stable: list[float] = msgspec.field(default_factory=list)
    candidate: list[float] = msgspec.field(default_factory=list)


class Evidence(msgspec.Struct):
    """What was seen since a rollout's step."""

    since_us: int = 0
    """The step that it belongs to."""
    until_us: int = 0
    """Attempts that ended until then are in it."""
    stable: int = 0
    """Attempts of the stable versions; the next are of the candidate."""
    candidate: int = 0
    logs: dict[str, list[float]] = msgspec.field(default_factory=dict)
    """Of each figure: the logarithm of the evidence by odds ratio, and for times by level and odds ratio."""
    pending: dict[str, Pending] = msgspec.field(default_factory=dict)

    def of(self, figure: Figure) -> float:
        """Return the evidence of one figure: 1 before anything was seen."""
        return _mean_exp(self.logs.get(figure) or [0.0])

    def whole(self, rule: Rule) -> float:
        """Return the evidence of all figures that the rule looks at."""
        watched = watched_figures(rule)
        return sum(map(self.of, watched)) / len(watched) if watched else 1.0

    def alarming(self, rule: Rule) -> list[Figure]:
        """Return the figures that a version is to be rolled back for, that with the most evidence first."""
        if self.whole(rule) < ALARM:
            return []
        return sorted((each for each in watched_figures(rule) if self.of(each) >= ALARM), key=self.of, reverse=True)

    def add(self, stable: Side, candidate: Side, rule: Rule) -> None:
        """Add new attempts of both versions."""
        self.stable += stable.attempts
        self.candidate += candidate.attempts
        self._count("failures", stable.failed, stable.attempts, candidate.failed, candidate.attempts)
        self._count("escalations", stable.weak, stable.attempts, candidate.weak, candidate.attempts)
        self._count("verdicts", stable.inadequate, stable.judged, candidate.inadequate, candidate.judged)
        if rule.ttft_worse is not None:
            self._rank("ttft_s", stable.ttft_s, candidate.ttft_s, 1 + rule.ttft_worse)
        if rule.tpot_worse is not None:
            self._rank("tpot_s", stable.tpot_s, candidate.tpot_s, 1 + rule.tpot_worse)

    def _count(self, figure: Figure, hits: int, count: int, their_hits: int, their_count: int) -> None:
        logs = self.logs.setdefault(figure, [0.0] * len(ODDS))
        for place, odds in enumerate(ODDS):
            logs[place] += log_bet(odds, their_hits, hits + their_hits, their_count, count)

    def _rank(self, figure: Figure, stable: Sequence[float], candidate: Sequence[float], scale: float) -> None:
        waiting = self.pending.setdefault(figure, Pending())
        waiting.stable += stable
        waiting.candidate += [each / scale for each in candidate]
        logs = self.logs.setdefault(figure, [0.0] * (len(LEVELS) * len(ODDS)))
        while waiting.stable and waiting.candidate and len(waiting.stable) + len(waiting.candidate) >= FEWEST_TIMES:
            # Of a long wait each bet takes both sides in the shares that they have there.
            part = min(1.0, MOST_COUNTED / (len(waiting.stable) + len(waiting.candidate)))
            ours = _taken(waiting.stable, part)
            theirs = _taken(waiting.candidate, part)
            pooled = sorted(ours + theirs)
            for level_place, level in enumerate(LEVELS):
                above = pooled[math.ceil(level * len(pooled)) - 1]
                hits, their_hits = (sum(each > above for each in side) for side in (ours, theirs))
                for place, odds in enumerate(ODDS):
                    bet = log_bet(odds, their_hits, hits + their_hits, len(theirs), len(ours))
                    logs[level_place * len(ODDS) + place] += bet
        del waiting.stable[:-MOST_PENDING], waiting.candidate[:-MOST_PENDING]


def watched_figures(rule: Rule) -> tuple[Figure, ...]:
    """Return the figures by which a rule rolls back."""
    watched: Mapping[Figure, bool] = {
        "failures": rule.errors,
        "escalations": rule.quality,
        "verdicts": rule.quality,
        "ttft_s": rule.ttft_worse is not None,
        "tpot_s": rule.tpot_worse is not None,
    }
    return tuple(figure for figure, is_watched in watched.items() if is_watched)


def log_bet(odds: float, drawn: int, hits: int, candidate: int, stable: int) -> float:
    """Return the logarithm of the likelihood ratio of an odds ratio against 1: `drawn` of the `hits` are the candidate's,
    which has `candidate` of all attempts, the stable version `stable`.
    """
    if not hits or not candidate or not stable or hits == candidate + stable:
        return 0.0
    total = candidate + stable
    if total > MOST_COUNTED:
        # The hypergeometric distribution is narrower than the binomial one with its share, so this bets a little less.
        return drawn * math.log(odds) - hits * math.log1p((odds - 1) * candidate / total)
    return drawn * math.log(odds) - _log_expected(odds, hits, candidate, stable)


@lru_cache(maxsize=65_536)
def _log_expected(odds: float, hits: int, candidate: int, stable: int) -> float:
    """Return the logarithm of the mean of odds ** K, where K is hypergeometric."""
    first, last = max(0, hits - stable), min(hits, candidate)
    whole = _log_choose(candidate + stable, hits)
    terms = [
        _log_choose(candidate, drawn) + _log_choose(stable, hits - drawn) - whole + drawn * math.log(odds)
        for drawn in range(first, last + 1)
    ]
    most = max(terms)
    return most + math.log(sum(math.exp(term - most) for term in terms))


def _log_choose(count: int, chosen: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


def _mean_exp(logs: Sequence[float]) -> float:
    most = max(logs)
    return math.exp(min(most, 700.0)) * sum(math.exp(each - most) for each in logs) / len(logs)


def _taken(values: list[float], part: float) -> list[float]:
    """Take the first part of the values, at least one, out of the list."""
    count = max(1, math.ceil(part * len(values)))
    taken = values[:count]
    del values[:count]
    return taken
