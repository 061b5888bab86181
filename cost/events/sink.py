"""What a sink is: it takes a batch of events whole, refuses what is in it, or is away."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cost.events.event import Event


class SinkFailed(Exception):
    """A batch was not acknowledged and may be tried again. The message is shown; it holds no address and no secret."""

    def __init__(self, told: str, retry_after_s: float | None = None) -> None:
        super().__init__(told)
        self.retry_after_s = retry_after_s


class BatchRefused(SinkFailed):
    """The sink will not take this batch as it is, however often it comes; it may take parts of it."""


class Batch(NamedTuple):
    """Events in order, each with its JSON."""

    events: tuple[Event, ...]
    encoded: tuple[bytes, ...]

    def parts(self) -> tuple["Batch", "Batch"]:
        """Return its halves."""
        middle = len(self.events) // 2
        return (
            Batch(self.events[:middle], self.encoded[:middle]),
            Batch(self.events[middle:], self.encoded[middle:]),
        )


class SinkLimits(NamedTuple):
    """Bounds of a sink's batches."""

    events: int
    size: int
    """Bytes of JSON; a larger event goes alone."""
    gather_s: float = 0.0
    """How long the first event of a batch that is not full waits for others."""


class Sink(Protocol):
    """A receiver outside."""

    async def send(self, batch: Batch) -> None:
        """Return once the sink has acknowledged all of it. Raises SinkFailed, or BatchRefused; anything else is a failure, too."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


def batches(events: Sequence[Event], encoded: Sequence[bytes], limits: SinkLimits) -> list[Batch]:
    """Cut events into batches that a sink takes."""
    made: list[Batch] = []
    first, size = 0, 0
    for index, each in enumerate(encoded):
        if index > first and (index - first >= limits.events or size + len(each) > limits.size):
            made.append(Batch(tuple(events[first:index]), tuple(encoded[first:index])))
            first, size = index, 0
        size += len(each) + 1
    if events:
        made.append(Batch(tuple(events[first:]), tuple(encoded[first:])))
    return made
