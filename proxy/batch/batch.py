"""Batches and their lines, as the tier and its callers see them."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, Literal

import msgspec

from providers.wire import Operation, Priority

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
Window = Literal["24h", "1h", "background"]
Ending = Literal["", "completed", "expired", "cancelled"]

WINDOW_US: Final[Mapping[Window, int | None]] = {
    "24h": 24 * 3_600_000_000,
    "1h": 3_600_000_000,
    "background": None,
}
"""The time that a batch may take; None promises nothing."""
Endpoint = Literal["/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/completions"]
"""An endpoint that a caller's batch may name; the first is usual. Batches of messages have an API of their own."""
MESSAGES_ENDPOINT: Final = "/v1/messages"
OPERATIONS: Final[Mapping[str, Operation]] = {
    "/v1/chat/completions": "chat",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "chat",
    "/v1/completions": "chat",
    MESSAGES_ENDPOINT: "chat",
}
"""The operation of each endpoint that lines of a batch may ask; it is that of the wire at this path."""
ENDED: Final = frozenset({"failed", "completed", "expired", "cancelled"})
NOT_ENDED: Final = ("validating", "in_progress", "finalizing", "cancelling")


class LineState(IntEnum):
    """The state of a line. Those above `RUNNING` change no more."""

    WAITING = 0
    RUNNING = 1
    ANSWERED = 2
    EXPIRED = 3
    CANCELLED = 4


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as its caller requests it."""

    organisation_id: str
    team_id: str
    key_id: str
    endpoint: str
    input_file_id: str
    completion_window: Window
    priority: Priority = 0
    labels: str | None = None
    output_expires_s: int | None = None
    callback_url: str | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as stored. Times are microseconds since 1970; the columns are described in `tables`."""

    batch_id: str
    organisation_id: str
    team_id: str
    key_id: str
    endpoint: str
    input_file_id: str
    completion_window: Window
    priority: Priority
    labels: str | None
    output_expires_s: int | None
    callback_url: str | None
    status: Status
    ending: Ending
    errors: str | None
    model: str | None
    created_us: int
    in_progress_us: int | None
    expires_us: int | None
    finalizing_us: int | None
    completed_us: int | None
    failed_us: int | None
    expired_us: int | None
    cancelling_us: int | None
    cancelled_us: int | None
    output_file_id: str | None
    error_file_id: str | None
    total: int
    completed: int
    failed: int
    repeated: int
    tokens: int
    tokens_left: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_nanousd: int
    unpriced: int
    saved_nanousd: int
    bound_nanousd: int | None
    reserved_nanousd: int
    estimated_us: int | None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def over_us(self) -> int | None:
        """When it came to its end, whichever; None before."""
        ends = (self.completed_us, self.failed_us, self.expired_us, self.cancelled_us)
        return max((each for each in ends if each is not None), default=None)

    @property
    def left(self) -> int:
        """Lines without an answer."""
        return self.total - self.completed - self.failed


class NewLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that validation found sound."""

    number: int
    place: int
    custom_id: str
    start: int
    size: int
    tokens: int
    bound_nanousd: int | None = None


class ClaimedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that this process has begun. Its generation distinguishes this beginning from every other one."""

    batch_id: str
    number: int
    custom_id: str
    start: int
    size: int
    tokens: int
    bound_nanousd: int | None
    generation: int
    failures: int
    place: int = 0


class LineResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a line that was begun. `cost_nanousd` is None where it is not known."""

    line: ClaimedLine
    request_id: str
    status: int
    body: bytes
    error_code: str = ""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_nanousd: int | None = 0
    saved_nanousd: int = 0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A line with its answer, as the files of a batch show it. Without an answer `body` is None."""

    number: int
    custom_id: str
    state: int
    status: int
    request_id: str
    body: bytes | None
