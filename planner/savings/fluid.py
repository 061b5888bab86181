"""One fleet on a trace: what it carries, what goes elsewhere, who waits too long, and how long it was up.

Work is replica-seconds, by the weights that the books share the hours by. Each replica that is ready does one of them a second,
request after request, and each request goes to the one that is free first: no engine, no batch and no cache is simulated, which is
what makes a month a matter of minutes. A request is taken while the wait is shorter than it bears, which differs from request to
request as the shadow price has it; otherwise it goes elsewhere. One that nobody else can serve is always taken, and late when it
waits for longer than the aim. Scalers decide every few seconds.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from planner.savings.demand import Demand
from selfhosted.scale.policy import ScaleRule
from selfhosted.scale.signals import Signals

STEP_S: Final = 5.0
"""Length of a step, and time between two decisions of a scaler."""
# A Monday, 00:00 UTC.
_EPOCH_S: Final = 1_767_571_200.0
# What is known of the last minute's first tokens, and of what work costs elsewhere on the mean of the last hour.
_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3_600.0
# A replica that is busy all the time has its cache half full: memory is not what limits here.
_BUSY_MEMORY: Final = 0.5
_SAMPLES: Final = 720
_US: Final = 1_000_000
_GOLDEN: Final = 0.6180339887498949


class FluidSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet, and the promises that it is held to."""

    replicas: int
    """Replicas that are ordered when the trace begins; without a scaler there never are others."""
    cold_start_s: float
    wait_s: float
    """Time for which a request may wait before it goes elsewhere; infinite: it always waits."""
    spread: float = 0.0
    """The last part of that time over which requests go elsewhere, one after the other: with 0 all wait for the whole of it."""
    aim_s: float
    """First tokens later than this are misses."""
    output_weight: float
    """Work of a generated token, in prompt tokens."""
    input_s: float
    """Seconds of a busy replica for a prompt token."""


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of a fleet."""

    up_us: int = 0
    elsewhere_nanousd: int = 0
    requests_here: int = 0
    requests_elsewhere: int = 0
    late: int = 0
    busy_s: float = 0.0
    most_replicas: int = 0
    changes: int = 0
    samples: list[tuple[float, int, float]] = msgspec.field(default_factory=list)
    """Time, replicas that cost, and the work that arrived since the sample before, in replicas."""
    ready: list[tuple[float, int]] = msgspec.field(default_factory=list)
    """Every change of how many replicas take requests: the time from which on, and how many."""

    @property
    def utilisation(self) -> float | None:
        """Part of the time up in which replicas worked; None for a fleet that never was up."""
        return self.busy_s * _US / self.up_us if self.up_us else None


class Steps:
    """The demand, summed up step by step; shared by all fleets that are tried on it."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.count = max(1, math.ceil(demand.duration_s / STEP_S - 1e-9))
        edges = np.searchsorted(demand.at_s, np.arange(self.count + 1) * STEP_S, side="left")
        edges[-1] = len(demand)
        self.edges: list[int] = edges.tolist()
        # Spread evenly, whichever part of the requests is looked at.
        self.places = np.arange(len(demand)) * _GOLDEN % 1.0
        # Sums before each step.
        self.step_work: list[float] = _summed(demand.work_s)[edges].tolist()
        self.step_cost: list[int] = _summed(np.where(demand.bound, 0, demand.elsewhere_nanousd))[edges].tolist()
        self.step_input: list[int] = _summed(demand.input_tokens)[edges].tolist()
        self.step_output: list[int] = _summed(demand.output_tokens)[edges].tolist()

    def busiest(self) -> float:
        """Return the replicas that the busiest minute keeps busy."""
        wide = max(1, round(_MINUTE_S / STEP_S))
        at = np.array(self.step_work)
        last = np.minimum(np.arange(self.count) + wide, self.count)
        return float((at[last] - at[:-1]).max()) / (wide * STEP_S)


