"""Which of the pools that share GPUs is awake, in simulated time."""

import math
import random
from typing import Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfhosted.model_swap.swap_state import read, written
from selfhosted.model_swap.turns import (
    DOWN_S,
    MOVE_S,
    Moves,
    PoolNow,
    Rules,
    Turns,
    decide,
    opens_in_s,
    pays,
    rests,
)
from tests.examples import examples

RULES: Final = Rules(pools=("a", "b"), least_awake_s=30, most_wait_s=120, drain_s=60, switch_s=20)


class Box:
    """GPUs with an engine of each pool, and callers who come at random. A step is a second."""

    def __init__(self, rules: Rules, *, sleep_s: int = 3, wake_s: int = 5, seed: int = 0) -> None:
        self.rules = rules
        self.turns = Turns()
        self.rng = random.Random(seed)
        self.sleep_s, self.wake_s = sleep_s, wake_s
        self.at = 0
        self.state = dict.fromkeys(rules.pools, "asleep")
        self.moving: dict[str, int] = {}
        """When an engine is where it is sent."""
        self.waiting: dict[str, list[int]] = {pool: [] for pool in rules.pools}
        """When those came who wait."""
        self.running: dict[str, list[int]] = {pool: [] for pool in rules.pools}
        """When those are done who are served."""
        self.waits: dict[str, list[int]] = {pool: [] for pool in rules.pools}
        self.cut = 0
        self.woken: list[tuple[int, str]] = []
        self.paid = dict.fromkeys(rules.pools, 0)
        self.kept: list[tuple[int, bool]] = []
        """For how long pools were awake, and whether they still had work then."""
        self.broken: set[str] = set()
        """Engines that do not wake."""
        self.stuck: set[str] = set()
        """Engines that do not fall asleep."""

    def step(self, rates: dict[str, float], answer_s: int = 4, seats: int = 4) -> None:
        self.at += 1
        for pool, rate in rates.items():
            self.waiting[pool] += [self.at] * (math.floor(rate) + (self.rng.random() < rate % 1))
        for pool, done in list(self.moving.items()):
            if done <= self.at:
                self.state[pool] = "asleep" if self.state[pool] == "falling" else "up"
                del self.moving[pool]
        for pool in self.rules.pools:
            self.running[pool] = [done for done in self.running[pool] if done > self.at]
        before = self.turns
        self.turns, moves = decide(self.rules, before, self.now(), self.at, 1)
        self.apply(before, moves)
        for pool in self.rules.pools:
            while not rests(self.turns, pool) and self.waiting[pool] and len(self.running[pool]) < seats:
                assert self.state[pool] == "up", "nobody is sent to an engine that sleeps"
                self.waits[pool].append(self.at - self.waiting[pool].pop(0))
                self.running[pool].append(self.at + answer_s)
        paying = pays(self.turns)
        if paying is not None:
            self.paid[paying] += 1

    def now(self) -> dict[str, PoolNow]:
        return {
            pool: PoolNow(
                waiting=len(self.waiting[pool]),
                running=len(self.running[pool]),
                up=self.state[pool] in ("up", "falling"),
                asleep=self.state[pool] in ("asleep", "waking"),
            )
            for pool in self.rules.pools
        }

    def apply(self, before: Turns, moves: Moves) -> None:
        if before.phase == "awake" and self.turns.phase in ("draining", "sleeping"):
            busy = bool(self.running[before.awake] or self.waiting[before.awake])
            self.kept.append((self.at - round(before.since), busy))
        if before.phase != "awake" and self.turns.phase == "awake":
            self.woken.append((self.at, self.turns.awake))
        for pool in moves.sleep:
            if self.state[pool] == "up" and pool not in self.stuck:
                assert before.phase != "draining" or self.at - before.since >= self.rules.settle_s
                self.cut += len(self.running[pool])
                self.running[pool] = []
                self.state[pool], self.moving[pool] = "falling", self.at + self.sleep_s
        woken = moves.wake
        if woken is not None and self.state[woken] == "asleep" and woken not in self.broken:
            assert all(state == "asleep" for state in self.state.values()), "two models do not fit"
            self.state[woken], self.moving[woken] = "waking", self.at + self.wake_s

    @property
    def longest_wait_s(self) -> int:
        waits = [wait for each in self.waits.values() for wait in each]
        still = [self.at - came for each in self.waiting.values() for came in each]
        return max(waits + still, default=0)


