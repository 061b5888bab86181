"""Choice of a replica in a simulation: the real balancer, and the policies it is compared with.

A chooser belongs to one gateway process and sees what that sees: the last scrape, and its own requests. Only the oracle
looks into the engines.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from planner.simulate.engine import Engine, Happening, Job
from planner.simulate.simulation_errors import SimulationRefused
from selfhosted.balance.balancer import Balancer
from selfhosted.balance.load import Lease
from selfhosted.balance.policies import ConsistentHash, LeastLoaded, RandomTwo, RoundRobin
from selfhosted.balance.room import pool_tokens
from selfhosted.config import BalanceConfig, RoomConfig
from selfhosted.replica import PoolRoom, PoolSnapshot, ReplicaRequest


class Chooser(Protocol):
    """The choice of replicas in one gateway."""

    def choose(self, job: Job, ask: ReplicaRequest, snapshot: PoolSnapshot, now: float) -> str | None:
        """Choose the replica for a request, and count it as sent there; None when none is ready."""
        ...

    def full(self, snapshot: PoolSnapshot, now: float) -> bool: ...

    def free(self, snapshot: PoolSnapshot, tokens: int, now: float) -> PoolRoom | None:
        """Return the room for one more request with a prompt of so many tokens; None when it is not known."""
        ...

    def tokens(self, snapshot: PoolSnapshot) -> int:
        """Return the tokens of requests that the fleet can carry now, the size of a queue before it."""
        ...

    def first_token(self, job: Job, at: float) -> None: ...

    def done(self, job: Job, at: float) -> None: ...

    def cache_changed(self, replica: str, blocks: Sequence[int], stored: bool) -> None:
        """Handle an engine's KV event, in the blocks that asks are made of."""
        ...

    def sibling_sent(self, job: Job, ask: ReplicaRequest, at: float) -> None:
        """Hear that another gateway of the host sent the request to `job.replica`."""
        ...

    def sibling_told(self, job: Job, what: Happening, at: float) -> None:
        """Hear that the request of another gateway of the host had its first token, or ended."""
        ...


class Balanced:
    """The real balancer, or another one behind its interface, with leases as the dispatcher keeps them."""

    def __init__(self, balancer: Balancer) -> None:
        self._balancer = balancer
        self._leases: dict[Job, Lease] = {}
        self._seen: PoolSnapshot | None = None
        self._allowed: frozenset[str] = frozenset()

    def choose(self, job: Job, ask: ReplicaRequest, snapshot: PoolSnapshot, now: float) -> str | None:
        choice = self._balancer.pick(ask, snapshot, self._names(snapshot), now)
        if choice is None:
            return None
        self._leases[job] = self._balancer.take(choice, ask, now)
        return choice.replica

    def full(self, snapshot: PoolSnapshot, now: float) -> bool:
        return self._balancer.full(snapshot, now)

    def free(self, snapshot: PoolSnapshot, tokens: int, now: float) -> PoolRoom | None:
        return self._balancer.free(snapshot, tokens, now)

    def tokens(self, snapshot: PoolSnapshot) -> int:
        return pool_tokens(snapshot.taking, self._balancer.room, self._balancer.load)

    def first_token(self, job: Job, at: float) -> None:
        self._leases[job].first_token(at)

    def done(self, job: Job, at: float) -> None:
        # As vLLM tells it with --enable-prompt-tokens-details.
        self._leases.pop(job).end(at, cached_tokens=job.cached_tokens, output_tokens=job.output_tokens)

    def cache_changed(self, replica: str, blocks: Sequence[int], stored: bool) -> None:
        index = self._balancer.index
        if not index.is_exact(replica):
            index.exact(replica)
        if stored:
            index.store(replica, blocks)
        else:
            index.remove(replica, blocks)

    def sibling_sent(self, job: Job, ask: ReplicaRequest, at: float) -> None:
        if job.replica is not None:
            lease = self._balancer.take_told(job.replica, ask, at)
            if lease is not None:
                self._leases[job] = lease

    def sibling_told(self, job: Job, what: Happening, at: float) -> None:
        lease = self._leases.get(job)
        if lease is None:
            return
        lease.first_token(at, told=False)
        if what == "done":
            self._leases.pop(job).end(at, output_tokens=job.output_tokens)

    def _names(self, snapshot: PoolSnapshot) -> frozenset[str]:
        if snapshot is not self._seen:
            self._seen = snapshot
            self._allowed = frozenset(replica.name for replica in snapshot.replicas)
        return self._allowed