def _summed(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sums before each value, and of all."""
    sums: NDArray[Any] = np.concatenate(([0], np.cumsum(values)))
    return sums


class FluidFleet:
    """One fleet on the demand. Runs once."""

    def __init__(
        self,
        steps: Steps,
        spec: FluidSpec,
        scaler: ScaleRule | None = None,
        progress: Callable[[float], None] = lambda _part: None,
    ) -> None:
        self._steps = steps
        self._spec = spec
        self._scaler = scaler
        self._progress = progress
        self._backlog = 0.0
        """Work that was taken and is not done."""
        self._early = 0.0
        """The part of it for which there is no replica yet."""
        self._free: list[float] = []
        """A heap of the times at which each replica that is ready will have done all that it has."""
        self._starting: deque[float] = deque([spec.cold_start_s] * spec.replicas)
        if spec.cold_start_s <= 0:
            self._grow(0.0)
        self._missed = _Mean(_MINUTE_S)
        self._value = _Mean(_HOUR_S)
        self._work = _Mean(_HOUR_S)
        self.outcome = Outcome(most_replicas=spec.replicas)

    def run(self) -> Outcome:
        every = max(1, self._steps.count // _SAMPLES)
        arrived = 0.0
        for step in range(self._steps.count):
            at_s = step * STEP_S
            self._grow(at_s)
            ready = len(self._free)
            if not self.outcome.ready or self.outcome.ready[-1][1] != ready:
                self.outcome.ready.append((at_s, ready))
            arrived += self._live(step, at_s)
            if step % every == 0:
                self.outcome.samples.append((at_s, self._up, arrived / (STEP_S * every)))
                arrived = 0.0
                self._progress(step / self._steps.count)
        return self.outcome

    @property
    def _up(self) -> int:
        return len(self._free) + len(self._starting)

    def _grow(self, at_s: float) -> None:
        while self._starting and self._starting[0] <= at_s:
            self._starting.popleft()
            heapq.heappush(self._free, at_s + self._early)
            self._early = 0.0

    def _live(self, step: int, at_s: float) -> float:
        """Run one step: arrivals, work, the bill, a decision. Returns the work that arrived."""
        steps, outcome = self._steps, self.outcome
        requests = steps.edges[step + 1] - steps.edges[step]
        arrived = steps.step_work[step + 1] - steps.step_work[step]
        taken, here, late = self._take(step)
        left = self._early + sum([max(0.0, free_at - at_s - STEP_S) for free_at in self._free])
        done, self._backlog = self._backlog + taken - left, left
        outcome.busy_s += done
        outcome.requests_here += here
        outcome.requests_elsewhere += requests - here
        outcome.late += late
        outcome.up_us += round(self._up * STEP_S * _US)
        if self._scaler is not None:
            self._missed.add(late / here if here else None)
            self._decide(self._scaler, step, at_s, done)
        return arrived

    def _take(self, step: int) -> tuple[float, int, int]:
        """Take the work that the pool has room for. Returns the work taken, the requests and the late ones among them."""
        demand, spec, free = self._steps.demand, self._spec, self._free
        part = slice(self._steps.edges[step], self._steps.edges[step + 1])
        columns = (demand.at_s, demand.work_s, demand.elsewhere_nanousd, self._steps.places)
        taken, here, late = 0.0, 0, 0
        for now, work, cost, place in zip(*(each[part].tolist() for each in columns), strict=True):
            # Where there is no replica yet, who is bound to the pool waits for one to start.
            wait_s = max(0.0, free[0] - now) if free else max(spec.cold_start_s, STEP_S)
            if cost >= 0 and (not free or wait_s >= spec.wait_s * (1 - spec.spread * place)):
                self.outcome.elsewhere_nanousd += cost
                continue
            taken += work
            here += 1
            late += wait_s > spec.aim_s
            if free:
                heapq.heapreplace(free, now + wait_s + work)
            else:
                self._early += work
        return taken, here, late

    def _decide(self, scaler: ScaleRule, step: int, at_s: float, done: float) -> None:
        steps = self._steps
        first, last = steps.edges[step], steps.edges[step + 1]
        prompt, output, work = (
            float(sums[step + 1] - sums[step]) for sums in (steps.step_input, steps.step_output, steps.step_work)
        )
        prompt, output = prompt / STEP_S, output / STEP_S
        self._value.add((steps.step_cost[step + 1] - steps.step_cost[step]) / 1e9)
        self._work.add(work / self._spec.input_s)
        served = done / work if work > 0 else 1.0
        requests = (last - first) / STEP_S
        mean = work / (last - first) if last > first else self._spec.input_s * 1_000
        waiting = math.floor(self._backlog / mean)
        busy = done / STEP_S
        paid = self._work.value
        decision = scaler.decide(
            Signals(
                at_s=at_s + STEP_S,
                wall_s=_EPOCH_S + at_s + STEP_S,
                ready=len(self._free),
                starting=len(self._starting),
                running=math.ceil(busy),
                waiting_at_gate=waiting,
                waiting_tokens=self._backlog / self._spec.input_s,
                kv_used=_BUSY_MEMORY * busy,
                missed=self._missed.value,
                input_tokens_per_s=prompt,
                output_tokens_per_s=output,
                served_tokens_per_s=max(0.0, prompt * served - self._spec.output_weight * output * (1 - served)),
                arrivals_per_s=requests,
                elsewhere_usd=self._value.value / paid if paid and self._value.value else None,
            )
        )
        self._become(decision.desired, at_s + STEP_S)

    def _become(self, desired: int, at_s: float) -> None:
        up = self._up
        for _ in range(desired - up):
            self._starting.append(at_s + self._spec.cold_start_s)
        for _ in range(up - desired):
            if self._starting:
                self._starting.pop()
            else:
                # What it still has it does while it drains.
                left = max(0.0, heapq.heappop(self._free) - at_s)
                self._backlog -= left
                self.outcome.busy_s += left
        self.outcome.changes += desired != up
        self.outcome.most_replicas = max(self.outcome.most_replicas, desired)


class _Mean:
    """Exponentially weighted mean over about `over_s` seconds of steps; None adds nothing."""

    def __init__(self, over_s: float) -> None:
        self._keep = math.exp(-STEP_S / over_s)
        self._sum = self._weight = 0.0

    def add(self, value: float | None) -> None:
        if value is not None:
            self._sum = self._sum * self._keep + value * (1 - self._keep)
            self._weight = self._weight * self._keep + 1 - self._keep

    @property
    def value(self) -> float | None:
        return self._sum / self._weight if self._weight else None
