"""Latency tracker: recent time to first token and per token of each target, as seen by this process."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from providers.target import Tier

_SAMPLES: Final = 64
_ENOUGH: Final = 8
"""The fewest samples from which a request may be refused as too slow."""
_FAST: Final = 0.1
_LATE: Final = 0.95
_MISSES: Final = 3
"""The number of requests given up in a row after which a target's latency is known to be longer than their wait."""
_ENOUGH_OF_LATE: Final = 20
"""The fewest samples from which a 95th percentile can be taken."""
_MAX_TARGETS: Final = 2_000


class TargetLatency(msgspec.Struct, frozen=True, kw_only=True):
    """A target's latency in seconds: the median, and the fastest tenth as the best case."""

    ttft_s: float
    tpot_s: float
    fast_ttft_s: float
    fast_tpot_s: float


class _Recent:
    """A sliding window of one figure, kept sorted beside its order of age so that a quantile is one look-up."""

    __slots__ = ("_by_age", "_by_size")

    def __init__(self) -> None:
        self._by_age: deque[float] = deque()
        self._by_size: list[float] = []

    def add(self, value: float) -> None:
        if len(self._by_age) == _SAMPLES:
            oldest = self._by_age.popleft()
            del self._by_size[bisect_left(self._by_size, oldest)]
        self._by_age.append(value)
        insort(self._by_size, value)

    def has(self, fewest: int) -> bool:
        return len(self._by_age) >= fewest

    def quantile(self, share: float) -> float:
        return self._by_size[int(share * (len(self._by_size) - 1))]


class _Memory:
    """The windows of one target and tier."""

    __slots__ = ("latency", "missed", "observed_at", "tpot", "ttft", "whole")

    def __init__(self) -> None:
        self.ttft = _Recent()
        self.tpot = _Recent()
        self.whole = _Recent()
        self.missed: dict[bool, deque[tuple[float, float]]] = {}
        """The newest requests given up since one was answered, as (time, seconds waited), for streams (True) and
        whole answers.
        """
        self.observed_at = 0.0
        self.latency: TargetLatency | None = None

    def conclude(self) -> None:
        if not self.ttft.has(_ENOUGH):
            return
        known = self.tpot.has(_ENOUGH)
        self.latency = TargetLatency(
            ttft_s=self.ttft.quantile(0.5),
            # Unknown is taken for no time at all: nothing is refused for what nobody has seen.
            tpot_s=self.tpot.quantile(0.5) if known else 0.0,
            fast_ttft_s=self.ttft.quantile(_FAST),
            fast_tpot_s=self.tpot.quantile(_FAST) if known else 0.0,
        )


class LatencyTracker:
    """Latencies by target and tier; tiers are separate because batch work may wait long for its first token. A target
    without a sample for `fresh_s` is forgotten, so that one that was avoided for being slow gets a chance to be fast
    again.
    """

    def __init__(self, clock: Callable[[], float], *, fresh_s: float = 60.0) -> None:
        self._clock = clock
        self._fresh_s = fresh_s
        self._targets: dict[tuple[str, Tier], _Memory] = {}

    def observe(self, target_id: str, ttft_s: float | None, tpot_s: float | None, tier: Tier = "interactive") -> None:
        """Add one answer's seconds to the first token, from the attempt's start, and per token after it. None adds
        nothing.
        """
        memory = self._memory(target_id, tier)
        if ttft_s is not None:
            memory.ttft.add(ttft_s)
            memory.missed.pop(True, None)
        if tpot_s is not None:
            memory.tpot.add(tpot_s)
        memory.conclude()

    def observe_whole(self, target_id: str, duration_s: float, tier: Tier = "interactive") -> None:
        """Add the seconds of one answer that came in one piece."""
        memory = self._memory(target_id, tier)
        memory.whole.add(duration_s)
        memory.missed.pop(False, None)

    def observe_missed(self, target_id: str, waited_s: float, tier: Tier = "interactive", *, stream: bool) -> None:
        """Add one request that was given up after `waited_s` seconds, without a first token or, when not a stream, an
        answer.
        """
        memory = self._memory(target_id, tier)
        memory.missed.setdefault(stream, deque(maxlen=_MISSES)).append((memory.observed_at, waited_s))

    def _memory(self, target_id: str, tier: Tier) -> _Memory:
        now = self._clock()
        key = (target_id, tier)
        memory = self._targets.get(key)
        if memory is None or now - memory.observed_at > self._fresh_s:
            self._targets.pop(key, None)
            if len(self._targets) >= _MAX_TARGETS:
                # The one that came first; targets are configured, so that many were renamed again and again.
                del self._targets[next(iter(self._targets))]
            memory = self._targets[key] = _Memory()
        memory.observed_at = now
        return memory

    def expect(self, target_id: str, tier: Tier = "interactive") -> TargetLatency | None:
        """Return the target's latency, or None with too few or too old samples."""
        memory = self._fresh(target_id, tier)
        return None if memory is None else memory.latency

    def usually_s(self, target_id: str, tier: Tier, tokens: int, *, stream: bool) -> float | None:
        """Return the usual seconds to a stream's first token, or to the end of a whole answer of `tokens`; None with
        too few or too old samples.
        """
        memory = self._fresh(target_id, tier)
        if memory is None:
            return None
        latency = memory.latency
        if stream:
            return None if latency is None else latency.ttft_s
        if latency is not None and latency.tpot_s > 0:
            return latency.ttft_s + latency.tpot_s * max(0, tokens - 1)
        return memory.whole.quantile(0.5) if memory.whole.has(_ENOUGH) else None

    def known_s(self, target_id: str, tier: Tier, tokens: int, *, stream: bool) -> float | None:
        """Return the usual seconds, or the least wait of the newest requests if they were all given up and waited
        longer; None where neither is known.
        """
        usual_s = self.usually_s(target_id, tier, tokens, stream=stream)
        memory = self._targets.get((target_id, tier))
        missed = None if memory is None else memory.missed.get(stream)
        if missed is None or len(missed) < _MISSES or self._clock() - missed[0][0] > self._fresh_s:
            return usual_s
        return max(usual_s or 0.0, min(waited_s for _, waited_s in missed))

    def _fresh(self, target_id: str, tier: Tier) -> _Memory | None:
        memory = self._targets.get((target_id, tier))
        return None if memory is None or self._clock() - memory.observed_at > self._fresh_s else memory

    def late_s(self, target_id: str, tier: Tier, *, stream: bool) -> float | None:
        """Return the seconds within which 95 of 100 streams had their first token, or whole answers their end; None
        with too few or too old samples.
        """
        memory = self._fresh(target_id, tier)
        if memory is None:
            return None
        seen = memory.ttft if stream else memory.whole
        return seen.quantile(_LATE) if seen.has(_ENOUGH_OF_LATE) else None
