"""Observers of the batch tier, for metrics."""

from collections.abc import Mapping
from typing import Literal

from proxy.batch.batch import Batch
from proxy.batch.scheduler import Slack

Event = Literal["batch.completed", "batch.failed", "batch.expired", "batch.cancelled"]
LineCount = Literal["answered", "failed", "repeated", "lost"]
ProviderBatchCount = Literal["handed", "answered", "returned", "unneeded", "estimated"]


class BatchObserver:
    """A receiver of the tier's counts and states; this base class ignores them."""

    def count_lines(self, what: LineCount, number: int = 1) -> None: ...

    def count_batch(self, event: Event) -> None: ...

    def observe_estimate(self, off: float) -> None:
        """Receive the error of a first estimate, as a part of the time that the batch took."""

    def set_live(self, batches: list[Batch], found: Mapping[str, Slack], tokens_per_s: float | None) -> None: ...
