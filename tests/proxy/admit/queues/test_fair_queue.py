"""The order of a queue, and what it keeps of it."""

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admit.queues.fair_queue import Entry, FairQueue, FreeCapacity
from proxy.admit.queues.queue_item import QueueItem
from proxy.admit.queues.queues_config import QueueConfig
from tests.examples import examples

ROOM = FreeCapacity(1_000)


def config(**given: Any) -> QueueConfig:
    plain: dict[str, Any] = {
        "targets": ("own",),
        "tokens_in_flight": 1_000,
        "light_share": 0.0,
        "interactive_share": 0.0,
    }
    return QueueConfig(**{**plain, **given})


def entry(team_id: str = "a", tokens: int = 100, at: float = 0.0, due_at: float = math.inf, **given: Any) -> Entry:
    plain: dict[str, Any] = {"weight": 1.0, "tier": "interactive", "priority": 0, "start_by": due_at}
    return Entry(QueueItem(team_id=team_id, tokens=tokens, **{**plain, **given}), at, due_at)


def joined(queue: FairQueue, *entries: Entry, now: float = 0.0) -> list[Entry]:
    for each in entries:
        queue.join(each, now)
    return list(entries)


def taken(queue: FairQueue, now: float = 0.0, room: FreeCapacity = ROOM) -> list[Entry]:
    """Everything, in order, each finished before the next is asked for."""
    order = []
    while (each := queue.take(now, room)) is not None:
        order.append(each)
        queue.finish(each)
    return order


def test_interactive_goes_before_batch() -> None:
    """Whoever came first, a tier comes before the other."""
    queue = FairQueue(config())
    batch, person = joined(queue, entry(tier="batch"), entry())
    assert taken(queue) == [person, batch]


def test_batch_that_waited_long_counts_as_interactive() -> None:
    """After `aging_s` it stands among interactive work as if it had come at that moment."""
    queue = FairQueue(config(aging_s=60))
    (batch,) = joined(queue, entry("a", tier="batch"))
    (person,) = joined(queue, entry("b", at=59), now=59)
    assert queue.take(59, ROOM) is person
    joined(queue, entry("c", at=61), now=61)
    (late,) = joined(queue, entry("b", at=61), now=61)
    assert queue.take(61, ROOM) is not batch
    assert {queue.take(61, ROOM), queue.take(61, ROOM)} == {batch, late}
    assert batch.aged


def test_aged_batch_does_not_stand_before_its_own_teams_people() -> None:
    """While both wait, a team's old batch work gets one token in five."""
    queue = FairQueue(config(aging_s=1))
    batch = joined(queue, *(entry(tier="batch") for _ in range(40)))
    people = joined(queue, *(entry(at=100.0) for _ in range(40)), now=100)
    first = taken(queue, 100)[:40]
    assert sum(each in people for each in first) == 32
    assert sum(each in batch for each in first) == 8


def test_a_step_of_priority_is_worth_aging_s() -> None:
    """Within a team, high goes before normal unless the normal one waited that much longer."""
    queue = FairQueue(config(aging_s=10))
    old, young, high = joined(queue, entry(at=0), entry(at=9), entry(at=12, priority=1))
    low = joined(queue, entry(at=0, priority=-1))[0]
    assert taken(queue, 12) == [old, high, young, low]


def test_teams_take_turns_by_tokens_and_weight() -> None:
    """A team of twice the weight is served twice the tokens; one with small requests gets more of them."""
    queue = FairQueue(config())
    joined(queue, *(entry("heavy", 100, weight=2.0) for _ in range(50)))
    joined(queue, *(entry("plain", 100) for _ in range(50)))
    joined(queue, *(entry("small", 50) for _ in range(50)))
    first = taken(queue)[:60]
    count = {name: sum(each.work.team_id == name for each in first) for name in ("heavy", "plain", "small")}
    assert count == {"heavy": 24, "plain": 12, "small": 24}


