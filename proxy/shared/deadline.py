"""The deadline of a request: one value that queues, dispatch and upstream calls all go by.

The caller's own deadline bounds everything, to the millisecond. Otherwise a request runs as long as its client
announces that it waits, and at most as long as its tier allows: by then a stream must have begun, and any other answer
be whole. A tier's first-token objective bounds the wait in our queues.
"""

import math
from collections.abc import Mapping
from typing import Final, Self, get_args

import msgspec
from pydantic import Field, model_validator

from providers.target import Tier
from proxy.errors import BadRequest, DeadlineExceeded
from proxy.shared.target_latency import TargetLatency
from settings.types import Seconds, Section

_TO_FIRST = "To the first token: bounds the wait in our queues. null: as long as the queue allows."
_ANSWER = (
    "The caller's time where neither caller nor client says one; a later whole answer is 504, a stream owes its first "
    "token by then. null: `providers.timeouts.total_s`."
)


class TierDeadlines(Section):
    """Deadlines of the tier interactive."""

    first_token_s: Seconds | None = Field(default=1.0, description=_TO_FIRST)
    answer_s: Seconds | None = Field(default=600.0, description=_ANSWER)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first_token_s is not None and self.answer_s is not None and self.first_token_s > self.answer_s:
            raise ValueError("first_token_s is longer than answer_s, so it would mean nothing")
        return self


class BatchDeadlines(TierDeadlines):
    """Deadlines of the tier batch."""

    first_token_s: Seconds | None = Field(default=120.0, description=_TO_FIRST)


class DeadlinesSection(Section):
    """Deadlines of requests whose caller does not set one."""

    interactive: TierDeadlines = Field(default=TierDeadlines(), description="Requests that somebody waits for.")
    batch: BatchDeadlines = Field(default=BatchDeadlines(), description="Requests that can wait.")

    def of(self, tier: Tier) -> TierDeadlines:
        return self.interactive if tier == "interactive" else self.batch


TIMEOUT_HEADER: Final = "x-request-timeout-ms"
READ_HEADER: Final = "x-stainless-read-timeout"
GENERAL_HEADER: Final = "x-stainless-timeout"
CLIENT_HEADERS: Final = (READ_HEADER, GENERAL_HEADER)
"""Headers in which clients made like OpenAI's announce, in seconds, the time that they wait for a reply to begin."""
_MOST_CLIENT_CHARS: Final = 16
_SET_BY_TIER: Final[Mapping[Tier, str]] = {tier: f"deadlines.{tier}.answer_s" for tier in get_args(Tier)}
MOST_TIMEOUT_MS: Final = 3_600_000
_MAX_DIGITS: Final = 7
_LEAST_TIMEOUT_S: Final = 0.001
_GOOD_PART: Final = 0.25
_OWN_WAIT: Final = 0.5
_LEAST_WAIT: Final = 0.1
"""The share of the first-token objective that may always be waited. A target whose first token alone exceeds the
objective, or a late fallback, would otherwise always be refused.
"""


