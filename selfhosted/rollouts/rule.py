"""The rule that promotes a version on trial, or rolls it back. Pure."""

from typing import Final, Literal

import msgspec

from selfhosted.rollouts.comparison import LATENCY_QUANTILE, RULE_Z, Sample, compared, difference, percentile, share
from selfhosted.rollouts.versions import Rule

FAILURES_MARGIN: Final = 0.01
"""A version is promoted when it fails on at most so much more of its attempts, beyond doubt."""


class Decision(msgspec.Struct, frozen=True):
    """The step to take, and why, for people."""

    step: Literal["promote", "roll_back"]
    reason: str


def decide(stable: Sample, candidate: Sample, rule: Rule) -> Decision | None:
    """Return the rule's decision now; None: go on. What is not known decides nothing."""
    worse = _worse(stable, candidate, rule)
    if worse:
        return Decision("roll_back", worse)
    if rule.promote_after is not None and candidate.attempts >= rule.promote_after:
        return _promotion(stable, candidate, rule)
    return None


def _worse(stable: Sample, candidate: Sample, rule: Rule) -> str:
    if rule.errors:
        ours, theirs = (share(each.failed, each.attempts, RULE_Z) for each in (candidate, stable))
        if ours is not None and theirs is not None and difference(theirs, ours)[0] > 0:
            return (
                f"{ours.value:.1%} of {ours.count} attempts failed, of the stable version's {theirs.count} "
                f"{theirs.value:.1%}; at least {difference(theirs, ours)[0]:.1%} more, beyond doubt"
            )
    if rule.ttft_worse is not None:
        ours, theirs = (percentile(each.ttft_s, LATENCY_QUANTILE, RULE_Z) for each in (candidate, stable))
        if ours is not None and theirs is not None and difference(theirs, ours, 1 + rule.ttft_worse)[0] > 0:
            return (
                f"the p95 time to first token is {ours.value:.3f} s, the stable version's {theirs.value:.3f} s; "
                f"longer by more than {rule.ttft_worse:.0%}, beyond doubt"
            )
    return ""


def _promotion(stable: Sample, candidate: Sample, rule: Rule) -> Decision | None:
    """Promote where the upper bounds of failures and first-token times are acceptable, and no figure is worse."""
    ours, theirs = (share(each.failed, each.attempts, RULE_Z) for each in (candidate, stable))
    if ours is None or theirs is None or difference(theirs, ours)[1] > FAILURES_MARGIN:
        return None
    if rule.ttft_worse is not None:
        first, other = (percentile(each.ttft_s, LATENCY_QUANTILE, RULE_Z) for each in (candidate, stable))
        if first is None or other is None or difference(other, first, 1 + rule.ttft_worse)[1] > 0:
            return None
    if any(each.is_worse for each in compared(stable, candidate, RULE_Z)):
        return None
    return Decision("promote", f"nothing was worse in {candidate.attempts} attempts")
