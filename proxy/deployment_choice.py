"""The choice of a target's deployment for an attempt, and the permit to call it."""

import random
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from accounts.caller import Caller
from providers.breaker import Breakers, Permit
from providers.errors import UpstreamUnavailable
from providers.target import Deployment, Target
from providers.wire import ChatRequest
from proxy.attempt import Lease
from proxy.policy import Candidate
from proxy.routed_request import RoutedRequest
from selfhosted.replica import PoolFullness, ReplicaChoice, ReplicaRequest


class ReplicaDoor(Protocol):
    """The replicas of our pools, which are the deployments of the targets that these serve."""

    def crowd(self, target: Target) -> PoolFullness | None:
        """How many are there, when no replica of the target's pool takes more."""
        ...

    def ask(
        self, target: Target, request: ChatRequest, *, input_tokens: int, output_tokens: int, caller: Caller
    ) -> ReplicaRequest: ...

    def pick(
        self, target: Target, among: Sequence[Deployment], ask: ReplicaRequest
    ) -> tuple[Deployment, ReplicaChoice] | None:
        """The best of these for the request. Takes nothing."""
        ...

    def take(
        self, target: Target, choice: ReplicaChoice, ask: ReplicaRequest, request: ChatRequest, caller: Caller
    ) -> Lease:
        """Counts the request as load of its replica, from now until the lease ends."""
        ...

    def turned_away(self, target: Target, tokens: int) -> None:
        """A request that was meant for it found no room."""
        ...

    def missing(self, target: Target, deployment: Deployment) -> None:
        """The deployment's adapter is not there, whatever was known."""
        ...

    async def prepare(self, target: Target, deployment: Deployment) -> None:
        """Loads its adapter where that is missing. Raises an UpstreamError."""
        ...


class Chosen(NamedTuple):
    """A deployment that may be called now. The lease is there where it is a replica of ours that was picked as one."""

    deployment: Deployment
    permit: Permit
    lease: Lease | None


class DeploymentChoice:
    """Chooses by the replicas' state in a pool of ours, and by weight and chance elsewhere."""

    def __init__(self, breakers: Breakers, rng: random.Random, replicas: ReplicaDoor | None) -> None:
        self._breakers = breakers
        self._rng = rng
        self._replicas = replicas

    def has_untried(self, target: Target, tried: Collection[str]) -> bool:
        return any(each.deployment_id not in tried for each in self._breakers.available(target))

    def take(self, candidate: Candidate, routed: RoutedRequest, tried: Collection[str]) -> Chosen:
        """One not tried yet if there is one. Raises UpstreamUnavailable when every breaker is open."""
        target = candidate.target
        waiting = list(self._breakers.available(target))
        fresh = [deployment for deployment in waiting if deployment.deployment_id not in tried] if tried else waiting
        pool = fresh or waiting
        ask = self._ask(candidate, routed) if pool and target.pool is not None else None
        while pool:
            deployment, choice = self._picked(target, pool, ask)
            permit = self._breakers.try_acquire(deployment.deployment_id)
            if permit is not None:
                if self._replicas is None or ask is None or choice is None:
                    return Chosen(deployment, permit, None)
                lease = self._replicas.take(target, choice, ask, routed.request, routed.caller)
                return Chosen(deployment, permit, lease)
            # A half-open breaker lets one probe through, and another request is that.
            pool.remove(deployment)
        ejected = UpstreamUnavailable(
            f"Every deployment of {target.target_id} is ejected.", deployment_id=target.target_id
        )
        ejected.retry_same = False
        raise ejected

    def _ask(self, candidate: Candidate, routed: RoutedRequest) -> ReplicaRequest | None:
        if self._replicas is None:
            return None
        return self._replicas.ask(
            candidate.target,
            routed.request,
            input_tokens=routed.facts.input_tokens,
            output_tokens=candidate.output_tokens,
            caller=routed.caller,
        )

    def _picked(
        self, target: Target, pool: list[Deployment], ask: ReplicaRequest | None
    ) -> tuple[Deployment, ReplicaChoice | None]:
        if len(pool) == 1 and ask is None:
            return pool[0], None
        if ask is not None and self._replicas is not None:
            found = self._replicas.pick(target, pool, ask)
            if found is not None:
                return found
        return self._rng.choices(pool, [deployment.weight for deployment in pool])[0], None
