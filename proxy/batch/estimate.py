"""Estimates of batches: the measured speed, when a batch is done, and the time and the lines of each execution option.

Pure but for the clock of `Speed` and the one reader of the store.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from proxy.batch.batch import Batch
from proxy.batch.provider_batch_store import Out
from proxy.batch.scheduler import EASY, TIGHT, UNKNOWN, Slack
from proxy.batch.store import BatchStore, Worked

MOST_LINES: Final = 5_000
"""The most lines of one group for a provider."""
LOOKED_AT: Final = 2_000
"""The most lines of a batch that one round looks at."""
CANCEL_S: Final = 600.0
"""Seconds before its lines are taken back at which a batch is cancelled: a provider takes up to ten minutes to report
its answers.
"""
_TRIED_S: Final = 1_200.0
"""The assumed turnaround of a deployment, in seconds, while none of its batches has ended: then a few lines are
tried.
"""
_LEAST_KNOWN_S: Final = 2.0
_SPANS_S: Final = (300.0, 10_800.0, 43_200.0)
"""The spans, in seconds, over which the speed is averaged, by the length of the forecast."""
Basis = Literal["done", "measured speed", "deadline", "unknown"]
"""The ground of an estimate: the batch has ended, a measured speed, only the promise, or nothing."""
_LEAST_US: Final = 1_000_000


class _Mean(msgspec.Struct):
    """An average of tokens a second with exponential decay."""

    span_s: float
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        fades = math.exp(-seconds / self.span_s)
        self.tokens = self.tokens * fades + tokens
        self.seconds = self.seconds * fades + seconds

    @property
    def per_s(self) -> float:
        return self.tokens / self.seconds


class Speed:
    """The tokens a second of all processes together, from the tokens that batches have left at each look."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._means = [_Mean(span_s) for span_s in _SPANS_S]
        self._known_s = 0.0
        self._seen: dict[str, int] = {}
        self._seen_at: float | None = None

    def look(self, tokens_left: dict[str, int]) -> None:
        """Add the tokens that each batch in progress has left."""
        now = self._clock()
        if self._seen_at is not None and now <= self._seen_at:
            return
        # A batch that is gone was answered to its end, or closed; what was done of it is not known.
        if self._seen_at is not None and self._seen and self._seen.keys() <= tokens_left.keys():
            done = sum(max(0, before - tokens_left[name]) for name, before in self._seen.items())
            self._known_s += now - self._seen_at
            for mean in self._means:
                mean.add(done, now - self._seen_at)
        self._seen, self._seen_at = dict(tokens_left), now

    @property
    def tokens_per_s(self) -> float | None:
        """Return the speed of the last minutes; None while too little was seen."""
        return self.ahead(0.0)

    def ahead(self, left_s: float) -> float | None:
        """Return the expected speed of the next `left_s` seconds: that of about the last so many, so that an hour in
        which there was little room does not count for all hours of a day. None while too little was seen.
        """
        mean = next((each for each in self._means if each.span_s >= left_s), self._means[-1])
        return mean.per_s if self._known_s >= _LEAST_KNOWN_S and mean.tokens > 0 else None


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The expected end in microseconds since 1970; None where nothing is known and nothing was promised."""

    at_us: int | None
    basis: Basis


def tokens_per_s(worked: Sequence[Worked]) -> float | None:
    """Return the tokens a second over the time in which at least one batch was worked on; None while too little was
    done.
    """
    busy_us, until_us = 0, 0
    for each in sorted(worked, key=lambda each: each.start_us):
        busy_us += max(0, each.end_us - max(each.start_us, until_us))
        until_us = max(until_us, each.end_us)
    tokens = sum(each.tokens for each in worked)
    return tokens * 1_000_000 / busy_us if busy_us >= _LEAST_US and tokens > 0 else None


def estimate(batch: Batch, tokens_ahead: int, speed: float | None, now_us: int) -> Estimate:
    """Return the expected end of the batch. `tokens_ahead` are its own and those that are due no later. Never later
    than its deadline: the lines left then expire.
    """
    ended_us = batch.completed_us or batch.failed_us or batch.expired_us or batch.cancelled_us
    if ended_us is not None:
        return Estimate(at_us=ended_us, basis="done")
    if speed is None:
        return Estimate(at_us=batch.expires_us, basis="unknown" if batch.expires_us is None else "deadline")
    at_us = now_us + int(tokens_ahead / speed * 1_000_000)
    if batch.expires_us is not None and at_us >= batch.expires_us:
        return Estimate(at_us=batch.expires_us, basis="deadline")
    return Estimate(at_us=at_us, basis="measured speed")


async def estimated(store: BatchStore, batch: Batch, tokens: int | None = None) -> Estimate:
    """Return the expected end of the batch, as of now. `tokens` are its own where it was not validated yet."""
    own = batch.tokens_left if tokens is None else tokens
    if batch.status == "validating" and tokens is None:
        return estimate(batch, 0, None, store.now_us())
    ahead = await store.tokens_due_before(batch)
    return estimate(batch, ahead + own, tokens_per_s(await store.recent_work()), store.now_us())


class OptionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds that each option takes for the work of one batch and all that is due before it."""

    own_s: float
    flex_s: float
    provider_s: float
    calls_s: float
    turn_back_s: float
    """Seconds before the deadline at which lines without an answer are taken back from a provider."""


