"""Explains where a prompt would go and why, without calling anybody."""

import json
from typing import Any

import msgspec

from classifier.onnx_classifier import load_classifier
from classifier.prediction import Prediction
from cost.prices import usd
from providers.catalog import build_catalog
from providers.target import Tier
from proxy.configuration.settings import GatewayConfig, build_policy
from proxy.errors import Refused
from proxy.policy import AUTO, Facts, RoutePlan, plan
from proxy.request import RequestHeaders, input_tokens, needs, parse_chat, prompt_of


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A decision in plain values. `refusal` is set when nothing could serve the prompt."""

    complexity: float
    classifier: str
    input_tokens: int
    expected_output_tokens: int
    candidates: tuple[dict[str, Any], ...] = ()
    rejected: tuple[dict[str, str], ...] = ()
    refusal: str | None = None


def explain(config: GatewayConfig, prompt: str, tier: Tier = "interactive") -> Explanation:
    """Weighs and plans as the line does, with every deployment taken for healthy."""
    body = json.dumps({"model": AUTO, "messages": [{"role": "user", "content": prompt}]}).encode()
    request = parse_chat(body, RequestHeaders(tier=tier))
    weighed = prompt_of(request)
    prediction = load_classifier(config.classifier).classify(weighed)
    facts = Facts(
        alias=AUTO,
        tier=tier,
        needs=needs(request),
        input_tokens=input_tokens(request, weighed),
        max_output_tokens=None,
    )
    # No call is made, so no secret is looked up.
    catalog = build_catalog(config.providers, lambda _reference: "unused")
    fleet = {target_id: target.deployments for target_id, target in catalog.targets.items()}
    try:
        return _told(facts, prediction, plan(facts, prediction, build_policy(config.policy), catalog, fleet))
    except Refused as refused:
        return _told(facts, prediction, RoutePlan(candidates=(), rejected=()), refusal=refused.message)


def _told(facts: Facts, prediction: Prediction, route: RoutePlan, refusal: str | None = None) -> Explanation:
    return Explanation(
        complexity=round(prediction.complexity, 4),
        classifier=prediction.source,
        input_tokens=facts.input_tokens,
        expected_output_tokens=prediction.expected_output_tokens,
        candidates=tuple(
            {
                "target": candidate.target.target_id,
                "reason": candidate.reason,
                "capability": candidate.target.capability,
                "expected_cost_usd": _dollars(candidate.expected_nanousd),
                "at_most_usd": _dollars(candidate.bound_nanousd),
            }
            for candidate in route.candidates
        ),
        rejected=tuple(
            {"target": rejection.target_id, "obstacle": rejection.obstacle, "detail": rejection.detail}
            for rejection in route.rejected
        ),
        refusal=refusal,
    )


def _dollars(amount_nanousd: int | None) -> str | None:
    return None if amount_nanousd is None else f"{usd(amount_nanousd):f}"
