"""Consistent hashing."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from selfhosted.balance.ring import Ring

NAMES = st.lists(st.text("abcdef0123", min_size=1, max_size=6), min_size=1, max_size=12, unique=True)


@given(NAMES, st.integers(0, 2**64 - 1))
def test_a_walk_meets_everybody_once(names: list[str], root: int) -> None:
    """Nobody is left out, and the home comes first."""
    ring = Ring(names)
    walk = list(ring.walk(root))
    assert sorted(walk) == sorted(names)
    assert ring.home(root) == walk[0]


@given(NAMES, st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_the_first_are_those_of_the_walk(names: list[str], roots: list[int]) -> None:
    """However often, and for whatever other conversation, they were asked for before."""
    ring = Ring([*names, *(f"r{number}" for number in range(10))])
    for root in roots + roots:
        assert ring.first(root) == tuple(ring.walk(root))[:16]
    assert Ring(()).first(1) == ()


@given(NAMES, st.integers(0, 2**64 - 1))
def test_who_leaves_moves_only_its_own(names: list[str], root: int) -> None:
    """Conversations at home with others stay where they are."""
    before = list(Ring(names).walk(root))
    for gone in names:
        assert list(Ring([name for name in names if name != gone]).walk(root)) == [
            name for name in before if name != gone
        ]


@given(NAMES, st.randoms(use_true_random=False), st.integers(0, 2**64 - 1))
def test_the_order_of_names_does_not_matter(names: list[str], rng: object, root: int) -> None:
    """Gateways that were told of replicas in different order agree."""
    assert list(Ring(names).walk(root)) == list(Ring(reversed(names)).walk(root))


def test_homes_are_spread() -> None:
    """Conversations, also those that are numbered one after the other, are at home everywhere about alike."""
    ring = Ring(f"replica-{number}" for number in range(16))
    homes = Counter(ring.home(root) for root in range(16_000))
    assert len(homes) == 16
    assert max(homes.values()) < 1_500
    assert min(homes.values()) > 600


def test_homes_are_those_of_earlier_versions() -> None:
    """Gateways of two versions, side by side during an update, agree."""
    ring = Ring(["a", "b", "c", "d"])
    assert [ring.home(root) for root in range(8)] == ["a", "a", "b", "a", "b", "c", "b", "c"]


def test_an_empty_ring_is_nobodys_home() -> None:
    """Without replicas there is no answer, and no failure."""
    assert Ring(()).home(1) is None
