"""Which replica a request goes to."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfhosted.balance.balancer import Balancer, Matched, Rules, choose, choose_along_ring
from selfhosted.balance.load import Load, PrefillSpeed
from selfhosted.balance.ring import Ring
from selfhosted.config import BalanceConfig, BalanceTuning, RoomConfig
from selfhosted.replica import PoolSnapshot, Replica, ReplicaRequest
from tests.selfhosted.balance.pool import ask, balancer, pool, prompt, replica, stats

STATES = st.sampled_from(["starting", "ready", "suspect", "draining", "down"])
NAMES = tuple("abcdefgh")


def _go(chosen: Balancer, request: ReplicaRequest, snapshot: PoolSnapshot, now: float = 0.0) -> str:
    choice = chosen.pick(request, snapshot, NAMES, now)
    assert choice is not None
    lease = chosen.take(choice, request, now)
    lease.first_token(now)
    lease.end(now)
    return choice.replica


@given(st.dictionaries(st.sampled_from(NAMES), STATES), st.sets(st.sampled_from(NAMES)), st.integers(0, 2**64 - 1))
def test_only_those_that_take_work_and_are_allowed_are_picked(
    states: dict[str, str], allowed: set[str], root: int
) -> None:
    """Ready ones; suspect ones where nobody of the pool is ready; never another. And somebody is, if there is one."""
    replicas = [replica(name, state, stats=stats()) for name, state in states.items()]  # type: ignore[arg-type]
    # Where nobody is ready, a suspect one is better than none.
    state_of_able = "ready" if "ready" in states.values() else "suspect"
    able = {name for name, state in states.items() if state == state_of_able and name in allowed}
    for names in (allowed, list(allowed), dict.fromkeys(allowed)):
        choice = balancer().pick(ask(*prompt(1), root=root), pool(*replicas), names, 0.0)
        assert (choice.replica in able) if choice is not None else not able


def test_a_conversation_returns_to_its_cache() -> None:
    """The next turn goes where the last one was read, and says how much of it is there."""
    chosen, snapshot = balancer(), pool(*NAMES)
    first = _go(chosen, ask(*prompt(1), root=1), snapshot)
    choice = chosen.pick(ask(*prompt(1, 25), root=2), snapshot, NAMES, 1.0)
    assert choice is not None
    assert (choice.replica, choice.why, choice.matched_tokens) == (first, "prefix", 20 * 128)


def test_a_queue_that_is_long_enough_outweighs_a_cache() -> None:
    """Waiting behind others' prompts costs more than reading this one anew."""
    chosen, snapshot = balancer(), pool("a", "b")
    home = _go(chosen, ask(*prompt(1)), snapshot)
    for number in range(2, 12):
        request = ask(*prompt(number, 200))
        choice = chosen.pick(request, snapshot, {home}, 0.0)
        assert choice is not None
        chosen.take(choice, request, 0.0)
    assert _go(chosen, ask(*prompt(1)), snapshot) != home


def test_a_full_cache_keeps_what_many_share_together() -> None:
    """A second copy takes place while its answer is written: worth it where there is room, and not where there is none."""

    def goes(usage: float) -> bool:
        chosen = balancer(tuning={"generating_s": 0.3})
        home = _go(chosen, ask(*prompt(1, 50)), pool("a", "b"))
        snapshot = [replica(each, stats=stats(1.0, running=12 * (each == home), kv_usage=usage)) for each in "ab"]
        choice = chosen.pick(ask(*prompt(1, 50), tokens=6_500), pool(*snapshot), NAMES, 1.0)
        return choice is not None and choice.replica == home

    assert (goes(0.0), goes(0.85)) == (False, True)


def test_a_beginning_in_use_takes_its_place_once() -> None:
    """Between two readings of the engine, requests that share a beginning count what they have of their own."""
    chosen, snapshot = balancer(), pool("a")
    leases = []
    for turn in range(3):
        request = ask(*prompt(1, 50), *prompt(2 + turn, 2))
        choice = chosen.pick(request, snapshot, NAMES, 0.0)
        assert choice is not None
        leases.append(chosen.take(choice, request, 0.0))
    assert chosen.load("a").tokens == pytest.approx((50 + 3 * 2) * 128 + 3 * 100, abs=3)
    assert chosen.load("a").shares
    for lease in leases:
        lease.end(1.0)
    assert (chosen.load("a").tokens, chosen.load("a").asked) == (0, 0)


