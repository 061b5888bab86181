"""Counters and histograms that are added to many times a second and written to the registry about once.

prometheus_client takes a lock for each figure and, with several workers, packs each into a file: a dozen figures a
request cost more than the request's routing. A tally is a plain number until it is written.
"""

from bisect import bisect_left
from typing import Final

from prometheus_client import Counter, Histogram


class CounterTally:
    """The amount that came to a counter since it was last written."""

    __slots__ = ("_counter", "amount")

    def __init__(self, counter: Counter) -> None:
        self._counter: Final = counter
        self.amount: float = 0

    def write(self) -> None:
        if self.amount:
            self._counter.inc(self.amount)
            self.amount = 0


class HistogramTally:
    """The observations of a histogram since it was last written. `bounds` are its buckets' upper bounds, in order."""

    __slots__ = ("_bounds", "_counts", "_histogram", "_is_written", "_total")

    def __init__(self, histogram: Histogram, bounds: tuple[float, ...]) -> None:
        self._histogram: Final = histogram
        self._bounds: Final = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._is_written = True

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value
        self._is_written = False

    def write(self) -> None:
        """Add to the histogram's own buckets: it has no public way to add many observations at once."""
        if self._is_written:
            return
        for at, count in enumerate(self._counts):
            if count:
                self._histogram._buckets[at].inc(count)  # noqa: SLF001
        self._histogram._sum.inc(self._total)  # noqa: SLF001
        self._counts = [0] * len(self._counts)
        self._total = 0.0
        self._is_written = True
