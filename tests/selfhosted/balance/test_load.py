"""How busy a replica is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfhosted.balance.load import Lease, Load, PrefillSpeed
from selfhosted.config import BalanceTuning
from selfhosted.replica import EngineStats
from tests.selfhosted.balance.pool import ask, prompt, stats

RATE = 1_000.0


def _load(rate: float = RATE) -> Load:
    return Load("a", 1, PrefillSpeed(rate, BalanceTuning()))


def _send(load: Load, tokens: int, now: float) -> Lease:
    lease = Lease(load, ask(*prompt(1, 1), tokens=tokens), 0, now, lambda _lease: None)
    load.take(lease, now)
    return lease


def test_work_that_was_sent_is_waited_for() -> None:
    """Two prompts take their time one after the other, and less of it is left as time passes."""
    load = _load()
    _send(load, 2_000, 10.0)
    _send(load, 1_000, 10.0)
    assert load.wait_s(10.0) == pytest.approx(3.0, rel=0.05)
    assert load.wait_s(11.0) == pytest.approx(2.0, rel=0.05)


def test_what_has_not_begun_is_not_believed_done() -> None:
    """However long the first prompt takes, the second one's time lies still ahead."""
    load = _load()
    _send(load, 2_000, 0.0)
    _send(load, 1_000, 0.0)
    assert load.wait_s(100.0) >= 1.0


def test_a_scrape_does_not_make_progress_undone() -> None:
    """Reading the same prompt is not begun anew each second."""
    load = _load()
    _send(load, 4_000, 0.0)
    load.read(stats(1.0, running=1), 1.0)
    assert load.wait_s(3.0) == pytest.approx(1.0, rel=0.2)


def test_others_who_wait_are_waited_for() -> None:
    """What is in the engine's queue and was not sent from here is work ahead, and is done one day."""
    load = _load()
    load.read(stats(0.0, waiting=5), 0.0)
    assert load.wait_s(0.0) > 1.0
    assert load.wait_s(1_000.0) == 0.0


@given(st.lists(st.sampled_from(["first", "end"]), max_size=6), st.booleans())
def test_a_lease_gives_back_once(events: list[str], twice: bool) -> None:
    """Whatever is told however often in whatever order: at the end nothing is left, and the end was told once."""
    load = _load()
    ends: list[Lease] = []
    lease = Lease(load, ask(*prompt(1)), 0, 0.0, ends.append)
    load.take(lease, 0.0)
    for event in [*events, "end"] * (2 if twice else 1):
        if event == "first":
            lease.first_token(1.0)
        else:
            lease.end(2.0)
    assert (load.requests, load.tokens, load.pending, load.wait_s(3.0)) == (0, 0, 0, 0.0)
    assert ends == [lease]


@pytest.mark.parametrize(("before", "after"), [(0.95, 0.2), (0.2, 0.95), (0.95, 0.95)])
def test_who_waited_for_others_to_end_teaches_no_speed(before: float, after: float) -> None:
    """Where the KV cache is full at the beginning or the end, the time to the first token is not one of reading."""
    load = _load()
    load.read(stats(0.0, running=9, kv_usage=before), 0.0)
    lease = _send(load, 1_000, 0.0)
    load.read(stats(59.0, running=9, kv_usage=after), 59.0)
    lease.first_token(60.0)
    assert (load.speed.is_learned, load.rate) == (False, RATE)


@pytest.mark.parametrize("real", [200.0, 5_000.0, 50_000.0])
def test_the_rate_is_learnt(real: float) -> None:
    """After some first tokens the rate is the replica's, not the configured one."""
    load = _load()
    now = 0.0
    for _ in range(1_000):
        lease = _send(load, 2_000, now)
        now += 2_000 / real
        lease.first_token(now)
        lease.end(now)
    assert load.rate == pytest.approx(real, rel=0.1)


def test_a_long_queue_does_not_make_a_replica_look_quicker() -> None:
    """What was to be read before a prompt counts as it was when that was sent, however quick the replica has shown itself since."""
    load, real = _load(), 5_000.0
    leases = [_send(load, 10_000, 0.0) for _ in range(60)]
    for number, lease in enumerate(leases):
        lease.first_token((number + 1) * lease.work / real)
        lease.end((number + 1) * lease.work / real)
    assert load.rate == pytest.approx(real, rel=0.25)