def test_what_is_still_being_read_is_read_beside_it_too() -> None:
    """Several of one long beginning at once: while it is read, an idle replica reads it as soon, and later ones find more of them.
    Once it was read all go where it is.
    """
    chosen, snapshot = balancer(), pool("a", "b")
    leases = []
    for number in range(2):
        request = ask(*prompt(1, 100), *prompt(2 + number, 2))
        choice = chosen.pick(request, snapshot, NAMES, 0.0)
        assert choice is not None
        leases.append(chosen.take(choice, request, 0.0))
    assert {lease.replica for lease in leases} == {"a", "b"}
    for lease in leases:
        lease.first_token(1.6)
        lease.end(2.0)
    assert chosen.index.depths(prompt(1, 100)) == {"a": 100, "b": 100}
    first, second = balancer(), ask(*prompt(1, 100), *prompt(3, 2))
    home = _go(first, ask(*prompt(1, 100), *prompt(2, 2)), snapshot)
    assert {_go(first, second, snapshot) for _ in range(5)} == {home}


def test_the_end_of_a_long_prompt_is_where_its_beginning_is() -> None:
    """Only the first blocks are compared. What comes after them is taken to be cached with all of them, but for a block, and not with
    a part of them.
    """
    chosen, snapshot = balancer(), pool("a", "b")
    home = _go(chosen, ask(*prompt(1), tokens=50 * 128), snapshot)
    choice = chosen.pick(ask(*prompt(1), tokens=50 * 128), snapshot, NAMES, 1.0)
    assert choice is not None
    assert (choice.replica, choice.matched_tokens) == (home, 49 * 128)
    part = chosen.pick(ask(*prompt(1, 10), *prompt(2, 10), tokens=50 * 128), snapshot, NAMES, 1.0)
    assert part is not None
    assert part.matched_tokens in {0, 10 * 128}


def test_who_waited_at_the_gateway_is_not_read_twice() -> None:
    """A cache is worth more of a wait the longer all wait for room: here one that outweighs it where nobody had to."""
    chosen, snapshot = balancer(), pool("a", "b")
    request = ask(*prompt(1))
    home = _go(chosen, request, snapshot)
    busy = chosen.pick(ask(*prompt(2, 50)), snapshot, {home}, 0.0)
    assert busy is not None
    chosen.take(busy, ask(*prompt(2, 50)), 0.0)

    def goes(waited_s: float) -> bool:
        choice = chosen.pick(msgspec.structs.replace(request, waited_s=waited_s), snapshot, NAMES, 0.0)
        assert choice is not None
        return choice.replica == home

    assert not goes(0.0)
    assert goes(20.0)


def test_gateways_that_do_not_talk_agree_on_new_conversations() -> None:
    """Where nothing else speaks, the ring does: the same for each process, whatever its dice."""
    snapshot = pool(*NAMES)
    for root in range(20):
        picks = [balancer(seed).pick(ask(*prompt(1), root=root), snapshot, NAMES, 0.0) for seed in range(3)]
        assert len({pick.replica for pick in picks if pick is not None}) == 1
        assert {pick.why for pick in picks if pick is not None} == {"ring"}


def test_beginnings_that_nobody_has_are_dealt_out_evenly() -> None:
    """Whoever reads a beginning first has all that share it from then on: no replica gets two more of them than another, although they come while
    all are idle, and other requests in between go where theirs is.
    """
    chosen, snapshot = balancer(), pool(*NAMES)
    rng, homes = random.Random(5), dict[int, str]()
    for turn in range(400):
        number = len(homes) if len(homes) < 60 and turn % 3 == 0 else rng.randrange(len(homes))
        home = _go(chosen, ask(*prompt(number, 64), turn + 10**6, root=rng.getrandbits(64)), snapshot, float(turn))
        assert homes.setdefault(number, home) == home
    counts = Counter(homes.values())
    assert len(homes) == 60
    assert max(counts.values()) - min(counts[name] for name in NAMES) <= 2


def test_who_does_not_know_all_leaves_new_beginnings_to_the_ring() -> None:
    """A process that hears of two thirds of the requests sends a new prompt where the others would, whatever it has sent itself."""
    picked = []
    for seed in range(3):
        chosen = balancer(seed)
        for number in range(30):
            request = ask(*prompt(100 * seed + number, 10 + 10 * (number % 4)), root=seed)
            choice = chosen.pick(request, _of_others(*[0] * 8), NAMES, 0.0)
            assert choice is not None
            chosen.take(choice, request, 0.0).first_token(0.0)
        for now in range(1, 30):
            chosen.see(_of_others(*[6] * 8), float(now))
        assert not chosen.use_consistent_hashing
        asked = [ask(*prompt(9_000 + root), root=root) for root in range(8)]
        picks = [chosen.pick(each, _of_others(*[6] * 8), NAMES, 30.0) for each in asked]
        picked.append([each.replica for each in picks if each is not None])
    assert picked[0] == picked[1] == picked[2]


