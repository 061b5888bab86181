"""The fleet: all self-hosted pools, as the rest of the gateway sees them.

The deployments of a target that a pool serves are the pool's replicas. The replicas change now and then, their states
with every probe. Each process judges them itself, by what it is told of probes (`hear`) and by its own requests.
"""

import asyncio
import functools
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from accounts.caller import Caller
from providers.errors import UpstreamUnavailable
from providers.target import Deployment, Target
from providers.wire import ChatRequest
from selfhosted.balance.blocks import prompt_blocks
from selfhosted.balance.prompt_rendering import rendered, root_of
from selfhosted.balance.sharing import PromptsSent
from selfhosted.config import PoolConfig
from selfhosted.health.host_messages import ToFleet, ToHost
from selfhosted.health.messages import ReplicaObserved
from selfhosted.kv_events.sampling import Sample, tokenize_body
from selfhosted.kv_events.subscriber import KvStates
from selfhosted.model_swap.swap_state import SleepTold
from selfhosted.pools.pool import Pool, Reader, ReadingAhead, ReplicaLease
from selfhosted.replica import PoolFullness, PoolReading, PoolRoom, PoolSnapshot, ReplicaChoice, ReplicaRequest
from selfhosted.rollouts.versions import RolloutTold
from selfhosted.scale.process_reports import AtGate, FleetReport

_POLL_S: Final = 0.02
_TELL_S: Final = 0.01
"""Seconds for which sent prompts are collected before the other processes of the host are told."""
_LEAST_READY: Final = 2
_BYTES_A_TOKEN: Final = 4
"""Bytes of English text in a token, the rule of thumb of OpenAI's tokenizer guide."""


ReadResult = Literal["handed", "declined", "failed"]
"""The outcome of asking a replica to read a prompt for another one: it handed the prompt over, had nothing to hand over, or failed."""


class FleetObserver:
    """An observer of the fleet's decisions; this base class ignores them. Pool names come from the configuration, so
    there are few.
    """

    def count_choice(self, pool: str, why: str) -> None: ...

    def count_reading(self, pool: str, result: ReadResult) -> None: ...


class _Ready(msgspec.Struct, frozen=True):
    """Cache entry: the deployments of a target that take requests, for one snapshot and one list of deployments."""

    snapshot: PoolSnapshot
    of: tuple[Deployment, ...]
    deployments: tuple[Deployment, ...]
    by_name: dict[str, Deployment]
    allowed: dict[str, Deployment] | None
    """Deployments to choose from; None where these are all that take requests."""


