"""Settling stage: a finished request returns its limits, and leaves its target and latencies to the next; then it is
reported.
"""

from proxy.context import RequestContext
from proxy.dispatch.outcome import ShadowSampler
from proxy.parse.chat_request import is_replaceable
from proxy.plan.overruns import Overruns
from proxy.plan.routed_request import RoutedRequest
from proxy.plan.session_affinity import Affinity
from proxy.settle.outcome_reports import Reports, answered_by, error_code_of, observe_latency
from proxy.settle.unknown_details import UnknownDetails
from proxy.shared.target_latency import LatencyTracker


class Settlement:
    """The receivers of finished requests, served in order of need."""

    def __init__(
        self, affinity: Affinity, latency: LatencyTracker | None, reports: Reports, overruns: Overruns
    ) -> None:
        self._affinity = affinity
        self._overruns = overruns
        self._unknown_details = UnknownDetails()
        self._latency = latency
        self._reports = reports

    def settle(self, context: RequestContext, now: float, shadow: ShadowSampler | None) -> None:
        """Settle the limits, remember the conversation's target, and hand on the report. Never raises."""
        if context.admission is not None:
            # First of all: limits that are not given back here never are.
            used_tokens = 0
            for attempt in context.attempts:
                if attempt.settled is not None:
                    used_tokens += attempt.settled.usage.input_tokens + attempt.settled.usage.output_tokens
            context.admission.settle(used_tokens)
        for attempt in context.attempts:
            if found := attempt.overrun:
                self._overruns.record(attempt.candidate.target.target_id, found)
            self._unknown_details.look_at(attempt)
        if self._latency is not None:
            observe_latency(self._latency, context.attempts)
        # A failed answer may not be cached at its target, and for vectors nothing is gained by staying there.
        if context.routed is not None and not error_code_of(context) and is_replaceable(context.routed.request):
            self._remember(context, context.routed)
        self._reports.add(context, now, shadow)

    def _remember(self, context: RequestContext, routed: RoutedRequest) -> None:
        answered = answered_by(context)
        if answered is None:
            return
        target_id, tokens = answered.deployment.target_id, 0
        if answered.settled is not None:
            usage = answered.of_answer(answered.settled.usage)
            tokens = usage.input_tokens + usage.output_tokens
        self._affinity.remember(routed.caller.team_id, routed.conversation, target_id, tokens)
        if routed.turn is not None:
            self._remember_turn(routed, target_id, escalated=context.escalated_from is not None)

    def _remember_turn(self, routed: RoutedRequest, target_id: str, *, escalated: bool) -> None:
        """Remember the target where the turn's tool loop is to stay. An escalation counts as one raise: the same
        weakness shall not lift the loop twice. The experiment's reference is no choice of the turn, nor is a stand-in
        for a better target that a struggle had asked for: that one is tried again with the next step.
        """
        raises = routed.facts.loop.raises
        first = routed.plan.candidates[0]
        if first.reason == "holdout" or (raises and not escalated and target_id != first.target.target_id):
            return
        levels = (raises, raises + 1) if escalated else (raises,)
        self._affinity.remember_turn(routed.caller.team_id, routed.conversation, routed.turn, target_id, *levels)
