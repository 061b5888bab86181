"""Made-up weighings and verdicts for the tests of learning."""

from typing import Any

from classifier.learning.store import ClassifiedRequest, Verdict

NOON_US = 1_775_390_400_000_000


def a_weighing(request_id: str = "req_1", **changes: Any) -> ClassifiedRequest:
    values: dict[str, Any] = {
        "request_id": request_id,
        "at_us": NOON_US,
        "organisation_id": "org_1",
        "team_id": "team_a",
        "target_id": "small",
        "artifact": "model-1",
        "vector": b"\x00\x3c" * 70,
        "complexity": 0.25,
        "group_id": "g1",
        "input_tokens": 800,
        "output_tokens": 200,
        "cost_nanousd": 1_500_000,
        "conversation": "c" * 32,
        "request_digest": "d" * 64,
        "prompt": None,
    }
    return ClassifiedRequest(**(values | changes))


def a_verdict(request_id: str = "req_1", **changes: Any) -> Verdict:
    values: dict[str, Any] = {
        "request_id": request_id,
        "at_us": NOON_US + 1,
        "organisation_id": "org_1",
        "team_id": "team_a",
        "target_id": "small",
        "source": "feedback",
        "signal": "rating",
        "adequate": 0.75,
    }
    return Verdict(**(values | changes))
