"""Baseline rules to compare the policy with: KEDA's on queue length, Knative's on requests in flight, and a perfect forecast."""

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from selfhosted.config import ScaleConfig
from selfhosted.scale.policy import ScaleDecision
from selfhosted.scale.signals import Signals

# As the HorizontalPodAutoscaler does it by default, and as the vLLM production stack configures it.
_TOLERANCE: Final = 0.1
_UP_PODS: Final = 4
_UP_PERIOD_S: Final = 15.0
_DOWN_PART: Final = 0.5
_DOWN_PERIOD_S: Final = 60.0
_DOWN_STABILISATION_S: Final = 300.0


class QueueRule:
    """KEDA's rule: `ceil(sum(waiting) / threshold)` every 15 s, with the HPA's tolerance, stabilisation and step
    limits.
    """

    def __init__(
        self, config: ScaleConfig, *, threshold: float = 5.0, poll_s: float = 15.0, cooldown_s: float = 360.0
    ) -> None:
        self._config = config
        self._threshold = threshold
        self._poll_s = poll_s
        self._cooldown_s = cooldown_s
        self._desired: int | None = None
        self._polled_at: float | None = None
        self._active_at: float | None = None
        # Of the last five minutes at one poll in 15 s: bounded by their number.
        self._recommended: deque[tuple[float, int]] = deque(maxlen=math.ceil(_DOWN_STABILISATION_S / poll_s) + 1)
        self._changed: deque[tuple[float, int]] = deque(maxlen=256)

    def decide(self, signals: Signals) -> ScaleDecision:
        at_s = signals.at_s
        if self._desired is None:
            self._desired = max(signals.supply, self._config.min_replicas)
        if self._polled_at is None or at_s - self._polled_at >= self._poll_s:
            self._polled_at = at_s
            self._poll(signals)
        return ScaleDecision(self._desired, "queue", f"{signals.unanswered} wait")

    def _poll(self, signals: Signals) -> None:
        current = self._desired or 0
        if signals.unanswered > 0 or self._active_at is None:
            self._active_at = signals.at_s
        if current == 0:
            self._set(max(1 if signals.unanswered else 0, self._config.min_replicas), signals.at_s)
            return
        ratio = signals.unanswered / (self._threshold * current)
        wanted = current if abs(ratio - 1) <= _TOLERANCE else math.ceil(signals.unanswered / self._threshold)
        wanted = min(self._config.max_replicas, max(wanted, self._config.min_replicas, 1))
        if wanted == 1 and self._config.min_replicas == 0 and signals.at_s - self._active_at > self._cooldown_s:
            # To zero it is KEDA that scales, after its own cooldown.
            self._set(0, signals.at_s)
            return
        self._recommended.append((signals.at_s, wanted))
        stabilised = max(count for at_s, count in self._recommended if at_s > signals.at_s - _DOWN_STABILISATION_S)
        if wanted < current:
            wanted = min(current, max(wanted, stabilised))
        self._set(self._stepped(current, wanted, signals.at_s), signals.at_s)

    def _stepped(self, current: int, wanted: int, at_s: float) -> int:
        if wanted > current:
            base = current - self._sum_since(at_s - _UP_PERIOD_S, growing=True)
            return min(wanted, max(2 * base, base + _UP_PODS))
        base = current - self._sum_since(at_s - _DOWN_PERIOD_S, growing=False)
        return max(wanted, math.ceil(base * (1 - _DOWN_PART)))

    def _sum_since(self, since_s: float, *, growing: bool) -> int:
        return sum(change for at_s, change in self._changed if at_s > since_s and (change > 0) == growing)

    def _set(self, desired: int, at_s: float) -> None:
        change = desired - (self._desired or 0)
        if change:
            self._changed.append((at_s, change))
        self._desired = desired


class ConcurrencyRule:
    """Knative's rule: requests in flight over what one replica should have, by the mean of a minute, or of its last tenth where
    that is twice what is ready; while it is, and a minute after, nothing shrinks.
    """

    def __init__(
        self, config: ScaleConfig, *, target: float = 70.0, stable_s: float = 60.0, panic_s: float = 6.0
    ) -> None:
        """`target` is by default Knative's: 100 requests, used to seven tenths."""
        self._config = config
        self._target = target
        self._stable_s = stable_s
        self._panic_s = panic_s
        self._seen: deque[tuple[float, int]] = deque(maxlen=512)
        self._panic_until = -math.inf
        self._most = 0

    def decide(self, signals: Signals) -> ScaleDecision:
        at_s = signals.at_s
        self._seen.append((at_s, signals.running + signals.unanswered))
        while self._seen[0][0] <= at_s - self._stable_s:
            self._seen.popleft()
        stable, panic = self._wanted(at_s - self._stable_s), self._wanted(at_s - self._panic_s)
        if panic >= 2 * max(1, signals.ready):
            self._panic_until = at_s + self._stable_s
        if at_s < self._panic_until:
            self._most = wanted = max(self._most, stable, panic)
        else:
            self._most, wanted = 0, stable
        wanted = min(self._config.max_replicas, max(self._config.min_replicas, wanted))
        return ScaleDecision(wanted, "demand", f"{self._seen[-1][1]} in flight")

    def _wanted(self, since_s: float) -> int:
        seen = [count for at_s, count in self._seen if at_s > since_s]
        return math.ceil(sum(seen) / len(seen) / self._target - 1e-9)


class PerfectForecast:
    """Oracle that knows the exact work up to one cold start ahead, and orders replicas for just that."""

    def __init__(
        self, config: ScaleConfig, *, demand: Callable[[float], float], carries: float, tick_s: float = 15.0
    ) -> None:
        self._config = config
        self._demand = demand
        self._carries = carries
        self._tick_s = tick_s

    def decide(self, signals: Signals) -> ScaleDecision:
        """Size for the most work up to one cold start and a tick ahead: replicas for a burst are ordered a cold start
        before it, and kept when the next burst is nearer than that.
        """
        ticks = math.ceil(self._config.cold_start_s / self._tick_s) + 1
        most = max(self._demand(signals.at_s + tick * self._tick_s) for tick in range(ticks + 1))
        wanted = math.ceil(most / self._carries - 1e-9)
        desired = min(self._config.max_replicas, max(self._config.min_replicas, wanted))
        return ScaleDecision(desired, "forecast", f"{most:,.0f} tokens/s will come")
