"""Routing stage: looks up this process's memory of conversations and breakers, and plans the request with it."""

import math
from collections.abc import Mapping

from msgspec.structs import replace

from accounts.caller import Caller
from classifier.prediction import Prediction
from cost.dimensions import Dimension
from cost.errors import BudgetExceeded
from cost.ledger.entries import Arm
from cost.savings.comparators import Comparators
from cost.savings.holdout import arm_of
from providers.breaker import Breakers
from providers.wire import ChatRequest
from proxy.admit.queues.queue_item import QueueItem
from proxy.errors import TargetsUnavailable
from proxy.parse.chat_request import (
    AUTO,
    DEFAULT_OUTPUT_TOKENS,
    conversation_key,
    decisive_parameters,
    is_replaceable,
    media_of,
    most_input_tokens,
    needs,
    opening_tokens,
    search_asked,
    stops_in,
    turn_key,
)
from proxy.parse.parsed_request import ParsedRequest
from proxy.plan.agreement import AgreementRates
from proxy.plan.cache_control import ReuseShares
from proxy.plan.escalation_rules import hold_of, kept_bytes, pair_of
from proxy.plan.marginal_cost import NO_ROOMS, Room, Rooms, TargetCapacity, place_of
from proxy.plan.overruns import Overruns
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.quality_tolerance import without_curve
from proxy.plan.refused_parameters import RefusedParameters
from proxy.plan.route_plan import (
    NO_ABSENCES,
    NOT_SPENT,
    Counts,
    Facts,
    Fleet,
    RoutePlan,
    absent,
    eligible_targets,
    held_out,
    names_behind,
    plan,
    with_pace,
)
from proxy.plan.routed_request import RoutedRequest
from proxy.plan.scores import NO_SCORES, ScoredRequest, Scoring
from proxy.plan.session_affinity import CACHE_MIN_TOKENS, Affinity
from proxy.plan.tool_loop import NO_LOOP, read_loop


def facts_of(
    parsed: ParsedRequest,
    caller: Caller,
    config: PipelineConfig,
    *,
    downgraded: bool,
    overruns: Mapping[str, str] | None = None,
    spent_targets: Mapping[tuple[Dimension, str], BudgetExceeded] = NOT_SPENT,
    refused: Mapping[str, frozenset[str]] | None = None,
) -> Facts:
    """Collect the facts that planning needs. A downgraded request is planned as `auto`, whatever model it named;
    `overruns` are given under a hard budget; `refused` are the parameters that targets refused lately.
    """
    request, policy = parsed.request, config.policy
    floor, allowed = caller.settings.quality_floor, caller.allowed_models
    if (rules := policy.autos.get(request.alias)) is not None:
        floor = floor if rules.quality_floor is None else rules.quality_floor
        allowed = _narrowed(allowed, rules.targets)
    willing = (
        without_curve(policy.quality_floor if floor is None else floor)
        if config.tolerances is None
        else config.tolerances.of(floor, allowed, caller.team_id)
    )
    # The bytes that came, whichever way.
    size = len(parsed.body) + (0 if request.upload is None else request.upload.whole_size)
    # A caller that names a model gets it, and a spent budget is not spent further.
    loop = NO_LOOP if downgraded or request.model != AUTO else read_loop(request.messages, policy.loops)
    # In steps of few names: a call of more than fifteen is built from a dict, which takes five times as long.
    facts = Facts(
        alias=AUTO if downgraded else request.model,
        tier=request.tier,
        needs=needs(request),
        input_tokens=parsed.input_tokens,
        most_input_tokens=most_input_tokens(request, size, parsed.input_tokens),
        max_output_tokens=request.max_output_tokens,
        choices=request.n,
        allowed_models=allowed,
        service_tier=request.service_tier,
        decisive=decisive_parameters(request),
        bounded=overruns is not None,
        overruns=overruns or {},
        willing_nanousd=willing.by_average,
        willing_with_room_nanousd=willing.with_room,
        most_lost=willing.most_lost,
        loop=loop,
    )
    if media := media_of(request):
        facts = replace(facts, media=media)
    if request.effort or refused or request.tools or request.images or "stop" in facts.decisive:
        facts = replace(
            facts,
            effort=request.effort,
            refused=refused or {},
            counts=Counts(stops_in(request), request.tools, request.images),
        )
    if downgraded:
        facts = replace(facts, spares=True)
    if spent_targets:
        facts = replace(facts, spent_targets=spent_targets)
    if loop.steps and policy.stay_in_turn:
        facts = replace(facts, opening_tokens=opening_tokens(request, parsed.prompt, parsed.input_tokens))
    if request.as_written is not None:
        facts = replace(facts, dialect=request.as_written.dialect, provider_tools=request.as_written.tools)
    if request.own_only:
        facts = replace(facts, own_only=True)
    return _with_units(facts, request)


def _with_units(facts: Facts, request: ChatRequest) -> Facts:
    """Return the facts with what the request uses beside tokens."""
    if request.operation == "chat":
        search = request.fields.get("web_search_options")
        return facts if search is None else replace(facts, search=search_asked(search))
    return replace(
        facts,
        longest_tokens=request.longest_tokens or None,
        unit=request.unit,
        units_milli=request.units_milli,
        most_units_milli=request.most_units_milli,
    )


