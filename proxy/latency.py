"""How fast each target has been of late, as this process saw it: a bounded memory with quantiles at hand."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from providers.target import Tier

_SAMPLES: Final = 64
_ENOUGH: Final = 8
"""Fewer samples say too little to refuse a request by."""
_FAST: Final = 0.1
_MAX_TARGETS: Final = 2_000


class TargetLatency(msgspec.Struct, frozen=True, kw_only=True):
    """A target's usual speed, and the one of its fastest tenth: what is too slow even then cannot be hoped for."""

    ttft_s: float
    tpot_s: float
    fast_ttft_s: float
    fast_tpot_s: float


class _Recent:
    """The last samples of one figure, also in order of size, so that a quantile is a look at one place."""

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

    @property
    def enough(self) -> bool:
        return len(self._by_age) >= _ENOUGH

    def quantile(self, share: float) -> float:
        return self._by_size[int(share * (len(self._by_size) - 1))]


class _Memory:
    """One target's."""

    __slots__ = ("latency", "observed_at", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft = _Recent()
        self.tpot = _Recent()
        self.observed_at = 0.0
        self.latency: TargetLatency | None = None

    def conclude(self) -> None:
        if not self.ttft.enough:
            return
        known = self.tpot.enough
        self.latency = TargetLatency(
            ttft_s=self.ttft.quantile(0.5),
            # Unknown is taken for no time at all: nothing is refused for what nobody has seen.
            tpot_s=self.tpot.quantile(0.5) if known else 0.0,
            fast_ttft_s=self.ttft.quantile(_FAST),
            fast_tpot_s=self.tpot.quantile(_FAST) if known else 0.0,
        )


class LatencyTracker:
    """Every target's latency, of each tier by itself: where batch work waits long for its first token, interactive work may not.

    What was not seen for `fresh_s` is forgotten: a target that nobody was sent to for being slow must get the chance to be
    fast again.
    """

    def __init__(self, clock: Callable[[], float], *, fresh_s: float = 60.0) -> None:
        self._clock = clock
        self._fresh_s = fresh_s
        self._targets: dict[tuple[str, Tier], _Memory] = {}

    def observe(self, target_id: str, ttft_s: float | None, tpot_s: float | None, tier: Tier = "interactive") -> None:
        """One answer's seconds to its first token, counted from the attempt's start, and for each token after it."""
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
        if ttft_s is not None:
            memory.ttft.add(ttft_s)
        if tpot_s is not None:
            memory.tpot.add(tpot_s)
        memory.conclude()

    def expect(self, target_id: str, tier: Tier = "interactive") -> TargetLatency | None:
        """None where too little is known."""
        memory = self._targets.get((target_id, tier))
        if memory is None or self._clock() - memory.observed_at > self._fresh_s:
            return None
        return memory.latency
