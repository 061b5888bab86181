"""Reports of every process about the work that found no replica in time, and its sum over the processes of a host."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from selfhosted.config import PoolConfig, ScaleConfig
from selfhosted.scale.signals import RecentTimes

_NO_SCALE: Final = ScaleConfig()
_STALE_S: Final = 5.0
"""A process that has told nothing for so long waits for nothing any more."""


class Aims(NamedTuple):
    """The times in seconds that count as late beyond."""

    ttft_s: float
    tpot_s: float


def aims_of(config: PoolConfig) -> Aims:
    """Return the pool's aims, those of a `scale` by default where it has none."""
    scale = _NO_SCALE if config.scale is None else config.scale
    return Aims(scale.ttft_target_s, scale.tpot_target_s)


class AtGate(NamedTuple):
    """One process's requests in the queues before a pool."""

    waiting: int = 0
    waiting_batch: int = 0
    """Of those, requests that nobody watches."""
    running_batch: int = 0
    """Requests that nobody watches, let through and not answered yet."""


class PoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """A process's work on one pool. The counters begin with the process."""

    pool: str
    turned_away_tokens: int = 0
    """Counter: tokens of requests that went elsewhere, or were refused, for lack of room."""
    turned_away: int = 0
    """Counter: those requests."""
    unread_tokens: int = 0
    """Counter: tokens of prompts that no replica which only reads had room for."""
    first_tokens: int = 0
    """Counter: streamed requests that had their first token."""
    late_first_tokens: int = 0
    """Counter: those of them that had it later than the target."""
    first_tokens_sum_s: float = 0.0
    """Counter: the sum of their times to first token."""
    answers: int = 0
    """Counter: streamed answers of two tokens or more that ended."""
    slow_answers: int = 0
    """Counter: those of them whose further tokens took longer than the target."""
    tpot_sum_s: float = 0.0
    """Counter: the sum of their mean times of a further token."""
    waiting_at_gate: int = 0
    """Requests that wait for the pool now."""
    waiting_batch: int = 0
    """Of those, requests of the tier `batch`."""
    running_batch: int = 0
    """Requests of that tier that the pool has now."""


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """All pools of one process, told about once a second. One that is lost does no harm, as the next one has it all."""

    began_at: float
    """Time at which its counters began, of the host's monotonic clock."""
    pools: tuple[PoolReport, ...]


class TimeCounts:
    """The counters of times of one process and pool: to first tokens, or of a further token."""

    __slots__ = ("_target_s", "count", "late", "sum_s")

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self.count = self.late = 0
        self.sum_s = 0.0

    def saw(self, took_s: float) -> None:
        """Add a time in seconds."""
        self.count += 1
        self.sum_s += took_s
        if took_s > self._target_s:
            self.late += 1


class _PoolSums:
    """The sums over all processes that reported on one pool."""

    def __init__(self, aims: Aims) -> None:
        self.first_tokens = RecentTimes(aims.ttft_s)
        self.further_tokens = RecentTimes(aims.tpot_s)
        self.turned_away_tokens = self.turned_away = self.unread_tokens = 0
        self.newest: dict[str, tuple[float, PoolReport]] = {}
        """The newest report by process, and when it came."""

    def add(self, process: str, before: PoolReport | None, report: PoolReport, now: float) -> None:
        self.newest[process] = (now, report)
        if before is None:
            return
        self.turned_away_tokens += max(0, report.turned_away_tokens - before.turned_away_tokens)
        self.turned_away += max(0, report.turned_away - before.turned_away)
        self.unread_tokens += max(0, report.unread_tokens - before.unread_tokens)
        self.first_tokens.add(
            report.first_tokens - before.first_tokens,
            report.late_first_tokens - before.late_first_tokens,
            report.first_tokens_sum_s - before.first_tokens_sum_s,
            now,
        )
        self.further_tokens.add(
            report.answers - before.answers,
            report.slow_answers - before.slow_answers,
            report.tpot_sum_s - before.tpot_sum_s,
            now,
        )


class ProcessReports:
    """The sums of the reports of this host's processes. Memory: one report a process and pool."""

    def __init__(self, aims: Mapping[str, Aims], clock: Callable[[], float]) -> None:
        """`aims` has those of each pool."""
        self._clock = clock
        self._began_at = clock()
        self._pools = {pool: _PoolSums(each) for pool, each in aims.items()}

    def hear(self, process: str, report: FleetReport) -> None:
        """Take over a process's report. `process` is its boot id."""
        now = self._clock()
        for each in report.pools:
            sums = self._pools.get(each.pool)
            if sums is None:
                continue
            _, before = sums.newest.get(process, (now, None))
            if before is None and report.began_at >= self._began_at:
                # Of a process that began later everything is news; of others it is not known what was counted before.
                before = PoolReport(pool=each.pool)
            sums.add(process, before, each, now)

    def forget(self, process: str) -> None:
        """Forget a process that is gone; what it counted stays counted."""
        for sums in self._pools.values():
            sums.newest.pop(process, None)

    def first_tokens(self, pool: str) -> RecentTimes:
        """Return the last minute's first tokens of all processes. Raises KeyError for an unknown pool."""
        return self._pools[pool].first_tokens

    def further_tokens(self, pool: str) -> RecentTimes:
        """Return the last minute's times of a further token of all processes. Raises KeyError for an unknown pool."""
        return self._pools[pool].further_tokens

    def turned_away_tokens(self, pool: str) -> int:
        """Return the counter, over all processes. Raises KeyError for an unknown pool."""
        return self._pools[pool].turned_away_tokens

    def unread_tokens(self, pool: str) -> int:
        """Return the counter, over all processes. Raises KeyError for an unknown pool."""
        return self._pools[pool].unread_tokens

    def turned_away(self, pool: str) -> int:
        """Return the counter of these requests, over all processes. Raises KeyError for an unknown pool."""
        return self._pools[pool].turned_away

    def waiting_at_gate(self, pool: str) -> int:
        """Return requests that wait for the pool now, in all processes that report. Raises KeyError for an unknown pool."""
        return sum(report.waiting_at_gate for report in self._living(pool).values())

    def batch(self, pool: str) -> tuple[int, int]:
        """Return requests of the tier `batch` that wait for the pool now, and that it has, in all processes that report. Raises KeyError for an
        unknown pool.
        """
        living = self._living(pool).values()
        return sum(report.waiting_batch for report in living), sum(report.running_batch for report in living)

    def reporting(self, pool: str) -> int:
        """Return the processes that report. Raises KeyError for an unknown pool."""
        return len(self._living(pool))

    def _living(self, pool: str) -> dict[str, PoolReport]:
        since = self._clock() - _STALE_S
        return {process: report for process, (at, report) in self._pools[pool].newest.items() if at >= since}