def _narrowed(allowed: frozenset[str] | None, targets: frozenset[str] | None) -> frozenset[str] | None:
    """Return the models that a request may be sent to: its caller's, as far as the alias chooses from them."""
    if targets is None or allowed is None:
        return allowed if targets is None else targets
    return allowed & targets


def drawn_arm(
    request_id: str, config: PipelineConfig, route: RoutePlan, facts: Facts, prediction: Prediction, fleet: Fleet
) -> tuple[Arm, RoutePlan]:
    """Draw the experiment arm, and return it with its plan. Requests that the reference cannot serve are in no arm."""
    arm = arm_of(request_id, config.holdout_share)
    if not arm:
        return arm, route
    reference_first = held_out(route, facts, prediction, config.policy, config.catalog, fleet)
    if reference_first is None:
        return "", route
    return arm, reference_first if arm == "holdout" else route


def comparators_of(comparators: Comparators, route: RoutePlan) -> Comparators:
    """Return the comparators of a request that no other model could have answered, such as embeddings: the named
    target is the reference.
    """
    if comparators.reference is None:
        return comparators
    return replace(comparators, reference=route.candidates[0].target.comparator)


class Router:
    """The process's state that routing needs; the planning itself is pure."""

    def __init__(
        self,
        affinity: Affinity,
        breakers: Breakers,
        capacity: TargetCapacity,
        overruns: Overruns,
        rates: AgreementRates | None = None,
        refused: RefusedParameters | None = None,
        scoring: Scoring | None = None,
    ) -> None:
        """`scoring` has a say in the targets that a request may go to; None where nobody has."""
        self._refused = refused
        self._scoring = scoring
        self._affinity = affinity
        self._breakers = breakers
        self._capacity = capacity
        self._overruns = overruns
        self._shares = ReuseShares()
        self._rates = rates or AgreementRates()

    def route(
        self,
        request_id: str,
        caller: Caller,
        parsed: ParsedRequest,
        prediction: Prediction | None,
        config: PipelineConfig,
        *,
        now: float,
        in_flight: int,
        downgraded: bool = False,
        bounded: bool = False,
        spent_targets: Mapping[tuple[Dimension, str], BudgetExceeded] = NOT_SPENT,
        compared: bool = False,
        trace_headers: dict[str, str] | None = None,
        dry: bool = False,
    ) -> RoutedRequest:
        """Plan a request.

        `now` is on the monotonic clock and `in_flight` the number of the process's requests. `downgraded`, `bounded` and
        `spent_targets` are what the budgets say; a `compared` answer is retained for a shadow request; `trace_headers` go to the upstream. In a
        `dry` run, which asks only for the target, nobody is told and nothing is remembered.
        Raises ModelNotFound, ContextTooLong, NoEligibleTarget, TargetsUnavailable or BudgetExceeded when there is no candidate.
        """
        request = parsed.request
        facts = facts_of(
            parsed,
            caller,
            config,
            downgraded=downgraded,
            overruns=self._overruns.current() if bounded else None,
            spent_targets=spent_targets,
            refused=None if self._refused is None else self._refused.current(request.effort),
        )
        scope = caller.scope
        fleet = self._breakers.fleet(config.catalog.targets, scope)
        scoring = self._scoring
        facts = (
            facts if scoring is None else _scored(scoring, request_id, caller, parsed, prediction, config, facts, fleet)
        )
        # A spent budget is spared what is booked, which is the average price, so no room is looked at for it.
        chooses = prediction is not None and not downgraded
        rooms = (
            self._rooms(request_id, caller, parsed, prediction, fleet, config)
            if chooses and config.policy.pools
            else NO_ROOMS
        )
        conversation = conversation_key(request, parsed.prompt)
        sticky = self._affinity.lookup(caller.team_id, conversation)
        turn, chosen = None, None
        if chooses and not dry and config.policy.stay_in_turn and (request.tools or facts.loop.steps):
            turn = turn_key(parsed.prompt)
            chosen = self._affinity.turn_choice(caller.team_id, conversation, turn)
        reuse = None
        if parsed.input_tokens >= CACHE_MIN_TOKENS and not dry and request.operation == "chat":
            reuse = self._shares.reuse(caller.team_id, None if sticky is None else sticky.target_id, config.cache_marks)
        absences = NO_ABSENCES
        if not all(fleet.values()):
            if not dry:
                # A pool that nobody is in any more has no other way to learn that somebody wants it.
                self._record_absent(facts, config, fleet)
            absences = self._breakers.absences(config.catalog.targets, fleet, scope)
        try:
            found = plan(
                facts, prediction, config.policy, config.catalog, fleet, sticky, rooms, chosen, absences=absences
            )
            route = with_pace(found, absences)
        except TargetsUnavailable as error:
            error.retry_after_s = self._starts_in_s(facts, config, fleet) or error.retry_after_s
            raise
        arm: Arm = ""
        # Who named a model takes no part in the experiment, nor does a request that a spent budget sends elsewhere.
        if config.holdout_share > 0 and chooses and prediction is not None and not dry:
            arm, route = drawn_arm(request_id, config, route, facts, prediction, fleet)
        if route.candidates[0].reason == "spill-over" and not dry:
            self._record_overflow(route, facts)
        keep_bytes = 0
        if request.as_written is None:
            keep_bytes = kept_bytes(caller, prediction, in_flight, compared=compared)
        # In steps of few names, as with facts.
        routed = RoutedRequest(
            request_id=request_id,
            caller=caller,
            request=request,
            facts=facts,
            plan=route,
            prediction=prediction,
            comparators=config.comparators if is_replaceable(request) else comparators_of(config.comparators, route),
            timeouts=config.timeouts,
            retry=config.retry,
            upstream_headers=trace_headers or {},
            alias=request.alias or request.model,
            pools=config.pools,
            deadline=parsed.deadline,
            keep_bytes=keep_bytes,
            conversation=conversation,
        )
        hold = hold_of(config, caller, parsed, facts, route, in_flight)
        if arm or downgraded or hold is not None or reuse is not None or turn is not None:
            routed = replace(routed, arm=arm, downgraded=downgraded, hold=hold, reuse=reuse, turn=turn)
        pair = None if dry else pair_of(config, parsed, routed, self._rates, now)
        return routed if pair is None else replace(routed, agreement=pair)

    def _rooms(
        self,
        request_id: str,
        caller: Caller,
        parsed: ParsedRequest,
        prediction: Prediction | None,
        fleet: Fleet,
        config: PipelineConfig,
    ) -> Rooms:
        """Return the present rooms of our own pools, for a request whose target is chosen by price."""
        request, deadline = parsed.request, parsed.deadline
        if prediction is None or not config.policy.pools:
            return NO_ROOMS
        work = QueueItem(
            team_id=caller.team_id,
            weight=caller.settings.weight,
            tier=request.tier,
            priority=request.priority,
            tokens=parsed.input_tokens + prediction.expected_output_tokens,
            start_by=math.inf,
        )
        aim_s = deadline.first_token_at - deadline.arrived_at
        found: dict[str, Room] = {}
        for pool in config.policy.pools:
            for target_id in pool.targets if pool.by_margin else ():
                target = config.catalog.targets.get(target_id)
                if target is None or not fleet.get(target_id) or target.routing_weight <= 0:
                    continue
                room = self._capacity.expect(target, work, parsed.input_tokens, aim_s)
                if room is not None:
                    found[target_id] = room
        return Rooms(found, place_of(request_id), caller.settings.spill_over) if found else NO_ROOMS

    def _record_overflow(self, route: RoutePlan, facts: Facts) -> None:
        """Report the tokens that go elsewhere for want of room to the autoscalers, as dispatch does for passed-over
        targets.
        """
        for candidate in route.candidates:
            if candidate.margin_why == "own-full":
                self._capacity.record_overflow(candidate.target, facts.input_tokens + candidate.output_tokens)

    def _starts_in_s(self, facts: Facts, config: PipelineConfig, fleet: Fleet) -> float | None:
        """Return the seconds after which a replica of an empty pool may be there; None where that is not known."""
        found = [self._capacity.starts_in_s(target) for target in absent(facts, config.policy, config.catalog, fleet)]
        return min((each for each in found if each is not None), default=None)

    def _record_absent(self, facts: Facts, config: PipelineConfig, fleet: Fleet) -> None:
        tokens = facts.input_tokens + (facts.max_output_tokens or DEFAULT_OUTPUT_TOKENS)
        for target in absent(facts, config.policy, config.catalog, fleet):
            self._capacity.record_overflow(target, tokens)