def test_who_waits_for_a_prompt_to_be_read_waits_for_no_seat() -> None:
    """While fewer run than have run at once, those that wait are read one after the other; while no more do, each waits for an end."""
    load = _load()
    load.read(stats(running=20), 0.0)
    _send(load, 1_000, 0.0)
    load.read(stats(0.5, running=1, waiting=12), 0.5)
    reading = load.rest_s
    load.read(stats(1.0, running=20, waiting=12), 1.0)
    assert load.rest_s > 2 * reading
    load.read(stats(1.5, running=1, waiting=12, kv_usage=0.95), 1.5)
    assert load.rest_s > 2 * reading, "a full cache has no room either"


def test_replicas_that_are_alike_stay_alike() -> None:
    """A few lucky observations do not make one look quicker; many that say the same do."""
    pace = PrefillSpeed(RATE, BalanceTuning())
    lucky, other = Load("a", 1, pace), Load("b", 2, pace)
    now = 0.0
    for number in range(300):
        for load in (lucky, other):
            lease = _send(load, 1_000, now)
            lease.first_token(now + (0.5 if load is lucky else 1.0))
            lease.end(now + 2.0)
        now += 3.0
        if number == 2:
            assert lucky.rate / other.rate < 1.1
    assert lucky.rate / other.rate > 1.5


def test_one_absurd_observation_changes_little() -> None:
    """A request that hung for an hour does not make a replica look dead."""
    load = _load()
    _send(load, 2_000, 0.0).first_token(3_600.0)
    assert load.rate > RATE / 3


def test_free_slots_and_queue_since_the_scrape() -> None:
    """What was sent since the engine was read waits, but for as many as it has free slots."""
    load = _load()
    load.read(EngineStats(at=0.0, running=1, waiting=0, max_running=3), 0.0)
    leases = [_send(load, 100, 0.1) for _ in range(5)]
    assert load.waiting == 3
    assert load.extra_s > 0, "and whoever comes now waits for a slot"
    for lease in leases:
        lease.end(0.2)
    assert (load.waiting, load.extra_s) == (0, 0.0)


def test_kv_room_counts_what_was_sent_since() -> None:
    """The engine's word is as of its moment; own requests since then take room, and give it back."""
    load = _load()
    load.read(stats(0.0, kv_usage=0.5), 0.0)
    lease = _send(load, 30_000, 0.1)
    assert load.usage == pytest.approx(0.801)
    lease.first_token(1.0)
    load.read(stats(1.0, kv_usage=0.75), 1.0)
    assert load.usage == pytest.approx(0.75)
    lease.end(2.0)
    assert load.usage == pytest.approx(0.449)


def test_a_whole_answer_says_nothing_of_reading() -> None:
    """It came when it was written, and that took its own time."""
    load = _load()
    for number in range(100):
        lease = _send(load, 2_000, number * 60.0)
        lease.first_token(number * 60.0 + 50.0, told=False)
        lease.end(number * 60.0 + 50.0)
    assert load.rate == pytest.approx(RATE)
    assert (load.pending, load.wait_s(6_000.0)) == (0, 0.0)


def test_what_is_read_before_the_next_scrape_does_not_queue() -> None:
    """A burst of short prompts that an idle engine takes at once does not make it full; one that it cannot does."""
    load = _load()
    load.read(stats(0.0), 0.0)
    for _ in range(200):
        _send(load, 10, 0.1).end(0.2)
    for _ in range(60):
        _send(load, 10, 0.3)
    assert load.waiting == 0
    for _ in range(60):
        _send(load, 1_000, 0.3)
    assert load.waiting > 60


def test_what_was_ours_when_a_late_word_was_made_is_nobody_elses() -> None:
    """A busy engine answers late: its gauge of 1 was our own request, which has ended by now."""
    load = _load()
    lease = _send(load, 1_000, 0.0)
    lease.first_token(0.5)
    lease.end(1.0)
    load.read(stats(1.1, running=1, kv_usage=0.01), 1.1)
    assert load.in_flight == 0
    assert load.busy_tokens == 0.0
    load.read(stats(2.1, running=1, kv_usage=0.01), 2.1)
    assert load.in_flight == 1, "nothing of ours was there since the last word, so this is another's"
