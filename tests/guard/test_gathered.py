"""What is gathered of an answer for those who are asked about it."""

from guard.gathered import MOST_CHARS, Gathered


def test_each_text_is_asked_about_once_and_windows_overlap() -> None:
    """Some wires say a text several times; what came before a window is shown with it, and texts that ended are forgotten."""
    gathered = Gathered(600)
    first, second = gathered.heard(), gathered.heard()
    first.add("a" * 300)
    due = [gathered.is_due]
    second.add("b" * 300)
    assert [*due, gathered.is_due] == [False, True]
    assert gathered.taken() == ["a" * 300, "b" * 300]
    assert (gathered.unasked_chars, gathered.taken()) == (0, [])
    first.add("c")
    first.ended = True
    assert gathered.taken() == ["a" * 300 + "c"]
    again = gathered.heard()
    again.add("a" * 300 + "c")
    again.add("")
    assert gathered.taken() == []
    blank = gathered.heard()
    blank.add(" \n")
    assert gathered.taken() == []


def test_nothing_is_gathered_while_the_request_is_repeated() -> None:
    """A response holds its request's instructions and tools."""
    gathered = Gathered(None)
    heard = gathered.heard()
    with gathered.paused():
        heard.add("the caller's own")
    heard.add("x" * (MOST_CHARS - 1))
    due = [gathered.is_due]
    heard.add("y")
    assert [*due, gathered.is_due] == [False, True]
