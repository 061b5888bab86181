"""What is believed to be cached where."""

import random
import tracemalloc
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from selfhosted.balance.index import PrefixIndex
from tests.examples import examples
from tests.selfhosted.balance.pool import prompt

NAMES = ("a", "b", "c")
PROMPTS = st.lists(st.integers(1, 40), max_size=12, unique=True).map(tuple)


def _read(index: PrefixIndex, replica: str, blocks: Sequence[int]) -> None:
    count = index.pin(replica, blocks)
    index.unpin(replica, blocks[:count], count)


def test_depths_count_leading_blocks_alone() -> None:
    """What comes after the first block that is missing does not help."""
    index = PrefixIndex(1_000)
    index.store("a", (1, 2, 3, 4))
    index.store("b", (1, 2))
    index.store("c", (1,))
    index.store("d", (7,))
    index.remove("a", (3,))
    assert index.depths((1, 2, 3, 4)) == {"a": 2, "b": 2, "c": 1}
    assert index.depths((9,)) == index.depths(()) == {}


@given(st.dictionaries(st.sampled_from([f"r{n}" for n in range(70)]), st.integers(0, 9), max_size=70))
def test_depths_are_right_for_many_replicas(held: dict[str, int]) -> None:
    """However many hold however much of it, each is told with just that."""
    index = PrefixIndex(100_000)
    blocks = prompt(1, 9)
    for name, depth in held.items():
        index.store(name, blocks[:depth])
    assert index.depths(blocks) == {name: depth for name, depth in held.items() if depth}


class Used(RuleBasedStateMachine):
    """The index, and a simple one beside it that knows what must be true whatever happens."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(30)
        self.pins: list[tuple[str, tuple[int, ...]]] = []

    @rule(name=st.sampled_from(NAMES), blocks=PROMPTS)
    def pin(self, name: str, blocks: tuple[int, ...]) -> None:
        count = self.index.pin(name, blocks)
        self.pins.append((name, blocks[:count]))

    @rule(data=st.data(), read=st.integers(0, 12))
    def unpin(self, data: Any, read: int) -> None:
        if self.pins:
            name, blocks = self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1)))
            self.index.unpin(name, blocks, read)

    @rule(name=st.sampled_from(NAMES), blocks=PROMPTS)
    def store(self, name: str, blocks: tuple[int, ...]) -> None:
        self.index.store(name, blocks)

    @rule(name=st.sampled_from(NAMES), blocks=PROMPTS)
    def remove(self, name: str, blocks: tuple[int, ...]) -> None:
        self.index.remove(name, blocks)

    @rule(name=st.sampled_from(NAMES))
    def clear(self, name: str) -> None:
        self.index.clear(name)

    @rule(name=st.sampled_from(NAMES))
    def forget(self, name: str) -> None:
        self.index.forget(name)
        self.pins = [each for each in self.pins if each[0] != name]
        assert self.index.held(name) == 0
        assert name not in self.index.depths(range(1, 41))

    @rule(name=st.sampled_from(NAMES), blocks=st.none() | st.integers(0, 20), taken=st.integers(0, 9))
    def capacity(self, name: str, blocks: int | None, taken: int) -> None:
        self.index.capacity(name, blocks, taken)

    @rule(name=st.sampled_from(NAMES), on=st.booleans())
    def exact(self, name: str, on: bool) -> None:
        self.index.exact(name, on)
        assert self.index.is_exact(name) is on

    @invariant()
    def bounded(self) -> None:
        assert len(self.index) <= 30

    @invariant()
    def consistent(self) -> None:
        """A bit is set for just those that hold the block."""
        index = self.index
        expected: dict[int, int] = {}
        for entry in index._replicas.values():
            for block in {*entry.blocks, *entry.pinned}:
                expected[block] = expected.get(block, 0) | entry.bit
        assert index._holders == expected


TestUsed = Used.TestCase
TestUsed.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_memory_stays_bounded_under_prompts_that_never_repeat() -> None:
    """An adversary who never sends anything twice makes the index neither larger than its bound in entries nor in bytes."""
    rng = random.Random(1)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        index = PrefixIndex(5_000)
        for number in range(800):
            blocks = tuple(rng.getrandbits(62) for _ in range(40))
            _read(index, f"r{number % 8}", blocks)
            assert len(index) <= 5_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 5_000 * 512


def test_a_shared_beginning_survives_a_flood() -> None:
    """A system prompt that is used now and then stays, as in an engine, while prompts that are all different come and go."""
    index = PrefixIndex(100_000)
    index.capacity("a", 200)
    system = prompt(0, 10)
    for number in range(1, 200):
        _read(index, "a", prompt(number))
        if number % 5 == 0:
            assert number == 5 or index.depths(system) == {"a": 10}
            _read(index, "a", system + prompt(1_000 + number, 5))
    assert index.depths(prompt(1)) == {}
    assert index.held("a") == 200


def test_a_prompts_end_goes_before_its_beginning() -> None:
    """When room for half of it is needed, the half that helps is kept."""
    index = PrefixIndex(1_000)
    index.capacity("a", 20)
    _read(index, "a", prompt(1, 20))
    _read(index, "a", prompt(2, 10))
    assert index.depths(prompt(1, 20)) == {"a": 10}


def test_what_running_requests_use_is_not_given_up() -> None:
    """Engines cannot evict it, so neither does the index."""
    index = PrefixIndex(1_000)
    index.capacity("a", 20)
    index.pin("a", prompt(1, 15))
    for number in range(2, 9):
        _read(index, "a", prompt(number, 15))
    assert index.depths(prompt(1, 15)) == {"a": 15}


def test_what_others_occupy_leaves_less_room() -> None:
    """Blocks that answers and other gateways' requests take hold no prefixes."""
    index = PrefixIndex(1_000)
    index.capacity("a", 20)
    _read(index, "a", prompt(1, 20))
    index.capacity("a", 20, 12)
    assert index.held("a") == 8


def test_a_failed_request_leaves_only_what_was_there() -> None:
    """What was never read is not believed to be cached."""
    index = PrefixIndex(1_000)
    _read(index, "a", prompt(1, 4))
    count = index.pin("a", prompt(1, 9))
    assert index.depths(prompt(1, 9)) == {"a": 9}
    index.unpin("a", prompt(1, 9)[:count], 4)
    assert index.depths(prompt(1, 9)) == {"a": 4}


def test_exact_knowledge_is_not_inferred_over() -> None:
    """Where the engine tells what it caches, a request leaves nothing behind that was not told, and nothing is evicted by
    guess.
    """
    index = PrefixIndex(1_000)
    index.exact("a")
    index.capacity("a", 2)
    index.store("a", prompt(1, 6))
    assert index.depths(prompt(1, 9)) == {"a": 6}
    count = index.pin("a", prompt(1, 9))
    assert index.depths(prompt(1, 9)) == {"a": 9}, "who comes next finds it there"
    index.remove("a", prompt(1, 9)[5:6])
    index.unpin("a", prompt(1, 9)[:count], 9)
    assert index.depths(prompt(1, 9)) == {"a": 5}


def test_a_newcomer_takes_its_share() -> None:
    """More replicas share the same bound, at once."""
    index = PrefixIndex(60)
    index.pin("a", prompt(1, 30))
    index.store("a", prompt(2, 30))
    index.store("b", prompt(3, 30))
    index.store("c", prompt(4, 30))
    assert len(index) <= 60
    assert index.held("c") == 20