def test_the_ring_is_bounded_by_load() -> None:
    """One conversation's name that all requests share does not send all of them to one replica."""
    chosen, snapshot = balancer(), pool(*NAMES)
    picks: Counter[str] = Counter()
    for number in range(80):
        request = ask(*prompt(number, 1), root=7)
        choice = chosen.pick(request, snapshot, NAMES, 0.0)
        assert choice is not None
        chosen.take(choice, request, 0.0).first_token(0.0)
        picks[choice.replica] += 1
    assert len(picks) == len(NAMES)
    assert max(picks.values()) <= 80 / 8 * 1.25 + 1


def test_ties_make_no_hot_spot() -> None:
    """Where not even the ring speaks, dice do: all replicas are picked alike (chi-square, 7 degrees of freedom, 0.1 %)."""
    loads = [Load(name, 1 << at, PrefillSpeed(8_000, BalanceTuning())) for at, name in enumerate(NAMES)]
    rng = random.Random(3)
    rules = Rules(Ring(()), BalanceConfig())
    picks = Counter(choose(ask(*prompt(1)), loads, ((0, 0), {}), rules, 0.0, rng).replica for _ in range(8_000))
    assert sum((picks[name] - 1_000) ** 2 / 1_000 for name in NAMES) < 24.3


@given(st.integers(0, 2**32), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 5), min_size=8, max_size=8))
def test_a_decision_depends_on_its_arguments_alone(seed: int, root: int, depths: list[int]) -> None:
    """The same twice over, and nothing that it was given has changed."""
    loads = [Load(name, 1 << at, PrefillSpeed(8_000, BalanceTuning())) for at, name in enumerate(NAMES)]
    matched = ((0, 0), {1 << at: depth for at, depth in enumerate(depths) if depth})
    rules = Rules(Ring(NAMES), BalanceConfig())

    def decide() -> object:
        return choose(ask(*prompt(1), root=root), loads, matched, rules, 1.0, random.Random(seed))

    assert decide() == decide()


def test_unknown_is_not_idle() -> None:
    """A replica whose word is too old is as loaded as the mean, not empty."""
    busy = [replica(name, stats=stats(waiting=8)) for name in ("a", "b")]
    idle = replica("d", stats=stats())
    for seed in range(20):
        choice = balancer(seed).pick(ask(*prompt(1), root=seed), pool(*busy, replica("c"), idle), NAMES, 0.0)
        assert choice is not None
        assert choice.replica == "d"


def test_a_pool_of_which_nothing_is_known_is_served() -> None:
    """Engines without statistics are balanced by what was sent there."""
    chosen, snapshot = balancer(), pool(*(replica(name) for name in NAMES))
    picks: set[str] = set()
    for number in range(8):
        request = ask(*prompt(number, 100), root=number)
        choice = chosen.pick(request, snapshot, NAMES, 0.0)
        assert choice is not None
        chosen.take(choice, request, 0.0)
        picks.add(choice.replica)
    assert picks == set(NAMES)


def test_an_adapter_is_looked_for_where_it_is() -> None:
    """Loading it elsewhere would take longer than reading a short prompt."""
    snapshot = pool(*(replica(name, stats=stats(), adapters=("x",) if name == "c" else ()) for name in NAMES))
    choice = balancer().pick(ask(*prompt(1), root=5, adapter="x"), snapshot, NAMES, 0.0)
    assert choice is not None
    assert (choice.replica, choice.why) == ("c", "adapter")


def test_the_only_one_is_called_so() -> None:
    """A choice that was none is not counted as one."""
    choice = balancer().pick(ask(*prompt(1)), pool("a"), NAMES, 0.0)
    assert choice is not None
    assert choice.why == "only"


