"""Messages within one process."""

import msgspec

from selfhosted.health.bulletin import Bulletin


class Note(msgspec.Struct, frozen=True):
    text: str


def test_who_comes_late_is_told_the_newest_of_each_key() -> None:
    """And from then on everything; of what was forgotten nothing."""
    board, early, late = Bulletin(), list[str](), list[str]()
    board.subscribe(lambda note: early.append(note.text))
    for key, text in (("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1")):
        board.publish(key, Note(text))
    board.forget("c")
    board.subscribe(lambda note: late.append(note.text))
    board.publish("b", Note("b2"))
    assert early == ["a1", "b1", "a2", "c1", "b2"]
    assert late == ["b1", "a2", "b2"]
