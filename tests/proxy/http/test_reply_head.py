"""The head of a reply, and its fields as lines."""

import pytest

from proxy.http.reply_head import field_lines, fields_of, reply_head

FIELDS = [(b"x-a", b"1"), (b"x-b", b"it: has a colon"), (b"x-c", b"")]


def test_lines_hold_their_fields() -> None:
    """What was made of fields is read as the same ones; none are no lines."""
    assert field_lines(FIELDS) == b"x-a: 1\r\nx-b: it: has a colon\r\nx-c: \r\n"
    assert fields_of(field_lines(FIELDS)) == FIELDS
    assert (field_lines([]), fields_of(b"")) == (b"", [])


@pytest.mark.parametrize("value", [b"1\r\nx-b: 2", b"1\n", b"\r", b"1\0"])
def test_a_field_stays_in_its_line(value: bytes) -> None:
    """Nobody's value makes a line of its own."""
    with pytest.raises(ValueError, match="no line ends"):
        field_lines([(b"x-a", value)])


def test_what_the_server_writes_itself_is_left_out() -> None:
    """Whoever hands on another server's fields need not know which."""
    head = reply_head(200, [(b"date", b"then"), (b"x-a", b"1")], b"date: now\r\n\r\n")
    assert head == b"HTTP/1.1 200 OK\r\nx-a: 1\r\ndate: now\r\n\r\n"
    assert reply_head(799, [], b"\r\n") == b"HTTP/1.1 799 \r\n\r\n"