def test_the_first_pool_is_woken_and_nobody_is_switched_for_nothing() -> None:
    """Without a demand the first pool stays awake; what only one pool is asked for never switches."""
    box = Box(RULES)
    for _ in range(100):
        box.step({"a": 0.0})
    assert box.woken == [(box.woken[0][0], "a")]
    for _ in range(400):
        box.step({"a": 0.5})
    assert [pool for _, pool in box.woken] == ["a"]


def test_an_idle_pool_makes_room_at_once_and_a_busy_one_once_it_is_worth_it() -> None:
    """A single request wakes a model while the other one has nothing to do; beside a busy one it waits longer, up to the bound."""
    idle, busy = Box(RULES), Box(RULES)
    for box, rate in ((idle, 0.0), (busy, 2.0)):
        for _ in range(60):
            box.step({"a": rate})
        box.waiting["b"].append(box.at)
        while not box.waits["b"]:
            box.step({"a": rate})
    assert idle.waits["b"][0] <= RULES.settle_s + 3 + 5 + 4
    assert idle.waits["b"][0] < busy.waits["b"][0] <= 120 + 4 + RULES.settle_s + 3 + 5 + 4
    assert busy.cut == 0


@settings(max_examples=examples(15), deadline=None)
@given(
    rates=st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0, 3.0]), min_size=2, max_size=4),
    least_s=st.sampled_from([0, 10, 30, 60]),
    answer_s=st.integers(1, 20),
    seed=st.integers(0, 1_000),
)
def test_one_is_awake_nobody_starves_and_nothing_flaps(
    rates: list[float], least_s: int, answer_s: int, seed: int
) -> None:
    """Whatever comes: one model is in the GPUs at a time, none is switched before its time, nobody is cut off before `drain_s`, the
    first of those who wait is served within the bound, and every second of the GPUs is paid for by one pool.
    """
    pools = tuple("abcd"[: len(rates)])
    rules = Rules(pools=pools, least_awake_s=least_s, most_wait_s=90, drain_s=40, switch_s=15)
    box, demand = Box(rules, seed=seed), dict(zip(pools, rates, strict=True))
    turn_s = max(least_s, 1) + 40 + 3 + 5 + 3
    waits_since = dict.fromkeys(pools, 0)
    for _ in range(700):
        box.step(demand, answer_s)
        for pool in pools:
            if not rests(box.turns, pool) or not box.waiting[pool]:
                waits_since[pool] = box.at
            assert box.at - waits_since[pool] <= 90 + len(pools) * turn_s
    assert box.cut == 0
    assert all(kept_s >= least_s for kept_s, busy in box.kept if busy)
    assert sum(box.paid.values()) == box.at


def test_two_models_are_carried_that_first_come_first_served_does_not_carry() -> None:
    """Who switches with every request for another model does little else under load; at a low load nobody waits much longer."""
    first_come = msgspec.structs.replace(RULES, least_awake_s=0, most_wait_s=1)
    for rate, most_longer_s in ((0.05, 3.0), (0.2, -100.0)):
        waits: list[float] = []
        for rules in (RULES, first_come):
            box = Box(rules, seed=1)
            for _ in range(3_600):
                box.step({"a": rate, "b": rate})
            everybody = [wait for each in box.waits.values() for wait in each]
            waits.append(sum(everybody) / len(everybody))
        assert waits[0] - waits[1] <= most_longer_s


def test_what_is_expected_is_about_what_comes() -> None:
    """Who comes while another pool is idle is told about how long it takes, once that has been measured."""
    box = Box(RULES)
    for _ in range(4):
        for pool in ("b", "a"):
            box.waiting[pool].append(box.at)
            for _ in range(60):
                box.step({})
    expected_s = opens_in_s(RULES, box.turns, "b", box.at)
    box.waiting["b"].append(box.at)
    served = len(box.waits["b"])
    while len(box.waits["b"]) == served:
        box.step({})
    assert box.waits["b"][-1] == pytest.approx(expected_s, abs=3)


