"""Periodic run of the rollout rule: compares the versions on trial every few seconds, and promotes or rolls back."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from api.fleet.rollouts import promote, roll_back
from selfhosted.config import PoolConfig
from selfhosted.registry.store import DATABASE_FAILS
from selfhosted.rollouts.reading import VersionReader
from selfhosted.rollouts.rule import decide
from selfhosted.rollouts.versions import Rollout, RolloutError

_PATIENCE_S: Final = 20.0
_log: Final = logging.getLogger("weighbridge.rollouts")


class RolloutRound:
    """One look at all canaries. Of several hosts the holder of a pool's lease decides."""

    def __init__(
        self,
        reader: VersionReader,
        log: AuditLog,
        *,
        leads: Callable[[str], bool],
        rollout_of: Callable[[str], Rollout | None],
        pools: Sequence[PoolConfig],
        operator: str,
        now_us: Callable[[], int],
    ) -> None:
        """`leads` tells whether this process holds a pool's lease; `rollout_of` a pool's rollout as it was read last."""
        self._reader = reader
        self._log = log
        self._leads = leads
        self._rollout_of = rollout_of
        self._pools = pools
        self._actor = Actor(kind="gateway", actor_id="rollout-rule", name="The rule", organisation_id=operator)
        self._now_us = now_us

    async def step(self) -> None:
        """Judge each canary once. One for which the database does not answer is judged the next time."""
        for pool in self._pools:
            rollout = self._rollout_of(pool.name)
            if rollout is None or rollout.state != "canary" or not self._leads(pool.name):
                continue
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._judge(rollout, pool.served)
            except DATABASE_FAILS as error:
                _log.warning("the versions of %s could not be compared (%s)", rollout.model, type(error).__name__)
            except RolloutError as error:
                # Somebody was faster.
                _log.info("the rule did nothing to %s: %s", rollout.model, error)

    async def _judge(self, rollout: Rollout, targets: Sequence[str]) -> None:
        evidence = await self._reader.evidence(rollout, targets, self._now_us())
        if rollout.rule.promote_after is None and not evidence.alarming(rollout.rule):
            # Nothing is to be decided, so thousands of attempts need not be read to tell why.
            return
        found = await self._reader.samples(rollout, targets, self._now_us())
        decision = decide(evidence, found.stable, found.candidate, rollout.rule)
        if decision is None:
            return
        if decision.step == "promote":
            after = await promote(
                self._log, self._actor, rollout.model, rollout.pool, reason=decision.reason, seen=rollout
            )
        else:
            after = await roll_back(self._log, self._actor, rollout.model, reason=decision.reason, seen=rollout)
        _log.warning("%s of %s: %s, as %s", rollout.candidate, rollout.model, after.state, decision.reason)
