"""Drift of prompt complexity: the last day compared with the weeks before, and with the classifier's training.

Both sides are sampled alike: the attempts that `auto` routed after each of the same moments of each day. The measure is
the population stability index (PSI), which is 0 for equal distributions; its expected value by chance is given beside
it.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Select, select, union_all
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.tables import LedgerEntry
from cost.times import DAY_US, wall_us

BINS: Final = 10
DAYS: Final = 28
MOMENTS: Final = 8
"""Sampled moments in each day."""
A_MOMENT: Final = 50
"""Most attempts taken after a moment."""
_LOOKED_AT: Final = 160
FEWEST: Final = 200
"""Fewest attempts on either side; with fewer the PSI is mostly chance."""
SLIGHT: Final = 0.1
LARGE: Final = 0.25
"""Customary PSI thresholds: below SLIGHT no change, from LARGE on investigate."""
_FRESH_S: Final = 600.0
_LONGEST_S: Final = 60.0
"""Seconds after which a comparison is abandoned, on a slow disk."""
_TOGETHER: Final = 58
"""Moments in one compound SELECT; SQLite allows 500."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of the complexity of `auto` requests, as shares by tenths of complexity, easiest first."""

    at_us: int
    day: tuple[float, ...]
    before: tuple[float, ...]
    day_count: int
    before_count: int
    psi: float | None
    """PSI of the last day against the weeks before; None where either has too few attempts."""
    psi_training: float | None
    """PSI of the last day against training prompts, which fill each tenth equally by definition."""
    chance: float | None
    """Expected value of `psi` if nothing had changed."""

    @property
    def verdict(self) -> str:
        """One of `unknown`, `steady`, `shifted`, `drifted`."""
        if self.psi is None or self.chance is None:
            return "unknown"
        # Only the PSI beyond the one expected by chance counts.
        beyond = self.psi - self.chance
        return "drifted" if beyond >= LARGE else "shifted" if beyond >= SLIGHT else "steady"


def counted(values: Iterable[float]) -> list[int]:
    """Return the histogram over the tenths of [0, 1]."""
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, max(0, int(value * BINS)))] += 1
    return counts


def psi(counts: Sequence[int], others: Sequence[int]) -> float:
    """Return the population stability index, sum((p - q) ln(p / q)), of two histograms with the same bins. Each count is
    raised by half, so that empty bins are defined.
    """
    total, total_others = sum(counts) + BINS / 2, sum(others) + BINS / 2
    pairs = [((a + 0.5) / total, (b + 0.5) / total_others) for a, b in zip(counts, others, strict=True)]
    return sum((a - b) * math.log(a / b) for a, b in pairs)


def by_chance(count: int, others: int) -> float:
    """Return the expected PSI of two samples of one distribution: (bins - 1)(1/n + 1/m)."""
    return (BINS - 1) * (1 / count + 1 / others)


def compared(day: Sequence[int], before: Sequence[int], at_us: int) -> Drift:
    """Return the drift between two histograms."""
    count, others = sum(day), sum(before)
    told = count >= FEWEST and others >= FEWEST
    return Drift(
        at_us=at_us,
        day=_shares(day),
        before=_shares(before),
        day_count=count,
        before_count=others,
        psi=psi(day, before) if told else None,
        psi_training=psi(day, [count] * BINS) if count >= FEWEST else None,
        chance=by_chance(count, others) if told else None,
    )


def _shares(counts: Sequence[int]) -> tuple[float, ...]:
    total = sum(counts)
    return tuple(each / total for each in counts) if total else ()


class DriftReader:
    """A reader of the drift, at most every ten minutes for all pages of one process, by a few hundred short index
    scans.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        now_us: Callable[[], int] = wall_us,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._now_us = now_us
        self._clock = clock
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()
        self._reading: asyncio.Task[Drift] | None = None
        self.known: Drift | None = None
        """The last result; None before the first."""

    async def read(self) -> Drift:
        """Return the last result, renewed when it is stale."""
        async with self._lock, asyncio.timeout(_LONGEST_S):
            if self.known is None or self._clock() - self._read_at >= _FRESH_S:
                self.known = await self._compare()
                self._read_at = self._clock()
            return self.known

    async def within(self, patience_s: float) -> Drift | None:
        """Return the result of `read`, or None when it takes longer than `patience_s`; it then continues in the background for
        the next call.
        """
        looking = self._reading
        if looking is None or looking.done():
            looking = self._reading = asyncio.get_running_loop().create_task(self.read(), name="drift")
        done, _ = await asyncio.wait({looking}, timeout=patience_s)
        return looking.result() if done else None

    async def aclose(self) -> None:
        """Cancel a running comparison."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _compare(self) -> Drift:
        now_us = self._now_us()
        moments = _moments(now_us)
        found: list[tuple[int, float]] = []
        for first in range(0, len(moments), _TOGETHER):
            found += await self._sampled(moments[first : first + _TOGETHER])
        since_us = now_us - DAY_US
        day = counted(complexity for at_us, complexity in found if at_us >= since_us)
        before = counted(complexity for at_us, complexity in found if at_us < since_us)
        return compared(day, before, now_us)

    async def _sampled(self, moments: Sequence[int]) -> list[tuple[int, float]]:
        async with self._engine.connect() as connection:
            rows: Iterable[Any] = await connection.execute(union_all(*map(_sample_after, moments)))
            return [(int(at_us), float(complexity)) for at_us, complexity in rows]


def _moments(now_us: int) -> list[int]:
    """Start times of the sampled parts of the last day and of the days before, newest first."""
    part_us = DAY_US // MOMENTS
    return [now_us - number * part_us for number in range(1, (DAYS + 1) * MOMENTS + 1)]


def _sample_after(moment_us: int) -> Select[tuple[int, float]]:
    """Return the first attempts that `auto` routed in the part of a day that begins at `moment_us`."""
    at = col(LedgerEntry.at_us)
    looked_at = (
        select(at, col(LedgerEntry.complexity), col(LedgerEntry.entry), col(LedgerEntry.attempt))
        .where(at >= moment_us, at < moment_us + DAY_US // MOMENTS)
        .order_by(at)
        .limit(_LOOKED_AT)
        .subquery()
    )
    ends = (
        select(looked_at.c.at_us, looked_at.c.complexity)
        # A request's later attempts have the complexity of its first.
        .where(looked_at.c.complexity.is_not(None), looked_at.c.entry == "settle", looked_at.c.attempt == 1)
        .limit(A_MOMENT)
        .subquery()
    )
    return select(ends.c.at_us, ends.c.complexity)
