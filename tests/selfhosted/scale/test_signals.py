"""How signals are read from snapshots."""

import math
from typing import Any

import pytest

from selfhosted.replica import Address, EngineStats, PoolSnapshot, Replica
from selfhosted.scale.signals import RecentTimes, SignalReader


def stats(at: float, **told: Any) -> EngineStats:
    return EngineStats(**{"at": at, "running": 0, "waiting": 0, **told})


def replica(name: str, state: Any = "ready", told: EngineStats | None = None) -> Replica:
    address = Address(pool="p", name=name, url="http://127.0.0.1:1", kind="vllm", source="configured")
    return Replica(address=address, state=state, since=0, stats=told)


def snapshot(at: float, *replicas: Replica) -> PoolSnapshot:
    return PoolSnapshot(pool="p", at=at, replicas=replicas)


def test_what_arrived_is_what_was_served_and_what_the_queues_grew_by() -> None:
    """Tokens of prompts come from the counters, without cached ones; requests that began to wait count as prompts."""
    reader = SignalReader(1.0)
    before = stats(0, prompt_tokens=1_000, prefix_hits=100, output_tokens=50, ttft_count=10, ttft_sum_s=1)
    after = stats(10, prompt_tokens=3_100, prefix_hits=200, output_tokens=150, ttft_count=20, ttft_sum_s=6, waiting=5)
    first = reader.read(snapshot(0, replica("a", told=before)), at_s=0, wall_s=0)
    assert first.input_tokens_per_s is None
    second = reader.read(snapshot(10, replica("a", told=after)), at_s=10, wall_s=10)
    # 2,000 tokens in 10 requests, and 5 more that wait.
    assert second.input_tokens_per_s == pytest.approx(300)
    assert second.served_tokens_per_s == pytest.approx(200)
    assert second.output_tokens_per_s == pytest.approx(10)
    assert second.arrivals_per_s == pytest.approx(1.5)
    assert second.waiting_tokens == pytest.approx(1_000)
    assert second.ttft_s == pytest.approx(0.5)
    assert second.missed == pytest.approx(math.exp(-2))


def test_an_engine_that_restarted_counts_from_nothing() -> None:
    """Its counters fell: what they show now is what it did since."""
    reader = SignalReader(1.0)
    reader.read(snapshot(0, replica("a", told=stats(0, prompt_tokens=1_000_000.0))), at_s=0, wall_s=0)
    found = reader.read(snapshot(10, replica("a", told=stats(10, prompt_tokens=500.0))), at_s=10, wall_s=10)
    assert found.input_tokens_per_s == pytest.approx(50)


def test_states_are_counted_and_unknown_statistics_are_told() -> None:
    """Who will be ready counts as starting; a ready one without statistics makes the pool unknown, and its KV too."""
    known = replica("a", told=stats(0, running=3, kv_usage=0.5, gpu_memory=0.9))
    others = (replica("b"), replica("c", "starting"), replica("d", "suspect"), replica("e", "down"))
    found = SignalReader(1.0).read(
        snapshot(0, known, *others, replica("f", "draining")), at_s=0, wall_s=0, waiting_at_gate=2
    )
    assert (found.ready, found.starting, found.draining, found.supply) == (2, 3, 1, 5)
    assert (found.running, found.queued) == (3, 2)
    assert not found.known
    assert found.kv_used is None
    assert found.gpu_memory == pytest.approx(0.9)


def test_an_engine_that_tells_no_memory_is_empty_when_nothing_runs() -> None:
    """So that a pool of them shrinks at night; while something runs its memory is unknown."""
    for running, used in ((0, 0.0), (1, None)):
        told = SignalReader(1.0).read(snapshot(0, replica("a", told=stats(0, running=running))), at_s=0, wall_s=0)
        assert told.kv_used == used


def test_an_empty_pool_is_known_and_work_that_went_elsewhere_is_demand() -> None:
    """Nothing is served there, and yet it is missed."""
    reader = SignalReader(1.0)
    reader.read(snapshot(0), at_s=0, wall_s=0)
    found = reader.read(snapshot(10), at_s=10, wall_s=10, spilled_tokens_per_s=70.0)
    assert found.known
    assert (found.kv_used, found.input_tokens_per_s) == (0, 70)


def test_replicas_that_left_are_forgotten() -> None:
    """A pool that scales for months remembers those that it has."""
    reader = SignalReader(1.0)
    for number in range(100):
        reader.read(snapshot(number, replica(f"r{number}", told=stats(number))), at_s=number, wall_s=0)
    assert len(reader._last) == 1


