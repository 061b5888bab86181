"""The fleet: every pool of ours, found, watched and balanced, as the rest of the gateway sees it.

The deployments of a target that a pool serves are the pool's replicas. Who they are changes now and then, which of them
take work with every probe. Each process watches all of them by itself, so that all of them know alike.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import msgspec

from accounts.caller import Caller
from providers.errors import UpstreamUnavailable
from providers.target import Deployment, Target
from providers.wire import ChatRequest
from selfhosted.balance.blocks import prompt_blocks
from selfhosted.kv_events.sampling import Sample, tokenize_body
from selfhosted.pool import Pool, ReplicaLease
from selfhosted.rendering import rendered, root_of
from selfhosted.replica import PoolFullness, PoolSnapshot, ReplicaChoice, ReplicaRequest, ReplicaState

_LOOK_AGAIN_S: Final = 0.02
_SEVERAL: Final = 2
_BYTES_A_TOKEN: Final = 4
"""Of English text, the rule of thumb of OpenAI's tokenizer guide."""


class FleetObserver:
    """Is told of the fleet's decisions; this one counts nothing. Pools are configured, so there are few."""

    def count_choice(self, pool: str, why: str) -> None: ...


class _Ready(msgspec.Struct, frozen=True):
    """Which of a target's deployments take work, of one snapshot and one catalog."""

    snapshot: PoolSnapshot
    of: tuple[Deployment, ...]
    deployments: tuple[Deployment, ...]
    by_name: dict[str, Deployment]


