"""The routed request: one request with its plan, frozen, which every stage after planning works from."""

from collections.abc import Hashable, Mapping

import msgspec

from accounts.caller import Caller
from classifier.prediction import Prediction
from cost.claim.comparators import Comparators
from cost.ledger.entries import Arm, Origin
from providers.config import RetryConfig, TimeoutsConfig
from providers.wire import ChatRequest
from proxy.deadlines.deadline import NO_DEADLINE, Deadline
from proxy.policy import Facts, RoutePlan


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a stream, and for how long, is held back to be judged."""

    max_bytes: int
    max_s: float


class RoutedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Made once by the plan stage, and used as it is by dispatch, attempts, relay, settling and shadow requests."""

    request_id: str
    caller: Caller
    request: ChatRequest
    facts: Facts
    plan: RoutePlan
    prediction: Prediction | None
    """None where the caller named the model, so that nothing had to be classified."""
    comparators: Comparators | None
    """Whom the answer is compared with; None where it can save nothing."""
    timeouts: TimeoutsConfig
    retry: RetryConfig
    upstream_headers: dict[str, str]
    alias: str
    """The name that the caller asked for, whatever it was then planned as."""
    pools: Mapping[str, str] = {}
    """Target → the pool of our own GPUs that it runs on."""
    origin: Origin = "caller"
    arm: Arm = ""
    downgraded: bool = False
    """A budget is spent, so the cheapest capable target stands in for the one that was named."""
    hold: Hold | None = None
    """The answer is read to its end before any of it is given, for a weak one may be asked again of a better target;
    None relays it as it comes.
    """
    deadline: Deadline = NO_DEADLINE
    keep_bytes: int = 0
    """How many bytes of payloads an attempt remembers, to be judged after the reply."""
    conversation: Hashable = None
    """Names the conversation within its team and this process."""
