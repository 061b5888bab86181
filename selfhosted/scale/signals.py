"""The autoscaler's input signals, and their reading from a pool's snapshots."""

import math
from collections import Counter, deque
from collections.abc import Sequence
from statistics import median_low
from typing import Final

import msgspec

from selfhosted.config import PartDoes
from selfhosted.replica import EngineStats, PoolSnapshot, Replica, ReplicaState

_WINDOW_S: Final = 60.0
_MOST_SECONDS: Final = 600
# Growth over a longer time says nothing about the current rate.
_OLD_S: Final = 120.0
# Fewer are no sample: one late of four is no quarter.
_LEAST_TIMES: Final = 10
# Times what waits at the median replica.
_OWN_QUEUE: Final = 2


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """The signals of a pool at one decision. None means unknown, which is never taken for idle."""

    at_s: float
    """Time in seconds: monotonic, or simulated."""
    wall_s: float
    """Seconds since the epoch, UTC: the forecast uses the time of day and of the week."""
    ready: int
    starting: int = 0
    """Replicas ordered but not ready: `starting`, `suspect` and `down`, which are expected to be restarted."""
    draining: int = 0
    known: bool = True
    """False when the statistics of a ready replica are unknown, so that nothing may shrink."""
    running: int = 0
    waiting: int = 0
    """Requests in the engines' own queues."""
    stuck: int = 0
    """Those of them beyond twice what waits at the median replica. They came before others were there, and are answered where they wait,
    however many start.
    """
    waiting_at_gate: int = 0
    waiting_tokens: float | None = None
    """Prompt tokens of what is queued."""
    kv_used: float | None = None
    """Sum of the ready replicas' KV usage: 2.4 means that 2.4 caches would be full."""
    gpu_memory: float | None = None
    """Mean GPU memory in use over ready replicas, 0 to 1, where an exporter reports it."""
    ttft_s: float | None = None
    """Mean time to first token over the last minute."""
    missed: float | None = None
    """Fraction of the last minute's first tokens that came later than the target."""
    tpot_s: float | None = None
    """Mean time of a further token over the last minute."""
    slow: float | None = None
    """Fraction of the last minute's answers whose further tokens took longer than the target."""
    input_tokens_per_s: float | None = None
    """Prompt tokens that arrived since the last decision, without cached ones where those are known."""
    output_tokens_per_s: float | None = None
    served_tokens_per_s: float | None = None
    """Prompt tokens that engines finished prefilling since then: the supply, where `input_tokens_per_s` is the demand.
    """
    arrivals_per_s: float | None = None
    batch_work_per_s: float = 0.0
    """Work per second that batches need beyond what they get, to be done by their deadlines; estimated tokens."""
    elsewhere_usd: float | None = None
    """Dollars per unit of work (a prompt token's) at the cheapest capable model elsewhere; None where there is none."""

    @property
    def supply(self) -> int:
        return self.ready + self.starting

    @property
    def unanswered(self) -> int:
        """Requests that wait anywhere."""
        return self.waiting + self.waiting_at_gate

    @property
    def queued(self) -> int:
        """Requests that wait, and that further replicas would help."""
        return self.unanswered - self.stuck


class RecentTimes:
    """Times of the last minute or so, to first tokens or a further token, in memory that does not grow with traffic."""

    def __init__(self, target_s: float, window_s: float = _WINDOW_S) -> None:
        self._target_s = target_s
        self._window_s = min(window_s, _MOST_SECONDS)
        # One entry a second: when, how many, how many too late, their sum.
        self._seconds: deque[list[float]] = deque(maxlen=_MOST_SECONDS + 1)

    def saw(self, took_s: float, at_s: float) -> None:
        """Add a time. One that is negative or not finite is ignored."""
        if math.isfinite(took_s) and took_s >= 0:
            self.add(1, int(took_s > self._target_s), took_s, at_s)

    def add(self, count: int, late: int, sum_s: float, at_s: float) -> None:
        """Add so many times, some of them late, and their sum. Numbers below 0 are ignored."""
        if count <= 0 or late < 0 or sum_s < 0:
            return
        second = math.floor(at_s)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0, 0.0])
        entry = self._seconds[-1]
        entry[1] += count
        entry[2] += late
        entry[3] += sum_s

    def missed(self, at_s: float) -> float | None:
        """Return the fraction of times above the target, 0 to 1, a few taken as part of a least sample; None when there were none."""
        count, late, _ = self._sums(at_s)
        return late / max(count, _LEAST_TIMES) if count else None

    def mean(self, at_s: float) -> float | None:
        count, _, total_s = self._sums(at_s)
        return total_s / count if count else None

    def _sums(self, at_s: float) -> tuple[float, float, float]:
        while self._seconds and self._seconds[0][0] < at_s - self._window_s:
            self._seconds.popleft()
        count = late = total_s = 0.0
        for _, some, some_late, some_s in self._seconds:
            count, late, total_s = count + some, late + some_late, total_s + some_s
        return count, late, total_s


