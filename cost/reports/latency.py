"""How fast answers came and how hard prompts were, of a scope's latest requests: roll-ups keep sums, not distributions.

What is told here is of the latest attempts, at most so many, and says of how many and since when.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.ledger.entries import TERMINAL
from cost.reports.scope import ReadScope
from cost.tables import LedgerEntry

LATEST: Final = 2_000
BINS: Final = 20
FEWEST: Final = 20
"""With fewer, a percentile is one request's luck."""
_MIN_SIDE: Final = 10
_PARTS: Final = 0.6
"""Less on its own side is little better than a coin."""
_US: Final = 1_000_000
_OK: Final = 200
_COLUMNS: Final = (
    "at_us",
    "request_id",
    "attempt",
    "target_id",
    "alias",
    "status",
    "served",
    "reason",
    "stream",
    "complexity",
    "ttft_us",
    "duration_us",
    "output_tokens",
    "flags",
)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one attempt, as far as it tells of speed, difficulty and failure."""

    at_us: int
    request_id: str
    attempt: int
    target_id: str
    alias: str
    status: int
    served: bool
    reason: str
    stream: bool
    complexity: float | None
    ttft_us: int | None
    duration_us: int | None
    output_tokens: int
    flags: tuple[str, ...]

    @property
    def ttft_s(self) -> float | None:
        """To the first token. Only of a streamed answer: of another one the first token comes with the last."""
        return self.ttft_us / _US if self.served and self.stream and self.ttft_us is not None else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each token after the first, of a streamed answer."""
        if not (self.served and self.stream) or self.ttft_us is None or self.duration_us is None:
            return None
        return (self.duration_us - self.ttft_us) / _US / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def failed(self) -> bool:
        """Nobody got its answer, and not because a better one stood in for it."""
        return not self.served and self.status != _OK


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Some durations: how many, and three percentiles in seconds. None with fewer than 20 of them."""

    count: int
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """One target's answers. An empty name is all targets together."""

    target_id: str
    ttft: Spread
    tpot: Spread


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """The complexity that best parts what one target answered from what the others did.

    It is found from what happened, and is no rule: each prompt is decided by what each target is expected to make of it.
    """

    at: float
    mainstay_is_below: bool
    """Whether the target that answered most has the easier prompts, or the harder ones."""
    mainstay: float
    """Of the prompts on its side, the share that it answered."""
    others: float
    """Of the prompts on the other side, the share that others answered."""


