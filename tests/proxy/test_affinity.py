"""Which conversations are remembered, and for how long."""

from proxy.affinity import Affinity, Sticky


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_long_conversation_is_remembered_within_the_cache_life() -> None:
    """After the life of a provider's prompt cache nothing is worth sticking for."""
    clock = Clock()
    affinity = Affinity(clock, life_s=300)
    affinity.remember("t", b"c", "gpt-4o", 2_000)
    assert affinity.lookup("t", b"c") == Sticky("gpt-4o", 2_000)
    clock.now = 301
    assert affinity.lookup("t", b"c") is None


def test_a_short_conversation_is_not_remembered() -> None:
    """Below the cacheable minimum a move loses nothing."""
    affinity = Affinity(Clock())
    affinity.remember("t", b"c", "gpt-4o", 1_023)
    assert affinity.lookup("t", b"c") is None


def test_teams_do_not_share_conversations() -> None:
    """The same digest in another team is another conversation."""
    affinity = Affinity(Clock())
    affinity.remember("a", b"c", "gpt-4o", 2_000)
    assert affinity.lookup("b", b"c") is None


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    """An adversarial stream of sessions cannot grow it."""
    affinity = Affinity(Clock(), max_conversations=2)
    for name in (b"1", b"2", b"1", b"3"):
        affinity.remember("t", name, "x", 5_000)
    assert affinity.lookup("t", b"2") is None
    assert affinity.lookup("t", b"1") is not None
