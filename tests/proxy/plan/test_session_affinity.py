"""Which conversations are remembered, and for how long."""

from proxy.plan.session_affinity import TURN_LIFE_S, Affinity, Kept, Sticky, TurnChoice


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


def test_a_turns_target_is_remembered_by_its_raises() -> None:
    """The most raises up to those asked for; another turn, conversation or team knows nothing of it."""
    clock = Clock()
    affinity = Affinity(clock)
    affinity.remember_turn("t", b"c", 1, "mini", 0)
    affinity.remember_turn("t", b"c", 1, "big", 1, 2)
    found = affinity.turn_choice("t", b"c", 1)
    assert found is not None
    assert [found.at(raises) for raises in range(4)] == [
        Kept("mini", 0),
        Kept("big", 1),
        Kept("big", 2),
        Kept("big", 2),
    ]
    assert TurnChoice({1: "big"}).at(0) is None
    assert [affinity.turn_choice(*key) for key in (("t", b"c", 2), ("t", b"d", 1), ("u", b"c", 1))] == [None] * 3
    clock.now = TURN_LIFE_S + 1
    assert affinity.turn_choice("t", b"c", 1) is None


def test_the_memory_of_turns_is_bounded_too() -> None:
    """The one that was answered longest ago goes first."""
    affinity = Affinity(Clock(), max_conversations=2)
    for turn in (1, 2, 1, 3):
        affinity.remember_turn("t", b"c", turn, "mini", 0)
    assert affinity.turn_choice("t", b"c", 2) is None
    assert affinity.turn_choice("t", b"c", 1) is not None