def test_an_engine_that_does_not_wake_or_sleep_takes_nothing_from_the_others() -> None:
    """One that does not wake is left alone for a while, and the other one serves; one that does not let go goes on serving."""
    for broken in ("broken", "stuck"):
        box = Box(RULES)
        for _ in range(40):
            box.step({"a": 0.1})
        (box.broken if broken == "broken" else box.stuck).add("b" if broken == "broken" else "a")
        box.waiting["b"].append(box.at)
        for _ in range(round(MOVE_S) + 300):
            box.step({"a": 0.1})
        assert box.turns.failed
        assert (box.turns.phase, box.turns.awake) == ("awake", "a")
        assert box.longest_wait_s >= 300
        assert len(box.waits["a"]) > 10


def test_an_engine_that_is_down_gets_the_memory_to_start_for_a_while() -> None:
    """The GPUs are kept free for it for minutes, and then given to those who wait."""
    turns = Turns(awake="a", phase="waking", next="b", since=0.0)
    now = {"a": PoolNow(asleep=1, waiting=1), "b": PoolNow()}
    for at in (10.0, DOWN_S - 1):
        turns, moves = decide(RULES, turns, now, at, 1)
        assert (turns.phase, turns.next, moves) == ("waking", "b", Moves())
    turns, _ = decide(RULES, turns, now, DOWN_S + 1, 1)
    assert (turns.phase, turns.next) == ("sleeping", "a")


def test_unknown_is_not_idle() -> None:
    """A pool whose engines tell nothing is drained for all of `drain_s`, and not taken to serve nobody."""
    now = {"a": PoolNow(up=1, running=None), "b": PoolNow(asleep=1, waiting=1)}
    turns, _ = decide(RULES, Turns(awake="a", phase="awake"), now, 100.0, 1)
    assert turns.phase == "awake"
    turns = Turns(awake="a", phase="draining", next="b", since=0.0)
    assert decide(RULES, turns, now, 59.0, 1)[0].phase == "draining"
    assert decide(RULES, turns, now, 60.0, 1)[0].phase == "sleeping"


def test_who_waited_and_went_stops_a_switch_that_has_not_begun() -> None:
    """The pool that drains takes work again, and is asked again as soon as somebody comes."""
    now = {"a": PoolNow(up=1, running=3), "b": PoolNow(asleep=1)}
    turns, moves = decide(RULES, Turns(awake="a", phase="draining", next="b", since=0.0), now, 10.0, 1)
    assert (turns.phase, turns.awake, turns.next, moves) == ("awake", "a", "", Moves())
    now["b"] = PoolNow(asleep=1, waiting=200)
    assert decide(RULES, turns, now, 11.0, 1)[0].phase == "draining"


def test_who_was_turned_away_counts() -> None:
    """Where nobody can wait as long as a switch takes, those who went elsewhere are the demand."""
    turns = Turns(awake="a", phase="awake")
    for at in range(31, 40):
        now = {"a": PoolNow(up=1, running=1), "b": PoolNow(asleep=1, turned_away=1)}
        turns, _ = decide(RULES, turns, now, float(at), 1)
    assert turns.phase == "draining"


def test_turns_are_stored_and_read_and_other_pools_begin_anew() -> None:
    """What is stored survives; what another configuration, or nonsense, stored does not stop the pools."""
    turns = Turns(awake="a", phase="draining", next="b", since=5.0, took={"wake b": 7.5})
    assert read(written(turns), 9.0) == msgspec.structs.replace(turns, since=9.0)
    assert [read(text, 1.0) for text in ("", "{", '{"phase": "gone"}', "x" * 10_000)] == [None] * 4
    now = {"a": PoolNow(asleep=1), "b": PoolNow(up=1)}
    found, moves = decide(RULES, Turns(awake="z", phase="waking", next="z"), now, 1.0, 1)
    assert (found.next, moves) == ("a", Moves(sleep=("b",)))
    assert rests(None, "a")
    assert pays(None) is None


def test_who_is_watched_by_nobody_counts_little() -> None:
    """Thirty lines of a batch that run are no reason to let one person wait for long."""
    waits = {"b": PoolNow(asleep=1, waiting=1)}
    seconds = []
    for batch in (0, 30):
        turns, at = Turns(awake="a", phase="awake"), 100
        while turns.phase == "awake":
            at += 1
            turns, _ = decide(RULES, turns, {"a": PoolNow(up=1, running=30, batch=batch), **waits}, float(at), 1)
        seconds.append(at - 100)
    assert seconds[0] >= 120
    assert seconds[1] <= 41
