"""One admitted request on its way: what every stage after planning needs, frozen."""

from collections.abc import Mapping

import msgspec

from accounts.caller import Caller
from classifier.prediction import Prediction
from cost.claim.comparators import Comparators
from cost.ledger.entries import Arm, Origin
from providers.config import TimeoutsConfig
from providers.wire import ChatRequest
from proxy.deadlines.deadline import NO_DEADLINE, Deadline
from proxy.policy import Facts, RoutePlan


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a stream, and for how long, is held back to be judged."""

    max_bytes: int
    max_s: float


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """`comparators` are who the answer is compared with; None where it can save nothing."""

    request_id: str
    caller: Caller
    request: ChatRequest
    facts: Facts
    plan: RoutePlan
    prediction: Prediction | None
    comparators: Comparators | None
    timeouts: TimeoutsConfig
    upstream_headers: dict[str, str]
    alias: str
    """What the caller asked for, whatever it was then planned as."""
    pools: Mapping[str, str] = {}
    """Target → the pool of our own GPUs that it runs on."""
    origin: Origin = "caller"
    arm: Arm = ""
    hold: Hold | None = None
    """The answer is read to its end before any of it is given; None relays it as it comes."""
    deadline: Deadline = NO_DEADLINE
    keep_bytes: int = 0
    """How many bytes of payloads an attempt remembers, to be judged after the reply."""
