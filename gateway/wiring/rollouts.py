"""Wiring of the rule that judges canaries."""

import contextlib
from typing import Final

from accounts.audit.log import AuditLog
from api.fleet.rollout_round import RolloutRound
from cost.times import wall_us
from gateway.wiring.prober import OpenProber
from proxy.shared.background_tasks import background, every
from selfhosted.rollouts.reading import VersionReader

EVERY_S: Final = 10.0


def keep_rollouts(opened: OpenProber, operator: str, stack: contextlib.AsyncExitStack) -> None:
    """Judge canaries while the control plane runs; of several hosts, where a pool's lease is held."""
    lease = opened.lease
    if lease is None:
        return
    judged = RolloutRound(
        VersionReader(opened.database),
        AuditLog(opened.database),
        leads=lease.held,
        rollout_of=opened.view.registry.rollout,
        pools=[each.config for each in opened.view.pools.values()],
        operator=operator,
        now_us=wall_us,
    )
    background(stack, every(EVERY_S, judged.step))
