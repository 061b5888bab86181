"""What waits in a queue, what it is given, and what is said to whom there is no room for."""

from typing import Any, Literal, Protocol

import msgspec

from providers.target import Tier
from providers.wire import Priority
from proxy.errors import QueueRefusal

Why = Literal["full", "late", "shed", "expired"]
"""The queue is full; the predicted wait is beyond the deadline; something more urgent needed the place; the deadline
passed while waiting, so the prediction was wrong."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One request as a queue sees it."""

    team_id: str
    weight: float
    """The team's, beside the other teams' weights."""
    tier: Tier
    priority: Priority
    tokens: int
    """Expected of prompt and answer together: what it occupies while it runs."""
    start_by: float
    """On the monotonic clock; infinite for no deadline. It is not started later."""


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as one process sees it, told to a caller that is refused."""

    name: str
    waiting: int
    waiting_tokens: int
    in_flight: int
    in_flight_tokens: int
    capacity_tokens: int
    predicted_wait_s: float
    """Of the request that is told."""


class QueueSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as one process sees it, for who looks after it. The wait is that of an interactive request that comes now."""

    state: QueueState
    """Its capacity is this process's part."""
    whole_capacity_tokens: int
    """Of all processes together."""
    by_demand: bool
    """The parts are divided in Redis, by what each process has to do; otherwise each has an equal one."""
    waiting_interactive: int
    waiting_batch: int
    drain_tokens_per_s: float
    """How fast work ends here, as far as it was measured."""


class Slot(Protocol):
    """A place among the work in flight. Given back once; later calls do nothing."""

    @property
    def waited_s(self) -> float: ...

    def release(self, used_tokens: int | None = None) -> None:
        """`used_tokens` is what it came to, where that is known; a team's share is counted by it. Never waits."""
        ...


class NoRoom(QueueRefusal):
    """A queue does not take the request, or gave up on it."""

    def __init__(self, message: str, why: Why, state: QueueState, *, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s, details={"queue": {"why": why, **_told(state)}})
        self.why = why
        self.state = state


def _told(state: QueueState) -> dict[str, Any]:
    told = msgspec.structs.asdict(state)
    return {**told, "predicted_wait_s": round(state.predicted_wait_s, 3)}
