"""Figures of the last minutes by target, deployment and tier, read from the newest attempts at a bounded cost."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from api.live.chance import FEWEST_IN_A_ROW, is_beyond_chance, least_count, longest_run_by_chance
from api.live.newest import EndedAttempt, newest
from cost.reports.latency import first_token_us, tpot_s
from cost.tables import rollup_hour
from cost.times import DAY_US, HOUR_US, MINUTE_US, wall_us

WINDOW_US: Final = 600_000_000
MOST: Final = 2_000
"""Most attempts that figures are made from; a busy gateway has more in the window."""
_HALF: Final = 0.5
_TWENTIETH: Final = 0.05
_REFUSED_US: Final = frozenset({401, 403, 404})
FAILING: Final = 0.05
"""Share of failed attempts that makes a target a problem."""
SLOWER: Final = 2.0
"""Multiple of the median TTFT of a day ago that is slow."""
ENOUGH: Final = 20
"""Fewest attempts from which a target can be called slow or failing."""
ENOUGH_OF_YESTERDAY: Final = 100
"""Fewest attempts of a day ago whose median is what is usual: with 20 it is so much off in some hours of a week that sound ones are slow."""
_FRESH_S: Final = 2.0
_YESTERDAY_FRESH_S: Final = 300.0
_SPEND_FRESH_S: Final = 10.0
_DAYS: Final = 7
_FEWEST_DAYS: Final = 3
_SOONEST_SHARE: Final = 1 / 6
"""Share of an hour after which its spend is compared with other hours'."""
_MICRO: Final = 1_000_000
_PARTS: Final = 10_000


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and quantiles of attempts. Values without measurements are None."""

    attempts: int
    failed: int
    turned_away: int
    """Attempts refused for lack of room, by the upstream or the queue before it."""
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    """Time from a request to its caller's first token, of streams: with queues, retries and what was held back."""
    model_ttft_p50_s: float | None
    model_ttft_p95_s: float | None
    """Time from an attempt's beginning to its first token, of streams: what the model itself took."""
    tokens_per_s: float | None
    """Median speed of streams after their first token."""
    sure_ttft_p50_s: float | None = None
    """What more of the model's times reach than chance makes of a median below it; None where they are too few. So of the next."""
    sure_ttft_p95_s: float | None = None
    usual_model_ttft_s: float | None = None
    """The model's own median of a day ago, in seconds."""

    @property
    def failed_share(self) -> float | None:
        """Failed attempts divided by all; None without attempts."""
        return self.failed / self.attempts if self.attempts else None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A target's newest attempts that failed one after the other, whatever way, and its last minute."""

    failures: int
    """Attempts since the last one that did not fail."""
    since_us: int | None
    """End of the first of them; None without one."""
    first_us: int | None = None
    """End of the first attempt of all that failed; None without one."""
    teams: int
    """Teams whose attempts these were."""
    minute_attempts: int
    minute_failures: int
    before: int = 0
    """Attempts of the last minutes before them."""

    @property
    def is_failing(self) -> bool:
        """True after more failures in a row than chance makes, or while half of the last minute's attempts fail."""
        return self.failures > longest_run_by_chance(self.before) or (
            self.minute_failures >= FEWEST_IN_A_ROW
            and 2 * self.minute_failures >= self.minute_attempts
            and is_beyond_chance(self.minute_failures, self.minute_attempts, FAILING)
        )


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the last minutes."""

    at_us: int
    since_us: int
    """Start of the time that the figures cover: the oldest attempt counted, or the window's start."""
    whole: bool
    """True where the figures cover the whole window; otherwise only its newest attempts."""
    all: Figures
    by_target: Mapping[str, Figures]
    by_deployment: Mapping[str, Figures]
    by_tier: Mapping[str, Figures]
    runs: Mapping[str, Run] = {}
    """The newest attempts of each target, by its name."""
    late: Mapping[str, Mapping[tuple[str, str, str], int]] = {}
    """Attempts whose first token took SLOWER times as long as a day ago or longer: by target, and by organisation, team and the
    model that was asked for.
    """


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of the current hour so far, beside its usual cost up to the same minute. Nano-dollars."""

    hour_us: int
    spent_nanousd: int
    usual_nanousd: int | None
    """Median of the last days for the elapsed part of the hour; None with too few days, or too early in the hour."""


def figures(attempts: Sequence[EndedAttempt], usual_ttft_s: float | None = None) -> Figures:
    """Return counts and quantiles of these attempts."""
    callers = sorted(first / _MICRO for first in map(first_token_us, attempts) if first is not None)
    own = sorted(each.ttft_us / _MICRO for each in attempts if each.ttft_us is not None and each.stream)
    speeds = sorted(filter(None, map(_tokens_per_s, attempts)))
    return Figures(
        attempts=len(attempts),
        failed=sum(each.failed for each in attempts),
        turned_away=sum(each.turned_away for each in attempts),
        ttft_p50_s=quantile(callers, 0.5),
        ttft_p95_s=quantile(callers, 0.95),
        model_ttft_p50_s=quantile(own, 0.5),
        model_ttft_p95_s=quantile(own, 0.95),
        tokens_per_s=quantile(speeds, 0.5),
        sure_ttft_p50_s=reached(own, _HALF),
        sure_ttft_p95_s=reached(own, _TWENTIETH),
        usual_model_ttft_s=usual_ttft_s,
    )


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` of the sorted values lie; None for an empty list."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def reached(ordered: Sequence[float], share: float) -> float | None:
    """Return the most that `share` of the sorted values reach, beyond chance; None where they are too few."""
    fewest = least_count(len(ordered), share)
    return ordered[-fewest] if 0 < fewest <= len(ordered) else None


def _tokens_per_s(attempt: EndedAttempt) -> float | None:
    each_s = tpot_s(attempt)
    return 1 / each_s if each_s else None


def summed(attempts: Sequence[EndedAttempt], at_us: int, usual: Mapping[str, float] = {}) -> Recent:
    """Return figures of all attempts, and by target, deployment and tier. `usual` is the median TTFT of a day ago, by
    target.
    """
    of_targets = _by_target(attempts)
    return Recent(
        at_us=at_us,
        since_us=attempts[-1].at_us if len(attempts) >= MOST else at_us - WINDOW_US,
        whole=len(attempts) < MOST,
        all=figures(attempts),
        by_target={name: figures(each, usual.get(name)) for name, each in of_targets.items()},
        by_deployment={name: figures(each) for name, each in _by(attempts, "deployment_id").items()},
        by_tier={name: figures(each) for name, each in _by(attempts, "tier").items()},
        runs={name: run_of(each, at_us) for name, each in of_targets.items()},
        late={name: _late(each, usual[name]) for name, each in of_targets.items() if name in usual},
    )


def _late(attempts: Sequence[EndedAttempt], usual_s: float) -> Mapping[tuple[str, str, str], int]:
    late = (each for each in attempts if each.stream and (each.ttft_us or 0) >= SLOWER * usual_s * _MICRO)
    return Counter((each.organisation_id, each.team_id, each.alias) for each in late)


def run_of(attempts: Sequence[EndedAttempt], at_us: int) -> Run:
    """Return the run of failures at the beginning of these attempts of one target, newest first, and the last minute."""
    run = list(takewhile(_went_wrong, attempts))
    minute = [each for each in attempts if each.at_us >= at_us - MINUTE_US]
    return Run(
        failures=len(run),
        since_us=run[-1].at_us if run else None,
        first_us=next((each.at_us for each in reversed(attempts) if _went_wrong(each)), None),
        teams=len({each.team_id for each in run}),
        minute_attempts=len(minute),
        minute_failures=sum(map(_went_wrong, minute)),
        before=len(attempts) - len(run),
    )


def _went_wrong(attempt: EndedAttempt) -> bool:
    """Return True for a failure of any kind that is not the request's own: also a refused key, and no room."""
    return attempt.failed or attempt.turned_away or attempt.status in _REFUSED_US


