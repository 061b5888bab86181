"""Latency, complexity and failures of a scope's latest attempts: roll-ups keep sums, not distributions.

Results cover a bounded number of attempts, and say how many.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.ledger.entries import TERMINAL
from cost.reports.scope import ReadScope
from cost.tables import LedgerEntry
from cost.usage import CONTINUED

LATEST: Final = 2_000
BINS: Final = 20
FEWEST: Final = 20
"""Fewest values for a percentile: with fewer it is one request's luck."""
_MIN_SIDE: Final = 10
_MIN_SHARE: Final = 0.6
"""Smallest share on either side of a threshold: less is little better than a coin."""
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
    "given_us",
    "duration_us",
    "output_tokens",
    "flags",
)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one attempt, with its latency, complexity and failure."""

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
    given_us: int | None
    duration_us: int | None
    output_tokens: int
    flags: tuple[str, ...]

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the request to the caller's first token, of a served streamed answer; else None. The first token of a
        whole answer comes with its last.
        """
        if self.given_us is None and CONTINUED in self.flags:
            # The attempt's own begins the rest, for which no caller waited.
            return None
        first_us = first_token_us(self)
        return None if first_us is None else first_us / _US

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first, of a served streamed answer; else None."""
        return tpot_s(self)

    @property
    def failed(self) -> bool:
        """True if the answer was not served, and not because a better one replaced it."""
        return not self.served and self.status != _OK


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt's request, its target and its cost."""

    alias: str
    attempt: int
    target_id: str
    served: bool
    cost_nanousd: int | None
    baseline_nanousd: int | None


class TimedAttempt(Protocol):
    """Basis of times to tokens: an attempt's end as the ledger has it."""

    @property
    def served(self) -> bool: ...
    @property
    def stream(self) -> bool: ...
    @property
    def ttft_us(self) -> int | None: ...
    @property
    def duration_us(self) -> int | None: ...
    @property
    def output_tokens(self) -> int: ...


class GivenAttempt(TimedAttempt, Protocol):
    """An attempt whose request's first token is known too."""

    @property
    def given_us(self) -> int | None: ...


def first_token_us(attempt: GivenAttempt) -> int | None:
    """Return the time from the request to the caller's first token, of a served streamed answer; None for others. Of one that
    was booked before that was kept, it is the attempt's own.
    """
    if not (attempt.served and attempt.stream):
        return None
    return attempt.ttft_us if attempt.given_us is None else attempt.given_us


def tpot_s(attempt: TimedAttempt) -> float | None:
    """Return seconds per token after the first of a served streamed answer; None for others.

    A whole answer comes with its first token, so that it would seem to take no time at all.
    """
    if not (attempt.served and attempt.stream) or attempt.ttft_us is None or attempt.duration_us is None:
        return None
    took_us = attempt.duration_us - attempt.ttft_us
    return took_us / _US / (attempt.output_tokens - 1) if attempt.output_tokens > 1 else None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Count and nearest-rank percentiles of durations in seconds; None with fewer than 20 values."""

    count: int
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of one target's answers. An empty name is all targets together."""

    target_id: str
    ttft: Spread
    tpot: Spread


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """Complexity that best separates the prompts that the busiest target (the mainstay) answered from the others'.

    It describes past choices and is no rule: each prompt is decided by the expected answers of the targets.
    """

    at: float
    mainstay_is_below: bool
    """True if the mainstay has the easier prompts, False if the harder ones."""
    mainstay: float
    """Share of the prompts on the mainstay's side that it answered."""
    others: float
    """Share of the prompts on the other side that others answered."""


class Complexities(msgspec.Struct, frozen=True, kw_only=True):
    """Histogram of prompts by complexity, in equal bins from 0 to 1, per target; the busiest target first."""

    by_target: tuple[tuple[str, tuple[int, ...]], ...]
    threshold: Threshold | None
    """Threshold between the mainstay's prompts and the others'; None if complexity does not separate them, or one side
    has too few prompts.
    """

    @property
    def count(self) -> int:
        """Number of prompts in the histogram."""
        return sum(sum(bins) for _, bins in self.by_target)

    @property
    def mainstay(self) -> str:
        """The target that answered most; empty if there is none."""
        return self.by_target[0][0] if self.by_target else ""


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Failures among some attempts."""

    attempts: int
    failed: int
    rescued: int
    """Requests with a failed attempt whose caller got a whole answer from another one."""
    lost: int
    """Requests with a failed attempt whose caller got no whole answer."""
    escalated: int
    """Answers that replaced a weak one, which is no failure."""
    by_cause: tuple[tuple[str, str, int], ...]
    """(target, cause, count), the most frequent first."""


class LatestReader:
    """A reader of a bounded number of the latest attempts in one statement, along an index."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def read(self, scope: ReadScope, most: int = LATEST) -> tuple[Sample, ...]:
        """Return the scope's latest ends of attempts, newest first, at most `most`."""
        return tuple(_sample(row) for row in await self._latest(_COLUMNS, scope, most))

    async def asked(self, scope: ReadScope, start_us: int, most: int = LATEST) -> tuple[Asked, ...]:
        """Return request, target and cost of the latest attempts since `start_us`, newest first, at most `most`."""
        found = await self._latest(Asked.__struct_fields__, scope, most, start_us)
        return tuple(Asked(**dict(zip(Asked.__struct_fields__, row, strict=True))) for row in found)

    async def _latest(
        self, names: Sequence[str], scope: ReadScope, most: int, start_us: int = 0
    ) -> Sequence[Row[*tuple[Any, ...]]]:
        where = [
            col(LedgerEntry.organisation_id) == scope.organisation_id,
            col(LedgerEntry.entry).in_(sorted(TERMINAL)),
            col(LedgerEntry.origin) == "caller",
            col(LedgerEntry.at_us) >= start_us,
        ]
        if scope.team_id is not None:
            where.append(col(LedgerEntry.team_id) == scope.team_id)
        columns = [getattr(LedgerEntry, name) for name in names]
        statement = select(*columns).where(*where).order_by(col(LedgerEntry.at_us).desc()).limit(most)
        async with self._engine.connect() as connection:
            return (await connection.execute(statement)).all()


def latency(samples: Iterable[Sample]) -> tuple[Speed, ...]:
    """Return latency of all targets together, then of each by name."""
    by_target: dict[str, list[Sample]] = {}
    known = [each for each in samples if each.ttft_s is not None]
    for each in known:
        by_target.setdefault(each.target_id, []).append(each)
    return tuple(_speed(name, mine) for name, mine in (("", known), *sorted(by_target.items())))


def complexities(samples: Iterable[Sample]) -> Complexities:
    """Return complexities of classified prompts that were answered; the holdout, drawn at random, is left out."""
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
    """Count failures by target and cause."""
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
    """Return the first flag that explains why an attempt failed, else its status."""
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
"""Flags that explain why an attempt failed."""


def _threshold(known: Sequence[tuple[float, bool]]) -> Threshold | None:
    """Find the threshold. `known` has each prompt's complexity, and whether the mainstay answered it."""
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
    # If either side is mostly the other's, complexity does not separate them.
    return found if min(found.mainstay, found.others) > _MIN_SHARE else None


def _split(ordered: Sequence[tuple[float, bool]], *, is_below: bool) -> tuple[int, int, bool] | None:
    """Return (prompts on the right side, place, is_below) of the best split; None if all complexities are equal.

    A split lies between two prompts of different complexity, so that it is clear on which side each is.
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
