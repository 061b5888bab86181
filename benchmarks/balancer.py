"""The balancer's time to decide, its index's memory, and the cost of a pool to a request and a process: `python -m
benchmarks.balancer`.

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

import msgspec

from accounts.caller import Caller
from providers.target import Target
from providers.wire import ChatRequest, Message
from selfhosted.balance.balancer import Balancer
from selfhosted.balance.blocks import prompt_blocks
from selfhosted.balance.index import PrefixIndex
from selfhosted.balance.policies import POLICIES, policy_of
from selfhosted.config import BalanceConfig, PoolConfig, RoomConfig
from selfhosted.health.judge import PoolJudge
from selfhosted.health.messages import ReplicaObserved
from selfhosted.health.verdict import Probe
from selfhosted.pools.fleet import Fleet, FleetObserver
from selfhosted.pools.pool import Pool
from selfhosted.replica import Address, EngineStats, PoolSnapshot, Replica, ReplicaRequest

_REPLICAS: Final = 64
_TOKENS: Final = 8_192
_BYTES_A_TOKEN: Final = 4
_BLOCK_BYTES: Final = 512
_CONVERSATIONS: Final = 400
_IN_FLIGHT: Final = 512
_ROUNDS: Final = 30
_CALLS: Final = 200
_FEW: Final = 8
_PROMPTS: Final = 64
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
    """Return conversations that share a system prompt of 1,024 tokens."""
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


def decision_us(policy: str, *, repeated: bool, along_ring: bool = False) -> dict[str, float]:
    """Measure the microseconds of a decision. `repeated`: prompts of known conversations; otherwise their system prompt
    alone is. `along_ring`: by a process that knows little of what others send.
    """
    rng = random.Random(1)
    balancer = policy_of(policy, BalanceConfig(), RoomConfig(), rng)
    asks = _asks(rng)
    snapshot, names = _snapshot(0.0), frozenset(f"r{n:02d}" for n in range(_REPLICAS))
    known, unknown = asks[: _CONVERSATIONS // 2], asks[_CONVERSATIONS // 2 :]
    _warm(balancer, known, snapshot, names)
    balancer.use_consistent_hashing = along_ring
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
    """Return the cost of a new snapshot of all replicas, once for each of them."""
    balancer = Balancer(BalanceConfig(), RoomConfig(), rng=random.Random(1))
    snapshots = iter([_snapshot(float(n)) for n in range(_ROUNDS * _CALLS)])
    return round(_median_us(lambda: balancer.full(next(snapshots), 0.0)), 1)


def hashing_us() -> float:
    text = random.Random(1).randbytes(_TOKENS * _BYTES_A_TOKEN)
    return round(_median_us(lambda: prompt_blocks(text, block_bytes=_BLOCK_BYTES, most=512)), 1)


def _observed(number: int, at: float) -> ReplicaObserved:
    stats = EngineStats(at=at, running=3, waiting=0, kv_usage=0.2, kv_tokens=400_000, max_running=64)
    url = f"http://10.0.0.{number + 1}:8000"
    address = Address(pool="bench", name=f"r{number}", url=url, kind="vllm", source="configured")
    probe = Probe(sent_at=at, first_at=0.0, answered_at=at)
    return ReplicaObserved(address=address, probe=probe, stats=stats, scraped_at=at)


def _fleet_of_few() -> tuple[Fleet, Pool]:
    config = PoolConfig(name="bench", targets=("own",))
    judge = PoolJudge(config, clock=lambda: 100.0)
    balancer = Balancer(config.balance, config.room, rng=random.Random(1))
    pool = Pool(config, judge, balancer, adapters=None, kv_events=None)
    fleet = Fleet(
        {"bench": pool}, clock=lambda: 100.0, observer=FleetObserver(), salt_of=lambda _deployment, _caller: ""
    )
    for number in range(_FEW):
        fleet.hear(_observed(number, 100.0))
    return fleet, pool


def _prompt(number: int, tokens: int) -> ChatRequest:
    """Return a prompt, a third of which is shared by all."""
    size = tokens * _BYTES_A_TOKEN
    asked = f"Number {number}: " + "please tell me about it. " * (2 * size // 75)
    messages = [Message("system", "You are a kind clerk. " * (size // 66)), Message("user", asked)]
    return ChatRequest(fields={}, model="own", messages=messages, stream=True)


def request_path_us(tokens: int) -> dict[str, float]:
    """Return the cost of each step of a request to a process, in a pool of 8 replicas: medians of single steps, one after the
    other.
    """
    fleet, pool = _fleet_of_few()
    target = Target(
        target_id="own",
        provider="self-hosted",
        tiers=frozenset({"interactive"}),
        price=None,
        max_context_tokens=128_000,
        max_output_tokens=4_096,
        capabilities=frozenset(),
        capability=0.5,
        routing_weight=1.0,
        deployments=pool.deployments("own"),
        pool="bench",
    )
    caller = Caller(key_id="k", key_name="bench", team_id="t", organisation_id="o")
    prompts = [_prompt(number, tokens) for number in range(_PROMPTS)]
    steps: dict[str, list[float]] = {}
    clock = time.perf_counter

    def step(name: str, began: float) -> float:
        now = clock()
        steps.setdefault(name, []).append((now - began) * 1e6)
        return clock()

    for turn in range(_ROUNDS * _CALLS // 2):
        request = prompts[turn % _PROMPTS]
        at = clock()
        among = fleet.ready(target)
        at = step("ready", at)
        fleet.crowd(target)
        at = step("crowd", at)
        fleet.free(target, tokens)
        at = step("free", at)
        ask = fleet.ask(target, request, input_tokens=tokens, output_tokens=200, caller=caller)
        at = step("ask", at)
        found = fleet.pick(target, among, ask)
        at = step("pick", at)
        assert found is not None
        lease = fleet.take(target, found[1], ask, request, caller)
        at = step("take", at)
        lease.first_token()
        at = step("first_token", at)
        lease.end(failed=False, cached_tokens=0, output_tokens=200)
        step("end", at)
    medians = {name: round(statistics.median(values), 1) for name, values in steps.items()}
    return medians | {"sum": round(sum(medians.values()), 1)}


def told_us() -> dict[str, float]:
    """Return the cost of one message on a replica, with new statistics, to a process, and its length."""
    fleet, _pool = _fleet_of_few()
    at = iter(range(101, 10**9))
    encode, decoder = msgspec.msgpack.encode, msgspec.msgpack.Decoder(ReplicaObserved)
    told = _observed(0, 100.0)
    made = _median_us(lambda: _observed(0, float(next(at))))
    return {
        "bytes": len(encode(told)),
        "encode_us": round(_median_us(lambda: encode(told)), 1),
        "decode_us": round(_median_us(lambda: decoder.decode(encode(told))) - _median_us(lambda: encode(told)), 1),
        "hear_us": round(_median_us(lambda: fleet.hear(_observed(0, float(next(at))))) - made, 1),
    }


def index_bytes(max_blocks: int) -> dict[str, float]:
    """Measure the index's bytes after prompts of which none came twice, with five times as many blocks as are kept."""
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
        "along_ring": decision_us("prefix", repeated=True, along_ring=True),
        "new_snapshot_us": snapshot_us(),
        "hashing_us": hashing_us(),
        "request_of_800_tokens_us": request_path_us(800),
        "request_of_8000_tokens_us": request_path_us(8_000),
        "message_on_a_replica": told_us(),
        "index": [index_bytes(20_000), index_bytes(200_000)],
    }
    _OUT.parent.mkdir(exist_ok=True)
    _OUT.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
