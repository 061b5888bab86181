"""Dry runs of routing: explains where a prompt would go and why, without calling an upstream."""

import json
from typing import Any

import msgspec

from classifier.asking.resolution import resolve
from classifier.onnx_classifier import load_classifier
from classifier.prediction import Classifier, Prediction, Prompt
from cost.prices import usd
from gateway.configuration.gateway_config import GatewayConfig
from gateway.wiring.catalog import catalog_of
from gateway.wiring.policy import build_policy, informed
from providers.target import Deployment, Target, Tier
from providers.wire import ChatRequest
from proxy.errors import Refused
from proxy.parse.chat_request import AUTO, input_tokens, needs, opening_tokens, parse_chat, prompt_of
from proxy.parse.headers import RequestHeaders
from proxy.plan.agreement import Pair, pair_for
from proxy.plan.answer_form import asked_form
from proxy.plan.evidence import Evidence
from proxy.plan.quality_tolerance import Tolerances
from proxy.plan.route_plan import (
    NO_LIMIT_NANOUSD,
    Facts,
    Rejection,
    RoutePlan,
    evidence_for_auto,
    plan,
    planned_rooms,
    why_too_weak,
)
from proxy.plan.tool_loop import read_loop


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A routing decision in plain values. `refusal` is set when nothing could serve the prompt."""

    complexity: float
    ask: str
    """The text that was taken for the ask, on one line and bounded: shown to the asker, and kept nowhere."""
    ask_place: str
    """Place of the ask; one of `classifier.asking.location.Place`."""
    kind: str
    """The kind of task; empty where the rule weighed."""
    classifier: str
    input_tokens: int
    expected_output_tokens: int
    quality_floor: float
    tolerance: float | None
    """The most by which a target's P(adequate) may fall below the reference's for this prompt; None when declared capability
    decided.
    """
    willing_usd: str | None
    """The price of one more adequate answer that is acceptable, with room on our own GPUs; 0 where nothing above the cheapest is.
    None where no limit follows from the sample.
    """
    reference_adequate: float | None
    """The reference's P(adequate); None when declared capability decided."""
    outlooks: tuple[dict[str, Any], ...] = ()
    """Each measured target's P(adequate) with its interval and its loss against the reference, best first."""
    candidates: tuple[dict[str, Any], ...] = ()
    rejected: tuple[dict[str, str], ...] = ()
    stand_in: bool = False
    """True where the baseline model has no row, and the best known model stood for it."""
    evidence: dict[str, Evidence] = {}
    """The evidence for the quality of each target that `auto` may choose, by target id."""
    two_first: str = ""
    """The two cheap targets that would be asked first, and the third where they differ (`escalation: agreement`); empty for none."""
    refusal: str | None = None
    loop_steps: int = 0
    """Steps of the tool loop after the last user message."""
    raises: int = 0
    struggle: str | None = None


class DryRun:
    """A request pipeline up to its plan, for which every deployment is healthy and every pool has room.

    `classifier` stands in for the configured one. Of a tool loop nothing is remembered here.
    """

    def __init__(self, config: GatewayConfig, classifier: Classifier | None = None) -> None:
        self._catalog = catalog_of(config)
        self._classifier = classifier or load_classifier(
            config.classifier, self._catalog.abilities, self._catalog.efforts
        )
        self._policy = informed(build_policy(config.policy, config.cost), self._catalog, self._classifier)
        self._tolerances = Tolerances(catalog=self._catalog, policy=self._policy, classifier=self._classifier)
        self._fleet = {
            target_id: target.deployments or _some_replica(target)
            for target_id, target in self._catalog.targets.items()
        }

    def explain(self, request: ChatRequest, tier: Tier, *, floor: float | None = None) -> Explanation:
        """Explain where a request for `auto` would go. `floor` replaces policy.quality_floor."""
        weighed = prompt_of(request)
        prediction = self._classifier.classify(weighed)
        kept = self._policy.quality_floor if floor is None else floor
        facts = self._facts(request, weighed, tier, kept)
        rooms = planned_rooms(self._policy)
        try:
            route = plan(facts, prediction, self._policy, self._catalog, self._fleet, rooms=rooms)
            form = asked_form(request, weighed, prediction.expected_output_tokens)
            pair = None if form is None else pair_for(form, route, facts, prediction, self._catalog)
            found = _explanation(facts, weighed, prediction, route, kept, pair=pair)
        except Refused as refused:
            nothing = RoutePlan(candidates=(), rejected=())
            found = _explanation(facts, weighed, prediction, nothing, kept, refusal=refused.message)
        return msgspec.structs.replace(found, evidence=evidence_for_auto(self._policy, self._catalog))

    def _facts(self, request: ChatRequest, weighed: Prompt, tier: Tier, floor: float) -> Facts:
        willing = self._tolerances.of(floor, None)
        tokens = input_tokens(request, weighed)
        loop = read_loop(request.messages, self._policy.loops)
        stays = self._policy.stay_in_turn and loop.steps
        return Facts(
            alias=AUTO,
            tier=tier,
            needs=needs(request),
            input_tokens=tokens,
            max_output_tokens=request.max_output_tokens,
            willing_nanousd=willing.by_average,
            willing_with_room_nanousd=willing.with_room,
            most_lost=willing.most_lost,
            loop=loop,
            opening_tokens=opening_tokens(request, weighed, tokens) if stays else None,
        )


