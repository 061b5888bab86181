"""A simulated day of batches beside interactive work: what the cheapest way that still makes it costs, beside fixed ways.

`python -m benchmarks.batch_day` runs one engine, step by step on a simulated clock, with the gateway's own rules for slack, shares,
speed and ways. Interactive requests come by a day's course; one large batch is due after a day, a small one each hour within the
hour. Lines are begun on the engine while it is idle, handed over to a provider's batch API with drawn turnarounds, or called, as
the rule or a fixed way says. The same requests and draws meet every way.
"""

import argparse
import heapq
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Literal, get_args

import msgspec

from benchmarks.figures import percentile
from planner.plans.launch import READ_AHEAD_TOKENS
from planner.simulate.engine import Engine, Happening, Job
from planner.simulate.machines import Machine, machine_of
from proxy.batch.estimate import OptionTimes, Speed, needed_s, option_times
from proxy.batch.execution_options import ExecutionOption, cheapest_option
from proxy.batch.idle_capacity import left_beside
from proxy.batch.line_protocol import OptionName
from proxy.batch.scheduler import UNKNOWN, Slack, Standing, Turns, left_until_due_s, shares, slacks
from selfhosted.pools.pool import AHEAD_AT_ONCE
from selfhosted.replica import PoolReading

Caller = tuple[float, int, int]
"""An arrival: its time, the length of its prompt and of its answer."""
Policy = Literal["none", "rule", "own", "provider", "calls"]
"""`none` has no batches at all; the last three take one way for every line."""

_POLL_S: Final = 1.0
_TICK_S: Final = 0.02
_LOOK_S: Final = 0.5
_HOP_S: Final = 0.025
"""Time from the end of a piece until the next one waits in the engine: a few milliseconds of servers and network, and a
step, as vLLM schedules one step ahead.
"""
_MOST_WAITING_S: Final = 5.0
PIECE_TOKENS: Final = READ_AHEAD_TOKENS
INTERACTIVE_SHARE: Final = 0.1
"""The part of the engine's places that batches leave free."""
CALLERS_ROOM: Final = 1.25
"""The share of the engine's places that the queue before it lets in; callers may have all of it, so they hardly ever wait there.
"""
QUEUE_SHARE: Final = 1 - (1 - INTERACTIVE_SHARE) / CALLERS_ROOM
"""The part of the queue's capacity that batches leave free."""
MEAN_PROMPT: Final = 800
MEAN_ANSWER: Final = 200
_CALL_S: Final = 5.0
_GROUP: Final = 2_000
_CANCEL_S: Final = 600.0
_TRIED_S: Final = 1_200.0
_MEASURED: Final = 5
_USD_PER_TOKEN: Final = (0.9 / 1e6, 0.9 / 1e6)
"""A hosted Llama 70B, prompt and answer; its batches cost half."""
_CALIBRATED_S: Final = 300.0
_BATCH: Final = 10


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a day."""

    hours: float = 24.0
    interactive: float = 0.35
    """Interactive work, as a part of what the engine carries over the day."""
    load: float = 0.8
    """All work, as a part of it."""
    hourly: float = 0.1
    """The part of batch work that is due within the hour."""
    at_once: int = 256
    turnaround_s: float = 2_700.0
    """The median of a provider's turnarounds, which are log-normal."""
    one_by_one: bool = True
    """True if lines take turns at the engine; without, they are begun together and at any moment, as far as there is room."""
    piece_tokens: int = PIECE_TOKENS
    """Prompts of lines are read in pieces of so many tokens; 0: as one."""
    readers: int = AHEAD_AT_ONCE
    """Lines whose prompts are read in pieces at once."""
    spread: float = 0.6
    seed: int = 1


class Day(msgspec.Struct, kw_only=True):
    """The outcome of a day."""

    policy: Policy
    lines: int = 0
    kept: int = 0
    """Lines answered by their deadline."""
    bought_usd: float = 0.0
    by_way: dict[OptionName, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys(("own", "provider", "calls"), 0)
    )
    first_tokens_s: list[float] = msgspec.field(default_factory=list)
    idle: float = 0.0
    """Lines that the engine could have answered while some waited for it, beside interactive work and what is kept free for it."""
    used: float = 0.0
    """Lines of those that it did answer."""

    @property
    def p95_s(self) -> float:
        return percentile(sorted(self.first_tokens_s), 0.95)