def test_first_tokens_are_counted_for_a_minute_in_bounded_memory() -> None:
    """Late ones as a part of all, and nonsense not at all."""
    seen = RecentTimes(1.0)
    assert seen.missed(0) is None
    for index in range(10_000):
        seen.saw(2.0 if index % 4 == 0 else 0.4, index / 1_000)
    seen.saw(math.nan, 10)
    seen.saw(-1, 10)
    assert seen.missed(10) == pytest.approx(0.25)
    assert seen.mean(10) == pytest.approx(0.8)
    assert len(seen._seconds) == 10
    assert seen.missed(100) is None


def test_a_few_times_are_no_fraction() -> None:
    """One late first token of four is no quarter of what comes."""
    seen = RecentTimes(1.0)
    for took_s in (0.2, 0.2, 0.2, 2.0):
        seen.saw(took_s, 1)
    assert seen.missed(1) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("waiting", "stuck"),
    [
        ((), 0),
        ((7,), 0),
        ((300, 300), 0),
        ((9, 3, 4, 8), 1),
        ((300, 0), 300),
        ((300, 280, 0, 0, 1, 0), 581),
        ((300, 280, 290, 0), 0),
    ],
)
def test_a_queue_that_further_replicas_would_not_answer_is_told(waiting: tuple[int, ...], stuck: int) -> None:
    """Requests wait where they were sent: new replicas beside two with long queues have none, and more would not have more."""
    reader = SignalReader(1.0)
    replicas = [replica(f"r{index}", told=stats(0, waiting=each)) for index, each in enumerate(waiting)]
    found = reader.read(snapshot(0, *replicas), at_s=0, wall_s=0, waiting_at_gate=2)
    assert found.unanswered == sum(waiting) + 2
    assert found.stuck == stuck
    assert found.queued == found.unanswered - found.stuck


def test_who_only_reads_is_judged_by_prompts_and_who_only_answers_by_what_it_generates() -> None:
    """A reader's load is what waits to be read, whatever its cache holds; an answering replica reads nothing, and late first tokens are
    not its own.
    """
    before = stats(0, prompt_tokens=1_000.0, output_tokens=0.0, ttft_count=10, ttft_sum_s=1, kv_usage=0.9, running=1)
    after = stats(
        10,
        prompt_tokens=21_000.0,
        output_tokens=200.0,
        ttft_count=30,
        ttft_sum_s=61,
        kv_usage=0.9,
        running=1,
        waiting=2,
    )
    reads, answers = SignalReader(1.0, "reads"), SignalReader(1.0, "answers")
    for reader in (reads, answers):
        reader.read(snapshot(0, replica("a", told=before)), at_s=0, wall_s=0)
    read = reads.read(snapshot(10, replica("a", told=after)), at_s=10, wall_s=10)
    assert read.served_tokens_per_s == pytest.approx(2_000)
    assert read.input_tokens_per_s == pytest.approx(2_200)
    assert (read.output_tokens_per_s, read.kv_used, read.waiting) == (0, 1.0, 2)
    assert (read.missed or 0) > 0.5
    answered = answers.read(snapshot(10, replica("a", told=after)), at_s=10, wall_s=10)
    assert answered.served_tokens_per_s == 0
    assert answered.output_tokens_per_s == pytest.approx(20)
    assert (answered.kv_used, answered.missed, answered.ttft_s) == (0.9, None, None)
    idle = SignalReader(1.0, "reads").read(snapshot(0, replica("a", told=stats(0, kv_usage=0.9))), at_s=0, wall_s=0)
    assert idle.kv_used == 0


def test_ranks_of_a_process_count_once() -> None:
    """Processes are what is ordered: one works while one of its ranks does, and two full caches of four are one replica's."""
    names = ("a-dp0", "a-dp1", "b-dp0", "b-dp1")
    states = ("ready", "suspect", "starting", "starting")
    ranks = [
        Replica(
            address=Address(
                pool="p", name=name, url="http://h:1", kind="vllm", source="configured", rank=int(name[-1])
            ),
            state=state,  # type: ignore[arg-type]
            since=0,
            stats=stats(0, running=1, kv_usage=1.0) if state == "ready" else None,
        )
        for name, state in zip(names, states, strict=True)
    ]
    found = SignalReader(1.0, ranks=2).read(snapshot(0, *ranks), at_s=0, wall_s=0)
    assert (found.ready, found.starting, found.running, found.kv_used) == (1, 1, 1, 0.5)