def _by(attempts: Iterable[EndedAttempt], name: str) -> dict[str, list[EndedAttempt]]:
    found: dict[str, list[EndedAttempt]] = defaultdict(list)
    for each in attempts:
        found[getattr(each, name)].append(each)
    return found


def _by_target(attempts: Iterable[EndedAttempt]) -> dict[str, list[EndedAttempt]]:
    """Return the attempts of each target, and of each wildcard those of all names that it stands for."""
    found = _by(attempts, "target_id")
    for each in attempts:
        entry = each.deployment_id.rpartition("/")[0]
        if entry.endswith("*"):
            found.setdefault(entry, []).append(each)
    return found


def usual_ttfts(attempts: Sequence[EndedAttempt]) -> dict[str, float]:
    """Return the model's own median seconds to the first token by target, of targets with enough attempts."""
    found = {
        name: figures(each) for name, each in _by(attempts, "target_id").items() if len(each) >= ENOUGH_OF_YESTERDAY
    }
    return {name: each.model_ttft_p50_s for name, each in found.items() if each.model_ttft_p50_s is not None}


class _Cached:
    """A cached value that expires after `fresh_s`; concurrent callers wait for one read."""

    def __init__(self, fresh_s: float, clock: Callable[[], float]) -> None:
        self._fresh_s = fresh_s
        self._clock = clock
        self._at = float("-inf")
        self._value: Any = None
        self._looking = asyncio.Lock()

    async def get(self, look: Any) -> Any:
        async with self._looking:
            if self._clock() - self._at >= self._fresh_s:
                self._value = await look()
                self._at = self._clock()
            return self._value