def test_a_share_is_counted_by_what_was_truly_used() -> None:
    """A team whose requests use a tenth of what they announce is served ten times as many."""
    queue = FairQueue(config())
    joined(queue, *(entry("modest") for _ in range(200)))
    joined(queue, *(entry("exact") for _ in range(200)))
    count = {"modest": 0, "exact": 0}
    for _ in range(110):
        each = queue.take(0, ROOM)
        assert each is not None
        count[each.work.team_id] += 1
        queue.finish(each, 10 if each.work.team_id == "modest" else 100)
    assert count["exact"] in {10, 11}


def test_nobody_saves_up_while_away() -> None:
    """A team that comes back is equal to the others from then on, however long it used nothing."""
    queue = FairQueue(config())
    joined(queue, *(entry("busy") for _ in range(100)))
    for _ in range(50):
        each = queue.take(0, ROOM)
        assert each is not None
        queue.finish(each)
    joined(queue, *(entry("back") for _ in range(20)))
    first = taken(queue)[:20]
    assert 10 <= sum(each.work.team_id == "back" for each in first) <= 11


def test_a_light_teams_request_passes_the_heavy_teams_backlog() -> None:
    """It is next, however much of the other team waits."""
    queue = FairQueue(config())
    joined(queue, *(entry("heavy") for _ in range(100)))
    assert queue.take(0, ROOM) is not None
    (light,) = joined(queue, entry("light"))
    assert queue.take(0, ROOM) is light


def test_a_large_request_is_passed_by_as_much_as_it_is_large_and_no_more() -> None:
    """Gaps are used while room gathers for it, and then the room is kept for it."""
    queue = FairQueue(config())
    running = joined(queue, *(entry("x", 100) for _ in range(9)))
    assert all(queue.take(0, ROOM) for _ in running)
    (large,) = joined(queue, entry("large", 300))
    small = joined(queue, *(entry("x", 100) for _ in range(20)))
    assert queue.blocked(ROOM) is None
    passed = []
    for each in running[:6]:
        while (one := queue.take(0, ROOM)) is not None:
            passed.append(one)
        queue.finish(each)
        if len(passed) == 3 and queue.in_flight_tokens > 700:
            assert queue.blocked(ROOM) is large
    assert passed == [*small[:3], large]
    assert queue.in_flight_tokens <= 1_000


def test_what_fits_beside_a_large_one_is_not_held_up_for_nothing() -> None:
    """With room for small ones only, they go on while the large one waits its first moment."""
    queue = FairQueue(config())
    joined(queue, entry("x", 600))
    assert queue.take(0, ROOM) is not None
    (large,) = joined(queue, entry("a", 500))
    (small,) = joined(queue, entry("b", 300))
    assert queue.blocked(ROOM) is None
    assert queue.take(0, ROOM) is small
    assert queue.blocked(ROOM) is large


def test_a_request_larger_than_everything_runs_alone() -> None:
    """It waits until nothing is in flight, and then nothing starts beside it."""
    queue = FairQueue(config())
    (small,) = joined(queue, entry("a", 10))
    assert queue.take(0, ROOM) is small
    giant, after = joined(queue, entry("b", 5_000), entry("a", 5_000))
    assert queue.take(0, ROOM) is None
    queue.finish(small)
    assert queue.take(0, ROOM) is giant
    assert queue.take(0, ROOM) is None
    queue.finish(giant)
    assert queue.take(0, FreeCapacity(1_000, alone=False)) is None
    assert queue.take(0, ROOM) is after


def test_requests_are_bounded_too() -> None:
    """Where a count is set, no more run than that."""
    queue = FairQueue(config())
    joined(queue, *(entry(tokens=1) for _ in range(5)))
    assert [queue.take(0, FreeCapacity(1_000, 2)) is not None for _ in range(3)] == [True, True, False]