class Fleet:
    """All self-hosted pools of this process. Starts no task itself: the caller runs `loops`."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        *,
        clock: Callable[[], float],
        observer: FleetObserver,
        salt_of: Callable[[Deployment, Caller], str],
        tell: Callable[[ToHost], object] = lambda _message: None,
    ) -> None:
        """`salt_of` returns the cache salt that separates callers' cached prefixes at a deployment; empty where nothing
        does. `tell` sends a message up.
        """
        self.pools = pools
        self._clock = clock
        self._observer = observer
        self._salt_of = salt_of
        self._tell = tell
        self._began_at = clock()
        self._ready: dict[str, _Ready] = {}
        self.cleared: Callable[[str], None] = lambda _deployment_id: None
        """Callback with the id of each deployment that has become ready again."""
        self._news = asyncio.Event()
        for pool in pools.values():
            pool.sent.news = self._news.set
            pool.recovered = functools.partial(self._on_recovery, pool)

    def hear(self, message: ToFleet) -> None:
        """Take over a message about a pool; an unknown pool is ignored."""
        pool = self.pools.get(message.address.pool if isinstance(message, ReplicaObserved) else message.pool)
        if pool is None:
            return
        if isinstance(message, PromptsSent):
            pool.hear(message, self._clock())
        elif isinstance(message, RolloutTold):
            pool.versions.adopt(message.rollout)
        elif isinstance(message, SleepTold):
            pool.hear_of_sleep(message, self._clock())
        else:
            pool.judge.hear(message)

    def tick(self, interval_s: float, at_gate: Callable[[PoolConfig], AtGate]) -> None:
        """Let time pass, and send the repeated messages; called about every `interval_s` seconds. `at_gate` returns the
        requests of this process in the queues before a pool.
        """
        self.give_up_the_silent()
        for pool in self.pools.values():
            pool.judge.tick(interval_s)
            pool.told.expire(self._clock())
            pool.suppose(self._clock())
            self._tell_of_prompts(pool, whole=True)
            for doubted in pool.judge.open_doubts():
                self._tell(doubted)
            if pool.kv_events is not None:
                self._tell(KvStates(pool=pool.config.name, states=dict(pool.kv_events.states())))
        reports = tuple(pool.report(at_gate(pool.config)) for pool in self.pools.values())
        if reports:
            self._tell(FleetReport(began_at=self._began_at, pools=reports))

    def deployments(self) -> dict[str, tuple[Deployment, ...]]:
        """Return the deployments by target id, for every target that a pool serves: one for each known replica."""
        return {target: pool.deployments(target) for pool in self.pools.values() for target in pool.config.served}

    def ready(self, target: Target) -> tuple[Deployment, ...]:
        """Return the target's deployments that take requests; all of them where no pool serves the target."""
        pool = self._pool_of(target)
        # Those of a pool that rests are worth waiting for; `pick` refuses them until they are awake.
        if pool is None or pool.rests:
            return target.deployments
        snapshot, known = pool.snapshot, self._ready.get(target.target_id)
        if known is None or known.snapshot is not snapshot or known.of is not target.deployments:
            names = {replica.name for replica in snapshot.taking}
            found = {name: each for each in target.deployments if (name := _replica_of(each)) in names}
            # The catalog may know fewer than take requests: it follows in a moment.
            allowed = None if len(found) == len(names) else found
            known = _Ready(snapshot, target.deployments, tuple(found.values()), found, allowed)
            self._ready[target.target_id] = known
        return known.deployments

    def crowd(self, target: Target) -> PoolFullness | None:
        """Return the load of the target's pool when all its replicas are full; None when one is not, or no pool serves the
        target.
        """
        pool = self._pool_of(target)
        return None if pool is None else pool.crowd(self._clock())

    def free(self, target: Target, tokens: int) -> PoolRoom | None:
        """Return the room of the target's pool for one more request with a prompt of so many tokens; None when it is not known,
        or no pool serves the target. One that rests is all room, once the queue before it opens.
        """
        pool = self._pool_of(target)
        if pool is None:
            return None
        if pool.rests:
            return PoolRoom(wait_s=0.0, fill=0.0)
        now = self._clock()
        pool.suppose(now)
        return pool.balancer.free(pool.snapshot, tokens, now)

    def starts_in_s(self, target: Target) -> float | None:
        """Return the seconds after which a replica of the target's pool may take requests, by its cold start; None
        where one takes them, nothing scales the pool, or none serves the target.
        """
        pool = self._pool_of(target)
        if pool is None or pool.config.scale is None or pool.snapshot.taking:
            return None
        cold_s, now = pool.config.scale.cold_start_s, self._clock()
        since = [replica.since for replica in pool.snapshot.replicas if replica.state == "starting"]
        return max(1.0, cold_s - (now - min(since))) if since else cold_s

    def reading(self, target: Target) -> PoolReading | None:
        """Return the reading of prompts at the replicas of the target's pool; None when it is not known, or no pool serves the target."""
        pool = self._pool_of(target)
        if pool is None:
            return None
        now = self._clock()
        pool.suppose(now)
        return pool.reading(now)

    def places(self, target: Target) -> int | None:
        """Return the requests that the replicas of the target's pool run at once; None when it is not known, or no pool serves the target."""
        pool = self._pool_of(target)
        return None if pool is None else pool.places()

    def ask(
        self, target: Target, request: ChatRequest, *, input_tokens: int, output_tokens: int, caller: Caller
    ) -> ReplicaRequest:
        """Describe the request for the pool's balancer. Raises KeyError when no pool serves the target."""
        pool = self.pools[target.pool or ""]
        balance = pool.config.balance
        salt = self._salt_of(target.deployments[0], caller) if target.deployments else ""
        text = rendered(request, most_bytes=balance.block_bytes * balance.prompt_blocks, salt=salt)
        blocks = prompt_blocks(text, block_bytes=balance.block_bytes, most=balance.prompt_blocks)
        whole = len(text) < balance.block_bytes * balance.prompt_blocks
        # The full length of a prompt that was cut off is unknown, and one without a block gives no ratio.
        known = whole and bool(blocks)
        tokens_a_block = balance.block_bytes * (input_tokens / len(text) if known else 1 / _BYTES_A_TOKEN)
        return ReplicaRequest(
            blocks=blocks,
            block_tokens=max(1.0, tokens_a_block),
            root=root_of(request, salt=salt),
            tokens=input_tokens,
            output_tokens=output_tokens,
            adapter=target.deployments[0].adapter if target.deployments else None,
            rendered_bytes=len(text) if whole else 0,
        )

    def pick(
        self, target: Target, among: Sequence[Deployment], ask: ReplicaRequest
    ) -> tuple[Deployment, ReplicaChoice] | None:
        """Return the best replica among these deployments for the request, or None when none takes requests. Reserves nothing.

        During a rollout it is one of the version meant for the conversation; of another, and told so, where none of that
        version takes requests or all of them are full. Raises UpstreamUnavailable where the pool's engines sleep.
        """
        pool = self.pools[target.pool or ""]
        if pool.rests:
            return self._last_call(pool, target, among)
        known = self._ready.get(target.target_id)
        now, snapshot = self._clock(), pool.snapshot
        pool.suppose(now)
        if known is not None and known.snapshot is snapshot and len(known.deployments) == len(among):
            # Mostly it is just those that take work.
            by_name, allowed = known.by_name, known.allowed
        else:
            by_name = {_replica_of(deployment): deployment for deployment in among}
            allowed = by_name
        meant = pool.versions.meant(snapshot, ask)
        if meant is None:
            choice = pool.balancer.pick(ask, snapshot, allowed, now)
        else:
            choice = _pick_meant(pool, snapshot, ask, by_name, meant, now)
        return None if choice is None else (by_name[choice.replica], choice)

    def _last_call(self, pool: Pool, target: Target, among: Sequence[Deployment]) -> tuple[Deployment, ReplicaChoice]:
        by_name = {_replica_of(deployment): deployment for deployment in among}
        name = pool.last_call(by_name.keys(), self._clock())
        if name is None:
            raise _asleep(target)
        return by_name[name], ReplicaChoice(replica=name, why="only", matched_tokens=0)

    def take(
        self, target: Target, choice: ReplicaChoice, ask: ReplicaRequest, request: ChatRequest, caller: Caller
    ) -> ReplicaLease:
        """Count the request as load of its replica until the returned lease ends."""
        pool = self.pools[target.pool or ""]
        self._observer.count_choice(pool.config.name, choice.why)
        pool.judge.began(choice.replica)
        now = self._clock()
        load = pool.balancer.take(choice, ask, now)
        # An answer that is not streamed hides when its first token came; what is no chat is computed by the prefill alone.
        streams = request.stream or request.operation != "chat"
        version = pool.versions.of(pool.snapshot, choice.replica)
        lease = ReplicaLease(
            load, pool, self._clock, now, streams=streams, version=version, other_version=choice.other_version
        )
        if pool.kv_events is not None and ask.rendered_bytes and request.operation == "chat":
            lease.sample = self._sample(pool, target, choice, ask, request, caller)
        return lease

    def reader(self, target: Target, lease: object, tried: Collection[str]) -> Reader | None:
        """Return a replica that reads the prompt for the one that the lease is of, and its own lease; None where that one should read it
        itself, as everywhere but in a pool with `prefill`. `tried` are names of such replicas.
        """
        pool = self._pool_of(target)
        if pool is None or pool.readers is None or not isinstance(lease, ReplicaLease):
            return None
        return pool.reader(target.target_id, lease, tried, self._clock)

    def ahead(self, target: Target, lease: object) -> ReadingAhead | None:
        """Return the pieces in which the prompt of the lease's request is read; None where it is read as one."""
        pool = self._pool_of(target)
        return None if pool is None or not isinstance(lease, ReplicaLease) else pool.reading_ahead(lease)

    def read(self, target: Target, result: ReadResult) -> None:
        """Count the outcome of asking a replica to read a prompt for another one."""
        self._observer.count_reading(target.pool or "", result)

    def _sample(
        self,
        pool: Pool,
        target: Target,
        choice: ReplicaChoice,
        ask: ReplicaRequest,
        request: ChatRequest,
        caller: Caller,
    ) -> Sample | None:
        deployment = next((each for each in target.deployments if _replica_of(each) == choice.replica), None)
        if deployment is None:
            return None
        return Sample(
            replica=choice.replica,
            url=deployment.base_url.removesuffix("/v1"),
            blocks=ask.blocks,
            block_bytes=pool.config.balance.block_bytes,
            rendered_bytes=ask.rendered_bytes,
            body=functools.partial(tokenize_body, deployment.upstream_model, request),
            adapter=deployment.adapter,
            salt=self._salt_of(deployment, caller) or None,
        )

    def missing(self, target: Target, deployment: Deployment) -> None:
        """Record that the replica answered that it does not have the deployment's adapter."""
        pool = self._pool_of(target)
        if pool is not None and pool.adapters is not None and deployment.adapter is not None:
            pool.adapters.missing(_replica_of(deployment), deployment.adapter)

    def record_overflow(self, target: Target, tokens: int) -> None:
        """Count a request, and its tokens, that was refused for lack of room: the autoscaler treats that as demand."""
        pool = self._pool_of(target)
        if pool is not None:
            pool.turned_away += 1
            pool.turned_away_tokens += tokens

    def give_up_the_silent(self) -> None:
        """Give up the overdue requests of replicas that answer probes but produce no tokens, so that they are retried
        elsewhere.

        Skipped for a replica that answered any request since the oldest overdue one began, and where fewer than two
        replicas of the pool are ready; but what one that reads for others does not read, these can.
        """
        now = self._clock()
        for pool in self.pools.values():
            silent_s = pool.config.watch.silent_s
            if not silent_s:
                continue
            few, readers = len(pool.snapshot.ready) < _LEAST_READY, pool.readers
            for name, waiting in list(pool.unanswered.items()):
                if few and (readers is None or not readers.is_one(name)):
                    continue
                overdue = [lease for lease in waiting if lease.overdue(now, silent_s)]
                if overdue and not pool.judge.answered_since(name, overdue[0].began_at):
                    for lease in overdue:
                        lease.lose()

    async def prepare(self, target: Target, deployment: Deployment) -> None:
        """Load the deployment's adapter where the replica lacks it. Raises UpstreamUnavailable when the replica is
        gone, and AdapterUnavailable when the adapter cannot be loaded.
        """
        pool = self.pools[target.pool or ""]
        name = _replica_of(deployment)
        replica = next((each for each in pool.snapshot.replicas if each.name == name), None)
        if replica is None:
            raise UpstreamUnavailable("The replica is gone.", deployment_id=deployment.deployment_id)
        if pool.adapters is not None and deployment.adapter is not None:
            await pool.adapters.ensure(replica, deployment.adapter)

    def tokens(self, targets: Sequence[str]) -> int:
        """Return the tokens of requests that the pools of these targets can carry now, summed."""
        pools = [pool for pool in self.pools.values() if not set(pool.config.served).isdisjoint(targets)]
        return sum(pool.tokens() for pool in pools)

    def opens_in_s(self, targets: Sequence[str]) -> float | None:
        """Return the seconds until a pool of these targets that rests is expected to take requests; None where none
        rests.
        """
        now = self._clock()
        pools = [pool for pool in self.pools.values() if pool.rests and not set(pool.config.served).isdisjoint(targets)]
        return min((waits for pool in pools if (waits := pool.opens_in_s(now)) is not None), default=None)

    async def known(self, timeout_s: float) -> None:
        """Wait until a probe of every replica is known, or about `timeout_s` seconds."""
        for _ in range(round(timeout_s / _POLL_S)):
            if not any(pool.judge.has_unprobed for pool in self.pools.values()):
                return
            await asyncio.sleep(_POLL_S)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Return the background coroutines (KV events, what other processes are told), each to be run until it is cancelled."""
        events = [pool.kv_events.run() for pool in self.pools.values() if pool.kv_events is not None]
        return [*events, self._keep_telling()]

    async def _keep_telling(self) -> None:
        """Tell the other processes of the host, in a moment, which prompts this one sent where."""
        while True:
            await self._news.wait()
            await asyncio.sleep(_TELL_S)
            self._news.clear()
            for pool in self.pools.values():
                self._tell_of_prompts(pool)

    def _tell_of_prompts(self, pool: Pool, *, whole: bool = False) -> None:
        message = pool.sent.told(whole=whole)
        if message is not None:
            if whole:
                message = msgspec.structs.replace(message, reads_per_s=pool.balancer.learned_speed)
            self._tell(message)

    def _on_recovery(self, pool: Pool, replica: str) -> None:
        """Report a replica's deployments as recovered, now that it is ready."""
        for target in pool.config.served:
            self.cleared(f"{target}/{replica}")

    def _pool_of(self, target: Target) -> Pool | None:
        return None if target.pool is None else self.pools.get(target.pool)


def _pick_meant(
    pool: Pool,
    snapshot: PoolSnapshot,
    ask: ReplicaRequest,
    by_name: Mapping[str, Deployment],
    meant: frozenset[str],
    now: float,
) -> ReplicaChoice | None:
    """Return the best replica of the version that is meant, or of another where none of these has room."""
    among = meant & by_name.keys()
    if pool.balancer.has_room(snapshot, among, now):
        return pool.balancer.pick(ask, snapshot, among, now)
    choice = pool.balancer.pick(ask, snapshot, by_name.keys(), now)
    if choice is None or choice.replica in meant:
        return choice
    return msgspec.structs.replace(choice, other_version=True)


def _asleep(target: Target) -> UpstreamUnavailable:
    error = UpstreamUnavailable(
        f"The engines of {target.target_id} were put to sleep, as another model's turn has come.",
        deployment_id=target.target_id,
    )
    error.retry_same = False
    return error


def _replica_of(deployment: Deployment) -> str:
    return deployment.deployment_id[len(deployment.target_id) + 1 :]