class RecentReader:
    """A reader of recent figures and spend, cached for all pages of one process."""

    def __init__(
        self,
        engine: AsyncEngine,
        now_us: Callable[[], int] = wall_us,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._now_us = now_us
        self._recent = _Cached(_FRESH_S, clock)
        self._yesterday = _Cached(_YESTERDAY_FRESH_S, clock)
        self._spend = _Cached(_SPEND_FRESH_S, clock)

    async def recent(self) -> Recent:
        """Return figures of the last minutes."""
        found: Recent = await self._recent.get(self._read)
        return found

    async def spend(self) -> Spend:
        """Return spend of the current hour."""
        found: Spend = await self._spend.get(self._read_spend)
        return found

    async def _read(self) -> Recent:
        now_us = self._now_us()
        usual: dict[str, float] = await self._yesterday.get(self._read_usual_ttfts)
        return summed(await newest(self._engine, MOST, since_us=now_us - WINDOW_US, until_us=now_us + 1), now_us, usual)

    async def _read_usual_ttfts(self) -> dict[str, float]:
        until_us = self._now_us() - DAY_US
        return usual_ttfts(await newest(self._engine, MOST, since_us=until_us - WINDOW_US, until_us=until_us))

    async def _read_spend(self) -> Spend:
        now_us = self._now_us()
        hour_us = now_us - now_us % HOUR_US
        hours = [hour_us - day * DAY_US for day in range(_DAYS + 1)]
        start = rollup_hour.c.start_us
        query = (
            select(start, func.sum(rollup_hour.c.cost_nanousd))
            .where(start.in_(hours), rollup_hour.c.origin.in_(("caller", "shadow")))
            .group_by(start)
        )
        async with self._engine.connect() as connection:
            spent = {int(at): int(cost) for at, cost in await connection.execute(query)}
        return Spend(
            hour_us=hour_us,
            spent_nanousd=spent.get(hour_us, 0),
            usual_nanousd=usual_by_now(
                [spent[each] for each in hours[1:] if each in spent], (now_us - hour_us) / HOUR_US
            ),
        )


def usual_by_now(hours_nanousd: Sequence[int], share: float) -> int | None:
    """Return the median cost of the hour, times the elapsed `share` of it; None with too few days, or too early.
    Nano-dollars.
    """
    if len(hours_nanousd) < _FEWEST_DAYS or share < _SOONEST_SHARE:
        return None
    ordered = sorted(hours_nanousd)
    return ordered[len(ordered) // 2] * int(share * _PARTS) // _PARTS
