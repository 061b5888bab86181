"""How long the balancer takes to decide, and what its index keeps in memory: `python -m benchmarks.balancer`.

Writes build/balancer.json. Times are CPU time, the medians of several rounds: what else this machine does meanwhile
disturbs them by what it takes from the caches, but not by what it takes of the clock.
"""

import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Final

from selfhosted.balance.balancer import Balancer
from selfhosted.balance.blocks import prompt_blocks
from selfhosted.balance.index import PrefixIndex
from selfhosted.balance.policies import POLICIES, policy_of
from selfhosted.config import BalanceConfig, RoomConfig
from selfhosted.replica import Address, EngineStats, PoolSnapshot, Replica, ReplicaRequest

_REPLICAS: Final = 64
_TOKENS: Final = 8_192
_BYTES_A_TOKEN: Final = 4
_BLOCK_BYTES: Final = 512
_CONVERSATIONS: Final = 400
_IN_FLIGHT: Final = 512
_ROUNDS: Final = 30
_CALLS: Final = 200
_OUT: Final = Path("build/balancer.json")


def _snapshot(at: float) -> PoolSnapshot:
    return PoolSnapshot(
        pool="bench",
        at=at,
        replicas=tuple(
            Replica(
                address=Address(pool="bench", name=f"r{n:02d}", url="http://x:1", kind="vllm", source="configured"),
                state="ready",
                since=0.0,
                stats=EngineStats(at=at, running=8, waiting=0, kv_usage=0.4, kv_tokens=560_000, max_running=256),
            )
            for n in range(_REPLICAS)
        ),
    )


def _asks(rng: random.Random) -> list[ReplicaRequest]:
    """Conversations that share a system prompt of 1,024 tokens."""
    blocks = _TOKENS * _BYTES_A_TOKEN // _BLOCK_BYTES
    shared = tuple(rng.getrandbits(62) for _ in range(blocks // 8))
    return [
        ReplicaRequest(
            blocks=shared + tuple(rng.getrandbits(62) for _ in range(blocks - len(shared))),
            block_tokens=_BLOCK_BYTES / _BYTES_A_TOKEN,
            root=rng.getrandbits(64),
            tokens=_TOKENS,
            output_tokens=300,
        )
        for _ in range(_CONVERSATIONS)
    ]


def _median_us(call: Callable[[], object]) -> float:
    rounds = []
    for _ in range(_ROUNDS):
        began = time.thread_time()
        for _ in range(_CALLS):
            call()
        rounds.append((time.thread_time() - began) / _CALLS * 1e6)
    return statistics.median(rounds)


def _warm(balancer: Balancer, asks: list[ReplicaRequest], snapshot: PoolSnapshot, names: frozenset[str]) -> None:
    for number in range(_IN_FLIGHT):
        ask = asks[number % len(asks)]
        now = number * 0.01
        choice = balancer.pick(ask, snapshot, names, now)
        assert choice is not None
        lease = balancer.take(choice, ask, now)
        if number % 4:
            lease.first_token(now + 0.5)


def decision_us(policy: str, *, repeated: bool) -> dict[str, float]:
    """`repeated`: prompts of conversations that are known; otherwise their system prompt alone is."""
    rng = random.Random(1)
    balancer = policy_of(policy, BalanceConfig(), RoomConfig(), rng)
    asks = _asks(rng)
    snapshot, names = _snapshot(0.0), frozenset(f"r{n:02d}" for n in range(_REPLICAS))
    known, unknown = asks[: _CONVERSATIONS // 2], asks[_CONVERSATIONS // 2 :]
    _warm(balancer, known, snapshot, names)
    turn = iter(range(10**9))
    chosen = known if repeated else unknown

    def pick() -> object:
        return balancer.pick(chosen[next(turn) % len(chosen)], snapshot, names, 6.0)

    def whole() -> object:
        ask = chosen[next(turn) % len(chosen)]
        choice = balancer.pick(ask, snapshot, names, 6.0)
        assert choice is not None
        lease = balancer.take(choice, ask, 6.0)
        lease.first_token(6.5)
        lease.end(7.0)
        return lease

    return {"pick_us": round(_median_us(pick), 1), "pick_take_and_end_us": round(_median_us(whole), 1)}


def snapshot_us() -> float:
    """What a new snapshot of all replicas costs, once for each of them."""
    balancer = Balancer(BalanceConfig(), RoomConfig(), rng=random.Random(1))
    snapshots = iter([_snapshot(float(n)) for n in range(_ROUNDS * _CALLS)])
    return round(_median_us(lambda: balancer.full(next(snapshots), 0.0)), 1)


def hashing_us() -> float:
    text = random.Random(1).randbytes(_TOKENS * _BYTES_A_TOKEN)
    return round(_median_us(lambda: prompt_blocks(text, block_bytes=_BLOCK_BYTES, most=512)), 1)


def index_bytes(max_blocks: int) -> dict[str, float]:
    """After prompts of which none came twice, five times as many blocks as are kept."""
    rng = random.Random(1)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    index = PrefixIndex(max_blocks)
    for number in range(5 * max_blocks // 64):
        index.store(f"r{number % _REPLICAS:02d}", tuple(rng.getrandbits(62) for _ in range(64)))
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "max_blocks": max_blocks,
        "held": len(index),
        "bytes_a_block": round((after - before) / max_blocks, 1),
        "peak_bytes_a_block": round((peak - before) / max_blocks, 1),
    }


def main() -> None:
    figures = {
        "replicas": _REPLICAS,
        "prompt_tokens": _TOKENS,
        "known_conversation": {policy: decision_us(policy, repeated=True) for policy in POLICIES},
        "new_conversation": {policy: decision_us(policy, repeated=False) for policy in POLICIES},
        "new_snapshot_us": snapshot_us(),
        "hashing_us": hashing_us(),
        "index": [index_bytes(20_000), index_bytes(200_000)],
    }
    _OUT.parent.mkdir(exist_ok=True)
    _OUT.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