class _Growth(msgspec.Struct):
    """Growth of the engines' counters between two readings, summed over replicas."""

    seconds: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    requests: float = 0.0
    ttft_s: float = 0.0
    answers: float = 0.0
    tpot_s: float = 0.0


class SignalReader:
    """A reader of signals from a live pool's snapshots: arrivals are what was served plus the growth of the queues."""

    def __init__(self, ttft_target_s: float, does: PartDoes = "all", *, ranks: int = 1) -> None:
        """Observe replicas of one kind; `does` is their work. So many `ranks` are one process, which is what is ordered."""
        self._target_s = ttft_target_s
        self._last: dict[str, EngineStats] = {}
        self._queued = 0
        self._read_at: float | None = None
        self._recent: deque[tuple[float, _Growth]] = deque()
        self._prompt_tokens = 0.0
        self._does = does
        self._ranks = ranks

    def read(
        self,
        snapshot: PoolSnapshot,
        *,
        at_s: float,
        wall_s: float,
        waiting_at_gate: int = 0,
        spilled_tokens_per_s: float = 0.0,
        first_tokens: RecentTimes | None = None,
        further_tokens: RecentTimes | None = None,
    ) -> Signals:
        """Return the signals of one moment. `spilled_tokens_per_s` is demand that was sent elsewhere for lack of room.

        `at_s` is now, by the snapshot's clock: the snapshot itself is old when nothing changed.
        """
        ready = snapshot.ready
        told = [replica.stats for replica in ready if replica.stats is not None]
        waiting = sum(stats.waiting for stats in told)
        stuck = _stuck([stats.waiting for stats in told])
        grown = self._counter_growth(snapshot)
        self._remember(at_s, grown)
        ttft_s, missed = self._first_tokens(at_s, first_tokens)
        tpot_s, slow = self._further_tokens(at_s, further_tokens)
        rates = self._rates(grown, at_s, waiting + waiting_at_gate, spilled_tokens_per_s)
        if self._does == "answers":
            # Prompts are read elsewhere: late first tokens and long prompts are not for these to mend.
            ttft_s = missed = None
        if self._does == "reads":
            tpot_s = slow = None
        counts = _counts(snapshot.replicas)
        kv_used = _total([_reading(stats) if self._does == "reads" else _kv_used(stats) for stats in told], len(ready))
        return Signals(
            at_s=at_s,
            wall_s=wall_s,
            ready=counts["ready"],
            starting=counts["starting"] + counts["suspect"] + counts["down"],
            draining=counts["draining"],
            known=len(told) == len(ready),
            running=sum(stats.running for stats in told),
            waiting=waiting,
            stuck=stuck,
            waiting_at_gate=waiting_at_gate,
            waiting_tokens=(waiting - stuck + waiting_at_gate) * self._prompt_tokens if self._prompt_tokens else None,
            kv_used=None if kv_used is None else kv_used / self._ranks,
            gpu_memory=_mean([stats.gpu_memory for stats in told]),
            ttft_s=ttft_s,
            missed=missed,
            tpot_s=tpot_s,
            slow=slow,
            input_tokens_per_s=rates[0],
            output_tokens_per_s=rates[1],
            served_tokens_per_s=rates[2],
            arrivals_per_s=rates[3],
        )

    def _counter_growth(self, snapshot: PoolSnapshot) -> _Growth | None:
        """Return the growth of the counters since the last reading; None when no replica was read twice."""
        grown = _Growth()
        current = {replica.name: replica.stats for replica in snapshot.replicas if replica.stats is not None}
        compared = 0
        for name, stats in current.items():
            before = self._last.get(name)
            if before is None or not 0 < stats.at - before.at <= _OLD_S:
                continue
            compared += 1
            cached = _rise(before.prefix_hits, stats.prefix_hits) or 0.0
            if self._does != "answers":
                grown.input_tokens += max(0.0, (_rise(before.prompt_tokens, stats.prompt_tokens) or 0.0) - cached)
            if self._does != "reads":
                # Of a prompt that is read for another replica one token comes out, which is no work.
                grown.output_tokens += _rise(before.output_tokens, stats.output_tokens) or 0.0
            grown.requests += _rise(before.ttft_count, stats.ttft_count) or 0.0
            grown.ttft_s += _rise(before.ttft_sum_s, stats.ttft_sum_s) or 0.0
            grown.answers += _rise(before.tpot_count, stats.tpot_count) or 0.0
            grown.tpot_s += _rise(before.tpot_sum_s, stats.tpot_sum_s) or 0.0
        known = {replica.name for replica in snapshot.replicas}
        self._last = {name: stats for name, stats in (self._last | current).items() if name in known}
        # Without ready replicas the growth is known to be 0: an empty pool serves nothing.
        return grown if compared or not snapshot.ready else None

    def _remember(self, at_s: float, grown: _Growth | None) -> None:
        if grown is not None:
            self._recent.append((at_s, grown))
        while self._recent and (self._recent[0][0] < at_s - _WINDOW_S or len(self._recent) > _MOST_SECONDS):
            self._recent.popleft()

    def _further_tokens(self, at_s: float, seen: RecentTimes | None) -> tuple[float | None, float | None]:
        answers = sum(growth.answers for _, growth in self._recent)
        mean_s = sum(growth.tpot_s for _, growth in self._recent) / answers if answers else None
        told_s = None if seen is None else seen.mean(at_s)
        return told_s if mean_s is None else mean_s, None if seen is None else seen.missed(at_s)

    def _first_tokens(self, at_s: float, seen: RecentTimes | None) -> tuple[float | None, float | None]:
        requests = sum(growth.requests for _, growth in self._recent)
        mean_s = sum(growth.ttft_s for _, growth in self._recent) / requests if requests else None
        missed = None if seen is None else seen.missed(at_s)
        if missed is None and mean_s is not None:
            # The engines tell a mean only. Waiting times have about an exponential tail.
            missed = math.exp(-self._target_s / mean_s) if mean_s > 0 else 0.0
        return mean_s, missed

    def _rates(
        self, grown: _Growth | None, at_s: float, queued: int, spilled: float
    ) -> tuple[float | None, float | None, float | None, float | None]:
        before, queued_before = self._read_at, self._queued
        self._read_at, self._queued = at_s, queued
        if grown is None or before is None or at_s <= before:
            return None, None, None, None
        seconds = at_s - before
        if grown.requests:
            mean = grown.input_tokens / grown.requests
            self._prompt_tokens += (mean - self._prompt_tokens) * (0.1 if self._prompt_tokens else 1.0)
        queue_grew = (queued - queued_before) / seconds
        arrived = grown.input_tokens / seconds + queue_grew * self._prompt_tokens + spilled
        return (
            max(0.0, arrived),
            grown.output_tokens / seconds,
            grown.input_tokens / seconds,
            max(0.0, grown.requests / seconds + queue_grew),
        )