def _scored(
    scoring: Scoring,
    request_id: str,
    caller: Caller,
    parsed: ParsedRequest,
    prediction: Prediction | None,
    config: PipelineConfig,
    facts: Facts,
    fleet: Fleet,
) -> Facts:
    """Return the facts with what scorers say of the targets that the request may go to."""
    targets = eligible_targets(facts, prediction, config.policy, config.catalog, fleet)
    request = parsed.request
    asked = ScoredRequest(
        request_id=request_id,
        organisation_id=caller.organisation_id,
        team_id=caller.team_id,
        key_id=caller.key_id,
        operation=request.operation,
        model=request.alias or request.model,
        tier=request.tier,
        stream=request.stream,
        input_tokens=parsed.input_tokens,
        tools=request.tools,
        images=request.images,
        text=parsed.prompt.text,
        targets=targets,
    )
    found = scoring(asked) if targets else NO_SCORES
    return facts if found is NO_SCORES else replace(facts, scores=found)


def with_names(config: PipelineConfig, name: str) -> PipelineConfig:
    """Return the configuration with the wildcards' targets for the names behind the one that was sent."""
    if not config.catalog.wildcards.entries:
        return config
    catalog = config.catalog.including(names_behind(name, config.policy))
    return config if catalog is config.catalog else replace(config, catalog=catalog)
