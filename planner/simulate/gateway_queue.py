"""The gateway's queue before a pool, in simulated time: the queue itself, and the division of its room between processes,
are those that serve. Its callers are patient: nobody is refused, however long it takes.
"""

import math
from typing import Final

from planner.simulate.engine import Job
from proxy.admit.queues.capacity import Record, divided, record_of, since
from proxy.admit.queues.fair_queue import FreeCapacity
from proxy.admit.queues.pool_sizes import sized
from proxy.admit.queues.queue_item import QueueItem
from proxy.admit.queues.queues import Handle, Place, Queue, QueueObserver
from proxy.admit.queues.queues_config import QueueConfig
from proxy.errors import Refused

_NAME: Final = "simulated"
_CONFIG: Final = QueueConfig(targets=(_NAME,), max_waiting=1_000_000, max_waiting_tokens=100_000_000_000)


class _Never:
    def cancel(self) -> None:
        pass


class _SimulatedPlace(Place):
    """A request's place in a queue, which tells the simulation when its turn has come."""

    __slots__ = ("_process", "job")

    def __init__(self, process: "_Process", job: Job, work: QueueItem, now: float) -> None:
        super().__init__(process.queue, work, now)
        self.due_at = math.inf
        self.job = job
        self._process = process

    def wake(self, refused: Refused | None) -> None:
        if refused is not None:
            raise AssertionError("a patient caller was refused")
        self._process.woken.append(self.job)


class _Process:
    """The queue in one gateway process."""

    def __init__(self, gate: "SimulatedQueue") -> None:
        self.config = _CONFIG
        self.limit = 0
        self.woken: list[Job] = []
        self.record = Record(demand=0, held=0)
        self.queue = Queue(
            _NAME,
            _CONFIG,
            FreeCapacity(0),
            clock=lambda: gate.now,
            observer=QueueObserver(),
            jitter=lambda: 0.0,
            alarm=_no_alarm,
            starved=lambda: None,
        )


class SimulatedQueue:
    """The queue before a pool in so many gateway processes, which divide its room by demand as they do through Redis."""

    def __init__(self, gateways: int) -> None:
        self.now = 0.0
        self._places: dict[Job, _SimulatedPlace] = {}
        self._processes = [_Process(self) for _ in range(gateways)]

    @property
    def waiting(self) -> int:
        """Requests that wait, in all gateways."""
        return sum(process.queue.fair.waiting for process in self._processes)

    def enter(self, gateway: int, job: Job, tokens: int, now: float) -> bool:
        """Return whether the request, of so many tokens, may be sent at once; otherwise it waits."""
        self.now = now
        process = self._processes[gateway]
        work = QueueItem(team_id="", weight=1.0, tier="interactive", priority=0, tokens=tokens, start_by=math.inf)
        place = self._places[job] = _SimulatedPlace(process, job, work, now)
        if process.queue.begin(place):
            return True
        process.queue.join(place)
        return False

    def ended(self, job: Job, now: float) -> None:
        """Note that a request that was let in has ended."""
        self.now = now
        self._places.pop(job).release(job.prompt_tokens + job.output_tokens)

    def let_in(self, gateway: int) -> list[Job]:
        """Return the requests that waited, and may be sent now. Each is told of once."""
        process = self._processes[gateway]
        woken, process.woken = process.woken, []
        return woken

    def resize(self, gateway: int, tokens: int, now: float) -> None:
        """Set the tokens that the pool carries, as that gateway knows it."""
        self.now = now
        process = self._processes[gateway]
        first = not process.config.tokens_in_flight
        process.config = sized({_NAME: _CONFIG}, {_NAME: process.config}, lambda _targets: tokens)[_NAME]
        process.queue.fair.config = process.config
        whole = process.config.tokens_in_flight
        self._limit(process, whole // len(self._processes) if first else min(process.limit, whole), whole)

    def divide(self, now: float) -> None:
        """Let every process ask for its part, and give back at once its surplus."""
        self.now = now
        for process in self._processes:
            while self._ask(process):
                pass

    def _ask(self, process: _Process) -> bool:
        """Ask for a process's part. Return True when it shrank below the held part, so that others can have the rest."""
        use, whole = process.queue.use(), process.config.tokens_in_flight
        held = max(process.limit, use.in_flight)
        began_ms = since(use.large, round(use.waited_s * 1000), process.record.since_ms, round(self.now * 1000))
        process.record = record_of(use, whole, held, began_ms)
        records = {f"{index:03d}": each.record for index, each in enumerate(self._processes)}
        me = f"{self._processes.index(process):03d}"
        given = divided(records, me, whole, whole)
        process.record = record_of(use, whole, given.held, began_ms)
        self._limit(process, given.limit, given.whole)
        return max(given.limit, use.in_flight) < held

    def _limit(self, process: _Process, tokens: int, agreed: int) -> None:
        whole = process.config.tokens_in_flight
        process.limit = tokens
        usual = max(1, whole // len(self._processes))
        process.queue.room = FreeCapacity(tokens, alone=tokens >= min(whole, agreed), usual=usual)
        process.queue.tick()


def _no_alarm(delay_s: float, callback: object) -> Handle:
    """Do nothing: nobody's time runs out."""
    del delay_s, callback
    return _Never()
