"""Simulated fleet: gateways that choose, engines that work, replicas that come and go.

What production does once a second is done once a simulated second: each gateway scrapes the engines, and between two
scrapes it knows no more than what it sent itself. The balancer, the room check and the autoscaler are the real ones.
"""

import heapq
import math
import random
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, Protocol

import msgspec

from planner.plans.roofline import StepTimes
from planner.simulate.choosers import Chooser, chooser_of
from planner.simulate.engine import Engine, EngineSpec, Happening, Job
from planner.simulate.scaling import rule_of
from planner.simulate.simulation_errors import SimulationRefused
from planner.simulate.traces import Trace, TraceRequest, root, shared_beginnings
from selfhosted.config import BalanceConfig, RoomConfig, ScaleConfig
from selfhosted.replica import Address, PoolRoom, PoolSnapshot, Replica, ReplicaRequest
from selfhosted.scale.policy import ScaleRule
from selfhosted.scale.signals import RecentTimes, SignalReader, Signals

_POOL: Final = "simulated"
_BYTES_A_TOKEN: Final = 4
# A Monday, 00:00 UTC.
_EPOCH_S: Final = 1_767_571_200.0
_SAMPLES: Final = 720
_PROGRESS_PARTS: Final = 50
# A replica that drains is gone no sooner: by then every gateway has seen that it drains.
_LEAST_DRAIN_S: Final = 2.0
_LONGEST_TAIL_S: Final = 7 * 86_400.0
_MOST_REPLICAS: Final = 10_000


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a simulated fleet."""

    replicas: int
    """Replicas at the beginning; with `scaler` fixed, always."""
    engine: EngineSpec
    policy: str = "prefix"
    gateways: int = 1
    hosts: int = 1
    """The gateways are dealt out to so many hosts; those of one host tell each other what they send where."""
    told_after_s: float = 0.02
    """Seconds that it takes."""
    hosts_told_after_s: float | None = None
    """Seconds until the other hosts' gateways hear of it; None: they do not."""
    divide_s: float = 0.25
    """Seconds between two divisions of the room that a queue before the pool lets in."""
    seed: int = 0
    balance: BalanceConfig = BalanceConfig()
    room: RoomConfig = RoomConfig()
    kv_events: bool = False
    """True: engines send KV events to every gateway at once. False: gateways infer the caches from what they sent."""
    spill: bool = False
    """True: requests for which no replica has room go to a paid API. False: the engines queue them."""
    scaler: str = "fixed"
    scale: ScaleConfig = ScaleConfig()
    decide_s: float = 5.0
    watch_s: float = 1.0
    ttft_target_s: float = 1.0
    tpot_target_s: float = 0.05
    usd_per_replica_hour: float | None = None
    tail_s: float | None = None
    """Seconds after the last arrival at which the simulation ends, whatever is still open; None: when all is served."""


class Planner(Protocol):
    """The decision, before a replica is chosen, whether a request goes to the fleet at all."""

    def overflows(self, request: TraceRequest, room: PoolRoom | None) -> bool:
        """Return whether it goes elsewhere, given the room of the fleet as its gateway knows it; None: not known."""
        ...


class Gate(Protocol):
    """The queue before the pool, in all gateways: what the engines have no room for waits there. It is given the same
    simulated clock, and gateways by their numbers.
    """

    @property
    def waiting(self) -> int:
        """Requests that wait, in all gateways."""
        ...

    def enter(self, gateway: int, job: Job, tokens: int, now: float) -> bool:
        """Return whether the request, of so many tokens, may be sent at once; otherwise it waits."""
        ...

    def ended(self, job: Job, now: float) -> None:
        """Note that a request that was let in has ended."""
        ...

    def let_in(self, gateway: int) -> list[Job]:
        """Return the requests that waited, and may be sent now. Each is told of once."""
        ...

    def resize(self, gateway: int, tokens: int, now: float) -> None:
        """Set the tokens that the pool carries, as that gateway knows it."""
        ...

    def divide(self, now: float) -> None:
        """Divide between the gateways what the pool carries; called every `divide_s`."""
        ...


