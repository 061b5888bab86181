"""What the numbers of messages tell."""

from selfhosted.kv_events.sequence import Seen, Sequence


def seen(*numbers: int, wanted: int = 0) -> list[Seen]:
    sequence = Sequence()
    sequence.wanted = wanted
    found = []
    for number in numbers:
        found.append(sequence.see(number))
        sequence.taken(max(number, sequence.wanted - 1))
    return found


def test_in_order() -> None:
    """From 0 on nothing was missed; from another number on nobody knows what came before."""
    assert seen(0, 1, 2) == ["next"] * 3
    assert seen(7, 8) == ["first", "next"]


def test_gaps_and_restarts() -> None:
    """A number that was passed over is a gap; one that came before is another engine's."""
    assert seen(0, 2, 3) == ["next", "gap", "next"]
    assert seen(0, 1, 0) == ["next", "next", "restart"]
    assert seen(5, 5) == ["first", "restart"]


def test_a_replay_tells_ahead() -> None:
    """Live messages that a replay told already are known, not a restart."""
    sequence = Sequence()
    assert sequence.see(3) == "first"
    sequence.taken(5)
    assert [sequence.see(4), sequence.see(5), sequence.see(6)] == ["known", "known", "next"]


def test_after_a_lost_connection() -> None:
    """Nothing is expected of who answers next."""
    sequence = Sequence()
    sequence.see(0)
    sequence.taken(0)
    sequence.restarted()
    assert sequence.see(9) == "first"