def test_a_full_replica_is_passed_over_while_another_is_not() -> None:
    """Even if everything is cached there; when all are full, the pool is."""
    chosen = balancer(room=RoomConfig(max_waiting=2))
    _go(chosen, ask(*prompt(1)), pool("a"))
    crowded = [replica(name, stats=stats(1.0, waiting=3)) for name in ("a", "b")]
    snapshot = pool(*crowded, "c")
    assert not chosen.full(snapshot, 1.0)
    assert _go(chosen, ask(*prompt(1)), snapshot, 1.0) == "c"
    assert chosen.full(pool(*crowded), 1.0)
    assert chosen.pick(ask(*prompt(1)), pool(*crowded), NAMES, 1.0) is not None
    assert not chosen.full(pool(), 1.0), "nobody there is not fullness"


@pytest.mark.parametrize("gone", ["left", "forgotten", "down", "restarted"])
def test_what_a_replica_had_goes_with_it(gone: str) -> None:
    """Who left the pool, or began anew, has nothing cached; and the end of what it carried harms nobody."""
    chosen = balancer()

    def told(tokens: float) -> Replica:
        return replica("a", stats=stats().__class__(at=tokens, running=0, waiting=0, prompt_tokens=tokens))

    request = ask(*prompt(1))
    before = pool(told(900.0), "b")
    choice = chosen.pick(request, before, {"a"}, 0.0)
    assert choice is not None
    _go(chosen, request, pool(told(901.0)))
    lease = chosen.take(choice, ask(*prompt(2)), 0.0)
    assert chosen.index.depths(request.blocks) == {"a": 20}
    if gone == "left":
        chosen.pick(request, pool("b"), NAMES, 1.0)
    elif gone == "forgotten":
        chosen.forget("a")
    elif gone == "down":
        chosen.pick(request, pool(replica("a", "down"), "b"), NAMES, 1.0)
    else:
        chosen.pick(request, pool(told(5.0), "b"), NAMES, 1.0)
    assert chosen.index.depths(request.blocks) == {}
    lease.end(2.0)
    lease.end(3.0)
    assert chosen.load("a").requests == 0
    assert chosen.index.depths(prompt(2)) == {}


def test_requests_that_fail_leave_no_belief() -> None:
    """What never gave a first token is not believed to be cached."""
    chosen, snapshot = balancer(), pool("a")
    choice = chosen.pick(ask(*prompt(1)), snapshot, NAMES, 0.0)
    assert choice is not None
    chosen.take(choice, ask(*prompt(1)), 0.0).end(1.0)
    assert chosen.index.depths(prompt(1)) == {}


def test_the_engines_size_limits_belief() -> None:
    """No more is believed to be cached than the KV cache holds, once it is known how much that is."""
    chosen = balancer()
    for number in range(100):
        now = float(number)
        _go(chosen, ask(*prompt(number)), pool("a", at=now), now)
    assert chosen.index.held("a") <= 100_000 / 128 + 20
    assert chosen.index.held("a") > 600


