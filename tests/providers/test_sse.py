"""The SSE parser gives the same payloads wherever the network cuts the bytes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.sse import EventTooLarge, SseParser

STREAM = (
    b'\xef\xbb\xbf: hello\n\ndata: {"a":1}\n\ndata:{"b":2}\r\n\r\nevent: x\rid: 7\rdata: one\rdata: two\r\r'
    b"retry: 5\ndata\ndata: after\n\nevent: nothing\n\n\n\ndata: \xc3\xa9\n\ndata: [DONE]\n\n"
)
PAYLOADS = [b'{"a":1}', b'{"b":2}', b"one\ntwo", b"\nafter", "é".encode(), b"[DONE]"]


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


def payloads(reads: list[bytes]) -> list[bytes]:
    parser = SseParser()
    return [payload for read in reads for payload in parser.feed(read)]


def test_fields_line_ends_comments_and_bom() -> None:
    """All that the event-stream rules allow is read: three line ends, comments, joined data, a BOM."""
    assert payloads([STREAM]) == PAYLOADS


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_any_split_gives_the_same_payloads(cuts: list[int]) -> None:
    """Where a stream is cut into reads does not matter."""
    assert payloads(split(STREAM, cuts)) == PAYLOADS


def test_a_byte_at_a_time() -> None:
    """Reads of one byte give what one read gives."""
    assert payloads([bytes([byte]) for byte in STREAM]) == PAYLOADS


_line = st.sampled_from([b"data: x", b"data:y", b"data", b": note", b"event: e", b"", b"data: " + b"z" * 30, b"id"])


@given(st.lists(st.tuples(_line, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=20), st.data())
def test_generated_streams_split_anywhere(lines: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    """Any stream of lines, cut anywhere, gives what it gives a byte at a time."""
    stream = b"".join(line + end for line, end in lines)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10))
    assert payloads(split(stream, cuts)) == payloads([bytes([byte]) for byte in stream])


def test_fast_and_slow_paths_agree() -> None:
    """A read of whole events gives the same payloads as the line by line path."""
    read = b'data: {"n":1}\n\ndata: {"n":2}\n\ndata: [DONE]\n\n'
    assert payloads([read]) == payloads([b": slow\n" + read]) == [b'{"n":1}', b'{"n":2}', b"[DONE]"]


def test_an_unfinished_last_event() -> None:
    """Servers that omit the last empty line lose nothing; `finish` gives it once."""
    parser = SseParser()
    assert parser.feed(b"data: x\n\ndata: [DONE]") == [b"x"]
    assert parser.finish() == [b"[DONE]"]
    assert parser.finish() == []


@pytest.mark.parametrize(
    "reads",
    [
        [b"data: " + b"x" * 200 + b"\n\n"],
        [b"data: " + b"x" * 200],
        [b"data: " + b"x" * 60, b"x" * 60],
        [b"data: " + b"x" * 60 + b"\n", b"data: " + b"x" * 60 + b"\n"],
        [b"event: " + b"x" * 60 + b"\n"] * 2,
        [b"x"] * 200,
    ],
)
def test_an_event_is_bounded(reads: list[bytes]) -> None:
    """An event longer than the bound is refused, however it arrives."""
    parser = SseParser(max_event_bytes=100)
    with pytest.raises(EventTooLarge):
        list(map(parser.feed, reads))
