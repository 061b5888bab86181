"""All messages between a host's prober and the processes that send requests to the replicas."""

from typing import Final

import msgspec

from selfhosted.balance.sharing import PromptsSent
from selfhosted.health.messages import (
    AdapterChanged,
    FromPool,
    FromRequests,
    PoolMembers,
    ReplicaDoubted,
    ReplicaObserved,
)
from selfhosted.kv_events.subscriber import KvStates
from selfhosted.model_swap.swap_state import SleepTold
from selfhosted.rollouts.versions import RolloutTold
from selfhosted.scale.process_reports import FleetReport

FromProber = FromPool | RolloutTold | SleepTold
"""A message of the prober to every process."""
FromProcess = FromRequests | FleetReport | KvStates
"""A message of a process to the prober."""

ToHost = FromProcess | PromptsSent
"""A message of a process to the prober and the other processes of its host."""
ToFleet = FromProber | PromptsSent
"""A message to a process's fleet."""

FROM_PROBER: Final[tuple[type[msgspec.Struct], ...]] = (PoolMembers, ReplicaObserved, RolloutTold, SleepTold)
FROM_PROCESS: Final[tuple[type[msgspec.Struct], ...]] = (ReplicaDoubted, AdapterChanged, FleetReport, KvStates)
TO_FLEET: Final[tuple[type[msgspec.Struct], ...]] = (*FROM_PROBER, PromptsSent)
