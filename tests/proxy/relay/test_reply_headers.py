"""The headers that tell a routing decision: which are always there, and what adds each of the others."""

from typing import Any

import msgspec
import pytest

from classifier.prediction import Prediction
from cost.usage import Usage
from proxy.dispatch.outcome import QueueWaited
from proxy.http.reply_head import fields_of
from proxy.parse.wires.own_fields import dollars
from proxy.parse.wires.wire import Tally
from proxy.plan.evidence import Evidence
from proxy.relay.reply_headers import decision_lines, money_lines
from tests.proxy.contexts import a_candidate, a_routed_request, an_attempt

ALWAYS = {
    "x-weighbridge-model-used": "small",
    "x-weighbridge-target": "small",
    "x-weighbridge-deployment": "small/a",
    "x-weighbridge-reason": "cheapest-capable",
    "x-weighbridge-attempts": "1",
    "x-weighbridge-tier": "interactive",
}
PREDICTION = Prediction(complexity=0.12345, source="onnx", expected_output_tokens=9)


def told(routed: dict[str, Any] | None = None, **found: Any) -> dict[str, str]:
    attempt = an_attempt(a_routed_request(**routed or {}))
    return {name.decode(): value.decode() for name, value in fields_of(decision_lines([attempt], attempt, **found))}


def test_a_named_model_has_no_complexity() -> None:
    """Nothing was classified, so nothing is told of it."""
    assert told() == ALWAYS


@pytest.mark.parametrize(
    ("more", "added"),
    [
        (
            {"routed": {"prediction": PREDICTION}},
            {"x-weighbridge-complexity": "0.123", "x-weighbridge-classifier": "onnx"},
        ),
        ({"routed": {"downgraded": True}}, {"x-weighbridge-downgraded": "budget"}),
        ({"weakness": "refused"}, {"x-weighbridge-weakness": "refused"}),
        ({"escalated_from": "tiny"}, {"x-weighbridge-escalated-from": "tiny"}),
        ({"waits": [QueueWaited("small", 0.0101, 0)]}, {"x-weighbridge-queue-ms": "11"}),
        ({"waits": [QueueWaited("small", 0.0, 0)]}, {}),
        ({"waits": [QueueWaited("big", 1.5, 0), QueueWaited("small", 0.25, 1)]}, {"x-weighbridge-queue-ms": "1750"}),
    ],
)
def test_whatever_else_happened_adds_its_own(more: dict[str, Any], added: dict[str, str]) -> None:
    """A wait is rounded up: who waited is never told 0."""
    assert told(**more) == ALWAYS | added


def test_an_answer_that_was_not_given_is_told_with_its_price() -> None:
    """The attempt beside the one that answers; 4 characters and 10 tokens of prompt at a dollar a million."""
    routed = a_routed_request()
    weak = an_attempt(routed)
    weak.close("ok", status=200, unused="escalated")
    better = an_attempt(routed, a_candidate("big", reason="escalated"), number=2)
    headers = dict(fields_of(decision_lines([weak, better], better, weakness="truncated", escalated_from="small")))
    assert headers[b"x-weighbridge-escalation-cost-usd"] == b"0.000011000"
    assert (headers[b"x-weighbridge-target"], headers[b"x-weighbridge-attempts"]) == (b"big", b"2")


def test_the_slower_of_two_attempts_is_told_with_its_price() -> None:
    """It used its prompt, and what had come of its answer."""
    routed = a_routed_request()
    slower, quicker = an_attempt(routed), an_attempt(routed, a_candidate("big", reason="hedge"), number=2)
    slower.close("hedge_lost", status=200, unused="hedge_lost")
    headers = dict(fields_of(decision_lines([slower, quicker], quicker)))
    assert headers[b"x-weighbridge-hedge-cost-usd"] == b"0.000011000"
    assert (headers[b"x-weighbridge-reason"], headers[b"x-weighbridge-attempts"]) == (b"hedge", b"2")
    assert b"x-weighbridge-escalation-cost-usd" not in headers


def test_money_without_a_price_is_left_out() -> None:
    """An unknown cost is not 0."""
    assert money_lines(Tally(Usage(), None, None)) == b""
    assert money_lines(Tally(Usage(), "0.000000001", None)) == b"x-weighbridge-cost-usd: 0.000000001\r\n"


@pytest.mark.parametrize(("amount", "text"), [(0, "0.000000000"), (1, "0.000000001"), (12_345_678_901, "12.345678901")])
def test_money_is_written_exactly(amount: int, text: str) -> None:
    """Nine places, no rounding, no exponent."""
    assert dollars(amount) == text


@pytest.mark.parametrize("evidence", ["measured", "published", "extrapolated", "declared", "none"])
def test_what_a_choice_rests_on_is_told(evidence: Evidence) -> None:
    """Where the gateway chose, and it is known what is known of its models."""
    routed = a_routed_request(prediction=PREDICTION)
    plan = msgspec.structs.replace(routed.plan, grounds={"small": evidence})
    attempt = an_attempt(msgspec.structs.replace(routed, plan=plan))
    lines = dict(fields_of(decision_lines([attempt], attempt)))
    assert lines[b"x-weighbridge-evidence"] == evidence.encode()
