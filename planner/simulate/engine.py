"""Simulated engine: continuous batching, step by step, on a simulated clock.

A step gives each running sequence one token, and what is left of `max_num_batched_tokens` to prompts, in chunks. A
request is admitted while there are fewer than `max_num_seqs` and its whole prompt has room in the KV cache; what waits
waits in order of arrival, or of priority. When a growing sequence finds no room, the last admitted one (or the least
urgent one) is preempted: it gives up its blocks, waits at the head, and computes everything anew that is no longer
cached.

Steps that only generate are alike until a sequence ends, so they are counted, not simulated one by one: an hour takes
seconds.
"""

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from planner.plans.roofline import StepTimes
from planner.simulate.kv import BlockEvent, KvCache
from planner.simulate.simulation_errors import SimulationRefused
from selfhosted.replica import EngineStats

NEVER: Final = math.inf

Happening = Literal["first_token", "done"]


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The launch options of an engine, as far as they matter here."""

    kv_tokens: int
    """Capacity of the KV cache in tokens."""
    block_tokens: int = 16
    shared_tokens: int = 512
    """Tokens in a block by which the trace tells prefixes apart."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8_192
    priority_scheduling: bool = False
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        if self.shared_tokens % self.block_tokens:
            raise SimulationRefused("the trace's blocks must be a whole number of the engine's")
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise SimulationRefused(
                "max_num_batched_tokens must be above max_num_seqs, or prompts would never progress"
            )
        if self.kv_tokens < self.shared_tokens:
            raise SimulationRefused(f"a KV cache of {self.kv_tokens} tokens holds no prompt")


class Job:
    """One request on its way through the fleet. Times are of the simulated clock; None: not yet."""

    __slots__ = (
        "arrived_at",
        "blocks",
        "bound",
        "cached_tokens",
        "first_token_at",
        "gateway",
        "generated",
        "output_tokens",
        "overflow",
        "preemptions",
        "priority",
        "prompt_tokens",
        "replica",
        "root",
    )

    def __init__(
        self, *, arrived_at: float, prompt_tokens: int, output_tokens: int, blocks: tuple[int, ...], priority: int = 0
    ) -> None:
        self.arrived_at = arrived_at
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.blocks = blocks
        self.priority = priority
        self.root = 0
        self.bound = False
        self.gateway = 0
        self.replica: str | None = None
        self.cached_tokens = 0
        self.generated = 0
        self.preemptions = 0
        self.first_token_at: float | None = None
        self.overflow = False


class _Sequence:
    """A job in this engine. `todo` tokens must be in the cache before it generates; `computed` of them are."""

    __slots__ = ("computed", "finish", "grows", "job", "number", "private", "shared", "started", "todo")

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.number = number
        self.todo = job.prompt_tokens
        self.computed = 0
        self.private = 0
        self.shared: list[int] = []
        self.started = -1
        """Number of the step from which on it generates; -1 while it does not."""
        self.finish = -1
        self.grows = 0


_Rank = tuple[int, int]