class _BaselineChooser:
    """Base of the other choosers, which ignore fullness and first tokens."""

    def full(self, snapshot: PoolSnapshot, now: float) -> bool:
        del snapshot, now
        return False

    def free(self, snapshot: PoolSnapshot, tokens: int, now: float) -> PoolRoom | None:
        del snapshot, tokens, now
        return None

    def tokens(self, snapshot: PoolSnapshot) -> int:
        return pool_tokens(snapshot.taking, RoomConfig(), lambda _name: None)

    def first_token(self, job: Job, at: float) -> None: ...

    def done(self, job: Job, at: float) -> None: ...

    def cache_changed(self, replica: str, blocks: Sequence[int], stored: bool) -> None: ...

    def sibling_sent(self, job: Job, ask: ReplicaRequest, at: float) -> None: ...

    def sibling_told(self, job: Job, what: Happening, at: float) -> None: ...


class RandomOne(_BaselineChooser):
    """The choice of a random replica."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, job: Job, ask: ReplicaRequest, snapshot: PoolSnapshot, now: float) -> str | None:
        del job, ask, now
        ready = snapshot.ready
        return self._rng.choice(ready).name if ready else None


class _Worker:
    """The public router's state of one worker: the texts sent there, and the number of open requests."""

    __slots__ = ("pending", "texts", "tokens")

    def __init__(self) -> None:
        self.pending = 0
        self.tokens = 0
        self.texts: OrderedDict[int, int] = OrderedDict()


