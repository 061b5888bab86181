"""Late first tokens under a fleet: windows of the trace, request by request, on simulated engines.

The month is a matter of rates; who waits is not. So each window has the replicas that the month gave it at that time,
the gateway's own planner and balancer before them, and engines that work step by step. Fleets that were the same in a
window are simulated there once, and all meet the same requests and the same draws.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from planner.plans.roofline import StepTimes
from planner.savings.fluid import STEP_S, Outcome
from planner.savings.windows import Run, Sample, Share, share_of
from planner.simulate.engine import Job
from planner.simulate.fleet_simulation import FleetSimulation, FleetSpec, Planner
from planner.simulate.scaling import full_engine
from planner.simulate.traces import Trace, TraceRequest
from selfhosted.scale.policy import ScaleDecision
from selfhosted.scale.signals import Signals

Ready = tuple[tuple[float, int], ...]
"""Replicas that take requests, from each of these times on."""
# Who has no first token so long after the aim is late whatever comes.
_AFTER_AIM_S: Final = 1.0


class WindowCount(msgspec.Struct, frozen=True):
    """The requests of one window that came too late, and those that went elsewhere for want of room."""

    late: int
    overflow: int


class Lateness(msgspec.Struct, frozen=True, kw_only=True):
    """The lateness of all requests that a fleet is capable of, estimated from its windows."""

    late: Share
    """First tokens after the aim."""
    overflow: Share
    """Requests that went elsewhere because of the wait, or because no replica was up."""
    windows: tuple[WindowCount, ...]


class Scheduled:
    """The rule that has as many replicas as the month had at that time."""

    def __init__(self, ready: Ready) -> None:
        self._times = [at_s for at_s, _ in ready]
        self._counts = [count for _, count in ready]

    def at(self, at_s: float) -> int:
        place = bisect_right(self._times, at_s + 1e-6) - 1
        return self._counts[place] if place >= 0 else 0

    def decide(self, signals: Signals) -> ScaleDecision:
        return ScaleDecision(self.at(signals.at_s), "steady", "as the month had it")


class LatenessModel:
    """The windows of one trace. `requests` gives those from one place to another, at their times in the trace."""

    def __init__(
        self,
        sample: Sample,
        requests: Callable[[int, int], list[TraceRequest]],
        *,
        spec: FleetSpec,
        steps: StepTimes,
        planner: Planner,
        block_tokens: int,
    ) -> None:
        self.sample = sample
        self._requests = requests
        self._spec = msgspec.structs.replace(
            spec,
            spill=True,
            scaler="fixed",
            # The month has waited for the cold starts already.
            scale=spec.scale.model_copy(update={"cold_start_s": 0.0}),
            decide_s=STEP_S,
            tail_s=spec.ttft_target_s + _AFTER_AIM_S,
        )
        self._steps = steps
        self._planner = planner
        self._block_tokens = block_tokens
        self._counted: dict[tuple[Run, Ready], tuple[WindowCount, ...]] = {}

    def of(self, outcome: Outcome, progress: Callable[[float], None] = lambda _part: None) -> Lateness:
        """Return the lateness of the fleet of this outcome."""
        counts: list[WindowCount] = []
        for index, run in enumerate(self.sample.runs):
            progress(index / len(self.sample.runs))
            counts += self._counts(run, outcome.ready)
        return Lateness(
            late=share_of(self.sample, [each.late for each in counts]),
            overflow=share_of(self.sample, [each.overflow for each in counts]),
            windows=tuple(counts),
        )

    def later(self, one: Lateness, other: Lateness) -> Share:
        """Return the difference of two fleets' shares of late requests, window by window."""
        return share_of(
            self.sample, [mine.late - its.late for mine, its in zip(one.windows, other.windows, strict=True)]
        )

    def _counts(self, run: Run, ready: Sequence[tuple[float, int]]) -> tuple[WindowCount, ...]:
        requests = self._requests(run.lead, run.last)
        if not requests:
            return tuple(WindowCount(0, 0) for _ in run.windows)
        during = _during(ready, run.start_s, requests[-1].at_s)
        key = (run, during)
        if key not in self._counted:
            self._counted[key] = self._simulated(run, requests, Scheduled(during))
        return self._counted[key]

    def _simulated(self, run: Run, requests: list[TraceRequest], rule: Scheduled) -> tuple[WindowCount, ...]:
        shifted = [msgspec.structs.replace(each, at_s=each.at_s - run.start_s) for each in requests]
        trace = Trace("window", "mooncake", tuple(shifted), self._block_tokens)
        jobs: list[Job] = []
        spec = msgspec.structs.replace(self._spec, replicas=rule.at(0.0))
        FleetSimulation(spec, self._steps, trace, rule=rule, planner=self._planner, arrived=jobs.append).run()
        return tuple(
            _counted(jobs[window.first - run.lead : window.last - run.lead], spec.ttft_target_s - self._steps.request_s)
            for window in run.windows
        )


def _counted(jobs: Sequence[Job], aim_s: float) -> WindowCount:
    return WindowCount(
        late=sum(not job.overflow and _is_late(job, aim_s) for job in jobs),
        overflow=sum(job.overflow for job in jobs),
    )


def _is_late(job: Job, aim_s: float) -> bool:
    return job.first_token_at is None or job.first_token_at - job.arrived_at > aim_s


def _during(ready: Sequence[tuple[float, int]], start_s: float, end_s: float) -> Ready:
    """Return the part of it that holds from one time to another, told from the first on."""
    first = max(0, bisect_right(ready, start_s, key=lambda each: each[0]) - 1)
    return tuple((max(0.0, at_s - start_s), count) for at_s, count in ready[first:] if at_s <= end_s)


def at_the_books_speed(
    trace: Trace, spec: FleetSpec, steps: StepTimes, *, input_s: float, cached_s: float, output_s: float
) -> tuple[StepTimes, float]:
    """Return the step times of an engine that, when full, takes these seconds a token for the trace's requests, as the
    bills assume; and the factor by which the given step times were multiplied for it.
    """
    full = full_engine(trace, spec.engine, steps)
    fresh = full.prompt_tokens - full.cached_tokens
    wanted_s = fresh * input_s + full.cached_tokens * cached_s + full.output_tokens * output_s
    factor = wanted_s / full.seconds
    return steps.slower(factor), factor