class Complexities(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts by complexity, from 0 to 1 in equal bins, for each target that answered; who answered most stands first."""

    by_target: tuple[tuple[str, tuple[int, ...]], ...]
    threshold: Threshold | None
    """None where complexity does not part them: other things decide there, or one side has hardly anything."""

    @property
    def count(self) -> int:
        return sum(sum(bins) for _, bins in self.by_target)

    @property
    def mainstay(self) -> str:
        """The target that answered most; empty where none did."""
        return self.by_target[0][0] if self.by_target else ""


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """What failed among some attempts."""

    attempts: int
    failed: int
    rescued: int
    """Requests with a failed attempt whose caller got a whole answer all the same, from another one."""
    lost: int
    """Requests whose caller got none."""
    escalated: int
    """Answers that stood in for a weak one, which is no failure."""
    by_cause: tuple[tuple[str, str, int], ...]
    """Target, cause and how often; the most frequent first."""


class LatestReader:
    """One statement, along an index, of a bounded number of rows."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def read(self, scope: ReadScope, most: int = LATEST) -> tuple[Sample, ...]:
        """The scope's latest ends of attempts, newest first."""
        return tuple(_sample(row) for row in await self._latest(_COLUMNS, scope, most))

    async def named(self, scope: ReadScope, alias: str, most: int = LATEST) -> float | None:
        """Of the latest requests, the share that asked for this name; None where there are none."""
        asked = [row[0] == alias for row in await self._latest(("alias", "attempt"), scope, most) if row[1] == 1]
        return sum(asked) / len(asked) if asked else None

    async def _latest(self, names: Sequence[str], scope: ReadScope, most: int) -> Sequence[Row[*tuple[Any, ...]]]:
        where = [
            col(LedgerEntry.organisation_id) == scope.organisation_id,
            col(LedgerEntry.entry).in_(sorted(TERMINAL)),
            col(LedgerEntry.origin) == "caller",
        ]
        if scope.team_id is not None:
            where.append(col(LedgerEntry.team_id) == scope.team_id)
        columns = [getattr(LedgerEntry, name) for name in names]
        statement = select(*columns).where(*where).order_by(col(LedgerEntry.at_us).desc()).limit(most)
        async with self._engine.connect() as connection:
            return (await connection.execute(statement)).all()


def latency(samples: Iterable[Sample]) -> tuple[Speed, ...]:
    """All targets together first, then each by name."""
    by_target: dict[str, list[Sample]] = {}
    known = [each for each in samples if each.ttft_s is not None]
    for each in known:
        by_target.setdefault(each.target_id, []).append(each)
    return tuple(_speed(name, mine) for name, mine in (("", known), *sorted(by_target.items())))


def complexities(samples: Iterable[Sample]) -> Complexities:
    """Of prompts that the gateway weighed and somebody answered; what was drawn for the experiment went by chance."""
    known = [
        (each.complexity, each.target_id)
        for each in samples
        if each.served and each.complexity is not None and each.reason != "holdout"
    ]
    bins: dict[str, list[int]] = {}
    for complexity, target_id in known:
        bins.setdefault(target_id, [0] * BINS)[min(BINS - 1, max(0, int(complexity * BINS)))] += 1
    ranked = sorted(bins.items(), key=lambda each: (-sum(each[1]), each[0]))
    mainstay = ranked[0][0] if ranked else ""
    return Complexities(
        by_target=tuple((name, tuple(counts)) for name, counts in ranked),
        threshold=_threshold([(complexity, target_id == mainstay) for complexity, target_id in known]),
    )


def failures(samples: Sequence[Sample]) -> Failures:
    """What failed, by target and cause."""
    causes = Counter((each.target_id, cause(each)) for each in samples if each.failed)
    answered = {each.request_id for each in samples if each.served}
    troubled = {each.request_id for each in samples if each.failed}
    return Failures(
        attempts=len(samples),
        failed=sum(causes.values()),
        rescued=len(troubled & answered),
        lost=len(troubled - answered),
        escalated=sum(each.served and each.reason == "escalated" for each in samples),
        by_cause=tuple((*key, count) for key, count in sorted(causes.items(), key=lambda item: (-item[1], item[0]))),
    )


def cause(sample: Sample) -> str:
    """The flag that tells why an attempt failed; its status where none does."""
    return next(
        (flag for flag in sample.flags if flag in CAUSES), f"status {sample.status}" if sample.status else "unknown"
    )


CAUSES: Final = (
    "first_token_timeout",
    "upstream_timeout",
    "stream_cut",
    "deadline_exceeded",
    "upstream_error",
    "caller_gone",
    "slow_reader",
    "shutdown",
    "failed",
    "orphaned",
    "lost_host",
)
"""Flags that tell why an attempt did not end well."""


def _threshold(known: Sequence[tuple[float, bool]]) -> Threshold | None:
    """`known` are complexities, and whether the mainstay answered. It may have either side."""
    ordered = sorted(known)
    total = sum(mainstay for _, mainstay in ordered)
    if total < _MIN_SIDE or len(ordered) - total < _MIN_SIDE:
        return None
    splits = [split for is_below in (True, False) if (split := _split(ordered, is_below=is_below)) is not None]
    if not splits:
        return None
    _, place, is_below = max(splits)
    sides = ordered[:place], ordered[place:]
    mine, theirs = sides if is_below else sides[::-1]
    found = Threshold(
        at=(ordered[place - 1][0] + ordered[place][0]) / 2,
        mainstay_is_below=is_below,
        mainstay=sum(mainstay for _, mainstay in mine) / len(mine),
        others=sum(not mainstay for _, mainstay in theirs) / len(theirs),
    )
    # Where one side is mostly the other's, complexity is not what parts them.
    return found if min(found.mainstay, found.others) > _PARTS else None


def _split(ordered: Sequence[tuple[float, bool]], *, is_below: bool) -> tuple[int, int, bool] | None:
    """The split with the most on the right side, and how many those are; between two prompts, so that it is in nobody's
    place.
    """
    rights = [mainstay == is_below for _, mainstay in ordered]
    wrong_above = sum(rights)
    best, right_below = None, 0
    for place, right in enumerate(rights[:-1], start=1):
        right_below += right
        found = (right_below + (len(ordered) - place) - (wrong_above - right_below), place, is_below)
        if ordered[place][0] > ordered[place - 1][0] and (best is None or found[0] > best[0]):
            best = found
    return best


def _speed(name: str, samples: Sequence[Sample]) -> Speed:
    return Speed(
        target_id=name,
        ttft=_spread(each.ttft_s for each in samples),
        tpot=_spread(each.tpot_s for each in samples),
    )


def _spread(values: Iterable[float | None]) -> Spread:
    known = sorted(value for value in values if value is not None)
    if len(known) < FEWEST:
        return Spread(count=len(known))
    p50, p95, p99 = (known[math.ceil(share * len(known)) - 1] for share in (0.5, 0.95, 0.99))
    return Spread(count=len(known), p50_s=p50, p95_s=p95, p99_s=p99)


def _sample(row: Sequence[Any]) -> Sample:
    *values, flags = row
    # Most have none, and there are thousands of rows.
    told = () if flags == "[]" else tuple(msgspec.json.decode(flags, type=list[str]))
    return Sample(**dict(zip(_COLUMNS, values, strict=False)), flags=told)
