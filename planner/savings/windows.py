"""Windows of a trace that are simulated request by request, drawn by a stated rule, and what they say of the whole.

A trace that is short enough is simulated whole. Of a longer one the busiest window is taken for certain; the rest is cut
into as many equal spans as there is time for two windows of each, and those two are drawn at random. So every day of a
month is looked at, and the two windows of one span tell how far a span varies in itself. Of a whole trace the same is
told by neighbouring parts.
"""

import math
import random
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

LEAD_S: Final = 300.0
"""Time before a window that is simulated with it and not counted: caches and queues are filled meanwhile."""
_LENGTHS_S: Final = (900.0, 300.0, 100.0)
_EACH: Final = 2
_PARTS: Final = 36
_DAY_S: Final = 86_400.0
_CONFIDENCE: Final = 0.95
# Nothing was seen in n requests: with 95 % confidence it happens to fewer than three in n.
_RULE_OF_THREE: Final = 3.0


class Window(msgspec.Struct, frozen=True):
    """Some of the requests, by their places in the order of arrival."""

    first: int
    last: int
    """The place after its last request."""

    @property
    def requests(self) -> int:
        return self.last - self.first


class Run(msgspec.Struct, frozen=True):
    """One simulation: it begins with the request at `lead`, and counts those in its windows."""

    start_s: float
    lead: int
    windows: tuple[Window, ...]

    @property
    def last(self) -> int:
        return self.windows[-1].last


class Span(msgspec.Struct, frozen=True):
    """Windows that stand for a larger number of windows."""

    windows: tuple[Window, ...]
    of: int


class Sample(msgspec.Struct, frozen=True):
    """The simulated windows of a trace. The windows of the runs are those of the spans, in the same order."""

    runs: tuple[Run, ...]
    spans: tuple[Span, ...]
    length_s: float | None
    """Length of a window; None where the whole trace is simulated."""

    @property
    def requests(self) -> int:
        """Requests that are counted."""
        return sum(window.requests for span in self.spans for window in span.windows)


class Share(msgspec.Struct, frozen=True):
    """A share of all requests, with its interval at 95 % confidence. Below 0 only where it is a difference."""

    share: float
    low: float
    high: float


def sample_of(at_s: NDArray[np.float64], duration_s: float, *, most: int, seed: int) -> Sample:
    """Draw the windows of requests that arrive at these times, so that about `most` requests are simulated.

    Where not even two of the shortest windows and the busiest fit into that, those are drawn all the same.
    """
    if len(at_s) <= most:
        return _whole(at_s, duration_s)
    affordable_s = most / len(at_s) * duration_s
    days = max(1, math.ceil(duration_s / _DAY_S - 1e-9))
    for length_s in _LENGTHS_S:
        pairs = max(1, int(affordable_s / (length_s + LEAD_S) - 1) // _EACH)
        if pairs >= days:
            break
    runs = _runs(at_s, duration_s, length_s)
    busiest = max(runs, key=lambda run: run.windows[0].requests)
    rest = [run for run in runs if run is not busiest]
    rng = random.Random(seed)  # noqa: S311 - repeatable, and nothing is kept secret by it
    chosen, spans = [busiest], [Span(busiest.windows, 1)]
    cuts = [round(cut) for cut in np.linspace(0, len(rest), min(pairs, max(1, len(rest) // _EACH)) + 1)]
    for first, last in pairwise(cuts):
        drawn = [rest[place] for place in sorted(rng.sample(range(first, last), min(_EACH, last - first)))]
        if drawn:
            chosen += drawn
            spans.append(Span(tuple(run.windows[0] for run in drawn), last - first))
    return Sample(tuple(chosen), tuple(spans), length_s)


def _whole(at_s: NDArray[np.float64], duration_s: float) -> Sample:
    cuts = np.linspace(0.0, duration_s, _PARTS + 1)[:-1]
    edges = [*np.searchsorted(at_s, cuts, side="left").tolist(), len(at_s)]
    parts = tuple(Window(first, last) for first, last in pairwise(edges))
    spans = tuple(Span(parts[place : place + _EACH], _EACH) for place in range(0, _PARTS, _EACH))
    return Sample((Run(0.0, 0, parts),), spans, None)


def _runs(at_s: NDArray[np.float64], duration_s: float, length_s: float) -> list[Run]:
    starts = np.arange(max(1, math.ceil(duration_s / length_s - 1e-9))) * length_s
    begins = np.maximum(0.0, starts - LEAD_S)
    edges = [*np.searchsorted(at_s, starts, side="left").tolist(), len(at_s)]
    leads = np.searchsorted(at_s, begins, side="left").tolist()
    return [
        Run(begin, lead, (Window(*edge),))
        for begin, lead, edge in zip(begins.tolist(), leads, pairwise(edges), strict=True)
    ]


def share_of(sample: Sample, counts: Sequence[int]) -> Share:
    """Return the share of all requests to which something happened that was counted in each of the sample's windows, in their
    order. A count below 0 is a difference of two fleets.

    The estimate is the ratio of two sums over all windows, each span standing for the windows that it was drawn from. The
    interval follows from how far the windows of one span differ from that ratio. It is that of traffic of this kind: a
    trace that is simulated whole is still only one hour, or month, of it.
    """
    found = iter(counts)
    spans = [(span.of, [(next(found), window.requests) for window in span.windows]) for span in sample.spans]
    total = sum(of / len(pairs) * requests for of, pairs in spans for _, requests in pairs)
    if not total:
        return Share(0.0, 0.0, 0.0)
    share = sum(of / len(pairs) * happened for of, pairs in spans for happened, _ in pairs) / total
    variance, freedom = 0.0, 0
    for of, pairs in spans:
        if len(pairs) > 1:
            residuals = [happened - share * requests for happened, requests in pairs]
            freedom += len(pairs) - 1
            variance += of**2 * float(np.var(residuals, ddof=1)) / len(pairs)
    least = 0.0 if any(counts) else _RULE_OF_THREE / sample.requests
    half = max(_student(freedom) * math.sqrt(variance) / total, least)
    return Share(share, share - half, share + half)


def _student(freedom: int) -> float:
    """Return the two-sided quantile of Student's distribution, by Cornish and Fisher's expansion; within 1 % from 3 degrees on."""
    z, n = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2), max(1, freedom)
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
