"""Escalation rules: decides that a weak answer is asked again of a better target, and chooses that target. Pure."""

from collections.abc import Container
from typing import Final

import msgspec

from accounts.caller import Escalation
from proxy.parse.chat_request import AUTO
from proxy.plan.route_plan import Candidate, RoutePlan

_BURST: Final = 20.0
"""The most escalations that an idle period accumulates."""


class EscalationRules(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's limits on escalation."""

    max_share: float = 0.1
    """The most escalations, as a share of the requests that may escalate."""
    max_running: int = 64
    min_mean_logprob: float | None = None
    """The mean log-probability of the tokens below which an answer is weak; None disables the check."""
    hold_max_bytes: int = 512 * 1024
    hold_max_s: float = 30.0
    agreement_wait_s: float = 20.0
    """The most seconds to wait for two cheap answers before the planned target is asked."""
    batch_agreement_from: float | None = 0.99
    """The minimum quality from which two cheap targets may be asked for lines of batches, whatever the team's
    setting; None for never.
    """


def asks_two(wanted: Escalation, *, stream: bool) -> bool:
    """Return True when two cheap targets may be asked before a dear one."""
    return wanted == "agreement-all" or (wanted == "agreement" and not stream)


_OF_STREAMS: Final[frozenset[Escalation]] = frozenset({"all", "agreement-all"})


class EscalationAllowance:
    """A token bucket of escalations for this process: at most `max_share` of eligible requests, after a burst."""

    def __init__(self) -> None:
        self._saved = _BURST
        self.running = 0

    def request(self, rules: EscalationRules) -> None:
        """Credit one request that may escalate."""
        self._saved = min(self._saved + rules.max_share, _BURST)

    def try_begin(self, rules: EscalationRules) -> bool:
        """Take one escalation and return True, or return False when none is left. `end` must follow."""
        # The small slack makes ten tenths a whole in floating point.
        if rules.max_share <= 0 or self.running >= rules.max_running or self._saved < 1 - 1e-9:
            return False
        self._saved -= 1
        self.running += 1
        return True

    def end(self) -> None:
        self.running -= 1


def may_escalate(plan: RoutePlan, *, alias: str, stream: bool, wanted: Escalation) -> bool:
    """Return True when the answer is to be held and judged: escalation is wanted and there is a better target."""
    allowed = wanted in _OF_STREAMS or (wanted != "off" and not stream)
    return allowed and alias == AUTO and escalation_candidate(plan, plan.candidates[0], ()) is not None


def escalation_candidate(plan: RoutePlan, answered: Candidate, tried: Container[str]) -> Candidate | None:
    """Return the cheapest untried candidate that is more capable of this prompt than `answered`, or None."""
    better = [
        candidate
        for candidate in plan.candidates
        if candidate.target.target_id not in tried and candidate.strength > answered.strength
    ]
    # Candidates come in the order of their margins, except those after the capable ones.
    chosen = min(better, key=_margin, default=None)
    return chosen and msgspec.structs.replace(chosen, reason="escalated")


def _margin(candidate: Candidate) -> float:
    return float("inf") if candidate.margin_nanousd is None else float(candidate.margin_nanousd)
