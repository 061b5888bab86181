"""Settling stage: a finished request gives back what it took, and its outcome is reported."""

from proxy.affinity import Affinity
from proxy.context import RequestContext
from proxy.kept_answer import judge_late, went_well
from proxy.latency import LatencyTracker
from proxy.learning.shadow import Shadow
from proxy.outcome import Observer
from proxy.outcome_of import observe_latency, outcome_of
from proxy.planning import is_replaceable
from proxy.routed_request import RoutedRequest


class Settling:
    """The receivers of finished requests, served in order of need."""

    def __init__(self, observers: tuple[Observer, ...], affinity: Affinity, latency: LatencyTracker | None) -> None:
        self._observers = observers
        self._affinity = affinity
        self._latency = latency

    def settle(self, context: RequestContext, now: float, shadow: Shadow | None) -> None:
        """Settles the limits, remembers the conversation's target, and informs the observers. Never raises."""
        attempts, answering, caller, routed = context.attempts, context.answering, context.caller, context.routed
        if context.admission is not None:
            # Before anything else: what is not given back here never is.
            used_tokens = 0
            for attempt in attempts:
                if attempt.settled is not None:
                    used_tokens += attempt.settled.usage.input_tokens + attempt.settled.usage.output_tokens
            context.admission.settle(used_tokens)
        judge_late(context)
        outcome = outcome_of(context, now)
        if self._latency is not None:
            observe_latency(self._latency, attempts)
        # What failed on its way may not be cached where it came from; and nothing is gained by staying for vectors.
        if routed is not None and outcome.target_id and not outcome.error_code and is_replaceable(routed.request):
            tokens = outcome.input_tokens + outcome.output_tokens
            self._affinity.remember(routed.caller.team_id, routed.conversation, outcome.target_id, tokens)
            if routed.turn is not None:
                self._remember_turn(routed, outcome.target_id, escalated=outcome.escalated_from is not None)
        for observer in self._observers:
            observer.finished(outcome)
        if shadow is not None and caller is not None and answering is not None and went_well(answering):
            shadow.offer(answering.routed.request, caller, outcome, answering.kept)
        if context.trace is not None:
            context.trace.finish(outcome, outcome.alias, outcome.stream)

    def _remember_turn(self, routed: RoutedRequest, target_id: str, *, escalated: bool) -> None:
        """Remembers where the turn's tool loop is to stay. An escalation counts as one raise: the same weakness shall not
        lift the loop twice.

        The experiment's reference is no choice of the turn, nor is what stood in for a better target that a struggle had
        asked for: that one is tried again with the next step.
        """
        raises = routed.facts.loop.raises
        first = routed.plan.candidates[0]
        if first.reason == "holdout" or (raises and not escalated and target_id != first.target.target_id):
            return
        levels = (raises, raises + 1) if escalated else (raises,)
        self._affinity.remember_turn(routed.caller.team_id, routed.conversation, routed.turn, target_id, *levels)