class Fleet:
    """All pools of this process. It does nothing by itself until `run`."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        *,
        clock: Callable[[], float],
        observer: FleetObserver,
        salt_of: Callable[[Deployment, Caller], str],
    ) -> None:
        """`salt_of` gives what separates callers' cached prefixes at a deployment, empty where nothing does."""
        self.pools = pools
        self._clock = clock
        self._observer = observer
        self._salt_of = salt_of
        self._ready: dict[str, _Ready] = {}
        self.cleared: Callable[[str], None] = lambda _deployment_id: None
        """Hears of each deployment that is known to work again."""
        for pool in pools.values():
            pool.watch.turned = functools.partial(self._turned, pool)

    def deployments(self) -> dict[str, tuple[Deployment, ...]]:
        """Of every target that a pool serves, all replicas that are known."""
        return {target: pool.deployments(target) for pool in self.pools.values() for target in pool.config.served}

    def ready(self, target: Target) -> tuple[Deployment, ...]:
        """Those of its deployments that take work; all, where no pool serves it."""
        pool = self._of(target)
        if pool is None:
            return target.deployments
        snapshot, known = pool.snapshot, self._ready.get(target.target_id)
        if known is None or known.snapshot is not snapshot or known.of is not target.deployments:
            names = {replica.name for replica in snapshot.taking}
            found = {name: each for each in target.deployments if (name := _replica_of(each)) in names}
            known = self._ready[target.target_id] = _Ready(snapshot, target.deployments, tuple(found.values()), found)
        return known.deployments

    def crowd(self, target: Target) -> PoolFullness | None:
        """How many are there, when no replica of the target's pool takes more."""
        pool = self._of(target)
        return None if pool is None else pool.crowd(self._clock())

    def ask(
        self, target: Target, request: ChatRequest, *, input_tokens: int, output_tokens: int, caller: Caller
    ) -> ReplicaRequest:
        """The request as the pool's balancer sees it. The target must be served by a pool."""
        pool = self.pools[target.pool or ""]
        balance = pool.config.balance
        salt = self._salt_of(target.deployments[0], caller) if target.deployments else ""
        text = rendered(request, most_bytes=balance.block_bytes * balance.prompt_blocks, salt=salt)
        blocks = prompt_blocks(text, block_bytes=balance.block_bytes, most=balance.prompt_blocks)
        whole = len(text) < balance.block_bytes * balance.prompt_blocks
        # Of a prompt that was cut off it is not known how many bytes it has in all; what has no block tells nothing.
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
        """The best of these for the request. Takes nothing."""
        pool = self.pools[target.pool or ""]
        known = self._ready.get(target.target_id)
        # Mostly it is just those that take work.
        every = known is not None and len(known.deployments) == len(among)
        by_name = known.by_name if known and every else {_replica_of(deployment): deployment for deployment in among}
        choice = pool.balancer.pick(ask, pool.snapshot, by_name.keys(), self._clock())
        return None if choice is None else (by_name[choice.replica], choice)

    def take(
        self, target: Target, choice: ReplicaChoice, ask: ReplicaRequest, request: ChatRequest, caller: Caller
    ) -> ReplicaLease:
        """Counts the request as load of its replica, from now until the lease ends."""
        pool = self.pools[target.pool or ""]
        self._observer.count_choice(pool.config.name, choice.why)
        pool.watch.began(choice.replica)
        load = pool.balancer.take(choice, ask, self._clock())
        # A whole answer does not tell when its first token came; vectors have no second one.
        streams = request.stream or request.operation == "embeddings"
        lease = ReplicaLease(load, pool, choice.replica, self._clock, streams=streams)
        if pool.kv_events is not None and ask.rendered_bytes and request.operation == "chat":
            lease.sample = self._sample(pool, target, choice, ask, request, caller)
        return lease

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
        """The replica does not know the deployment's adapter, whatever was known of it."""
        pool = self._of(target)
        if pool is not None and pool.adapters is not None and deployment.adapter is not None:
            pool.adapters.missing(_replica_of(deployment), deployment.adapter)

    def turned_away(self, target: Target, tokens: int) -> None:
        """A request that was meant for the target's pool found no room: demand all the same."""
        pool = self._of(target)
        if pool is not None:
            pool.turned_away_tokens += tokens

    def give_up_the_silent(self) -> None:
        """Requests that wait at replicas which have stopped answering, however well they are by their probes, go elsewhere.

        Of a replica that answered anybody since, or where nobody else could answer, nothing is given up.
        """
        now = self._clock()
        for pool in self.pools.values():
            silent_s = pool.config.watch.silent_s
            if not silent_s or len(pool.snapshot.ready) < _SEVERAL:
                continue
            for name, waiting in list(pool.unanswered.items()):
                overdue = [lease for lease in waiting if lease.overdue(now, silent_s)]
                if overdue and not pool.watch.answered_since(name, overdue[0].began_at):
                    for lease in overdue:
                        lease.lose()

    async def prepare(self, target: Target, deployment: Deployment) -> None:
        """Loads the deployment's adapter where that is missing. Raises an UpstreamError."""
        pool = self.pools[target.pool or ""]
        name = _replica_of(deployment)
        replica = next((each for each in pool.snapshot.replicas if each.name == name), None)
        if replica is None:
            raise UpstreamUnavailable("The replica is gone.", deployment_id=deployment.deployment_id)
        if pool.adapters is not None and deployment.adapter is not None:
            await pool.adapters.ensure(replica, deployment.adapter)

    def tokens(self, targets: Sequence[str]) -> int:
        """Tokens of requests that the pools behind these targets carry now."""
        pools = [pool for pool in self.pools.values() if not set(pool.config.served).isdisjoint(targets)]
        return sum(pool.tokens() for pool in pools)

    async def known(self, timeout_s: float) -> None:
        """Returns when every replica was looked at once, or after about that time."""
        for _ in range(round(timeout_s / _LOOK_AGAIN_S)):
            if not self._unseen():
                return
            await asyncio.sleep(_LOOK_AGAIN_S)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """What looks after the pools, each to be run until it is cancelled."""
        found: list[Coroutine[Any, Any, None]] = []
        for pool in self.pools.values():
            found += [pool.discovery.run(), pool.watch.run()]
            if pool.adapters is not None:
                found.append(pool.adapters.run())
            if pool.kv_events is not None:
                found.append(pool.kv_events.run())
        return found

    def _turned(self, pool: Pool, replica: str, state: ReplicaState) -> None:
        """A replica is in another state. Who waits for the first word of one that is down need not wait any longer."""
        if state == "ready":
            for target in pool.config.served:
                self.cleared(f"{target}/{replica}")
        elif state == "down":
            for lease in tuple(pool.unanswered.get(replica, ())):
                lease.lose()

    def _unseen(self) -> bool:
        return any(replica.state == "starting" for pool in self.pools.values() for replica in pool.snapshot.replicas)

    def _of(self, target: Target) -> Pool | None:
        return None if target.pool is None else self.pools.get(target.pool)


def _replica_of(deployment: Deployment) -> str:
    return deployment.deployment_id[len(deployment.target_id) + 1 :]
