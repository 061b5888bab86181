"""Routing stage: looks up what this process knows of conversations and breakers, and plans the request with it."""

from accounts.caller import Caller
from classifier.prediction import Prediction
from providers.breaker import Breakers
from proxy.affinity import Affinity
from proxy.context import RequestContext
from proxy.dispatch import Dispatcher
from proxy.kept_answer import kept_bytes
from proxy.learning.shadow import Shadow
from proxy.parsed_request import ParsedRequest
from proxy.pipeline_config import PipelineConfig
from proxy.planning import facts_of, routed_request
from proxy.policy import DEFAULT_OUTPUT_TOKENS, Facts, Fleet, absent
from proxy.request import conversation_key
from proxy.routed_request import RoutedRequest


class Routing:
    """The process's state that routing needs; the planning itself is pure."""

    def __init__(self, affinity: Affinity, breakers: Breakers, dispatcher: Dispatcher) -> None:
        self._affinity = affinity
        self._breakers = breakers
        self._dispatcher = dispatcher

    def route(
        self,
        context: RequestContext,
        caller: Caller,
        parsed: ParsedRequest,
        prediction: Prediction | None,
        *,
        downgraded: bool,
        in_flight: int,
        shadow: Shadow | None,
    ) -> RoutedRequest:
        """Plans a request.

        Raises ModelNotFound, ContextTooLong, NoEligibleTarget or TargetsUnavailable when there is no candidate.
        """
        config, request = context.config, parsed.request
        facts = facts_of(parsed, caller, config, downgraded=downgraded)
        fleet = {name: self._breakers.available(target) for name, target in config.catalog.targets.items()}
        if not all(fleet.values()):
            # A pool that nobody is in any more has no other way to learn that somebody wants it.
            self._tell_absent(facts, config, fleet)
        conversation = conversation_key(request, parsed.prompt)
        compared = shadow is not None and shadow.wants(caller, request.model, context.request_id)
        return routed_request(
            context,
            caller,
            parsed,
            prediction,
            facts,
            fleet=fleet,
            conversation=conversation,
            sticky=self._affinity.lookup(caller.team_id, conversation),
            downgraded=downgraded,
            in_flight=in_flight,
            keep_bytes=kept_bytes(caller, prediction, in_flight, compared=compared),
        )

    def _tell_absent(self, facts: Facts, config: PipelineConfig, fleet: Fleet) -> None:
        tokens = facts.input_tokens + (facts.max_output_tokens or DEFAULT_OUTPUT_TOKENS)
        for target in absent(facts, config.policy, config.catalog, fleet):
            self._dispatcher.turned_away(target, tokens)