_BEST_FIRST: Final[tuple[ReplicaState, ...]] = ("ready", "suspect", "starting", "down", "draining")


def _counts(replicas: Sequence[Replica]) -> Counter[ReplicaState]:
    """Return how many are in each state. Of one process's ranks the best state counts, as it works while one of them does."""
    best: dict[str, ReplicaState] = {}
    for replica in replicas:
        known = best.setdefault(replica.address.process, replica.state)
        if _BEST_FIRST.index(replica.state) < _BEST_FIRST.index(known):
            best[replica.address.process] = replica.state
    return Counter(best.values())


def _stuck(waiting: Sequence[int]) -> int:
    """Return how many wait beyond their replica's part of the pool's queue."""
    most = _OWN_QUEUE * median_low(waiting) if waiting else 0
    return sum(max(0, each - most) for each in waiting)


def _kv_used(stats: EngineStats) -> float | None:
    """Return the KV usage of a replica; 0 without requests, even where the engine does not report it."""
    return stats.kv_usage if stats.running or stats.waiting else stats.kv_usage or 0.0


def _reading(stats: EngineStats) -> float:
    """Return the counterpart of KV use for a replica that only reads prompts: 1 while prompts wait behind the one that
    it reads, 0.5 while none waits, 0 when idle. Its cache waits to be fetched and is no load.
    """
    return 1.0 if stats.waiting else 0.5 if stats.running else 0.0


def _rise(before: float | None, now: float | None) -> float | None:
    """Return the increase of a counter, which restarts at 0 with its engine."""
    if before is None or now is None:
        return None
    return now - before if now >= before else now


def _total(values: Sequence[float | None], of: int) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == of else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
