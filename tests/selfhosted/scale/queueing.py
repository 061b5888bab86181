"""A pool that is simple enough to reason about: replicas that prefill one prompt after the other, and start slowly."""

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence

import msgspec

from selfhosted.scale.policy import ScaleRule
from selfhosted.scale.signals import RecentTimes, Signals

TOKENS_PER_S = 10_000.0
TICK_S = 15.0
TARGET_S = 1.0
# A Monday, 00:00 UTC.
MIDNIGHT = 1_699_833_600.0


class Ended(msgspec.Struct, frozen=True):
    """What a run came to. `desired` holds each decision."""

    missed: float
    replica_hours: float
    desired: list[int]


class _Server(msgspec.Struct):
    ready_at: float
    free_at: float


def bursts(seed: int, until_s: float, *, every_s: float = 150.0, prompts: int = 350) -> list[tuple[float, int]]:
    """Arrivals as a coding service's: half a minute of many prompts, then next to nothing, more by day than by night."""
    rng = random.Random(seed)
    arrivals = []
    at = rng.expovariate(1 / every_s)
    while at < until_s:
        day = 0.15 + 0.85 * (0.5 - 0.5 * math.cos(2 * math.pi * at / 86_400))
        many = int(rng.expovariate(1 / (prompts * day)))
        arrivals += [(at + rng.random() * 30, rng.choice((100, 1_000, 2_000, 5_000))) for _ in range(many)]
        at += rng.expovariate(1 / every_s)
    return sorted(arrivals)


def steady(per_s: float, prompt: int, from_s: float, until_s: float) -> list[tuple[float, int]]:
    """The same prompt again and again."""
    return [(from_s + index / per_s, prompt) for index in range(int((until_s - from_s) * per_s))]


class Pool:
    """Prompts wait at the gate, in order, and go to the replica that is free first."""

    def __init__(self, *, cold_s: float, replicas: int = 1) -> None:
        self._cold_s = cold_s
        self._servers = [_Server(0.0, 0.0) for _ in range(replicas)]
        self._seen = RecentTimes(TARGET_S)
        self._first: list[tuple[float, float]] = []
        self._waiting: deque[tuple[float, int]] = deque()
        self.late = self.answered = 0
        self._served = 0
        self.held_s = 0.0

    def arrive(self, at: float, prompt: int) -> None:
        self._waiting.append((at, prompt))

    def serve(self, now: float) -> None:
        """Starts what can start before `now`."""
        while self._waiting:
            at, prompt = self._waiting[0]
            server = min(self._servers, key=lambda each: max(each.free_at, each.ready_at))
            begins = max(at, server.free_at, server.ready_at)
            if begins >= now:
                return
            self._waiting.popleft()
            self._served += prompt
            server.free_at = begins + prompt / TOKENS_PER_S
            took = server.free_at - at
            heapq.heappush(self._first, (server.free_at, took))
            self.late += took > TARGET_S
            self.answered += 1

    def signals(self, now: float, tokens: int, came: int) -> Signals:
        while self._first and self._first[0][0] <= now:
            at, took = heapq.heappop(self._first)
            self._seen.saw(took, at)
        served, self._served = self._served, 0
        ready = sum(server.ready_at <= now for server in self._servers)
        return Signals(
            at_s=now,
            wall_s=MIDNIGHT + now,
            ready=ready,
            starting=len(self._servers) - ready,
            waiting=len(self._waiting),
            waiting_tokens=float(sum(prompt for _, prompt in self._waiting)),
            kv_used=0.0,
            ttft_s=self._seen.mean(now),
            missed=self._seen.missed(now),
            input_tokens_per_s=tokens / TICK_S,
            output_tokens_per_s=0.0,
            served_tokens_per_s=served / TICK_S,
            arrivals_per_s=came / TICK_S,
        )

    def resize(self, desired: int, now: float) -> None:
        self.held_s += len(self._servers) * TICK_S
        while len(self._servers) < desired:
            self._servers.append(_Server(now + self._cold_s, 0.0))
        while len(self._servers) > max(1, desired):
            self._servers.remove(max(self._servers, key=lambda each: (each.ready_at, -each.free_at)))


def run(rule: ScaleRule, arrivals: Sequence[tuple[float, int]], until_s: float, *, cold_s: float = 300.0) -> Ended:
    """`arrivals` are moments and prompt tokens, in order."""
    pool, position, desired = Pool(cold_s=cold_s), 0, []
    for tick in range(1, int(until_s / TICK_S) + 1):
        now, tokens, came = tick * TICK_S, 0, 0
        while position < len(arrivals) and arrivals[position][0] < now:
            pool.arrive(*arrivals[position])
            tokens, came, position = tokens + arrivals[position][1], came + 1, position + 1
        pool.serve(now)
        decision = rule.decide(pool.signals(now, tokens, came))
        pool.resize(decision.desired, now)
        desired.append(decision.desired)
    return Ended(pool.late / max(1, pool.answered), pool.held_s / 3_600, desired)
