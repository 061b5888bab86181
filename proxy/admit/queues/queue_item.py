"""Types of queues: the item that waits, the permit it gets, and the refusal."""

from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from providers.target import Tier
from providers.wire import Priority
from proxy.errors import QueueRefusal

Why = Literal["full", "late", "shed", "expired"]
"""The reason of a refusal: `full`, the queue is full; `late`, the predicted wait passes the deadline; `shed`, more
urgent work took the place; `expired`, the deadline passed while waiting, against the prediction.
"""


class QueueItem(msgspec.Struct, frozen=True, kw_only=True):
    """A request in a queue: its tier, its team and its expected tokens."""

    team_id: str
    weight: float
    """The team's weight in fair sharing."""
    tier: Tier
    priority: Priority
    tokens: int
    """The expected tokens of prompt and answer, which it occupies while it runs."""
    start_by: float
    """The latest start on the monotonic clock; infinite without a deadline."""


class QueueWait(NamedTuple):
    """The expected wait of a request in a queue, and the longest that it may wait there, in seconds."""

    expected_s: float
    most_s: float


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a queue in one process, reported to refused callers."""

    name: str
    waiting: int
    waiting_tokens: int
    in_flight: int
    in_flight_tokens: int
    capacity_tokens: int
    predicted_wait_s: float
    """The predicted wait of the request concerned."""


class QueueSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a queue in one process, for operators. The wait is that of a minimal interactive request."""

    state: QueueState
    """The state; its capacity is this process's part."""
    whole_capacity_tokens: int
    """The capacity of all processes together."""
    by_demand: bool
    """True when Redis divides the capacity by demand; otherwise each process has an equal part."""
    waiting_interactive: int
    waiting_batch: int
    drain_tokens_per_s: float
    """The measured rate at which work ends in this process."""
    in_flight_batch: int = 0
    """Requests in flight here of the tier `batch`."""
    whole_capacity_requests: int | None = None
    """Requests that may run at once, of all processes together; None where they are not counted."""


class QueuePermit(Protocol):
    """A place among the work in flight. `release` must follow; only its first call counts."""

    @property
    def waited_s(self) -> float: ...

    def release(self, used_tokens: int | None = None) -> None:
        """Give the permit back. `used_tokens` is the true use, where known, to which the team's share is corrected.
        Never blocks.
        """
        ...


class NoRoom(QueueRefusal):
    """A queue refused the request, or gave it up while it waited."""

    def __init__(self, message: str, why: Why, state: QueueState, *, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s, details={"queue": {"why": why, **_as_details(state)}})
        self.why = why
        self.state = state


def _as_details(state: QueueState) -> dict[str, Any]:
    told = msgspec.structs.asdict(state)
    return {**told, "predicted_wait_s": round(state.predicted_wait_s, 3)}
