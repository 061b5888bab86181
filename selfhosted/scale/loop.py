"""The autoscaler's loop: observe, decide (pure), store.

Every process observes, so that one that takes over knows earlier values of the counters, and exports the last decision
that it knows of. Only the holder of the pool's lease decides.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from selfhosted.registry.store import DATABASE_FAILS
from selfhosted.scale.policy import Reason, ScalePolicy
from selfhosted.scale.signals import Signals
from selfhosted.scale.target import Targets


class ScaleObserver:
    """An observer of decisions; this base class ignores them. Pool names come from the configuration and reasons are
    fixed, so both can be labels.
    """

    def set_desired_replicas(self, pool: str, desired: int) -> None: ...

    def count_scale_decision(self, pool: str, reason: Reason) -> None: ...


_log: Final = logging.getLogger(__name__)
_PATIENCE_S: Final = 3.0
# The learnt state is saved less often than decisions: it is larger, and losing a minute of it does no harm.
_SAVE_EVERY_S: Final = 60.0


class LeaseCheck(Protocol):
    """Knowledge of whether this process leads a pool: a Lease."""

    @property
    def holder(self) -> str: ...

    def held(self, pool: str) -> bool: ...


class ScaleLoop:
    """The autoscaling loop of one pool."""

    def __init__(
        self,
        pool: str,
        *,
        targets: Targets,
        lease: LeaseCheck,
        wished: Callable[[], int | None],
        observe: Callable[[], Signals],
        policy: Callable[[str], ScalePolicy],
        observer: ScaleObserver,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wished` returns the desired number as this process last read it; `policy` builds a policy from its saved
        state.
        """
        self._pool = pool
        self._targets = targets
        self._lease = lease
        self._wished = wished
        self._observe = observe
        self._build_policy = policy
        self._observer = observer
        self._every_s = every_s
        self._clock = clock
        self._policy: ScalePolicy | None = None
        self._saved_at = float("-inf")

    def adopt(self, policy: Callable[[str], ScalePolicy]) -> None:
        """Decides by other prices from now on; what was learnt is kept."""
        self._build_policy = policy
        if self._policy is not None:
            self._policy = policy(self._policy.state())

    async def run(self) -> None:
        """Step every `every_s` seconds until it is cancelled."""
        while True:
            try:
                await self.step()
            except Exception:  # noqa: BLE001 - the loop must outlive any one step
                _log.exception("deciding how many replicas %s should have failed; the next try follows", self._pool)
            await asyncio.sleep(self._every_s)

    async def step(self) -> None:
        """Observe once, and decide if this process leads. On a database error the last decision stands."""
        signals = self._observe()
        wished = self._wished()
        if wished is not None:
            self._observer.set_desired_replicas(self._pool, wished)
        if not self._lease.held(self._pool):
            self._policy = None
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._decide(signals)
        except DATABASE_FAILS as error:
            _log.warning("the decision on %s could not be stored (%s)", self._pool, type(error).__name__)

    async def _decide(self, signals: Signals) -> None:
        if self._policy is None:
            self._policy = self._build_policy(await self._targets.state(self._pool))
        before = self._policy.desired
        decision = self._policy.decide(signals)
        self._observer.count_scale_decision(self._pool, decision.reason)
        keep = self._clock() - self._saved_at >= _SAVE_EVERY_S
        state = self._policy.state() if keep else None
        if not await self._targets.store(self._pool, self._lease.holder, decision, state):
            # Another process leads by now, and has loaded the state saved last.
            self._policy = None
            return
        self._observer.set_desired_replicas(self._pool, decision.desired)
        if keep:
            self._saved_at = self._clock()
        if before != decision.desired:
            _log.info(
                "%s should have %d replicas: %s (%s)", self._pool, decision.desired, decision.why, decision.reason
            )