class CacheAwareRouter(_BaselineChooser):
    """The policy `cache_aware` of the public vllm-router, written from its documentation.

    While load is even (the most loaded worker has at most `balance_abs` more requests than the least loaded, or at most
    `balance_rel` times as many), a request goes to a worker that was sent the longest prefix before, if that is more
    than `threshold` of it, and otherwise to the worker that was sent the least text. While it is not, the shortest
    queue gets it. What was sent is remembered as a tree of text for each worker, cut back to `tree_characters` from
    time to time, whatever the engines really keep. The defaults are those of vllm-router 0.1.17's command line.
    """

    _CHARACTERS_A_TOKEN: Final = 4

    def __init__(
        self,
        *,
        threshold: float = 0.3,
        balance_abs: int = 64,
        balance_rel: float = 1.5,
        evict_s: float = 120.0,
        tree_characters: int = 2**25,
        block_tokens: int = 512,
    ) -> None:
        self._threshold = threshold
        self._balance_abs = balance_abs
        self._balance_rel = balance_rel
        self._evict_s = evict_s
        self._tree_tokens = tree_characters // self._CHARACTERS_A_TOKEN
        self._block_tokens = block_tokens
        self._evicted_at = 0.0
        self._workers: dict[str, _Worker] = {}
        self._holders: dict[int, dict[str, None]] = {}

    def choose(self, job: Job, ask: ReplicaRequest, snapshot: PoolSnapshot, now: float) -> str | None:
        del ask
        names = [replica.name for replica in snapshot.ready]
        if not names:
            return None
        self._drop_missing(set(names))
        workers = {name: self._workers.setdefault(name, _Worker()) for name in names}
        name = self._chosen(job, workers)
        workers[name].pending += 1
        self._insert(name, job)
        if now - self._evicted_at >= self._evict_s:
            self._evicted_at = now
            self._evict()
        return name

    def done(self, job: Job, at: float) -> None:
        del at
        worker = self._workers.get(job.replica or "")
        if worker is not None:
            worker.pending -= 1

    def _chosen(self, job: Job, workers: Mapping[str, _Worker]) -> str:
        pending = {name: worker.pending for name, worker in workers.items()}
        most, least = max(pending.values()), min(pending.values())
        if most - least > self._balance_abs and most > self._balance_rel * least:
            return min(pending, key=lambda name: pending[name])
        matched, holder = self._matched(job, workers)
        if holder is not None and matched > self._threshold * job.prompt_tokens:
            return holder
        return min(workers, key=lambda name: workers[name].tokens)

    def _matched(self, job: Job, workers: Mapping[str, _Worker]) -> tuple[int, str | None]:
        """Return the length in tokens of the longest prefix sent to any worker, and one worker that was sent all of it."""
        depth, holder = 0, None
        for block in job.blocks:
            found = next((name for name in self._holders.get(block, ()) if name in workers), None)
            if found is None:
                break
            depth, holder = depth + 1, found
        return min(depth * self._block_tokens, job.prompt_tokens), holder

    def _insert(self, name: str, job: Job) -> None:
        worker = self._workers[name]
        # The end of a prompt is a leaf, and goes before its beginning.
        for index in range(len(job.blocks) - 1, -1, -1):
            block = job.blocks[index]
            if block in worker.texts:
                worker.texts.move_to_end(block)
                continue
            size = min(self._block_tokens, job.prompt_tokens - index * self._block_tokens)
            worker.texts[block] = size
            worker.tokens += size
            self._holders.setdefault(block, {})[name] = None

    def _evict(self) -> None:
        for name, worker in self._workers.items():
            while worker.tokens > self._tree_tokens:
                block, size = worker.texts.popitem(last=False)
                worker.tokens -= size
                self._drop(block, name)

    def _drop_missing(self, names: set[str]) -> None:
        for name in [each for each in self._workers if each not in names]:
            for block in self._workers.pop(name).texts:
                self._drop(block, name)

    def _drop(self, block: int, name: str) -> None:
        holders = self._holders[block]
        del holders[name]
        if not holders:
            del self._holders[block]


