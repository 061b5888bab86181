"""How a request ended: the one record that metrics, logs and traces are made from.

It holds no prompt, no completion and no key.
"""

from typing import Literal, Protocol

import msgspec

AttemptResult = Literal["ok", "error", "rate_limited", "timeout", "cut", "cancelled", "rejected"]


class AttemptOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one deployment, as it ended. Durations are seconds."""

    target_id: str
    deployment_id: str
    provider: str
    result: AttemptResult
    duration_s: float


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as it ended. `status` is what the caller saw (499: the caller hung up)."""

    request_id: str
    organisation_id: str
    team_id: str
    key_id: str
    tier: str
    alias: str
    stream: bool
    status: int
    error_code: str | None
    target_id: str | None
    """The target that answered, or None when none did."""
    reason: str
    complexity: float | None
    classifier: str | None
    """`onnx`, `heuristic`, or None when the caller named the model."""
    classify_s: float | None
    attempts: tuple[AttemptOutcome, ...]
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_nanousd: int | None
    baseline_nanousd: int | None
    ttft_s: float | None
    tpot_s: float | None
    """Seconds an output token after the first."""
    duration_s: float


class Observer(Protocol):
    """Told once how each request ended. Never raises and never blocks."""

    def finished(self, outcome: RequestOutcome) -> None: ...
