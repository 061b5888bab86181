"""The rule that promotes a version on trial, or rolls it back. Pure."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from cost.shown import percent
from selfhosted.rollouts.comparison import (
    LATENCY_QUANTILE,
    Sample,
    compared,
    difference,
    percentile,
    sequence_z,
    share,
)
from selfhosted.rollouts.evidence import Evidence, Figure
from selfhosted.rollouts.versions import Rule

FAILURES_MARGIN: Final = 0.01
"""So much more of a version's attempts may fail: less is no reason to roll it back, and none not to promote it."""
FEWEST_ATTEMPTS: Final = 5
PROMOTED_WRONGLY: Final = 0.01
"""Of versions that are just worse than their margins, at most this share is ever promoted, however often one looks."""
_NAMES: Final[Mapping[Figure, str]] = {
    "failures": "attempts failed",
    "escalations": "answers were replaced by a better model's",
    "verdicts": "judged answers were inadequate",
    "ttft_s": "time to first token",
    "tpot_s": "time for each further token",
}


class Decision(msgspec.Struct, frozen=True):
    """The step to take, and why, for people."""

    step: Literal["promote", "roll_back"]
    reason: str


def decide(evidence: Evidence, stable: Sample, candidate: Sample, rule: Rule) -> Decision | None:
    """Return the rule's decision now; None: go on. What is not known decides nothing. `evidence` may be looked at as often as
    one likes; the samples are for the effect's size.
    """
    worse = _worse(evidence, stable, candidate, rule)
    if worse:
        return Decision("roll_back", worse)
    return _promotion(stable, candidate, rule)


def _worse(evidence: Evidence, stable: Sample, candidate: Sample, rule: Rule) -> str:
    if evidence.candidate < FEWEST_ATTEMPTS:
        return ""
    found = filter(None, (_reason(figure, stable, candidate, rule) for figure in evidence.alarming(rule)))
    worse = next(found, "")
    return worse and (
        f"{worse}; at most one of {min(evidence.whole(rule), 1e9):,.0f} sound versions would ever look like this"
    )


def _reason(figure: Figure, stable: Sample, candidate: Sample, rule: Rule) -> str:
    """Return how a figure is worse; empty where it is not by as much as matters."""
    if figure in ("ttft_s", "tpot_s"):
        worse = rule.ttft_worse if figure == "ttft_s" else rule.tpot_worse
        ours, theirs = (_middle(getattr(each, figure)) for each in (candidate, stable))
        return f"the median {_NAMES[figure]} is {ours}, the stable version's {theirs}; it is longer by more than {percent(worse or 0, 0)}"
    if figure == "verdicts":
        return f"more {_NAMES[figure]} than of the stable version"
    hits, their_hits = (each.failed if figure == "failures" else each.weak for each in (candidate, stable))
    ours_share = hits / max(1, candidate.attempts)
    theirs_share = their_hits / max(1, stable.attempts)
    if ours_share - theirs_share < FAILURES_MARGIN:
        return ""
    return (
        f"{percent(ours_share)} of {candidate.attempts} {_NAMES[figure]}, of the stable version's {stable.attempts} "
        f"{percent(theirs_share)}"
    )


def _middle(ordered: tuple[float, ...]) -> str:
    return f"{ordered[len(ordered) // 2]:.3f} s" if ordered else "unknown"


def _promotion(stable: Sample, candidate: Sample, rule: Rule) -> Decision | None:
    """Promote after enough attempts, where the upper bounds of failures and times are acceptable, and no figure is worse."""
    if rule.promote_after is None or candidate.attempts < rule.promote_after:
        return None
    z = sequence_z(candidate.attempts, rule.promote_after, PROMOTED_WRONGLY)
    ours, theirs = (share(each.failed, each.attempts, z) for each in (candidate, stable))
    if ours is None or theirs is None or difference(theirs, ours)[1] > FAILURES_MARGIN:
        return None
    for name, worse in (("ttft_s", rule.ttft_worse), ("tpot_s", rule.tpot_worse)):
        if worse is None or not (getattr(stable, name) or getattr(candidate, name)):
            continue
        ours, theirs = (percentile(getattr(each, name), LATENCY_QUANTILE, z) for each in (candidate, stable))
        if ours is None or theirs is None or difference(theirs, ours, 1 + worse)[1] > 0:
            return None
    if any(each.is_worse for each in compared(stable, candidate, z)):
        return None
    return Decision("promote", f"nothing was worse in {candidate.attempts} attempts")
