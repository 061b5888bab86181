"""A pool of replicas as requests of this process see it: its judge, its balancer, and what is in flight there."""

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple, Self

from providers.target import Deployment
from selfhosted.balance.balancer import Balancer
from selfhosted.balance.load import Lease as LoadLease
from selfhosted.balance.room import kv_tokens_of, pool_tokens
from selfhosted.balance.sharing import PromptsSent, SentPrompts, ToldPrompts
from selfhosted.config import PoolConfig
from selfhosted.engines.fetching import EngineKey, no_key
from selfhosted.health.judge import JudgeObserver, PoolJudge
from selfhosted.kv_events.listening import KvEvents
from selfhosted.kv_events.sampling import Sample
from selfhosted.lora.adapters import Adapters
from selfhosted.model_swap.swap_state import SleepTold
from selfhosted.pools.prefill_replicas import Readers
from selfhosted.replica import Address, PoolFullness, PoolReading, PoolSnapshot, Replica, ReplicaState
from selfhosted.rollouts.sides import PoolVersions
from selfhosted.scale.process_reports import AtGate, PoolReport, TimeCounts, aims_of

_OVERDUE_FACTOR: Final = 3.0
AHEAD_AT_ONCE: Final = 3
"""Prompts that one replica reads in pieces at once: after one the next piece of it comes a step or two later, and others fill these."""
_MOST_PIECES: Final = 32
"""A long prompt is read in larger pieces: each of them is a request that is sent and tokenized anew."""
_BLOCK_TOKENS: Final = 16
"""Tokens of a block of the engine's cache, where it does not report them."""
RANK_HEADER: Final = "x-data-parallel-rank"
"""Names the rank that a request is for, to vLLM and SGLang."""
_RETRY_LEAST_S: Final = 0.5
_RETRY_MOST_S: Final = 30.0
_OPENS_S: Final = 0.5
"""Seconds until it is known that a pool which was woken takes requests."""
_LAST_CALL_S: Final = 2.0
"""Seconds for which a pool that begins to rest serves who was let through to it. It rests for longer before its engines sleep."""
_STARTED_TOGETHER: Final = 8
"""Requests of an engine's queue assumed to start together when running ones end. A rough figure, for Retry-After only.
"""


class Reader(NamedTuple):
    """A replica that reads a prompt for another one, and the lease that counts it there."""

    name: str
    deployment: Deployment
    lease: "ReplicaLease"