def test_room_is_kept_for_light_teams() -> None:
    """A team above twice its share leaves `light_share` free, which one below its share may use."""
    queue = FairQueue(config(light_share=0.2))
    joined(queue, entry("light", 10), entry("other", 10))
    assert all(queue.take(0, ROOM) for _ in range(2))
    joined(queue, *(entry("heavy", 100) for _ in range(20)))
    while queue.take(0, ROOM) is not None:
        pass
    assert 700 < queue.in_flight_tokens <= 800
    assert queue.start_now(entry("light", 100), 0, ROOM) is False
    (light,) = joined(queue, entry("light", 100))
    assert queue.take(0, ROOM) is light


def test_a_team_that_is_alone_uses_everything() -> None:
    """Nothing is kept for teams that did not come for a minute."""
    queue = FairQueue(config(light_share=0.2))
    assert queue.start_now(entry("gone", 10), 0, ROOM)
    heavy = [entry("heavy", 100, at=100.0) for _ in range(10)]
    assert queue.start_now(heavy[0], 100, ROOM)
    assert queue.in_flight == 2
    assert queue.teams == 2


def test_batch_leaves_room_for_people() -> None:
    """It may not use the part that is kept for interactive work."""
    queue = FairQueue(config(interactive_share=0.3))
    joined(queue, *(entry(tokens=100, tier="batch") for _ in range(10)))
    assert sum(queue.take(0, ROOM) is not None for _ in range(10)) == 7
    (person,) = joined(queue, entry("b", 300))
    assert queue.take(0, ROOM) is person


def test_the_lowest_goes_first_when_there_is_too_much() -> None:
    """Batch, then low priority, then the newest of the team furthest above its share."""
    queue = FairQueue(config(max_waiting=4))
    batch, low, first, second = joined(
        queue, entry("a", tier="batch", priority=1), entry("b", priority=-1), entry("c"), entry("c")
    )
    for newcomer, victim in ((entry("d"), batch), (entry("d"), low), (entry("e"), second)):
        queue.join(newcomer, 0)
        if victim is second:
            # The two of `d` came later, and `c` has as many: the newest goes.
            assert queue.shed(newcomer)[0].work.team_id in {"c", "d"}
        else:
            assert queue.shed(newcomer) == (victim,)
            assert victim.state == "gone"
    assert first.state == "waiting"
    assert queue.waiting == 4


def test_what_a_team_calls_high_costs_no_other_teams_place() -> None:
    """It is dear beside that team's own work; among teams it is the share that counts."""
    queue = FairQueue(config(max_waiting=4))
    loud = joined(queue, *(entry("loud", priority=1) for _ in range(3)), entry("loud"))
    for newcomer, victim in ((entry("quiet"), loud[3]), (entry("other", priority=1), loud[2])):
        queue.join(newcomer, 0)
        assert queue.shed(newcomer) == (victim,)
    again = entry("loud", priority=1)
    queue.join(again, 0)
    assert queue.shed(again) == (again,)


def test_the_newcomer_is_refused_when_it_is_the_lowest() -> None:
    """What waits is not given up for something that is worth less."""
    queue = FairQueue(config(max_waiting=2))
    kept = joined(queue, entry("a"), entry("b"))
    newcomer = entry("c", tier="batch")
    queue.join(newcomer, 0)
    assert queue.shed(newcomer) == (newcomer,)
    again = entry("a")
    queue.join(again, 0)
    assert queue.shed(again) == (again,)
    assert taken(queue) == kept


def test_nothing_is_given_up_for_a_newcomer_that_does_not_fit_after_all() -> None:
    """What went already is put back where it stood, with its age and its end."""
    queue = FairQueue(config(max_waiting_tokens=1_000, aging_s=50))
    low = joined(queue, *(entry("a", 100, tier="batch", due_at=90) for _ in range(3)))
    joined(queue, *(entry("b", 100) for _ in range(7)))
    large = entry("c", 900)
    queue.join(large, 0)
    assert queue.shed(large) == (large,)
    assert queue.waiting == 10
    assert queue.waiting_tokens == 1_000
    assert taken(queue)[7:] == low
    joined(queue, *low)
    assert queue.expired(91) == low