def option_times(left_s: float | None, needed_s: float | None, handed_s: float, turnaround_s: float) -> OptionTimes:
    """Return the seconds that each option takes for work that needs `needed_s` at the measured speed, None while
    unknown; `handed_s` are the seconds that the part of it needs which is at providers, or is to go there now. Idle
    time and flex are counted on for at most half of the time left, as the scheduler does. A provider's batch takes
    its `turnaround_s`, and after it its unanswered lines have to be answered by other options in half of the time
    left then; own engines go on with the rest meanwhile. While no speed is known own engines are taken to be in time,
    so that it is measured.
    """
    if needed_s is None:
        turn_back_s = 0.0 if left_s is None else max(0.0, left_s) * EASY
        return OptionTimes(
            own_s=0.0, flex_s=math.inf, provider_s=turnaround_s + turn_back_s, calls_s=0.0, turn_back_s=turn_back_s
        )
    easy_s, turn_back_s = needed_s / EASY, handed_s / EASY
    return OptionTimes(
        own_s=easy_s,
        flex_s=easy_s,
        provider_s=turnaround_s + turn_back_s,
        calls_s=needed_s / TIGHT,
        turn_back_s=turn_back_s,
    )


def needed_s(slack: Slack, left_s: float | None) -> float | None:
    """Return the seconds that a batch's work, and all that is due before it, takes at the measured speed; None where
    it is not known.
    """
    if left_s is None or slack.slack_s is None:
        return None
    return left_s - slack.slack_s


def at_providers_s(batch: Batch, out: Out, speed: float | None) -> float:
    """Return the seconds that a batch's work at providers, with the largest group that may follow, needs at the measured speed."""
    if not speed or not batch.total:
        return 0.0
    group = min(LOOKED_AT, batch.left) * batch.tokens / batch.total
    return (group + out.tokens) / speed


def turnaround_s(told: float | None) -> float:
    """Return the seconds that a batch of a deployment takes, with those until it is cancelled; `told` is the longest
    of its latest.
    """
    return (_TRIED_S if told is None else told) + CANCEL_S


def most_lines(batch: Batch, told: float | None, left_s: float | None, out: Out) -> int:
    """Return the most lines of a group for a deployment. One that was never measured gets a few, and no more before they are back."""
    if told is not None or left_s is None:
        return MOST_LINES
    return 0 if out.lines else min(MOST_LINES, math.ceil(batch.total * UNKNOWN))