class _Batch(msgspec.Struct, kw_only=True):
    name: str
    order: int
    begins_s: float
    window_s: float
    waiting: deque[tuple[int, int]]
    total: int
    tokens_left: int
    tokens_total: int
    tokens_out: int = 0
    tokens_by_provider: int = 0
    running: int = 0
    failed: list[tuple[int, int]] = []
    """Lines that a provider has not answered; they are handed over no more."""
    done: int = 0

    @property
    def due_s(self) -> float:
        return self.begins_s + self.window_s

    @property
    def here(self) -> int:
        return len(self.waiting) + len(self.failed)


class _Line:
    """A line whose prompt is read in pieces."""

    __slots__ = ("answer", "batch", "held_s", "prompt", "read", "root")

    def __init__(self, batch: _Batch, prompt: int, answer: int, root: int) -> None:
        self.batch, self.prompt, self.answer, self.root = batch, prompt, answer, root
        self.read = 0
        self.held_s = 0.0


class _House:
    """The day as it goes on."""

    def __init__(self, plan: Plan, policy: Policy, machine: Machine, per_s: float) -> None:
        self.plan, self.policy = plan, policy
        self.length_s = plan.hours * 3_600
        self.per_s = per_s
        piece = plan.piece_tokens
        spec = msgspec.structs.replace(
            machine.engine,
            priority_scheduling=True,
            prefix_caching=piece > 0,
            shared_tokens=piece or machine.engine.shared_tokens,
        )
        self.engine = Engine(spec, machine.steps, self._told)
        self._gate: deque[Job] = deque()
        """Requests that wait before the engine."""
        self._lines: dict[int, _Line] = {}
        """Lines of which a piece is read now, by the identity of its job."""
        self._sends: list[tuple[float, int, _Line]] = []
        self._reads = 0
        self._known_waiting = 0
        self.capacity = round(CALLERS_ROOM * spec.max_num_seqs * (MEAN_PROMPT + MEAN_ANSWER))
        self.day = Day(policy=policy)
        self.now = 0.0
        self.speed = Speed(lambda: self.now)
        self.batches = [] if policy == "none" else list(_batches(plan, per_s))
        self.day.lines = sum(each.total for each in self.batches)
        self.turnarounds: list[float] = []
        self._places = spec.max_num_seqs
        self._in_flight_batch = self._in_flight_interactive = self._seen = 0
        self._requests_batch = self._requests_interactive = self._seen_requests = 0
        self._round_at = 0.0
        self._woken = False
        self._turns = Turns(lambda: self.now)
        self._read_at = 0.0
        # As the balancer measures it: prompts of a usual length, beside what half of the places generate.
        reads_s = machine.steps.step_s(
            prefill_tokens=MEAN_PROMPT,
            batch=spec.max_num_seqs / 2,
            kv_tokens=spec.max_num_seqs / 2 * (MEAN_PROMPT + MEAN_ANSWER),
        )
        self._reads_per_s = MEAN_PROMPT / reads_s
        self._interactive_waiting = 0
        self._of_job: dict[int, _Batch] = {}
        self._later: list[tuple[float, int, str, _Batch, list[tuple[int, int]]]] = []
        self._count = 0
        self._draws = random.Random(f"{plan.seed} provider")
        self._interactive_done = self._batch_done = 0

    def run(self) -> Day:
        arrivals = callers(self.plan, self.per_s)
        coming = next(arrivals, None)
        second, before = 0.0, (0, 0)
        look_at = 0.0
        waits = False
        while self.now < self.length_s:
            tick = self.now + _TICK_S
            coming = self._go_on(tick, coming, arrivals)
            self.now = tick
            self._known_waiting = self._interactive_waiting
            while self._later and self._later[0][0] <= self.now:
                _, _, what, batch, lines = heapq.heappop(self._later)
                self._over(what, batch, lines)
            if self.now >= look_at:
                look_at = self.now + _LOOK_S
                self._seen, self._seen_requests = self._in_flight_interactive, self._requests_interactive
            if self.now >= second:
                second = self.now + 1.0
                if waits:
                    interactive, batch_lines = self._interactive_done - before[0], self._batch_done - before[1]
                    self.day.idle += max(0.0, (1 - INTERACTIVE_SHARE) * self.per_s - interactive)
                    self.day.used += batch_lines
                before = (self._interactive_done, self._batch_done)
            if self.now >= self._round_at or self._woken:
                self._woken = False
                self._turns.begin_round()
                waits = self._decide()
                self._round_at = self.now + min(_POLL_S, self._turns.look_in_s)
        return self.day

    def _go_on(self, tick: float, coming: Caller | None, arrivals: Iterator[Caller]) -> Caller | None:
        """Play the events until a moment, in their order; return the caller that comes next."""
        while True:
            sent_at = self._sends[0][0] if self._sends else math.inf
            comes_at = math.inf if coming is None else coming[0]
            until = min(tick, sent_at, comes_at, self.engine.ends)
            self.engine.advance(until)
            self.now = max(self.now, until)
            self._let_in()
            if coming is not None and comes_at <= until:
                self._enqueue(*coming)
                self._let_in()
                coming = next(arrivals, None)
            elif sent_at <= until:
                self._read_on(heapq.heappop(self._sends)[2])
            elif until >= tick:
                return coming

    # One second's decisions.

    def _decide(self) -> bool:
        """Begin and hand over lines; True where some wait for the engine all the same."""
        live = [each for each in self.batches if each.begins_s <= self.now and each.done < each.total]
        if not live or self.policy == "none":
            return False
        self.speed.look({each.name: each.tokens_left + each.tokens_by_provider for each in live})
        standings = [self._standing(each) for each in live]
        found = slacks(standings, self.speed.ahead)
        for batch, standing in zip(live, standings, strict=True):
            self._hand_over(batch, standing, found[batch.name])
        if self.policy == "provider":
            self._turn_to_calls(live)
            return False
        wanted = shares([self._standing(each) for each in live], found, self.plan.at_once)
        for batch in sorted(live, key=lambda each: each.due_s):
            self._begin(batch, wanted[batch.name] - batch.running, found[batch.name])
        return any(each.here for each in live) and self.policy != "calls"

    def _begin(self, batch: _Batch, more: int, slack: Slack) -> None:
        if self.policy == "calls":
            self._call(batch, batch.here)
            return
        # How many shall run is decided by then; the queue lets them through as far as it has room.
        room = math.floor(self._queued() * self.plan.at_once)
        for _ in range(min(more, batch.here)):
            if room > 0:
                if self.plan.one_by_one and not self._turns.may_begin(self._reading(), 1, slack.pressure):
                    break
                room -= 1
                self._own(batch)
            elif slack.pressure >= 1 and self.policy == "rule":
                # It would wait before the engine for longer than there is time: the request line spills over to who sells it.
                self._call(batch, 1)

    def _hand_over(self, batch: _Batch, standing: Standing, slack: Slack) -> None:
        if self.policy not in {"rule", "provider"} or not batch.waiting:
            return
        left_s = standing.left_s or 0.0
        told = max(self.turnarounds[-_MEASURED:], default=None)
        speed = self.speed.tokens_per_s
        group = min(_GROUP, batch.here) * batch.tokens_total / batch.total
        handed_s = (batch.tokens_out + group) / speed if speed else 0.0
        taken = option_times(
            left_s, needed_s(slack, left_s), handed_s, (_TRIED_S if told is None else told) + _CANCEL_S
        )
        if self.policy == "rule" and not self._prefers_provider(batch, taken, left_s):
            return
        if self.policy == "rule" and told is None and batch.tokens_out:
            return
        most = _GROUP if self.policy == "rule" else len(batch.waiting)
        if self.policy == "rule" and told is None:
            most = math.ceil(batch.total * UNKNOWN)
        lines = [batch.waiting.pop() for _ in range(min(most, len(batch.waiting)))]
        batch.tokens_out += _tokens(lines)
        takes_s = self._draws.lognormvariate(math.log(self.plan.turnaround_s), self.plan.spread)
        gives_up_s = max(0.0, left_s - (taken.turn_back_s if self.policy == "rule" else _CANCEL_S))
        what = "answered" if takes_s <= gives_up_s else "late"
        self._at(self.now + min(takes_s, gives_up_s), what, batch, lines)
        self._at_turnaround(takes_s, gives_up_s)

    def _prefers_provider(self, batch: _Batch, taken: OptionTimes, left_s: float) -> bool:
        prompt, answer = batch.waiting[-1]
        full = prompt * _USD_PER_TOKEN[0] + answer * _USD_PER_TOKEN[1]
        ways = (
            ExecutionOption(name="own", cost_nanousd=0, takes_s=taken.own_s),
            ExecutionOption(name="provider", cost_nanousd=round(full / 2 * 1e9), takes_s=taken.provider_s),
            ExecutionOption(name="calls", cost_nanousd=round(full * 1e9), takes_s=taken.calls_s),
        )
        return cheapest_option(ways, left_s).name == "provider"

    def _at_turnaround(self, takes_s: float, gives_up_s: float) -> None:
        """Note an arrival, which is known once it has come."""
        self._later_count()
        heapq.heappush(
            self._later,
            (self.now + min(takes_s, gives_up_s), self._count, f"took {min(takes_s, gives_up_s)}", self.batches[0], []),
        )

    def _turn_to_calls(self, live: Sequence[_Batch]) -> None:
        for batch in live:
            self._call(batch, len(batch.failed))

    # Ways.

    def _own(self, batch: _Batch) -> None:
        prompt, answer = self._take(batch)
        batch.running += 1
        self._in_flight_batch += prompt + MEAN_ANSWER
        self._requests_batch += 1
        self._later_count()
        self._reads += 1
        self._read_on(_Line(batch, prompt, answer, self._count))

    def _read_on(self, line: _Line) -> None:
        """Have the next piece of a prompt read, or the answer begun; not while somebody waits for a first token."""
        piece = self.plan.piece_tokens
        if line.read and self._known_waiting and line.held_s < _MOST_WAITING_S:
            line.held_s += _TICK_S
            self._later_count()
            heapq.heappush(self._sends, (self.now + _TICK_S, self._count, line))
            return
        blocks = tuple(line.root * 1_000 + each for each in range(line.prompt // piece)) if piece else ()
        if not piece or line.prompt - line.read <= piece:
            job = Job(
                arrived_at=self.now,
                prompt_tokens=line.prompt,
                output_tokens=line.answer,
                blocks=blocks,
                priority=_BATCH,
            )
            self._of_job[id(self._kept(job))] = line.batch
            self._reads -= 1
            self._read_at = self.now + (line.prompt - line.read) / self._reads_per_s
        else:
            line.read += piece
            job = Job(
                arrived_at=self.now,
                prompt_tokens=line.read,
                output_tokens=1,
                blocks=blocks[: line.read // piece],
                priority=_BATCH,
            )
            self._lines[id(self._kept(job))] = line
        self.engine.enqueue(job, self.now)

    def _call(self, batch: _Batch, lines: int) -> None:
        taken = [self._take(batch) for _ in range(min(lines, batch.here))]
        batch.running += len(taken)
        if taken:
            self._at(self.now + _CALL_S, "called", batch, taken)

    def _take(self, batch: _Batch) -> tuple[int, int]:
        return batch.failed.pop() if batch.failed else batch.waiting.popleft()

    def _over(self, what: str, batch: _Batch, lines: list[tuple[int, int]]) -> None:
        if what.startswith("took "):
            self.turnarounds.append(float(what.removeprefix("took ")))
            return
        if what == "late":
            batch.tokens_out -= _tokens(lines)
            batch.failed = [*batch.failed, *lines]
            return
        usd = sum(prompt * _USD_PER_TOKEN[0] + answer * _USD_PER_TOKEN[1] for prompt, answer in lines)
        if what == "answered":
            batch.tokens_out -= _tokens(lines)
            batch.tokens_by_provider += _tokens(lines)
            self.day.bought_usd += usd / 2
            self._answered(batch, lines, "provider")
            return
        batch.running -= len(lines)
        self.day.bought_usd += usd
        self._answered(batch, lines, "calls")

    def _answered(self, batch: _Batch, lines: Sequence[tuple[int, int]], way: OptionName) -> None:
        batch.done += len(lines)
        batch.tokens_left -= _tokens(lines)
        self.day.by_way[way] += len(lines)
        if self.now <= batch.due_s:
            self.day.kept += len(lines)

    # The engine.

    def _enqueue(self, at: float, prompt: int, answer: int) -> None:
        """Enqueue a caller's request."""
        self._gate.append(Job(arrived_at=at, prompt_tokens=prompt, output_tokens=answer, blocks=()))
        self._interactive_waiting += 1

    def _let_in(self) -> None:
        """Send the engine the requests for which the queue before it has room, by tokens; one that finds no place there waits in
        the engine.
        """
        while self._gate:
            taken = self._in_flight_batch + self._in_flight_interactive
            if taken and taken + self._gate[0].prompt_tokens + MEAN_ANSWER > self.capacity:
                return
            job = self._gate.popleft()
            self._in_flight_interactive += job.prompt_tokens + MEAN_ANSWER
            self._requests_interactive += 1
            self.engine.enqueue(self._kept(job), self.now)

    def _kept(self, job: Job) -> Job:
        """Keep an object until the end, so that its id is not used again."""
        self._jobs[id(job)] = job
        return job

    @property
    def _jobs(self) -> dict[int, Job]:
        found: dict[int, Job] = self.__dict__.setdefault("_all_jobs", {})
        return found

    def _told(self, at: float, what: Happening, job: Job) -> None:
        if what == "first_token":
            if job.priority == 0:
                self._interactive_waiting -= 1
                self.day.first_tokens_s.append(at - job.arrived_at)
            return
        line = self._lines.pop(id(job), None)
        if line is not None:
            self._jobs.pop(id(job), None)
            self._later_count()
            heapq.heappush(self._sends, (at + _HOP_S, self._count, line))
            return
        if job.priority:
            self._in_flight_batch -= job.prompt_tokens + MEAN_ANSWER
            self._requests_batch -= 1
        else:
            self._in_flight_interactive -= job.prompt_tokens + MEAN_ANSWER
            self._requests_interactive -= 1
        self._jobs.pop(id(job), None)
        batch = self._of_job.pop(id(job), None)
        if batch is None:
            self._interactive_done += 1
            return
        self._batch_done += 1
        self._woken = True
        batch.running -= 1
        self._answered(batch, [(job.prompt_tokens, job.output_tokens)], "own")

    def _idle(self) -> float:
        """Return the idle share of the engine, as the queues before it tell it: of other processes as it was at the last look."""
        if self._gate:
            return 0.0
        left = left_beside(
            self.capacity,
            self._in_flight_batch,
            self._seen,
            places=self._places,
            requests=self._requests_batch + self._seen_requests,
        )
        return min(left, self._queued())

    def _queued(self) -> float:
        """Return the share of the engine that the queue before it gives to batches beside what runs."""
        return max(0.0, 1.0 - QUEUE_SHARE - (self._in_flight_batch + self._in_flight_interactive) / self.capacity)

    def _reading(self) -> PoolReading:
        """Return the time until which the engine reads prompts, by the gateway's estimate: it sees streams' first
        tokens, and knows the speed.
        """
        wait_s = max(_TICK_S if self._interactive_waiting else 0.0, self._read_at - self.now)
        if self.plan.piece_tokens:
            clear = max(0, self.plan.readers - self._reads - int(self._read_at > self.now))
            return PoolReading(0 if self._known_waiting else clear, _TICK_S)
        return PoolReading(int(wait_s <= 0), wait_s)

    def _standing(self, batch: _Batch) -> Standing:
        return Standing(
            batch_id=batch.name,
            team_id="team",
            left_s=left_until_due_s(batch.due_s - self.now, batch.window_s),
            tokens_left=max(0, batch.tokens_left - batch.tokens_out),
            lines_left=batch.here + batch.running,
            running=batch.running,
            idle=self._idle(),
            order=batch.order,
        )

    def _at(self, when: float, what: str, batch: _Batch, lines: list[tuple[int, int]]) -> None:
        self._later_count()
        heapq.heappush(self._later, (when, self._count, what, batch, lines))

    def _later_count(self) -> None:
        self._count += 1


def _tokens(lines: Sequence[tuple[int, int]]) -> int:
    return sum(prompt + answer for prompt, answer in lines)


def size(draws: random.Random) -> tuple[int, int]:
    """Draw a prompt's and an answer's length, in tokens."""
    prompt = min(6_000, max(50, round(draws.lognormvariate(math.log(MEAN_PROMPT) - 0.32, 0.8))))
    return prompt, min(1_500, max(5, round(draws.expovariate(1 / MEAN_ANSWER))))


def callers(plan: Plan, per_s: float) -> Iterator[Caller]:
    """Return the arrivals with their sizes: least in the middle of the night, most in the middle of the day."""
    draws = random.Random(f"{plan.seed} interactive")
    mean, length_s = plan.interactive * per_s, plan.hours * 3_600
    at = 0.0
    while True:
        at += draws.expovariate(2 * mean)
        if at >= length_s:
            return
        # Thinned, so that the rate follows the day's course.
        if draws.random() * 2 < 1 - 0.8 * math.cos(2 * math.pi * at / length_s):
            yield at, *size(draws)


def _batches(plan: Plan, per_s: float) -> Iterator[_Batch]:
    draws = random.Random(f"{plan.seed} batch")
    whole = (plan.load - plan.interactive) * per_s * plan.hours * 3_600
    hours = max(1, math.floor(plan.hours))
    lines = [size(draws) for _ in range(round(whole * (1 - plan.hourly)))]
    yield _new("day", 0, 0.0, plan.hours * 3_600, lines)
    for hour in range(hours - 1):
        small = [size(draws) for _ in range(round(whole * plan.hourly / max(1, hours - 1)))]
        yield _new(f"hour {hour}", hour + 1, hour * 3_600.0, 3_600.0, small)


def _new(name: str, order: int, begins_s: float, window_s: float, lines: list[tuple[int, int]]) -> _Batch:
    return _Batch(
        name=name, order=order, begins_s=begins_s, window_s=window_s, waiting=deque(lines), total=len(lines),
        tokens_left=_tokens(lines),
        tokens_total=_tokens(lines),
    )  # fmt: skip


def carried_per_s(machine: Machine, seed: int = 1) -> float:
    """Return the requests a second that the engine answers while it always has more than it can run."""
    spec = msgspec.structs.replace(machine.engine, prefix_caching=False)
    done: list[float] = []
    engine = Engine(spec, machine.steps, lambda at, what, _job: done.append(at) if what == "done" else None)
    draws = random.Random(f"{seed} calibration")
    waiting = 0
    for second in range(round(_CALIBRATED_S)):
        engine.advance(float(second))
        while engine.running + engine.waiting < 2 * spec.max_num_seqs:
            prompt, answer = size(draws)
            engine.enqueue(
                Job(arrived_at=float(second), prompt_tokens=prompt, output_tokens=answer, blocks=()), float(second)
            )
            waiting += 1
    late = [at for at in done if at >= _CALIBRATED_S / 3]
    return len(late) / (_CALIBRATED_S * 2 / 3)


def simulated(plan: Plan, policy: Policy, machine: Machine, per_s: float) -> Day:
    """Simulate one day by one policy."""
    return _House(plan, policy, machine, per_s).run()


def table(days: Sequence[Day]) -> str:
    """Return the days beside each other, as Markdown."""
    alone = next((day.p95_s for day in days if day.policy == "none"), None)
    rows = ["| way | bought | promises kept | own / provider / calls | idle used | interactive p95 | beside none |"]
    rows.append("|---|---|---|---|---|---|---|")
    for day in days:
        if day.policy == "none":
            rows.append(f"| no batches | | | | | {day.p95_s * 1000:.0f} ms | 1.00 |")
            continue
        ways = " / ".join(f"{day.by_way[way]:,}" for way in ("own", "provider", "calls"))
        used = f"{day.used / day.idle:.0%}" if day.idle and day.policy in {"rule", "own"} else ""
        ratio = f"{day.p95_s / alone:.2f}" if alone else ""
        rows.append(
            f"| {day.policy} | ${day.bought_usd:.2f} | {day.kept / day.lines:.1%} | {ways} | {used} | "
            f"{day.p95_s * 1000:.0f} ms | {ratio} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch_day", description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 1.3])
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2_048)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--piece-tokens", type=int, default=PIECE_TOKENS)
    parser.add_argument("--readers", type=int, default=AHEAD_AT_ONCE)
    parser.add_argument("--ways", nargs="+", default=get_args(Policy))
    asked = parser.parse_args()
    machine = machine_of(max_num_seqs=asked.max_num_seqs, max_num_batched_tokens=asked.max_num_batched_tokens)
    per_s = carried_per_s(machine, asked.seed)
    print(f"the engine carries {per_s:.1f} requests a second")
    for load in asked.loads:
        plan = Plan(
            hours=asked.hours,
            load=load,
            at_once=asked.max_num_seqs,
            seed=asked.seed,
            piece_tokens=asked.piece_tokens,
            readers=asked.readers,
        )
        days = [simulated(plan, policy, machine, per_s) for policy in asked.ways]
        print(f"\nload {load:.0%}\n\n{table(days)}", flush=True)


if __name__ == "__main__":
    main()
