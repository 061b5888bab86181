"""One fleet on a trace, step by step: what it carries, what goes elsewhere, who waits too long, and how long it was up.

Work is replica-seconds, by the weights that the books share the hours by, and the replicas that are ready do so many
a second: no engine, no batch and no cache is simulated, which is what makes a month a matter of seconds. A request is
taken while its first token can still come by the deadline, as the gateway's own queue does it; the next one goes
elsewhere. One that nobody else can serve is always taken, and late when it waits for longer than the aim.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from selfhosted.offline.savings.demand import Demand
from selfhosted.scale.policy import ScaleDecision
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


class Scaler(Protocol):
    """Decides how many replicas there should be, from the same signals as in production."""

    def decide(self, signals: Signals) -> ScaleDecision: ...


class FluidSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet, and the promises that it is held to."""

    replicas: int
    """Replicas that are ordered when the trace begins; without a scaler there never are others."""
    cold_start_s: float
    wait_s: float
    """Time for which a request may wait for its first token before it goes elsewhere; infinite: it always waits."""
    aim_s: float
    """First tokens later than this are misses."""
    output_weight: float
    """Work of a generated token, in prompt tokens."""
    input_s: float
    """Seconds of a busy replica for a prompt token."""


class Outcome(msgspec.Struct, kw_only=True):
    """What a fleet came to."""

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
        self.work = _summed(demand.work_s)
        """Work before each request; the other lists hold sums before each step."""
        self.cost = _summed(np.where(demand.bound, 0, demand.elsewhere_nanousd))
        self.step_work: list[float] = self.work[edges].tolist()
        self.step_cost: list[int] = self.cost[edges].tolist()
        self.step_input: list[int] = _summed(demand.input_tokens)[edges].tolist()
        self.step_output: list[int] = _summed(demand.output_tokens)[edges].tolist()
        self.step_bound: list[int] = _summed(demand.bound.astype(np.int64))[edges].tolist()

    def busiest(self) -> float:
        """Replicas that the busiest minute keeps busy."""
        wide = max(1, round(_MINUTE_S / STEP_S))
        at = np.array(self.step_work)
        last = np.minimum(np.arange(self.count) + wide, self.count)
        return float((at[last] - at[:-1]).max()) / (wide * STEP_S)


def _summed(values: NDArray[Any]) -> NDArray[Any]:
    """Sums before each value, and of all."""
    sums: NDArray[Any] = np.concatenate(([0], np.cumsum(values)))
    return sums


class FluidFleet:
    """One fleet on the demand. Runs once."""

    def __init__(
        self,
        steps: Steps,
        spec: FluidSpec,
        scaler: Scaler | None = None,
        progress: Callable[[float], None] = lambda _part: None,
    ) -> None:
        self._steps = steps
        self._spec = spec
        self._scaler = scaler
        self._progress = progress
        self._ready = 0
        self._starting: deque[float] = deque([spec.cold_start_s] * spec.replicas)
        if spec.cold_start_s <= 0:
            self._grow(0.0)
        self._backlog = 0.0
        self._waiting = 0.0
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
            if not self.outcome.ready or self.outcome.ready[-1][1] != self._ready:
                self.outcome.ready.append((at_s, self._ready))
            arrived += self._live(step, at_s)
            if step % every == 0:
                self.outcome.samples.append((at_s, self._up, arrived / (STEP_S * every)))
                arrived = 0.0
                self._progress(step / self._steps.count)
        return self.outcome

    @property
    def _up(self) -> int:
        return self._ready + len(self._starting)

    def _grow(self, at_s: float) -> None:
        while self._starting and self._starting[0] <= at_s:
            self._starting.popleft()
            self._ready += 1

    def _live(self, step: int, at_s: float) -> float:
        """One step: arrivals, work, the bill, a decision. Returns the work that arrived."""
        steps, outcome = self._steps, self.outcome
        requests = steps.edges[step + 1] - steps.edges[step]
        arrived = steps.step_work[step + 1] - steps.step_work[step]
        taken, here, late = self._take(step, at_s)
        can = self._ready * STEP_S
        done = min(self._backlog + taken, can)
        self._backlog += taken - done
        outcome.busy_s += done
        outcome.requests_here += here
        outcome.requests_elsewhere += requests - here
        outcome.late += late
        outcome.up_us += round(self._up * STEP_S * _US)
        if self._scaler is not None:
            self._missed.add(late / here if here else None)
            self._decide(self._scaler, step, at_s, done)
        return arrived

    def _take(self, step: int, at_s: float) -> tuple[float, int, int]:
        """Takes what the pool has room for. Returns the work taken, the requests and the late ones among them."""
        steps, spec = self._steps, self._spec
        first, last = steps.edges[step], steps.edges[step + 1]
        work = steps.step_work[step + 1] - steps.step_work[step]
        if self._backlog + work <= self._ready * min(spec.wait_s, spec.aim_s):
            return work, last - first, 0
        if spec.wait_s > spec.aim_s or steps.step_bound[step + 1] > steps.step_bound[step]:
            return self._take_each(first, last, at_s)
        room = self._ready * (STEP_S + spec.wait_s) - self._backlog
        until = float(steps.work[first]) + max(0.0, room)
        end = (
            first + int(np.searchsorted(steps.work[first + 1 : last + 1], until, side="right"))
            if self._ready
            else first
        )
        self.outcome.elsewhere_nanousd += int(steps.cost[last] - steps.cost[end])
        return float(steps.work[end] - steps.work[first]), end - first, 0

    def _take_each(self, first: int, last: int, at_s: float) -> tuple[float, int, int]:
        """The same, request by request, where some have to wait whatever the room is."""
        demand, spec, ready = self._steps.demand, self._spec, self._ready
        taken, here, late = 0.0, 0, 0
        for index in range(first, last):
            passed_s = float(demand.at_s[index]) - at_s
            ahead = max(0.0, self._backlog + taken - ready * passed_s)
            work = float(demand.work_s[index])
            wait_s = (ahead + work) / ready if ready else max(spec.cold_start_s, STEP_S)
            cost = int(demand.elsewhere_nanousd[index])
            if cost >= 0 and (not ready or wait_s > spec.wait_s):
                self.outcome.elsewhere_nanousd += cost
                continue
            taken += work
            here += 1
            late += wait_s > spec.aim_s
        return taken, here, late

    def _decide(self, scaler: Scaler, step: int, at_s: float, done: float) -> None:
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
                ready=self._ready,
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
                self._ready -= 1
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