class Engine:
    """A simulated engine. Call `advance(now)`, which simulates up to then, before anything else."""

    def __init__(
        self,
        spec: EngineSpec,
        steps: StepTimes,
        told: Callable[[float, Happening, Job], None] = lambda _at, _what, _job: None,
        changed: BlockEvent | None = None,
    ) -> None:
        """`told` is called with first tokens and ends as `advance` comes to them, `changed` with the cache's blocks.

        A step must be linear in `kv_tokens`: steps that are alike are not simulated one by one.
        """
        self.spec = spec
        self._steps = steps
        self._on_event = told
        self._block = spec.block_tokens
        self._shared_blocks = spec.shared_tokens // spec.block_tokens
        self.kv = KvCache(
            spec.kv_tokens // spec.block_tokens,
            shared_size=self._shared_blocks,
            caching=spec.prefix_caching,
            changed=changed,
        )
        self._waiting: deque[_Sequence] = deque()
        self._ranked: list[tuple[_Rank, _Sequence]] = []
        self._running: dict[_Sequence, None] = {}
        self._prefilling: dict[_Sequence, None] = {}
        self._finishes: list[tuple[int, int, _Sequence]] = []
        self._grow = [0] * self._block
        self._decoding = 0
        self._decode_kv = 0
        self._step = 0
        self._number = 0
        # What runs now: either one step with chunks of prompts, or `_count` alike steps that began at `_began`.
        self._chunks: list[tuple[_Sequence, int]] = []
        self._count = 0
        self._began = 0.0
        self._first_s = 0.0
        self._slope_s = 0.0
        self.ends = NEVER
        """Time at which the current steps end; no callback is called before."""
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.computed_tokens = 0
        self.preemptions = 0
        self.busy_s = 0.0
        self.ttft_sum_s = 0.0
        self.ttft_count = 0
        self.tpot_sum_s = 0.0
        self.tpot_count = 0

    # Queries

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._ranked)

    @property
    def empty(self) -> bool:
        return not (self._running or self._waiting or self._ranked)

    def holds(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Return whether a request fits in the KV cache if it is alone. vLLM refuses one that does not."""
        return self._blocks_of(prompt_tokens + output_tokens) <= self.kv.capacity

    def enqueue(self, job: Job, now: float) -> None:
        sequence = _Sequence(job, self._number)
        self._number += 1
        self._enqueue(sequence)
        if self.ends == NEVER:
            self._begin(now)
        elif not self._chunks and self._count > 1:
            # The step in flight is finished; then it is seen.
            self._settle_alike(now)
            self._count = min(self._count, 1)
            self._began_alike(self._began)

    def advance(self, until: float) -> None:
        """Simulate all steps that end until then."""
        while self.ends <= until:
            at = self.ends
            if self._chunks:
                self._end_chunks(at)
            else:
                self._end_alike(self._count)
                self._began = at
            self._end_finished(at)
            self._begin(at)

    def stats(self, now: float) -> EngineStats:
        """Return the statistics as the engine's metrics page would show them."""
        self._settle_alike(now)
        return EngineStats(
            at=now,
            running=len(self._running),
            waiting=self.waiting,
            kv_usage=self.kv.usage,
            kv_tokens=self.kv.capacity * self._block,
            block_tokens=self._block,
            max_running=self.spec.max_num_seqs,
            prefix_queries=float(self.prefix_queries),
            prefix_hits=float(self.prefix_hits),
            prompt_tokens=float(self.prompt_tokens),
            output_tokens=float(self.output_tokens),
            preemptions=float(self.preemptions),
            ttft_sum_s=self.ttft_sum_s,
            ttft_count=float(self.ttft_count),
            tpot_sum_s=self.tpot_sum_s,
            tpot_count=float(self.tpot_count),
        )

    def cached(self, job: Job) -> int:
        """Return the number of the prompt's tokens that are cached here now."""
        return self._hits(job.blocks, job.prompt_tokens) * self.spec.shared_tokens

    def expected_ttft_s(self, job: Job, now: float) -> float:
        """Return the seconds to the job's first token if nothing else arrived, which only the engine itself can know."""
        self._settle_alike(now)
        cached = self.cached(job)
        own = job.prompt_tokens - cached
        ahead, look_back = self._prefill_ahead()
        budget = self.spec.max_num_batched_tokens - self._decoding
        count = max(1, math.ceil((ahead + own) / budget))
        in_flight = max(0.0, self._boundary(now) - now)
        step = self._steps.step_s
        each_s = step(prefill_tokens=0, batch=max(1, self._decoding), kv_tokens=self._decode_kv)
        look_back += own * cached + own * (own + 1) / 2
        # The last step is shorter than a full one, so tokens are spread over the steps as they are.
        whole_s = step(prefill_tokens=(ahead + own) / count, pairs=look_back / count, batch=self._decoding,
                       kv_tokens=self._decode_kv)  # fmt: skip
        wait_s = self._room_wait(job, cached, each_s)
        return in_flight + max(wait_s, 0.0) + count * whole_s

    def prefill_s(self, job: Job) -> float:
        """Return the seconds to prefill the part of the prompt that is not cached here, alone."""
        cached = self.cached(job)
        own = job.prompt_tokens - cached
        return self._steps.step_s(prefill_tokens=own, pairs=own * cached + own * (own + 1) / 2)

    # Waiting

    def _enqueue(self, sequence: _Sequence, *, first: bool = False) -> None:
        if self.spec.priority_scheduling:
            insort(self._ranked, ((sequence.job.priority, sequence.number), sequence), key=lambda pair: pair[0])
        elif first:
            self._waiting.appendleft(sequence)
        else:
            self._waiting.append(sequence)

    def _head(self) -> _Sequence | None:
        if self._ranked:
            return self._ranked[0][1]
        return self._waiting[0] if self._waiting else None

    def _drop_head(self) -> None:
        if self._ranked:
            del self._ranked[0]
        else:
            self._waiting.popleft()

    # One step

    def _begin(self, now: float) -> None:
        self._began = now
        growth = self._grow[self._step % self._block]
        preempted = False
        while growth > self.kv.available:
            self._preempt()
            preempted = True
            growth = self._grow[self._step % self._block]
        budget = self.spec.max_num_batched_tokens - self._decoding
        self._chunks = []
        for sequence in self._prefilling:
            if budget <= 0:
                break
            budget -= self._plan(sequence, budget)
        while not preempted and budget > 0 and len(self._running) < self.spec.max_num_seqs:
            admitted = self._admit(growth)
            if admitted is None:
                break
            budget -= self._plan(admitted, budget)
        if self._chunks:
            self._began_chunks(now, growth)
        elif self._decoding:
            self._count = self._alike_steps()
            self._began_alike(now)
        else:
            self._count = 0
            self.ends = NEVER

    def _plan(self, sequence: _Sequence, budget: int) -> int:
        count = min(budget, sequence.todo - sequence.computed)
        self._chunks.append((sequence, count))
        return count

    def _admit(self, reserved: int) -> _Sequence | None:
        """Admit the head of the queue; None when its whole prompt has no room beside the needs of this step."""
        sequence = self._head()
        if sequence is None:
            return None
        job = sequence.job
        hits = self._hits(job.blocks, sequence.todo)
        matched = job.blocks[:hits]
        total = self._blocks_of(sequence.todo)
        if self.kv.cost(total, matched) > self.kv.available - reserved:
            return None
        self._drop_head()
        self.kv.reference(matched)
        sequence.shared = list(matched)
        sequence.private = total - hits * self._shared_blocks
        self.kv.take(sequence.private)
        sequence.computed = hits * self.spec.shared_tokens
        if job.first_token_at is None and job.preemptions == 0:
            job.cached_tokens = sequence.computed
            self.prefix_queries += job.prompt_tokens
            self.prefix_hits += sequence.computed
        self._running[sequence] = None
        self._prefilling[sequence] = None
        return sequence

    def _hits(self, blocks: tuple[int, ...], todo: int) -> int:
        """Return the number of leading blocks found in the cache; never with the prompt's last token, which is always computed."""
        if not self.spec.prefix_caching:
            return 0
        whole = min(len(blocks), (todo - 1) // self.spec.shared_tokens)
        return self.kv.matched(blocks[:whole])

    def _began_chunks(self, now: float, growth: int) -> None:
        self.kv.take(growth)
        tokens, look_back, context = 0, 0.0, 0
        for sequence, count in self._chunks:
            tokens += count
            look_back += count * sequence.computed + count * (count + 1) / 2
            context += sequence.computed
        duration = self._steps.step_s(
            prefill_tokens=tokens, pairs=look_back, batch=self._decoding, kv_tokens=self._decode_kv + context
        )
        self.ends = now + duration

    def _end_chunks(self, at: float) -> None:
        self.busy_s += at - self._began
        self._generated(1)
        for sequence, count in self._chunks:
            self.computed_tokens += count
            self._add_computed(sequence, count)
            if sequence.computed == sequence.todo:
                del self._prefilling[sequence]
                self._finish_prefill(sequence, at)
        self._chunks = []

    def _add_computed(self, sequence: _Sequence, count: int) -> None:
        """Add computed tokens to a sequence, and share the prompt's blocks that are now whole."""
        size = self.spec.shared_tokens
        blocks = sequence.job.blocks
        first = sequence.computed // size
        sequence.computed += count
        last = min(sequence.computed, sequence.job.prompt_tokens) // size
        for block in blocks[first:last]:
            if self.kv.publish(block):
                sequence.shared.append(block)
                sequence.private -= self._shared_blocks

    def _finish_prefill(self, sequence: _Sequence, at: float) -> None:
        """End a prefill, which gives the first token; from the next step on the sequence generates."""
        job = sequence.job
        job.generated += 1
        self.output_tokens += 1
        if job.first_token_at is None:
            job.first_token_at = at
            self.prompt_tokens += job.prompt_tokens
            self.ttft_sum_s += at - job.arrived_at
            self.ttft_count += 1
            self._on_event(at, "first_token", job)
        sequence.started = self._step
        sequence.finish = self._step + job.output_tokens - job.generated
        sequence.grows = (self._step - sequence.todo) % self._block
        self._grow[sequence.grows] += 1
        self._decoding += 1
        self._decode_kv += sequence.todo
        heapq.heappush(self._finishes, (sequence.finish, sequence.number, sequence))

    # Steps that are alike

    def _alike_steps(self) -> int:
        """Return the number of steps in which nothing but generation happens: until the next end, or until room gets scarce."""
        until_end = self._next_finish() - self._step
        rounds = self.kv.available // self._decoding
        return max(1, min(until_end, rounds * self._block))

    def _began_alike(self, began: float) -> None:
        self._began = began
        self._first_s = self._steps.step_s(batch=self._decoding, kv_tokens=self._decode_kv)
        after = self._steps.step_s(batch=self._decoding, kv_tokens=self._decode_kv + self._decoding)
        self._slope_s = after - self._first_s
        self.ends = began + self._alike_s(self._count)

    def _alike_s(self, count: int) -> float:
        return count * self._first_s + self._slope_s * count * (count - 1) / 2

    def _done_alike(self, now: float) -> int:
        """Return the number of the alike steps that have ended."""
        passed = now - self._began
        if passed >= self._alike_s(self._count):
            return self._count
        linear = self._first_s - self._slope_s / 2
        if self._slope_s <= 0:
            count = int(passed / self._first_s)
        else:
            count = int((math.sqrt(linear * linear + 2 * self._slope_s * passed) - linear) / self._slope_s)
        while count and self._alike_s(count) > passed:
            count -= 1
        while self._alike_s(count + 1) <= passed:
            count += 1
        return count

    def _settle_alike(self, now: float) -> None:
        """Settle the equal steps that have ended; the others go on."""
        if self._chunks or not self._count:
            return
        done = self._done_alike(now)
        if not done or done == self._count:
            return
        began = self._began + self._alike_s(done)
        left = self._count - done
        self._end_alike(done)
        self._count = left
        self._began_alike(began)

    def _end_alike(self, count: int) -> None:
        self.busy_s += self._alike_s(count)
        whole, rest = divmod(count, self._block)
        growth = whole * self._decoding
        for index in range(self._step, self._step + rest):
            growth += self._grow[index % self._block]
        self.kv.take(growth)
        self._generated(count)

    def _generated(self, count: int) -> None:
        self._step += count
        self._decode_kv += count * self._decoding
        self.output_tokens += count * self._decoding

    def _boundary(self, now: float) -> float:
        """Return the time at which the step in flight ends."""
        if self.ends == NEVER:
            return now
        return self.ends if self._chunks else self._began + self._first_s

    # Ends and preemptions

    def _next_finish(self) -> int:
        while True:
            finish, _, sequence = self._finishes[0]
            if sequence.started >= 0 and sequence.finish == finish:
                return finish
            heapq.heappop(self._finishes)

    def _end_finished(self, at: float) -> None:
        while self._finishes and self._finishes[0][0] <= self._step:
            finish, _, sequence = heapq.heappop(self._finishes)
            if sequence.started < 0 or sequence.finish != finish:
                continue
            job = sequence.job
            self._stop_generating(sequence)
            self._leave(sequence)
            if job.first_token_at is not None and job.output_tokens > 1:
                self.tpot_sum_s += (at - job.first_token_at) / (job.output_tokens - 1)
                self.tpot_count += 1
            self._on_event(at, "done", job)

    def _stop_generating(self, sequence: _Sequence) -> None:
        steps = self._step - sequence.started
        sequence.job.generated += steps
        total = sequence.todo + steps
        sequence.private = self._blocks_of(total) - len(sequence.shared) * self._shared_blocks
        self._grow[sequence.grows] -= 1
        self._decoding -= 1
        self._decode_kv -= total
        sequence.started = -1

    def _leave(self, sequence: _Sequence) -> None:
        self.kv.release(sequence.private, sequence.shared)
        sequence.private, sequence.shared, sequence.computed = 0, [], 0
        del self._running[sequence]
        self._prefilling.pop(sequence, None)

    def _preempt(self) -> None:
        victim = self._victim()
        if victim.started >= 0:
            self._stop_generating(victim)
        self._leave(victim)
        victim.todo = victim.job.prompt_tokens + victim.job.generated
        victim.job.preemptions += 1
        self.preemptions += 1
        self._enqueue(victim, first=True)

    def _victim(self) -> _Sequence:
        if self.spec.priority_scheduling:
            return max(self._running, key=lambda each: (each.job.priority, each.number))
        return next(reversed(self._running))

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._block)

    # Estimates for the oracle

    def _prefill_ahead(self) -> tuple[float, float]:
        """Return the prompt tokens to compute before a request that comes now, and the pairs that they attend to."""
        tokens, look_back = 0.0, 0.0
        for sequence in self._prefilling:
            rest, context = sequence.todo - sequence.computed, sequence.computed
            tokens += rest
            look_back += rest * context + rest * (rest + 1) / 2
        for sequence in (*self._waiting, *(each for _, each in self._ranked)):
            context = self._hits(sequence.job.blocks, sequence.todo) * self.spec.shared_tokens
            rest = sequence.todo - context
            tokens += rest
            look_back += rest * context + rest * (rest + 1) / 2
        in_flight = sum(count for _, count in self._chunks)
        return max(0.0, tokens - in_flight), look_back

    def _room_wait(self, job: Job, cached: int, each_s: float) -> float:
        """Return the seconds until enough sequences have ended that the waiting prompts, and then this one, have room."""
        lacking = self._blocks_of(job.prompt_tokens - cached) - self.kv.available
        for sequence in (*self._waiting, *(each for _, each in self._ranked)):
            lacking += self._blocks_of(sequence.todo)
        if lacking <= 0:
            return 0.0
        for finish, _, sequence in sorted(self._finishes, key=lambda each: each[:2]):
            if sequence.started < 0 or sequence.finish != finish:
                continue
            lacking -= self._blocks_of(sequence.todo + finish - sequence.started)
            if lacking <= 0:
                return (finish - self._step) * each_s
        return (self._finishes[-1][0] - self._step) * each_s if self._finishes else 0.0