class Sample(msgspec.Struct, frozen=True):
    """The fleet's state at one moment."""

    at_s: float
    ready: int
    starting: int
    draining: int
    desired: int
    running: int
    waiting: int
    kv_usage: float
    """Mean KV usage of the ready replicas."""


class Measured(msgspec.Struct, kw_only=True):
    """The results of a simulation. The arrays hold one number for each request, in the order of their ends."""

    spec: FleetSpec
    requests: int = 0
    served: int = 0
    overflow: int = 0
    refused: int = 0
    """Requests that would not fit an engine's KV cache even alone, with nowhere else to go."""
    overflow_prompt_tokens: int = 0
    overflow_output_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    preemptions: int = 0
    late_first_tokens: int = 0
    slow_answers: int = 0
    missed: int = 0
    """Requests whose first token was late, or whose answer was slow."""
    peak_waiting: int = 0
    peak_replicas: int = 0
    replica_s: float = 0.0
    busy_s: float = 0.0
    duration_s: float = 0.0
    decisions: dict[str, int] = msgspec.field(default_factory=dict)
    ttft_s: "array[float]" = msgspec.field(default_factory=lambda: array("d"))
    tpot_s: "array[float]" = msgspec.field(default_factory=lambda: array("d"))
    duration_each_s: "array[float]" = msgspec.field(default_factory=lambda: array("d"))
    samples: list[Sample] = msgspec.field(default_factory=list)


def _ends(engine: Engine) -> float:
    return engine.ends


def node_name(number: int) -> str:
    return f"replica-{number:05d}"


class Node:
    """One replica, from when it is ordered until it is gone."""

    __slots__ = ("address", "engine", "name", "ordered_at", "since", "state")

    def __init__(self, number: int, engine: Engine, now: float, *, ready: bool) -> None:
        self.name = node_name(number)
        self.engine = engine
        self.ordered_at = now
        self.since = now
        self.state: Literal["starting", "ready", "draining"] = "ready" if ready else "starting"
        self.address = Address(
            pool=_POOL, name=self.name, url=f"http://{self.name}:8000", kind="vllm", source="configured"
        )

    def become(self, state: Literal["ready", "draining"], now: float) -> None:
        self.state = state
        self.since = now

    def seen(self, now: float) -> Replica:
        stats = None if self.state == "starting" else self.engine.stats(now)
        return Replica(address=self.address, state=self.state, since=self.since, stats=stats)