class EndpointPicker(_BaselineChooser):
    """llm-d's endpoint picker with the scorers and weights that its chart installs, written from its source.

    The highest sum wins, at random among equals: 2 x queue (1 for the shortest engine queue, 0 for the longest), 2 x the
    part of the KV cache that is free, 3 x the part of the prompt's first 256 blocks of 16 tokens that was sent there
    before. What was sent is remembered least recently used, as much as the engine's cache holds, which is what it tunes
    itself to. Engines are read every 50 ms, as it does; prefixes are told apart by the trace's blocks.
    """

    _QUEUE: Final = 2.0
    _KV: Final = 2.0
    _PREFIX: Final = 3.0
    _MATCHED_TOKENS: Final = 256 * 16
    _READ_S: Final = 0.05

    def __init__(self, engines: Callable[[], Mapping[str, Engine]], rng: random.Random) -> None:
        self._engines = engines
        self._rng = rng
        self._read_at = -math.inf
        self._read: dict[str, tuple[int, float]] = {}
        self._sent: dict[str, OrderedDict[int, None]] = {}

    def choose(self, job: Job, ask: ReplicaRequest, snapshot: PoolSnapshot, now: float) -> str | None:
        del ask, snapshot
        engines = self._engines()
        if not engines:
            return None
        self._read_engines(engines, now)
        waiting = [self._read[name][0] for name in engines]
        least, most = min(waiting), max(waiting)
        names = list(engines)
        self._rng.shuffle(names)
        best = max(names, key=lambda name: self._score(name, job, engines[name], least, most))
        self._remember(best, job, engines[best])
        return best

    def _read_engines(self, engines: Mapping[str, Engine], now: float) -> None:
        if now - self._read_at >= self._READ_S or self._read.keys() != engines.keys():
            self._read_at = now
            self._read = {name: (engine.waiting, engine.kv.usage) for name, engine in engines.items()}
            self._sent = {name: self._sent.get(name, OrderedDict()) for name in engines}

    def _score(self, name: str, job: Job, engine: Engine, least: int, most: int) -> float:
        waiting, usage = self._read[name]
        queue = 1.0 if most == least else (most - waiting) / (most - least)
        size, sent, matched = engine.spec.shared_tokens, self._sent[name], 0
        for block in job.blocks[: self._MATCHED_TOKENS // size]:
            if block not in sent:
                break
            matched += size
        looked_at = max(1, min(job.prompt_tokens, self._MATCHED_TOKENS))
        prefix = min(1.0, matched / looked_at)
        return self._QUEUE * queue + self._KV * (1 - usage) + self._PREFIX * prefix

    def _remember(self, name: str, job: Job, engine: Engine) -> None:
        size, sent = engine.spec.shared_tokens, self._sent[name]
        for block in reversed(job.blocks[: self._MATCHED_TOKENS // size]):
            sent[block] = None
            sent.move_to_end(block)
        while len(sent) > engine.spec.kv_tokens // size:
            sent.popitem(last=False)


class Oracle(_BaselineChooser):
    """An oracle that sees every engine's cache, queue and batch as they are, and takes the earliest first token.

    The request's own prefill counts `work` times: every later request waits for it, and it evicts something from a
    cache.
    """

    def __init__(self, engines: Callable[[], Mapping[str, Engine]], *, work: float = 1.5) -> None:
        self._engines = engines
        self._work = work

    def choose(self, job: Job, ask: ReplicaRequest, snapshot: PoolSnapshot, now: float) -> str | None:
        del ask, snapshot
        best: tuple[float, int, str] | None = None
        for name, engine in self._engines().items():
            expected_s = engine.expected_ttft_s(job, now)
            own_s = engine.prefill_s(job)
            score = (expected_s + (self._work - 1) * own_s, engine.running + engine.waiting, name)
            if best is None or score < best:
                best = score
        return None if best is None else best[2]


_BALANCERS: Final[Mapping[str, type[Balancer]]] = {
    "prefix": Balancer,
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "power-of-two": RandomTwo,
    "consistent-hash": ConsistentHash,
}

POLICIES: Final = (*_BALANCERS, "random", "vllm-cache-aware", "vllm-cache-aware-eager", "llm-d", "oracle")
"""Names of all policies. `vllm-cache-aware-eager` has the thresholds of the same router's library (0.5, 32, 1.0001)
instead of its command line's."""


def check_policy(policy: str) -> None:
    """Refuse an unknown name. Raises SimulationRefused."""
    if policy not in POLICIES:
        raise SimulationRefused(f"`{policy}` is no policy; there are {', '.join(POLICIES)}")


def chooser_of(
    policy: str,
    *,
    balance: BalanceConfig,
    room: RoomConfig,
    rng: random.Random,
    engines: Callable[[], Mapping[str, Engine]],
) -> Chooser:
    """Return the chooser of that policy for one gateway. `engines` is what the oracle looks into."""
    if policy in _BALANCERS:
        return Balanced(_BALANCERS[policy](balance, room, rng=rng))
    if policy == "random":
        return RandomOne(rng)
    if policy == "vllm-cache-aware":
        return CacheAwareRouter()
    if policy == "vllm-cache-aware-eager":
        return CacheAwareRouter(threshold=0.5, balance_abs=32, balance_rel=1.0001, evict_s=60.0)
    if policy == "llm-d":
        return EndpointPicker(engines, rng)
    check_policy(policy)
    return Oracle(engines)
