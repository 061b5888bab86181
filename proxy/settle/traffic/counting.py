"""The traffic of one process by minute. A minute's figures only grow, so that keeping them twice changes nothing."""

from collections.abc import Callable
from typing import Final

import msgspec

from cost.times import MINUTE_US
from proxy.dispatch.outcome import RequestOutcome
from proxy.settle.refusals.counting import is_refusal
from proxy.settle.traffic.waits import RANGES, range_of

MOST_MINUTES: Final = 180
"""The most minutes that a process keeps for a control plane that is away; beyond them the oldest are dropped."""
_KEPT_US: Final = 15 * MINUTE_US
_FAILED: Final = 500


class Minute(msgspec.Struct, kw_only=True):
    """The requests that ended within one minute in one process."""

    minute_us: int
    mark: int
    """A number that grows with each change."""
    requests: int = 0
    errors: int = 0
    """Answers 5xx but refusals."""
    refusals: int = 0
    output_tokens: int = 0
    priced_tokens: int = 0
    """Tokens, in and out, of the requests whose cost is known."""
    cost_nanousd: int = 0
    """Cost of the requests whose cost is known."""
    waiting: int = 0
    """The most that waited in queues at a time, of one look a second. The control plane looks at no queue of its own."""
    ttft: list[int] = msgspec.field(default_factory=lambda: [0] * RANGES)
    """Streams by the time until the caller's first token, in the ranges of `waits`."""


class TrafficTold(msgspec.Struct, frozen=True):
    """Minutes that changed, and the mark to ask further from."""

    boot_id: str
    minutes: tuple[Minute, ...]
    mark: int


class Traffic:
    """The count of callers' answers; an observer of requests."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._minutes: dict[int, Minute] = {}
        self._mark = 0

    def finished(self, outcome: RequestOutcome) -> None:
        now = self._changed()
        now.requests += 1
        if is_refusal(outcome.status):
            now.refusals += 1
        elif outcome.status >= _FAILED:
            now.errors += 1
        now.output_tokens += outcome.output_tokens
        if outcome.cost_nanousd is not None:
            now.cost_nanousd += outcome.cost_nanousd
            now.priced_tokens += outcome.input_tokens + outcome.output_tokens
        if outcome.stream and outcome.ttft_s is not None:
            now.ttft[range_of(outcome.ttft_s)] += 1

    def count_shed(self) -> None:
        """Count a refusal for overload, before anything was read of the request."""
        now = self._changed()
        now.requests += 1
        now.refusals += 1

    def look(self, waiting: int) -> None:
        """Note the number of requests that wait in queues now. A minute that was looked at is known, also if nothing
        came.
        """
        minute = self._minutes.get(self._minute_us())
        if minute is None or waiting > minute.waiting:
            self._changed().waiting = waiting

    def changed_after(self, mark: int, boot_id: str) -> TrafficTold:
        """Return the minutes that changed since `mark`, and drop old ones that were read by then."""
        old_us = self._now_us() - _KEPT_US
        for gone in [at_us for at_us, each in self._minutes.items() if each.mark <= mark and at_us < old_us]:
            del self._minutes[gone]
        return TrafficTold(boot_id, tuple(each for each in self._minutes.values() if each.mark > mark), self._mark)

    def _minute_us(self) -> int:
        now_us = self._now_us()
        return now_us - now_us % MINUTE_US

    def _changed(self) -> Minute:
        minute_us = self._minute_us()
        self._mark += 1
        found = self._minutes.get(minute_us)
        if found is None:
            while len(self._minutes) >= MOST_MINUTES:
                del self._minutes[min(self._minutes)]
            found = self._minutes[minute_us] = Minute(minute_us=minute_us, mark=self._mark)
        found.mark = self._mark
        return found
