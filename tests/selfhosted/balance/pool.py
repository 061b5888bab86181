"""Pools and requests as the balancer sees them."""

import random
from collections.abc import Iterable

from selfhosted.balance.balancer import Balancer
from selfhosted.config import BalanceConfig, RoomConfig
from selfhosted.replica import Address, EngineStats, PoolSnapshot, Replica, ReplicaRequest, ReplicaState

BLOCK_TOKENS = 128


def replica(
    name: str,
    state: ReplicaState = "ready",
    *,
    stats: EngineStats | None = None,
    adapters: Iterable[str] = (),
) -> Replica:
    address = Address(pool="p", name=name, url="http://127.0.0.1:1", kind="vllm", source="configured")
    return Replica(address=address, state=state, since=0.0, stats=stats, adapters=frozenset(adapters))


def stats(at: float = 0.0, *, running: int = 0, waiting: int = 0, kv_usage: float | None = 0.0) -> EngineStats:
    return EngineStats(at=at, running=running, waiting=waiting, kv_usage=kv_usage, kv_tokens=100_000)


def pool(*replicas: Replica | str, at: float = 0.0) -> PoolSnapshot:
    """Names stand for replicas that are ready and idle."""
    told = [replica(each, stats=stats(at)) if isinstance(each, str) else each for each in replicas]
    return PoolSnapshot(pool="p", at=at, replicas=tuple(sorted(told, key=lambda each: each.name)))


def ask(*blocks: int, root: int = 0, tokens: int | None = None, adapter: str | None = None) -> ReplicaRequest:
    return ReplicaRequest(
        blocks=blocks,
        block_tokens=BLOCK_TOKENS,
        root=root,
        tokens=len(blocks) * BLOCK_TOKENS if tokens is None else tokens,
        output_tokens=100,
        adapter=adapter,
    )


def prompt(number: int, length: int = 20) -> tuple[int, ...]:
    """Blocks of a prompt that shares nothing with one of another number."""
    return tuple(number * 1_000 + at for at in range(length))


def balancer(seed: int = 0, *, room: RoomConfig | None = None, **settings: object) -> Balancer:
    config = BalanceConfig.model_validate(settings)
    return Balancer(config, room or RoomConfig(), rng=random.Random(seed))