def test_work_that_runs_is_never_given_up() -> None:
    """Only what waits can be shed."""
    queue = FairQueue(config(max_waiting=0))
    running = entry("a", 900, tier="batch")
    assert queue.start_now(running, 0, ROOM)
    person = entry("b", 900, priority=1)
    queue.join(person, 0)
    assert queue.shed(person) == (person,)
    assert running.state == "running"


def test_what_is_due_is_given_up_in_order() -> None:
    """Each at its time, and those that left before are not told again."""
    queue = FairQueue(config())
    first, second, left = joined(queue, entry(due_at=5), entry(due_at=3), entry(due_at=1))
    queue.remove(left)
    assert queue.next_due() == 3
    assert queue.expired(3) == []
    assert queue.expired(4) == [second]
    assert queue.expired(6) == [first]
    assert queue.next_due() is None
    assert queue.waiting == 0


def test_leaving_leaves_no_trace() -> None:
    """However many come and go while one waits, what is kept stays small."""
    queue = FairQueue(config())
    joined(queue, entry("stays", 900), entry("stays", 900, due_at=1e9, tier="batch"))
    assert queue.take(0, ROOM) is not None
    for number in range(5_000):
        each = entry(f"t{number}", 900, due_at=1e6, tier="batch", at=number)
        queue.join(each, number)
        queue.remove(each)
        queue.remove(each)
    assert queue.waiting == 1
    assert queue.teams < 70
    assert len(queue._dues) < 100
    assert len(queue._unaged) < 100


def test_a_place_is_given_back_once() -> None:
    """Finishing twice counts once."""
    queue = FairQueue(config())
    each = entry()
    assert queue.start_now(each, 0, ROOM)
    queue.finish(each)
    queue.finish(each, 5)
    assert (queue.in_flight, queue.in_flight_tokens) == (0, 0)


_WORK = st.builds(
    QueueItem,
    team_id=st.sampled_from("abc"),
    weight=st.sampled_from((0.5, 1.0, 3.0)),
    tier=st.sampled_from(("interactive", "batch")),
    priority=st.sampled_from((-1, 0, 1)),
    tokens=st.integers(1, 1_500),
    start_by=st.just(math.inf),
)
_STEP = st.one_of(
    st.tuples(st.just("join"), _WORK),
    st.tuples(st.sampled_from(("take", "finish", "remove", "expire")), st.integers(0, 50)),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(_STEP, max_size=60))
def test_whatever_happens_everything_is_counted_and_nothing_is_lost(steps: list[tuple[str, Any]]) -> None:
    """Counts equal what waits and runs, bounds hold, the capacity is kept, and all that was let in comes out."""
    queue = FairQueue(config(max_waiting=6, light_share=0.1, interactive_share=0.1, aging_s=3))
    known: list[Entry] = []
    for now, (what, value) in enumerate(steps):
        if what == "join":
            each = Entry(value, now, now + 20)
            queue.join(each, now)
            known.append(each)
            queue.shed(each)
        elif what == "take":
            queue.take(now, ROOM)
        elif what == "expire":
            queue.expired(now)
        else:
            chosen = [each for each in known if each.state == ("running" if what == "finish" else "waiting")]
            if chosen:
                each = chosen[value % len(chosen)]
                queue.finish(each, value) if what == "finish" else queue.remove(each)
        waiting = [each for each in known if each.state == "waiting"]
        running = [each for each in known if each.state == "running"]
        assert (queue.waiting, queue.in_flight) == (len(waiting), len(running))
        assert queue.waiting_tokens == sum(each.work.tokens for each in waiting)
        assert queue.in_flight_tokens == sum(each.work.tokens for each in running)
        assert queue.waiting <= 6
        assert queue.in_flight_tokens <= ROOM.tokens or queue.in_flight == 1
    for each in known:
        queue.finish(each)
    assert len(taken(queue, len(steps))) == len([each for each in known if each.started_at == len(steps)])
    assert all(each.state == "gone" for each in known)
