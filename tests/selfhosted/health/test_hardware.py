"""How much of a pool's GPUs is used, and for how much."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from selfhosted.health.hardware import PoolHardware, usage_by_version, usage_of
from selfhosted.replica import Address, EngineStats, Replica, ReplicaState

HARDWARE = PoolHardware(gpus=2, nanousd_per_hour=7_200_000_000, flops_per_token=1.4e11, peak_flops=4e15)


def replica(
    name: str, state: ReplicaState = "ready", rates: Mapping[str, Any] = MappingProxyType({}), version: str = ""
) -> Replica:
    address = Address(pool="own", name=name, url="http://a", kind="vllm", source="configured", version=version)
    stats = EngineStats(at=0.0, running=1, waiting=0, **rates) if rates else None
    return Replica(address=address, state=state, since=0.0, stats=stats)


BUSY = {
    "tokens_per_s": 2_000.0,
    "computed_per_s": 1_500.0,
    "preemptions_per_s": 0.25,
    "gpu_utilisation": 0.8,
    "gpu_memory": 0.9,
}


def test_tokens_dollars_and_flops_of_two_replicas() -> None:
    """4,000 tokens/s on four GPUs: 1,000 each; $14.40 an hour are $1.00 a million; 3,000 computed are 5.25 %."""
    found = usage_of([replica("a", rates=BUSY), replica("b", rates=BUSY)], HARDWARE)
    assert (found.tokens_per_s, found.tokens_per_s_per_gpu) == (4_000, 1_000)
    assert found.nanousd_per_million == 1_000_000_000
    assert found.mfu == pytest.approx(3_000 * 1.4e11 / 8e15)
    assert found.preemptions_per_s == 0.5
    assert found.gpu_utilisation == pytest.approx(0.8)
    assert found.gpu_memory == pytest.approx(0.9)


def test_an_idle_replica_makes_tokens_dearer() -> None:
    """One that starts costs already; one that is down costs nothing."""
    alone = usage_of([replica("a", rates=BUSY)], HARDWARE)
    starting = usage_of([replica("a", rates=BUSY), replica("b", "starting")], HARDWARE)
    assert starting.nanousd_per_million == 2 * (alone.nanousd_per_million or 0)
    assert usage_of([replica("a", rates=BUSY), replica("b", "down")], HARDWARE) == alone


def test_unknown_is_not_nothing() -> None:
    """A replica that serves and tells nothing, hardware that nobody described, no token at all."""
    assert usage_of([replica("a", rates=BUSY), replica("b")], HARDWARE).tokens_per_s is None
    bare = usage_of([replica("a", rates=BUSY)])
    assert (bare.tokens_per_s, bare.tokens_per_s_per_gpu, bare.nanousd_per_million, bare.mfu) == (
        2_000,
        None,
        None,
        None,
    )
    assert usage_of([replica("a", rates={"tokens_per_s": 0.0})], HARDWARE).nanousd_per_million is None
    assert usage_of([], HARDWARE).tokens_per_s is None


def test_each_version_has_its_own_tokens_and_dollars() -> None:
    """Two replicas of one, an idle one of another, and one that says none; nothing is told where none says any."""
    slow = {**BUSY, "tokens_per_s": 1_000.0}
    idle = {**BUSY, "tokens_per_s": 0.0}
    pool = [
        replica("a", rates=BUSY, version="v1"),
        replica("b", rates=slow, version="v1"),
        replica("c", rates=idle, version="v2"),
        replica("d", rates=BUSY),
    ]
    found = usage_by_version(pool, HARDWARE)
    assert [(version, usage.tokens_per_s_per_gpu) for version, usage in found.items()] == [
        ("", 1_000),
        ("v1", 750),
        ("v2", 0),
    ]
    assert found["v1"].nanousd_per_million == round(2 * 7_200_000_000 * 1e6 / (3_000 * 3_600))
    assert found["v2"].nanousd_per_million is None
    assert usage_by_version([replica("a", rates=BUSY)], HARDWARE) == {}
