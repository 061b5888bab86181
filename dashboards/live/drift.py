"""Whether prompts have changed since they were learned from: the last day's beside the weeks before, and beside training.

What is compared is a sample, drawn alike on both sides: the attempts that `auto` routed after each of the same moments of
each day. The index is measured by the population stability index (PSI), which is 0 for the same distribution; chance
alone gives a small one, which is told beside it.
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
"""In each day."""
A_MOMENT: Final = 50
"""Attempts taken after a moment at most."""
_LOOKED_AT: Final = 160
FEWEST: Final = 200
"""On either side; with fewer the figure is mostly chance."""
SLIGHT: Final = 0.1
LARGE: Final = 0.25
"""The usual readings of a PSI: below the first nothing happened, above the second look into it."""
_FRESH_S: Final = 600.0
_LONGEST_S: Final = 60.0
"""A look that takes longer, on a slow disk, is given up."""
_TOGETHER: Final = 58
"""Moments in one statement; SQLite takes 500."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """The complexity of what `auto` was asked. Shares are by tenths of complexity, the easiest first."""

    at_us: int
    day: tuple[float, ...]
    before: tuple[float, ...]
    day_count: int
    before_count: int
    psi: float | None
    """Of the last day against the weeks before; None where either has too few."""
    psi_training: float | None
    """Of the last day against the prompts of the training, of which each tenth has a tenth by definition."""
    chance: float | None
    """What `psi` would be about if nothing had changed."""

    @property
    def verdict(self) -> str:
        """One of `unknown`, `steady`, `shifted`, `drifted`."""
        if self.psi is None or self.chance is None:
            return "unknown"
        # Within what chance gives nothing is claimed.
        beyond = self.psi - self.chance
        return "drifted" if beyond >= LARGE else "shifted" if beyond >= SLIGHT else "steady"


def counted(values: Iterable[float]) -> list[int]:
    """How many lie in each tenth of [0, 1]."""
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, max(0, int(value * BINS)))] += 1
    return counts


def psi(counts: Sequence[int], others: Sequence[int]) -> float:
    """The population stability index of two histograms with the same bins. Half a count stands in for an empty bin."""
    total, total_others = sum(counts) + BINS / 2, sum(others) + BINS / 2
    pairs = [((a + 0.5) / total, (b + 0.5) / total_others) for a, b in zip(counts, others, strict=True)]
    return sum((a - b) * math.log(a / b) for a, b in pairs)


def by_chance(count: int, others: int) -> float:
    """The expected PSI of two samples of the same distribution."""
    return (BINS - 1) * (1 / count + 1 / others)


def compared(day: Sequence[int], before: Sequence[int], at_us: int) -> Drift:
    """Two histograms as one finding."""
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
    """Looks at most every ten minutes for all pages of one process; a few hundred short walks along the ledger's index."""

    def __init__(
        self,
        engine: AsyncEngine,
        now_us: Callable[[], int] = wall_us,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._now_us = now_us
        self._clock = clock
        self._looked_at = float("-inf")
        self._lock = asyncio.Lock()
        self._looking: asyncio.Task[Drift] | None = None
        self.known: Drift | None = None
        """What was found last; None before the first look."""

    async def read(self) -> Drift:
        """What is known, found anew when that is old."""
        async with self._lock, asyncio.timeout(_LONGEST_S):
            if self.known is None or self._clock() - self._looked_at >= _FRESH_S:
                self.known = await self._compare()
                self._looked_at = self._clock()
            return self.known

    async def within(self, patience_s: float) -> Drift | None:
        """What `look` finds; None when that takes longer, and then it goes on behind, for who asks again."""
        looking = self._looking
        if looking is None or looking.done():
            looking = self._looking = asyncio.get_running_loop().create_task(self.read(), name="drift")
        done, _ = await asyncio.wait({looking}, timeout=patience_s)
        return looking.result() if done else None

    async def aclose(self) -> None:
        """Looks no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

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
            rows: Iterable[Any] = await connection.execute(union_all(*map(_after, moments)))
            return [(int(at_us), float(complexity)) for at_us, complexity in rows]


def _moments(now_us: int) -> list[int]:
    """The beginnings of the parts of the last day, and of the days before."""
    part_us = DAY_US // MOMENTS
    return [now_us - number * part_us for number in range(1, (DAYS + 1) * MOMENTS + 1)]


def _after(moment_us: int) -> Select[tuple[int, float]]:
    """The first attempts that `auto` routed in the part of a day that begins then."""
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