class ReadingAhead:
    """The prompt of one request on its way into a replica's cache, piece by piece. A context manager: as long as it is entered it takes
    a place among those that the replica reads ahead at once.
    """

    def __init__(self, pool: "Pool", lease: "ReplicaLease") -> None:
        self._pool, self._lease = pool, lease
        load = lease.load
        stats, ask = load.load.stats, load.ask
        most = pool.config.read_ahead_tokens
        self.block_tokens = (stats.block_tokens if stats is not None else None) or _BLOCK_TOKENS
        size = max(most, -(-ask.tokens // (_MOST_PIECES * most)) * most)
        self.pieces = range(load.matched // size * size + size, ask.tokens, size)
        """The end of each piece, in tokens of the prompt; without the last one, which is read with the request itself."""
        self._size = size
        self.until = math.inf
        """Time at which the last piece will have been read."""

    def is_clear(self) -> bool:
        """Return whether nobody waits for a first token there."""
        return self._lease.load.load.wait_s(self._lease.clock()) <= 0

    def __enter__(self) -> Self:
        # A piece is no burden on others' prompts, and only pieces are read at once.
        self._lease.suppose(self._lease.clock())
        self._pool.read_ahead.setdefault(self._lease.load.replica, {})[self] = None
        return self

    def __exit__(self, *_: object) -> None:
        self.until = self._lease.clock() + self._size * self._lease.load.load.token_s


class Pool(JudgeObserver):
    """A pool of replicas that serve the same targets, in one process."""

    def __init__(
        self,
        config: PoolConfig,
        judge: PoolJudge,
        balancer: Balancer,
        *,
        api_key: EngineKey = no_key,
        adapters: Adapters | None,
        kv_events: KvEvents | None,
        readers: Readers | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`readers` are those of the replicas that only read prompts. `changed` is called after replicas came, went, or are in
        another state.
        """
        self.config = config
        self.judge = judge
        self.balancer = balancer
        self.sent = SentPrompts(config.name)
        self.told = ToldPrompts(balancer, *([] if readers is None else [readers.balancer]))
        self.readers = readers
        self.api_key = api_key
        self.adapters = adapters
        self.kv_events = kv_events
        self._changed = changed
        self.versions = PoolVersions()
        aims = aims_of(config)
        self.first_tokens = TimeCounts(aims.ttft_s)
        self.further_tokens = TimeCounts(aims.tpot_s)
        self.unanswered: dict[str, dict[ReplicaLease, None]] = {}
        """Leases of requests that wait for their first token, by replica name; the inner dict is an ordered set, oldest
        first."""
        self.watched: dict[str, dict[ReplicaLease, None]] = {}
        """Leases of requests that want to know when their replica is down, by its name."""
        self.read_ahead: dict[str, dict[ReadingAhead, None]] = {}
        """Prompts that are read in pieces, by replica name."""
        self._hidden: list[tuple[float, int, ReplicaLease]] = []
        """A heap of requests whose first token will not be seen, by when their prompts will have been read."""
        self._hidden_count = itertools.count()
        self.turned_away_tokens = self.turned_away = 0
        """Counters: requests refused because every replica was full, and their tokens. The autoscaler reads them as demand."""
        self.sleep: SleepTold | None = None
        """The newest message about the pool's sleep; None where it shares its GPUs with nobody."""
        self._rests_since = float("-inf")
        self.recovered: Callable[[str], None] = lambda _name: None
        """Callback with the name of each replica that has become ready."""
        judge.observer = self

    # --- what the judge tells

    def members_changed(self, addresses: tuple[Address, ...]) -> None:
        if self.kv_events is not None:
            self.kv_events.adopt(addresses)
        if self.adapters is not None:
            self.adapters.adopt([address.name for address in addresses])

    def restarted(self, name: str) -> None:
        self.balancer.forget(name)
        if self.readers is not None:
            self.readers.balancer.forget(name)
        if self.kv_events is not None:
            self.kv_events.restarted(name)

    def state_changed(self, name: str, before: ReplicaState | None, state: ReplicaState) -> None:
        """Report who is ready, and lose the requests that wait for a first token where a replica is down."""
        del before
        if state == "ready":
            self.recovered(name)
        elif state == "down":
            for lease in tuple(self.unanswered.get(name, ())):
                lease.lose()
            for lease in tuple(self.watched.get(name, ())):
                lease.found_down()

    def changed(self) -> None:
        self._changed()

    # --- what other processes tell

    def hear(self, message: PromptsSent, now: float) -> None:
        """Count the requests that another process sent to the replicas, also where this one has sent none yet."""
        self.balancer.see(self.snapshot, now)
        if self.readers is not None:
            self.readers.see(self.judge.snapshot, now)
        self.told.hear(message, now)

    def hear_of_sleep(self, told: SleepTold, now: float) -> None:
        """Adopt the news that its engines will sleep, or are awake. Their caches are lost by then."""
        begins = told.rests and (self.sleep is None or not self.sleep.rests)
        self.sleep = told
        if begins:
            self._rests_since = now
            for replica in self.judge.snapshot.replicas:
                self.balancer.forget(replica.name)

    # --- what requests see

    @property
    def rests(self) -> bool:
        """True while another pool has the GPUs that they share, so that requests have to wait for their turn; and until the
        replicas are known to take requests again.
        """
        if self.sleep is None:
            return False
        snapshot = self.snapshot
        return self.sleep.rests or (not snapshot.taking and any(each.state == "draining" for each in snapshot.replicas))

    def opens_in_s(self, now: float) -> float | None:
        """Return the seconds until a pool that rests is expected to take requests; None where it does not rest."""
        if self.sleep is None or not self.rests:
            return None
        waits_s = self.sleep.opens_in_s(now)
        return _OPENS_S if waits_s is None else waits_s

    def last_call(self, among: Collection[str], now: float) -> str | None:
        """Return a replica for a request that left the queue in the moment in which the pool began to rest; None for
        others.
        """
        if now - self._rests_since > _LAST_CALL_S:
            return None
        return next((each.name for each in self.snapshot.replicas if each.name in among), None)

    @property
    def snapshot(self) -> PoolSnapshot:
        """The replicas that answer."""
        whole = self.judge.snapshot
        return whole if self.readers is None else self.readers.others(whole)

    def report(self, at_gate: AtGate) -> PoolReport:
        """Return the report of this process to the autoscaler."""
        seen, further = self.first_tokens, self.further_tokens
        return PoolReport(
            pool=self.config.name,
            turned_away_tokens=self.turned_away_tokens,
            turned_away=self.turned_away,
            unread_tokens=0 if self.readers is None else self.readers.unread_tokens,
            first_tokens=seen.count,
            late_first_tokens=seen.late,
            first_tokens_sum_s=seen.sum_s,
            answers=further.count,
            slow_answers=further.late,
            tpot_sum_s=further.sum_s,
            waiting_at_gate=at_gate.waiting,
            waiting_batch=at_gate.waiting_batch,
            running_batch=at_gate.running_batch,
        )

    def deployments(self, target_id: str) -> tuple[Deployment, ...]:
        """Return one deployment of the target for each known replica, in whatever state."""
        return self._deployments(target_id, self.snapshot.replicas)

    def reader(
        self, target_id: str, lease: "ReplicaLease", tried: Collection[str], clock: Callable[[], float]
    ) -> Reader | None:
        """Return a replica that reads the prompt for the one of the lease, not one of those that were tried, with a lease of its own;
        None where that one should read it itself.
        """
        readers = self.readers
        if readers is None:
            return None
        now, whole = clock(), self.judge.snapshot
        load = readers.pick(whole, lease.load, tried, now)
        if load is None:
            return None
        self.judge.began(load.replica)
        (deployment,) = self._deployments(target_id, [each for each in whole.replicas if each.name == load.replica])
        return Reader(load.replica, deployment, ReplicaLease(load, self, clock, now))

    def _deployments(self, target_id: str, replicas: Iterable[Replica]) -> tuple[Deployment, ...]:
        config = self.config
        adapter = next((each for each in config.adapters if each.target == target_id), None)
        model = adapter.name if adapter is not None else config.upstream_model or target_id
        return tuple(
            Deployment(
                deployment_id=f"{target_id}/{replica.name}",
                target_id=target_id,
                kind=config.engine,
                upstream_model=model,
                base_url=f"{replica.address.url}/v1",
                api_key=self.api_key(),
                headers={} if replica.address.rank is None else {RANK_HEADER: str(replica.address.rank)},
                allow_media_links=config.allow_media_links,
                adapter=None if adapter is None else adapter.name,
                priority_scheduling=config.priority_scheduling,
                cache_isolation=config.cache_isolation,
            )
            for replica in replicas
        )

    def places(self) -> int | None:
        """Return the requests that the replicas run at once that take requests; None when one does not tell."""
        told = [
            (replica.stats.max_running if replica.stats is not None else None) or self.config.max_num_seqs
            for replica in self.snapshot.taking
        ]
        known = [each for each in told if each is not None]
        return sum(known) if known and len(known) == len(told) else None

    def reading(self, now: float) -> PoolReading | None:
        """Return the number of further lines whose prompts may be read; None when it is unknown."""
        return self.balancer.reading(self.snapshot, now, functools.partial(self._turns, now))

    def reading_ahead(self, lease: "ReplicaLease") -> ReadingAhead | None:
        """Return the pieces in which the prompt of the lease's request is read; None where prompts are read as one."""
        return ReadingAhead(self, lease) if self.config.read_ahead_tokens else None

    def _turns(self, now: float, name: str) -> int:
        if not self.config.read_ahead_tokens:
            return 1
        read = self.read_ahead.get(name, {})
        for each in [each for each in read if each.until <= now]:
            del read[each]
        return max(0, AHEAD_AT_ONCE - len(read))

    def hide(self, lease: "ReplicaLease", until: float) -> None:
        """Take note of a request whose answer comes as a whole."""
        heapq.heappush(self._hidden, (until, next(self._hidden_count), lease))

    def suppose(self, now: float) -> None:
        """Take prompts to be read whose time to be read has passed, where nothing tells."""
        while self._hidden and self._hidden[0][0] <= now:
            heapq.heappop(self._hidden)[2].suppose(now)

    def tokens(self) -> int:
        """Return the tokens of requests that the replicas can carry now, or will once they are awake."""
        snapshot = self.snapshot
        replicas = snapshot.replicas if self.rests else snapshot.taking
        return pool_tokens(replicas, self.config.room, self.balancer.load)

    def crowd(self, now: float) -> PoolFullness | None:
        """Return the load of the pool when all its replicas are full, with the seconds to retry after; otherwise None."""
        snapshot = self.snapshot
        if not self.balancer.full(snapshot, now):
            return None
        taking = snapshot.taking
        known = [replica.stats for replica in taking if replica.stats is not None]
        waiting = sum(stats.waiting for stats in known)
        return PoolFullness(
            pool=self.config.name,
            running=sum(stats.running for stats in known),
            waiting=waiting,
            kv_tokens=sum(kv_tokens_of(replica, self.config.room.tokens) for replica in taking),
            retry_after_s=self._retry_after_s(waiting, known_ttft_s(snapshot)),
        )

    @staticmethod
    def _retry_after_s(waiting: int, ttft_s: float | None) -> float:
        return min(_RETRY_MOST_S, max(_RETRY_LEAST_S, (ttft_s or 0.0) * (1 + waiting / _STARTED_TOGETHER)))


def known_ttft_s(snapshot: PoolSnapshot) -> float | None:
    """Return the mean time to first token in seconds, over all requests that the ready engines ever served; None when
    no engine reports it.
    """
    total_s = served = 0.0
    for replica in snapshot.ready:
        stats = replica.stats
        if stats is not None and stats.ttft_sum_s is not None and stats.ttft_count:
            total_s += stats.ttft_sum_s
            served += stats.ttft_count
    return total_s / served if served else None


class ReplicaLease:
    """The reservation of one request at a replica: its load at the balancer, and the evidence of the replica's health
    that its outcome gives. Ending it twice has no further effect.
    """

    __slots__ = (
        "_ended",
        "_is_asked",
        "_name",
        "_pool",
        "_streams",
        "began_at",
        "clock",
        "load",
        "lost",
        "other_version",
        "sample",
        "version",
        "when_down",
        "when_lost",
    )

    def __init__(
        self,
        load: LoadLease,
        pool: Pool,
        clock: Callable[[], float],
        now: float,
        *,
        streams: bool = True,
        version: str = "",
        other_version: bool = False,
    ) -> None:
        self.load = load
        self._pool = pool
        self._name = load.replica
        self.clock = clock
        self._streams = streams
        self.began_at = now
        self._is_asked = True
        self._ended = False
        self.sample: Sample | None = None
        """Prompt to tokenize so that the pool's KV events can be mapped to its blocks; offered once the replica has
        cached it."""
        self.version = version
        self.other_version = other_version
        self.lost = False
        self.when_lost: Callable[[], None] | None = None
        self.when_down: Callable[[], None] | None = None
        pool.sent.sent(load)
        if not streams:
            pool.hide(self, now + load.ahead_s + load.work * load.load.token_s)
        waiting = pool.unanswered.get(self._name)
        if waiting is None:
            pool.unanswered[self._name] = {self: None}
        else:
            waiting[self] = None

    def first_token(self) -> None:
        """Record the first token: the replica works, and its prompt is prefilled."""
        now, pool = self.clock(), self._pool
        self._stop_waiting()
        self.load.first_token(now, told=self._streams)
        pool.sent.started(self.load)
        pool.judge.succeeded(self._name, self.began_at, now)
        if self._streams:
            pool.first_tokens.saw(now - self.began_at)
        if self.sample is not None and pool.kv_events is not None:
            pool.kv_events.offer(self.sample)

    def postponed(self) -> None:
        """Note that the replica is asked later, so that until then its silence says nothing of it."""
        self._is_asked = False

    def asked(self) -> None:
        """Note that the replica that was put off is asked now."""
        self._is_asked, self.began_at = True, self.clock()

    def suppose(self, now: float) -> None:
        """Take the prompt to have been read by now: what is generated since is no burden on others' prompts."""
        self.load.first_token(now, told=False)
        self._pool.sent.started(self.load)

    def overdue(self, now: float, least_s: float) -> bool:
        """Return whether a streamed request has waited longer than `least_s`, and than three times the expected time, for
        its first token.
        """
        expected_s = self.load.ahead_s + self.load.work * self.load.load.token_s
        return self._is_asked and self._streams and now - self.began_at > max(least_s, _OVERDUE_FACTOR * expected_s)

    def lose(self) -> None:
        """Mark the request as lost, since its replica is down or silent, and call `when_lost`."""
        self.lost = True
        if self.when_lost is not None:
            self.when_lost()

    def watch(self, when_down: Callable[[], None]) -> None:
        """Have `when_down` called if the replica is down before the lease ends."""
        self.when_down = when_down
        self._pool.watched.setdefault(self._name, {})[self] = None

    def found_down(self) -> None:
        """Tell whoever watches that the replica is down."""
        if self.when_down is not None:
            self.when_down()

    def end(
        self,
        *,
        failed: bool | None,
        silent: bool = False,
        cached_tokens: int | None = None,
        output_tokens: int | None = None,
        tpot_s: float | None = None,
    ) -> None:
        """Release the load and report the outcome to the replica's health.

        `failed`: True when the replica was at fault, False when it answered, None when the outcome says nothing about
        it. `silent`: the failure was a missing answer, which does not count against a replica that has answered others
        since, as it may only be busy. `tpot_s`: mean time of a further token, where there were any.
        """
        if self._ended:
            return
        self._ended = True
        self._stop_waiting()
        if self.when_down is not None:
            _forget(self._pool.watched, self._name, self)
        now, judge = self.clock(), self._pool.judge
        self.load.end(now, cached_tokens=cached_tokens, output_tokens=output_tokens)
        self._pool.sent.ended(self.load)
        if self._streams and tpot_s is not None:
            self._pool.further_tokens.saw(tpot_s)
        if failed is False:
            judge.succeeded(self._name, self.began_at, now)
        elif failed and not (silent and judge.answered_since(self._name, self.began_at)):
            judge.failed(self._name, self.began_at)
        else:
            judge.left(self._name, self.began_at)

    def _stop_waiting(self) -> None:
        """Remove the lease from those that wait for a first token."""
        _forget(self._pool.unanswered, self._name, self)


def _forget(leases: dict[str, dict[ReplicaLease, None]], name: str, lease: ReplicaLease) -> None:
    found = leases.get(name)
    if found is not None:
        found.pop(lease, None)
        if not found:
            del leases[name]