def test_belief_is_compared_with_the_engines_word() -> None:
    """How much was believed to be cached, and how much was, by the engine's own account."""
    chosen, snapshot = balancer(), pool("a")
    for believed in (0, 20 * 128):
        choice = chosen.pick(ask(*prompt(1)), snapshot, NAMES, 0.0)
        assert choice is not None
        lease = chosen.take(choice, ask(*prompt(1)), 0.0)
        lease.first_token(0.5)
        lease.end(1.0, cached_tokens=believed // 2, output_tokens=7)
    assert chosen.believed_tokens == 20 * 128 - 1
    assert chosen.found_tokens == 10 * 128


def test_requests_that_generate_are_spread() -> None:
    """Where nobody has to be waited for, the one with fewer answers under way is taken."""
    chosen = balancer()
    snapshot = pool(replica("a", stats=stats(running=9)), replica("b", stats=stats(running=2)))
    for root in range(10):
        choice = chosen.pick(ask(*prompt(1), root=root), snapshot, NAMES, 0.0)
        assert choice is not None
        assert choice.replica == "b"


def test_a_pool_of_suspects_has_no_more_room_than_another() -> None:
    """Overload makes replicas suspect, and must not let more in for that."""
    crowded = [replica(name, "suspect", stats=stats(waiting=100)) for name in "ab"]
    chosen = balancer()
    assert chosen.full(pool(*crowded), 0.0)
    assert not chosen.full(pool(crowded[0], replica("b", "suspect", stats=stats())), 0.0)


def _waiting(*waiting: int, tuning: BalanceTuning | None = None) -> list[Load]:
    """Replicas a, b, c with so long queues."""
    loads = [Load(name, 1 << at, PrefillSpeed(8_000, tuning or BalanceTuning())) for at, name in enumerate("abc")]
    for load, each in zip(loads, waiting, strict=True):
        load.read(stats(running=8, waiting=each, kv_usage=0.9), 0.0)
    return loads


def test_a_full_fleet_keeps_prefixes_together_and_its_queues_even() -> None:
    """Where all wait long, a prompt goes where it is cached although that is not the shortest queue; the longest one by
    far gets nothing more, whatever it has cached.
    """
    rules, rng = Rules(Ring("abc"), BalanceConfig()), random.Random(1)
    at_b: Matched = ((20, 0b010), {})
    choice = choose(ask(*prompt(1)), _waiting(40, 44, 60), at_b, rules, 3.0, rng)
    assert (choice.replica, choice.why) == ("b", "prefix")
    assert choose(ask(*prompt(2)), _waiting(40, 44, 60), ((0, 0), {}), rules, 3.0, rng).replica == "a"
    half: Matched = ((10, 0b010), {})
    assert choose(ask(*prompt(1)), _waiting(40, 400, 60), half, rules, 3.0, rng).replica != "b"


def _of_others(*running: int) -> PoolSnapshot:
    """Engines with so many requests each, none of which this process knows."""
    replicas = [replica(name, stats=stats(running=each)) for name, each in zip(NAMES, running, strict=False)]
    return pool(*replicas)


def test_who_knows_little_keeps_to_the_ring() -> None:
    """Gateways that hear nothing of each other send a conversation to the same replica, whatever each saw before; one that
    sees everything goes by what it knows.
    """
    first, second = balancer(1), balancer(2)
    for now in range(5):
        first.pick(ask(*prompt(1)), _of_others(*[9] * 8), NAMES, float(now))
        second.pick(ask(*prompt(1)), _of_others(*[9] * 8), NAMES, float(now))
    assert first.use_consistent_hashing
    assert second.use_consistent_hashing
    for root in range(30):
        picks = [
            chosen.pick(ask(*prompt(root), root=root), _of_others(*[9] * 8), NAMES, 9.0) for chosen in (first, second)
        ]
        assert len({pick.replica for pick in picks if pick is not None}) == 1
    alone = balancer()
    _go(alone, ask(*prompt(1)), pool(*NAMES))
    assert not alone.use_consistent_hashing


def test_engines_that_tell_what_they_have_need_no_ring() -> None:
    """Where KV events tell what is cached, it does not matter who sent it."""
    chosen = balancer()
    chosen.index.exact("a")
    for now in range(5):
        chosen.pick(ask(*prompt(1)), _of_others(*[9] * 8), NAMES, float(now))
    assert not chosen.use_consistent_hashing


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=8),
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 20), min_size=8, max_size=8),
    st.floats(1, 3),
)
def test_the_ring_is_bounded_and_repeatable(running: list[int], root: int, depths: list[int], bound: float) -> None:
    """Whoever is loaded beyond the bound gets nothing, so nobody's queue starves those behind it; somebody is always
    chosen, the same one without dice; and nothing is said to be cached that is not.
    """
    names = NAMES[: len(running)]
    loads = [Load(name, 1 << at, PrefillSpeed(8_000, BalanceTuning())) for at, name in enumerate(names)]
    for load, each in zip(loads, running, strict=True):
        load.read(stats(running=each), 0.0)
    matched = ((0, 0), {1 << at: depth for at, depth in enumerate(depths[: len(names)]) if depth})
    rules = Rules(Ring(names), BalanceConfig(load_bound=bound))
    choice = choose_along_ring(ask(*prompt(1), root=root), loads, matched, rules, 1.0)
    assert choice == choose_along_ring(ask(*prompt(1), root=root), loads, matched, rules, 1.0)
    at = names.index(choice.replica)
    assert running[at] < bound * (sum(running) + 1) / len(names)
    assert choice.matched_tokens <= depths[at] * 128


def test_a_tuned_constant_may_be_overridden() -> None:
    """Where prefill and place have no weight, a prompt goes to the shortest queue, wherever it is cached."""
    at_b: Matched = ((20, 0b010), {})

    def goes(tuning: BalanceTuning) -> str:
        loads, rules = _waiting(40, 44, 60, tuning=tuning), Rules(Ring("abc"), BalanceConfig(tuning=tuning))
        return choose(ask(*prompt(1)), loads, at_b, rules, 3.0, random.Random(1)).replica

    assert goes(BalanceTuning(first_duration_s=5)) == "b"
    assert goes(BalanceTuning(first_duration_s=5, prefill_weight=0, hold_weight=0)) == "a"
