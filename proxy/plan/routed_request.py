"""The routed request: one request with its plan, frozen, used by every stage after planning."""

from collections.abc import Hashable, Mapping

import msgspec

from accounts.caller import Caller
from classifier.prediction import Prediction
from cost.ledger.entries import Arm, Origin
from cost.savings.comparators import Comparators
from cost.usage import Usage
from providers.config import RetryConfig, TimeoutsConfig
from providers.wire import ChatRequest
from proxy.plan.agreement import Pair
from proxy.plan.cache_control import Reuse
from proxy.plan.route_plan import Facts, RoutePlan
from proxy.shared.deadline import NO_DEADLINE, Deadline


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on how much of a stream, and for how long, is held back to be judged."""

    max_bytes: int
    max_s: float


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an answer that came before its replica was lost, for the attempt that continues it."""

    usage: Usage
    cost_nanousd: int | None
    arrived_at: float
    """The time at which the request arrived, on the monotonic clock in seconds."""
    first_token_at: float
    """The time of the caller's first token, on the monotonic clock in seconds."""
    version: str
    """The model's version that was lost; empty or `-` when it is not known."""
    kept: tuple[bytes, ...]
    """The payloads that were retained to be judged after the reply."""


class RoutedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request with its plan and settings, built once by the plan stage."""

    request_id: str
    caller: Caller
    request: ChatRequest
    facts: Facts
    plan: RoutePlan
    prediction: Prediction | None
    """The classifier's prediction; None where the caller named the model."""
    comparators: Comparators | None
    """The targets that the answer's cost is compared with; None where it can save nothing."""
    timeouts: TimeoutsConfig
    retry: RetryConfig
    upstream_headers: dict[str, str]
    alias: str
    """The model name that the caller sent, whatever the planned one."""
    pools: Mapping[str, str] = {}
    """Pool of our own GPUs by target id."""
    origin: Origin = "caller"
    arm: Arm = ""
    downgraded: bool = False
    """True when a spent budget replaced the named model by the cheapest capable target."""
    hold: Hold | None = None
    """The limits for holding the answer to be judged before it is given; None relays it as it comes."""
    agreement: Pair | None = None
    """The two cheap targets that are asked before the plan; None where two answers could not be compared, or would
    not pay.
    """
    deadline: Deadline = NO_DEADLINE
    keep_bytes: int = 0
    """The payload bytes that an attempt retains, to be judged after the reply."""
    conversation: Hashable = None
    """The conversation's key within its team and this process."""
    reuse: Reuse | None = None
    """The chance that its prompt is cached; None where no marks are set for it."""
    at_batch_price: bool = False
    """True for an answer of a provider's batch API, which costs that API's price."""
    turn: Hashable = None
    """The user turn's key within its conversation; None where its target need not be remembered."""
    before: Before | None = None
    """The part of the answer that came already, where this asks for the rest of one that broke off."""
