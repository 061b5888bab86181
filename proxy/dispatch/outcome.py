"""The outcome of a request: the one record that metrics, logs, traces and learning are made from.

It holds no completion and no key. It refers to the prompt for the observers that learn from it, and its `repr`
shows neither the prompt nor anything else that a caller wrote.
"""

from collections.abc import Hashable, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from accounts.caller import Caller, TeamSettings
from classifier.prediction import Prediction, Prompt
from guard.ruleset import Finding
from providers.wire import ChatRequest, Operation
from proxy.plan.tool_loop import Struggle

CALLER_GONE: Final = 499
"""The status of a request whose caller hung up before its end (nginx's convention)."""

Ending = Literal["ok", "caller_gone", "slow_reader", "shutdown", "failed", "hedge_lost"]
"""The end of an attempt. `hedge_lost`: of two that ran beside each other the other one began to answer first."""
Unused = Literal["escalated", "discarded", "hedge_lost", "confirmed", "disputed"]
"""The reason that an answer was not given: `escalated`, a better target's replaced it; `discarded`, it was the better
target's but the worse answer; `hedge_lost`, another attempt was quicker; `confirmed`, of two cheap answers that
agreed the other was given; `disputed`, they did not agree, or it came too late for that.
"""
AttemptResult = Literal["ok", "error", "rate_limited", "timeout", "cut", "cancelled", "hedge_lost", "rejected"]


Weakness = Literal["truncated", "refused", "invalid-json", "schema-mismatch", "malformed-tool-arguments", "low-logprob"]
"""The fault for which an answer counts as weak."""

Agreement = Literal["agreed", "disagreed", "unconfirmed"]
"""The result of asking two cheap targets. `agreed`: they said the same and one answer was given; `disagreed`: they
did not, and a better target was asked; `unconfirmed`: that one could not answer, or only the plan's own choice had
answered in time, and its answer was given.
"""


class QueueWaited(NamedTuple):
    """A wait in the queue before a target, which ended in a place there, a refusal, or with the request itself."""

    target_id: str
    waited_s: float
    attempts_before: int
    """Attempts, at any target, that had begun before it."""


class AttemptOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one attempt. Durations are seconds."""

    target_id: str
    deployment_id: str
    provider: str
    result: AttemptResult
    duration_s: float
    error: str | None = None
    """The class of the error that ended it; None for an answer."""
    status: int | None = None
    """The HTTP status that the upstream refused it with, where it did."""
    detail: str = ""
    """The upstream's own words on its failure: one line, bounded, without keys and without repeated words of the
    request.
    """
    pool: str = ""
    """The pool of our own that it was made at; empty elsewhere."""
    version: str = ""
    """The model's version there; empty or `-` when it is not known."""
    ttft_s: float | None = None
    """Seconds from its beginning to its first token, of a stream."""
    tpot_s: float | None = None
    """Mean seconds an output token after the first; None with fewer than two, and for an answer in one piece."""
    disputed_nanousd: int = 0
    """What its upstream told beyond the possible, in nano-dollars."""
    unknown: tuple[str, ...] = ()
    """Names of counts in its usage that no meter is known for."""
    continues: bool = False
    """True for an attempt that continued an answer which had broken off at another replica."""


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The final record of one request. `status` is the caller's (499: the caller hung up). A request that was refused
    early has only the facts known by then; other fields keep their defaults.
    """

    request_id: str
    status: int
    duration_s: float
    told_after_s: float = 0.0
    """Seconds between its end and this report of it."""
    organisation_id: str = ""
    team_id: str = ""
    key_id: str = ""
    tier: str = "interactive"
    alias: str = ""
    stream: bool = False
    error_code: str | None = None
    """The code that the caller saw; None for an answer."""
    target_id: str | None = None
    """The target that answered, or None when none did."""
    reason: str = ""
    complexity: float | None = None
    classifier: str | None = None
    """`onnx`, `heuristic`, or None when the caller named the model."""
    classify_s: float | None = None
    attempts: tuple[AttemptOutcome, ...] = ()
    waits: tuple[QueueWaited, ...] = ()
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost_nanousd: int | None = 0
    baseline_nanousd: int | None = None
    ttft_s: float | None = None
    """Seconds until the caller's first token; of a held answer, until its release."""
    tpot_s: float | None = None
    """Mean seconds per output token after the first."""
    operation: Operation = "chat"
    asked_model: str = ""
    """The model that the caller named, where the configuration knows it."""
    end_user: str = ""
    """The end user whom the caller named, as the books have it."""
    error_message: str | None = None
    """The message to the caller, where the gateway itself refused."""
    out_of_use: tuple[str, ...] = ()
    """Of a refused request: targets that it might have gone to, and that could not be called or had no room."""
    escalated_from: str | None = None
    """The target whose weak answer was replaced by that of `target_id`."""
    weakness: Weakness | None = None
    """The weakness of the answer of `escalated_from` when that is set, else of the given answer."""
    agreement: Agreement | None = None
    """The result of asking two cheap targets; None where two were not asked."""
    cached: str = ""
    """What the answer cache had for it: `hit`, `miss`, `refresh` or `bypass`; empty without a cache."""
    loop_steps: int = 0
    """Answers of this user turn that had called tools by then; 0 where the loop was not read."""
    struggle: Struggle | None = None
    """The struggle of this turn's tool loop, or of the one before."""
    prediction: Prediction | None = None
    settings: TeamSettings | None = None
    """The team's settings when the request came."""
    guard: tuple[Finding, ...] = ()
    """What the guard found and did: names and counts."""
    # For teams that let us learn from their requests, and for those alone:
    prompt: Prompt | None = None
    conversation: Hashable = None
    """The conversation's key within its team and this process."""
    request_digest: int | None = None
    """A hash of the messages in this process, to recognise repeated requests."""

    def __repr__(self) -> str:
        return f"RequestOutcome({self.request_id!r}, status={self.status}, target_id={self.target_id!r})"


class ShadowSampler(Protocol):
    """The sampler that compares some answers with those of other targets, after their reply."""

    def wants(self, caller: Caller, alias: str, request_id: str) -> bool:
        """Return True when this request's answer is to be retained for a comparison."""

    def offer(self, request: ChatRequest, caller: Caller, outcome: RequestOutcome, payloads: Sequence[bytes]) -> None:
        """Take an answer that its caller has. Never blocks and never raises."""


class Observer(Protocol):
    """A receiver of each request's outcome, once. Must not raise or block."""

    def finished(self, outcome: RequestOutcome) -> None: ...


class RequestTrace(Protocol):
    """The trace of one request, from first byte to end."""

    is_recorded: bool
    """True where `finish` must not be late."""

    def headers(self) -> dict[str, str]:
        """Return headers to send upstream, so that an engine's spans join the trace."""
        ...

    def finish(self, outcome: RequestOutcome, request_model: str, stream: bool) -> None:
        """End the trace. Never raises, never blocks; spans beyond the exporter's queue are dropped."""
        ...
