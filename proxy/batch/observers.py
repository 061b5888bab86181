"""What the batch tier reports for metrics."""

from collections.abc import Mapping
from typing import Literal

from proxy.batch.batch import Batch
from proxy.batch.scheduler import Slack

Event = Literal["batch.completed", "batch.failed", "batch.expired", "batch.cancelled"]
LineCount = Literal["answered", "failed", "repeated", "lost"]
HandedCount = Literal["handed", "answered", "returned", "unneeded", "estimated"]


class BatchObserver:
    """Receives counts and states of the tier; this base class ignores them."""

    def count_lines(self, what: LineCount, number: int = 1) -> None: ...

    def count_batch(self, event: Event) -> None: ...

    def observe_estimate(self, off: float) -> None:
        """How far the first estimate was off, as a part of the time that it took."""

    def set_live(self, batches: list[Batch], found: Mapping[str, Slack], tokens_per_s: float | None) -> None: ...


class HandingObserver:
    """Receives counts of lines that were handed over; this base class ignores them."""

    def count_handed(self, what: HandedCount, number: int = 1) -> None: ...
