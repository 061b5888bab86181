"""Made-up outcomes for the observers' tests."""

from typing import Any

from proxy.dispatch.outcome import AttemptOutcome, AttemptResult, RequestOutcome


def an_attempt(
    target_id: str = "llama-3-70b", result: AttemptResult = "ok", duration_s: float = 0.2, **more: Any
) -> AttemptOutcome:
    return AttemptOutcome(
        target_id=target_id,
        deployment_id=f"{target_id}/a",
        provider="vllm",
        result=result,
        duration_s=duration_s,
        **more,
    )


def an_outcome(**changes: Any) -> RequestOutcome:
    values: dict[str, Any] = {
        "request_id": "req_0123456789abcdef",
        "organisation_id": "org_1",
        "team_id": "team_1",
        "key_id": "key_abc",
        "tier": "interactive",
        "alias": "auto",
        "stream": True,
        "status": 200,
        "error_code": None,
        "target_id": "llama-3-70b",
        "reason": "cheapest-capable",
        "complexity": 0.25,
        "classifier": "onnx",
        "classify_s": 0.0002,
        "attempts": (an_attempt(),),
        "input_tokens": 800,
        "cached_input_tokens": 100,
        "output_tokens": 200,
        "cost_nanousd": 1_500_000,
        "baseline_nanousd": 4_000_000,
        "ttft_s": 0.15,
        "tpot_s": 0.012,
        "duration_s": 0.25,
    }
    return RequestOutcome(**(values | changes))