class Deadline(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines of one request in seconds on the monotonic clock; infinite where there is none."""

    arrived_at: float
    first_token_at: float
    """The objective for the first token: the tier's, or half of the caller's own time-out where that is later. It
    bounds the wait in queues, because a request that starts at the last moment is late.
    """
    answer_at: float
    own: bool
    """True when the caller set the time-out. Then `answer_at` also cuts a stream that has begun."""
    set_by: str = ""
    """The header or the key of the configuration that `answer_at` comes from."""

    def remaining_s(self, now: float) -> float:
        return self.answer_at - now

    def passed(self, now: float) -> bool:
        """Return True when the deadline has passed at `now`, as opposed to an upstream time-out."""
        # A timer may fire a hair before its moment, which is late all the same.
        return self.answer_at - now < _LEAST_TIMEOUT_S

    def is_good_part(self, waited_s: float) -> bool:
        """Return True when an upstream was waited for during a good part of the tier's time. Always False for a
        deadline that the caller set, which says nothing about the upstream.
        """
        return not self._of_caller and waited_s >= _GOOD_PART * (self.answer_at - self.arrived_at)

    def start_by(self, now: float, latency: TargetLatency | None, tokens: int, *, stream: bool) -> float | None:
        """Return the latest start, on the monotonic clock, with which the request is expected to be in time. None where it would be late
        even at the target's fastest observed speed, so that it is not started.

        `tokens` is a lower bound of the answer's length.
        """
        least_s = self._least_s(latency, tokens, stream=stream)
        if now + least_s >= self.answer_at:
            return None
        usual_s = latency.ttft_s if latency is not None else 0.0
        least_wait_s = _LEAST_WAIT * (self.first_token_at - self.arrived_at)
        objective = max(self.first_token_at - usual_s, now + least_wait_s)
        return min(objective, self.answer_at - least_s)

    def total_timeout_s(self, now: float, patience_s: float, *, stream: bool) -> float:
        """Return the time-out of the whole reply in seconds. A stream that has begun is cut by its caller's own
        deadline only.
        """
        if stream and not self.own:
            return patience_s
        left_s = self.answer_at - now
        return patience_s if patience_s < left_s else max(left_s, _LEAST_TIMEOUT_S)

    @property
    def cuts_streams(self) -> bool:
        return self.own

    def exceeded(self, tried: str = "") -> DeadlineExceeded:
        """Return the error for a deadline that passed while the request waited or ran; `tried` names the targets
        asked.
        """
        tried = tried and f"; {tried}"
        return DeadlineExceeded(f"The answer was not complete within {self._in_words}{tried}. {self._advice}")

    def unreachable(self, target_id: str) -> DeadlineExceeded:
        """Return the error for a request that was not started because `target_id` could not meet its deadline."""
        return DeadlineExceeded(
            f"`{target_id}` cannot answer within {self._in_words}, so it was not asked, and nothing is charged. "
            f"{self._advice}"
        )

    def _least_s(self, latency: TargetLatency | None, tokens: int, *, stream: bool) -> float:
        if latency is None:
            return 0.0
        if stream and not self.own:
            return latency.fast_ttft_s
        return latency.fast_ttft_s + latency.fast_tpot_s * max(0, tokens - 1)

    @property
    def _of_caller(self) -> bool:
        """True when the caller's side sets it: a caller that stops waiting tells nothing about an upstream."""
        return self.own or self.set_by in CLIENT_HEADERS

    @property
    def _in_words(self) -> str:
        allowed_s = self.answer_at - self.arrived_at
        if self.own:
            return f"the {round(allowed_s * 1000)} ms of `{TIMEOUT_HEADER}`"
        return f"the {allowed_s:g} s of `{self.set_by}`"

    @property
    def _advice(self) -> str:
        if self.own:
            return "Allow more time, or ask for a shorter answer or another model."
        if self._of_caller:
            return f"Give your client a longer time-out, or send `{TIMEOUT_HEADER}`; or stream the answer."
        return (
            f"Send `{TIMEOUT_HEADER}` to allow more time, or stream the answer; operators raise it in the gateway's "
            "configuration."
        )


NO_DEADLINE: Final = Deadline(arrived_at=0.0, first_token_at=math.inf, answer_at=math.inf, own=False)


def client_timeout(read: str | None, general: str | None) -> tuple[float, str] | None:
    """Parse the values of CLIENT_HEADERS to the client's patience in seconds and the header that tells it; None where
    neither makes sense.
    """
    seconds = _client_seconds(read) if read else None
    if seconds is not None:
        return seconds, READ_HEADER
    seconds = _client_seconds(general) if general else None
    return None if seconds is None else (seconds, GENERAL_HEADER)


def _client_seconds(value: str) -> float | None:
    if len(value) > _MOST_CLIENT_CHARS or not value.isascii() or not value.replace(".", "", 1).isdecimal():
        return None
    seconds = float(value)
    return seconds if _LEAST_TIMEOUT_S <= seconds <= MOST_TIMEOUT_MS / 1000 else None


def own_timeout_s(value: str) -> float:
    """Parse the time-out header to seconds. Raises BadRequest."""
    # `int` would take signs, underscores and the digits of other scripts, too.
    if value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS and 1 <= int(value) <= MOST_TIMEOUT_MS:
        return int(value) / 1000
    raise BadRequest(
        f"`{TIMEOUT_HEADER}` must be a whole number of milliseconds from 1 to {MOST_TIMEOUT_MS}.", param=TIMEOUT_HEADER
    )


def deadline_of(
    own_s: float | None,
    tier: Tier,
    section: DeadlinesSection,
    arrived_at: float,
    client: tuple[float, str] | None = None,
) -> Deadline:
    """Return the deadline of a request. `own_s`, the caller's time-out, replaces the tier's answer time even when it
    is longer; `client`, its patience in seconds and the header that told it, only shortens it.
    """
    tiers = section.of(tier)
    answer_s, set_by = tiers.answer_s, _SET_BY_TIER[tier]
    if own_s is not None:
        answer_s, set_by = own_s, TIMEOUT_HEADER
    elif client is not None and (answer_s is None or client[0] < answer_s):
        answer_s, set_by = client
    first_token_at = _after(arrived_at, tiers.first_token_s)
    if own_s is not None:
        first_token_at = max(first_token_at, arrived_at + _OWN_WAIT * own_s)
    return Deadline(
        arrived_at=arrived_at,
        first_token_at=first_token_at,
        answer_at=_after(arrived_at, answer_s),
        own=own_s is not None,
        set_by=set_by,
    )


def _after(arrived_at: float, allowed_s: float | None) -> float:
    return math.inf if allowed_s is None else arrived_at + allowed_s