def explain(
    config: GatewayConfig,
    prompt: str,
    tier: Tier = "interactive",
    *,
    floor: float | None = None,
    classifier: Classifier | None = None,
    body: bytes | None = None,
) -> Explanation:
    """Explain where one prompt would go, or `body`, a whole request to `auto`. Raises BadRequest."""
    asked = {"model": AUTO, "messages": [{"role": "user", "content": prompt}]}
    request = parse_chat(json.dumps(asked).encode() if body is None else body, RequestHeaders(tier=tier))
    return DryRun(config, classifier).explain(request, tier, floor=floor)


def _some_replica(target: Target) -> tuple[Deployment, ...]:
    """Return a placeholder replica for a pool's target, as real replicas are known only where they are watched."""
    target_id = target.target_id
    replica = Deployment(deployment_id=f"{target_id}/any", target_id=target_id, kind="vllm", upstream_model=target_id)
    return (replica,)


def _explanation(
    facts: Facts,
    weighed: Prompt,
    prediction: Prediction,
    route: RoutePlan,
    floor: float,
    *,
    pair: Pair | None = None,
    refusal: str | None = None,
) -> Explanation:
    asked = resolve(weighed)
    roomy = facts.willing_with_room_nanousd
    willing = facts.willing_nanousd if roomy is None else roomy
    return Explanation(
        complexity=round(prediction.complexity, 4),
        ask=asked.shown,
        ask_place=asked.place,
        kind=prediction.kind,
        classifier=prediction.source,
        input_tokens=facts.input_tokens,
        expected_output_tokens=prediction.expected_output_tokens,
        quality_floor=floor,
        tolerance=None if route.tolerance is None else round(route.tolerance, 4),
        willing_usd=None if willing >= NO_LIMIT_NANOUSD else _dollars(round(willing)),
        reference_adequate=None if route.reference_adequate is None else round(route.reference_adequate, 4),
        stand_in=route.stand_in,
        outlooks=_outlooks(prediction, route.reference_adequate),
        candidates=tuple(
            {
                "target": candidate.target.target_id,
                "reason": candidate.reason,
                "capability": candidate.target.capability,
                "evidence": route.grounds.get(candidate.target.target_id, "none"),
                "expected_cost_usd": _dollars(candidate.expected_nanousd),
                "at_most_usd": _dollars(candidate.bound_nanousd),
                "margin_usd": _dollars(candidate.margin_nanousd),
                "margin_why": candidate.margin_why,
            }
            for candidate in route.candidates
        ),
        rejected=tuple(
            {"target": rejection.target_id, "obstacle": rejection.obstacle, "detail": _detail(rejection, route)}
            for rejection in route.rejected
        ),
        two_first="" if pair is None else pair.in_words(route),
        refusal=refusal,
        loop_steps=facts.loop.steps,
        raises=facts.loop.raises,
        struggle=facts.loop.struggle,
    )


def _detail(rejection: Rejection, route: RoutePlan) -> str:
    return rejection.detail or why_too_weak(
        complexity=route.complexity,
        capability=rejection.capability,
        adequate=rejection.adequate,
        reference=route.reference_adequate,
        tolerance=route.tolerance,
        stand_in=route.stand_in,
    )


def _outlooks(prediction: Prediction, reference: float | None) -> tuple[dict[str, Any], ...]:
    best_first = sorted(prediction.outlooks.items(), key=lambda each: (-each[1].adequate, each[0]))
    return tuple(
        {
            "target": name,
            "adequate": round(outlook.adequate, 4),
            "low": round(outlook.low, 4),
            "high": round(outlook.high, 4),
            "loss": None if reference is None else round(reference - outlook.adequate, 4),
            "expected_output_tokens": outlook.output_tokens,
        }
        for name, outlook in best_first
    )


def _dollars(amount_nanousd: int | None) -> str | None:
    return None if amount_nanousd is None else f"{usd(amount_nanousd):f}"