class _Gateway:
    """One gateway process: its chooser, its last scrape, and the requests that wait in it while no replica is ready."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser
        self.snapshot = PoolSnapshot(pool=_POOL, at=0.0, replicas=())
        self.queue: deque[Job] = deque()


class FleetSimulation:
    """A simulation of one trace. Runs once."""

    def __init__(
        self,
        spec: FleetSpec,
        steps: StepTimes,
        trace: Trace,
        progress: Callable[[float], None] = lambda _part: None,
        *,
        rule: ScaleRule | None = None,
        planner: Planner | None = None,
        gate: Gate | None = None,
        arrived: Callable[[Job], None] = lambda _job: None,
    ) -> None:
        """`progress` is called now and then with the arrived fraction of the trace. `rule` scales in place of the spec's
        scaler, `planner` sends requests elsewhere before the balancer sees them, `gate` is a queue before the pool, and
        `arrived` is called with each job, whose fields tell afterwards what became of it. Raises SimulationRefused.
        """
        if gate is not None and spec.spill:
            raise SimulationRefused("what overflows does not wait: simulate a queue, or a price for what has no room")
        if spec.replicas == 0 and spec.scaler == "fixed" and rule is None:
            raise SimulationRefused("there is no replica, and nothing would ever start one")
        # The engines tell prefixes apart as finely as the trace does.
        engine = msgspec.structs.replace(spec.engine, shared_tokens=trace.block_tokens)
        spec = self._spec = msgspec.structs.replace(spec, engine=engine)
        self._steps = steps
        self._trace = trace
        self._shared = shared_beginnings(trace)
        self._progress = progress
        self._rng = random.Random(spec.seed)  # noqa: S311 - repeatable, and nothing is kept secret by it
        self._nodes: dict[str, Node] = {}
        self._numbers = 0
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._timer_number = 0
        self._left = len(trace.requests)
        self._open = 0
        self._split = max(1, round(trace.block_tokens * _BYTES_A_TOKEN / spec.balance.block_bytes))
        self._expected_output = max(1, round(trace.output_tokens / len(trace.requests)))
        self.measured = Measured(spec=spec, requests=len(trace.requests))
        self._gateways = [_Gateway(self._chooser(index)) for index in range(spec.gateways)]
        self._siblings = [self._told(index) for index in range(spec.gateways)]
        self._planner = planner
        self._gate = gate
        self._freed: set[int] = set()
        """Gateways with a request that has just ended."""
        self._arrived = arrived
        self._rule: ScaleRule | None = rule or rule_of(
            spec.scaler, spec.scale, trace, spec.engine, steps, spec.usd_per_replica_hour
        )
        self._reader = SignalReader(spec.ttft_target_s)
        self._first_tokens = RecentTimes(spec.ttft_target_s)
        self._further_tokens = RecentTimes(spec.tpot_target_s)
        self._spilled_tokens = 0
        self._desired = spec.replicas

    def run(self) -> Measured:
        self._begin()
        part = max(1, len(self._trace.requests) // _PROGRESS_PARTS)
        for index, request in enumerate(self._trace.requests):
            self._until(request.at_s)
            self._left -= 1
            self._arrive(request)
            if index % part == 0:
                self._progress(index / len(self._trace.requests))
        ends_at = math.inf if self._spec.tail_s is None else self._trace.duration_s + self._spec.tail_s
        while self._timers and (self._open or not self._idle()) and self._timers[0][0] <= ends_at:
            if self._timers[0][0] > self._trace.duration_s + _LONGEST_TAIL_S:
                raise SimulationRefused(f"{self._open:,} requests were not served a week after the last one came")
            self._next_timer()
        self._end()
        return self.measured

    # The clock

    def _begin(self) -> None:
        if self._rule is not None and self._spec.scaler == "perfect":
            # The perfect forecast has ordered its replicas before the trace begins.
            self._desired = self._rule.decide(Signals(at_s=0.0, wall_s=_EPOCH_S, ready=0)).desired
        for _ in range(self._desired):
            self._add(0.0, ready=True)
        for index, gateway in enumerate(self._gateways):
            gateway.snapshot = self._snapshot(0.0)
            offset = self._spec.watch_s * (index + 1) / len(self._gateways)
            self._every(offset, self._spec.watch_s, partial(self._scrape, index))
        if self._gate is not None:
            for index in range(len(self._gateways)):
                self._resize(self._gate, index, 0.0)
            self._every(0.0, self._spec.divide_s, self._divide)
        if self._rule is not None:
            self._every(self._spec.decide_s, self._spec.decide_s, self._decide)
        self._every(0.0, max(self._spec.watch_s, self._trace.duration_s / _SAMPLES), self._sample)

    def _every(self, first: float, every_s: float, act: Callable[[float], None]) -> None:
        def turn(now: float) -> None:
            act(now)
            self._at(now + every_s, turn)

        self._at(first, turn)

    def _at(self, when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._timers, (when, self._timer_number, act))
        self._timer_number += 1

    def _until(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            self._next_timer()
        self._work(now)

    def _next_timer(self) -> None:
        now, _, act = heapq.heappop(self._timers)
        self._work(now)
        act(now)

    def _work(self, now: float) -> None:
        """Work step by step in the order of time, so that gateways hear of first tokens and ends as they come; where there is a queue,
        each end may let somebody in at any engine.
        """
        while self._nodes:
            engine = min([node.engine for node in self._nodes.values()], key=_ends)
            at = engine.ends
            if at > now:
                return
            engine.advance(at)
            if self._gate is not None and self._freed:
                freed, self._freed = self._freed, set()
                for index in sorted(freed):
                    self._let_in(self._gate, index, at)

    def _idle(self) -> bool:
        return all(node.engine.empty for node in self._nodes.values())

    # Requests

    def _told(self, index: int) -> list[tuple[_Gateway, float]]:
        """Return the gateways that hear what this one sends, each with how long that takes."""
        spec, found = self._spec, []
        for other, gateway in enumerate(self._gateways):
            after_s = spec.told_after_s if other % spec.hosts == index % spec.hosts else spec.hosts_told_after_s
            if other != index and after_s is not None:
                found.append((gateway, after_s))
        return found

    def _chooser(self, index: int) -> Chooser:
        spec = self._spec
        rng = random.Random(f"{spec.seed}/{index}")  # noqa: S311 - repeatable, and nothing is kept secret by it
        return chooser_of(spec.policy, balance=spec.balance, room=spec.room, rng=rng, engines=self._engines)

    def _engines(self) -> Mapping[str, Engine]:
        return {name: node.engine for name, node in self._nodes.items() if node.state == "ready"}

    def _arrive(self, request: TraceRequest) -> None:
        job = Job(
            arrived_at=request.at_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            blocks=request.blocks,
            priority=request.priority,
        )
        job.root = root(request, self._shared)
        job.bound = request.bound
        job.gateway = self._rng.randrange(len(self._gateways)) if len(self._gateways) > 1 else 0
        self._open += 1
        self._arrived(job)
        if self._planner is not None and self._planned_elsewhere(self._planner, job, request):
            self._overflow(job)
        elif self._gate is None:
            self._send(job, request.at_s)
        elif self._fits(job):
            tokens = job.prompt_tokens + self._expected_output
            if self._gate.enter(job.gateway, job, tokens, request.at_s):
                self._send(job, request.at_s)
            else:
                self._let_in(self._gate, job.gateway, request.at_s)

    def _planned_elsewhere(self, planner: Planner, job: Job, request: TraceRequest) -> bool:
        gateway, now = self._gateways[job.gateway], request.at_s
        return planner.overflows(request, gateway.chooser.free(gateway.snapshot, job.prompt_tokens, now))

    def _send(self, job: Job, now: float) -> None:
        gateway = self._gateways[job.gateway]
        spills = self._spec.spill and not job.bound
        if spills and gateway.chooser.full(gateway.snapshot, now):
            self._overflow(job)
            return
        if not self._fits(job):
            return
        ask = self._ask(job, now)
        name = gateway.chooser.choose(job, ask, gateway.snapshot, now)
        if name is not None:
            job.replica = name
            self._nodes[name].engine.enqueue(job, now)
            for sibling, after_s in self._siblings[job.gateway]:
                self._at(now + after_s, partial(sibling.chooser.sibling_sent, job, ask))
        elif spills:
            self._overflow(job)
        else:
            gateway.queue.append(job)

    def _fits(self, job: Job) -> bool:
        spec = self._spec.engine
        blocks = -(-(job.prompt_tokens + job.output_tokens) // spec.block_tokens)
        if blocks <= spec.kv_tokens // spec.block_tokens:
            return True
        if self._spec.spill and not job.bound:
            self._overflow(job)
        else:
            self.measured.refused += 1
            self._open -= 1
        return False

    def _overflow(self, job: Job) -> None:
        job.overflow = True
        self.measured.overflow += 1
        self.measured.overflow_prompt_tokens += job.prompt_tokens
        self.measured.overflow_output_tokens += job.output_tokens
        self._spilled_tokens += job.prompt_tokens
        self._open -= 1

    def _ask(self, job: Job, now: float) -> ReplicaRequest:
        """Return the job as the gateway describes it to the balancer: whole blocks of its own size, up to its limit."""
        split, balance = self._split, self._spec.balance
        tokens = self._trace.block_tokens / split
        count = min(int(job.prompt_tokens / tokens), balance.prompt_blocks)
        names = [block * split + part for block in job.blocks[: -(-count // split)] for part in range(split)]
        return ReplicaRequest(
            blocks=tuple(names[:count]),
            block_tokens=tokens,
            root=job.root,
            tokens=job.prompt_tokens,
            output_tokens=self._expected_output,
            waited_s=now - job.arrived_at if self._gate is not None else 0.0,
        )

    def _on_engine_event(self, at: float, what: Happening, job: Job) -> None:
        chooser = self._gateways[job.gateway].chooser
        for sibling, after_s in self._siblings[job.gateway]:
            self._at(at + after_s, partial(sibling.chooser.sibling_told, job, what))
        if what == "first_token":
            chooser.first_token(job, at)
            self._first_tokens.saw(at - job.arrived_at + self._steps.request_s, at)
            return
        chooser.done(job, at)
        if self._gate is not None:
            self._gate.ended(job, at)
            self._freed.add(job.gateway)
        self._open -= 1
        self._record(job, at)

    def _cache_changed(self, replica: str, block: int, stored: bool) -> None:
        blocks = [block * self._split + part for part in range(self._split)]
        for gateway in self._gateways:
            gateway.chooser.cache_changed(replica, blocks, stored)

    def _record(self, job: Job, at: float) -> None:
        measured, spec = self.measured, self._spec
        if job.first_token_at is None:
            return
        outside_s = self._steps.request_s
        ttft_s = job.first_token_at - job.arrived_at + outside_s
        tpot_s = (at - job.first_token_at) / (job.output_tokens - 1) if job.output_tokens > 1 else 0.0
        measured.served += 1
        measured.prompt_tokens += job.prompt_tokens
        measured.output_tokens += job.output_tokens
        measured.cached_tokens += job.cached_tokens
        measured.preemptions += job.preemptions
        late, slow = ttft_s > spec.ttft_target_s, tpot_s > spec.tpot_target_s
        measured.late_first_tokens += late
        measured.slow_answers += slow
        measured.missed += late or slow
        measured.ttft_s.append(ttft_s)
        if job.output_tokens > 1:
            measured.tpot_s.append(tpot_s)
            self._further_tokens.saw(tpot_s, at)
        measured.duration_each_s.append(at - job.arrived_at + outside_s)

        measured.duration_s = max(measured.duration_s, at)

    # The gateways' view

    def _snapshot(self, now: float) -> PoolSnapshot:
        return PoolSnapshot(pool=_POOL, at=now, replicas=tuple(node.seen(now) for node in self._nodes.values()))

    def _scrape(self, index: int, now: float) -> None:
        self._reap(now)
        gateway = self._gateways[index]
        gateway.snapshot = self._snapshot(now)
        waiting = sum(node.engine.waiting for node in self._nodes.values())
        self.measured.peak_waiting = max(self.measured.peak_waiting, waiting + self._at_gates())
        for _ in range(len(gateway.queue)):
            self._send(gateway.queue.popleft(), now)
        if self._gate is not None:
            self._resize(self._gate, index, now)
            self._let_in(self._gate, index, now)

    # The queue before the pool

    def _resize(self, gate: Gate, index: int, now: float) -> None:
        gateway = self._gateways[index]
        gate.resize(index, gateway.chooser.tokens(gateway.snapshot), now)

    def _divide(self, now: float) -> None:
        if self._gate is not None:
            self._gate.divide(now)
            for index in range(len(self._gateways)):
                self._let_in(self._gate, index, now)

    def _let_in(self, gate: Gate, index: int, now: float) -> None:
        for job in gate.let_in(index):
            self._send(job, now)

    def _at_gates(self) -> int:
        waiting = 0 if self._gate is None else self._gate.waiting
        return waiting + sum(len(gateway.queue) for gateway in self._gateways)

    def _sample(self, now: float) -> None:
        states = self._states()
        ready = [node.engine for node in self._nodes.values() if node.state == "ready"]
        self.measured.samples.append(
            Sample(
                now,
                states["ready"],
                states["starting"],
                states["draining"],
                self._desired,
                sum(node.engine.running for node in self._nodes.values()),
                sum(node.engine.waiting for node in self._nodes.values()) + self._at_gates(),
                sum(engine.kv.usage for engine in ready) / len(ready) if ready else 0.0,
            )
        )

    def _states(self) -> dict[str, int]:
        counts = {"ready": 0, "starting": 0, "draining": 0}
        for node in self._nodes.values():
            counts[node.state] += 1
        return counts

    # Replicas

    def _add(self, now: float, *, ready: bool) -> None:
        changed = partial(self._cache_changed, node_name(self._numbers)) if self._spec.kv_events else None
        engine = Engine(self._spec.engine, self._steps, self._on_engine_event, changed)
        node = Node(self._numbers, engine, now, ready=ready)
        self._numbers += 1
        self._nodes[node.name] = node
        self.measured.peak_replicas = max(self.measured.peak_replicas, len(self._nodes))
        if not ready:
            self._at(now + self._spec.scale.cold_start_s, lambda at: self._started(node, at))

    def _started(self, node: Node, now: float) -> None:
        if node.name in self._nodes and node.state == "starting":
            node.become("ready", now)

    def _decide(self, now: float) -> None:
        if self._rule is None:
            return
        decision = self._rule.decide(self._signals(now))
        reasons = self.measured.decisions
        reasons[decision.reason] = reasons.get(decision.reason, 0) + 1
        self._desired = min(_MOST_REPLICAS, decision.desired)
        supply = [node for node in self._nodes.values() if node.state != "draining"]
        for _ in range(self._desired - len(supply)):
            self._add(now, ready=False)
        for node in self._dispensable(supply)[: max(0, len(supply) - self._desired)]:
            if node.state == "starting":
                self._remove(node, now)
            else:
                node.become("draining", now)

    def _signals(self, now: float) -> Signals:
        spilled, self._spilled_tokens = self._spilled_tokens, 0
        return self._reader.read(
            self._gateways[0].snapshot,
            at_s=now,
            wall_s=_EPOCH_S + now,
            waiting_at_gate=self._at_gates(),
            spilled_tokens_per_s=spilled / self._spec.decide_s,
            first_tokens=self._first_tokens,
            further_tokens=self._further_tokens,
        )

    def _dispensable(self, supply: list[Node]) -> list[Node]:
        """Return the replicas in the order of their removal: those that have not started, then those with the least to
        finish.
        """
        return sorted(
            supply,
            key=lambda node: (node.state == "ready", node.engine.running + node.engine.waiting, -node.ordered_at),
        )

    def _reap(self, now: float) -> None:
        done = [
            node
            for node in self._nodes.values()
            if node.state == "draining" and node.engine.empty and now - node.since >= _LEAST_DRAIN_S
        ]
        for node in done:
            self._remove(node, now)

    def _remove(self, node: Node, now: float) -> None:
        del self._nodes[node.name]
        self._credit(node, now)

    def _credit(self, node: Node, now: float) -> None:
        """Add a replica's time and work to the results. It costs from its order on, whether it works or not."""
        self.measured.replica_s += now - node.ordered_at
        self.measured.busy_s += node.engine.busy_s
        self.measured.computed_tokens += node.engine.computed_tokens

    def _end(self) -> None:
        measured = self.measured
        end = max(measured.duration_s, self._trace.duration_s)
        if not math.isfinite(end):
            raise AssertionError("a simulation ended at no time")
        measured.duration_s = end
        for node in self._nodes.values():
            # A replica ordered after the last answer costs nothing.
            self._credit(node, max(end, node.ordered_at))
