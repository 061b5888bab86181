"""Runs of words say what their events say one by one, wherever a stream is cut into reads."""

import json
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.connections.connection import Connection
from providers.connections.pool import ConnectionPool
from providers.delta_coalescing import DeltaCoalescer, FoundRun
from providers.held_bytes import HeldBytes, Share
from providers.http_client import HttpLimits, _Stream
from providers.wire import Event, WireUsage, decode_event
from tests.providers.calls import deployment, tokens_of, upstream_call
from tests.providers.test_sse import split

HEAD = b'{"id":"c-1","choices":[{"index":0,"delta":{"content":"'
TAIL = b'"},"finish_reason":null}]}'


def words(text: str) -> bytes:
    return HEAD + json.dumps(text)[1:-1].encode() + TAIL


def sse(*payloads: bytes) -> bytes:
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads)


def counted(payload: bytes, tokens: int) -> bytes:
    """An event that tells the usage so far, too."""
    return payload[:-1] + b',"usage":{"prompt_tokens":1,"completion_tokens":%d}}' % tokens


def bare(payload: bytes) -> bytes:
    return payload.partition(b',"usage"')[0].removesuffix(b"}") + b"}"


def found_in(*payloads: bytes) -> FoundRun | None:
    return DeltaCoalescer().find(sse(*payloads))


def payloads_of(event: Event) -> list[bytes]:
    """What the upstream wrote."""
    run = event.run
    return [event.payload] if run is None else [run.before + piece + run.after for piece in run.pieces.split(b"\n")]


ROLE = words("").replace(b'{"content"', b'{"role":"assistant","content"')
FINISH = b'{"id":"c-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = b'{"id":"c-1","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}'


def test_a_run_is_one_event() -> None:
    """Its text is all their texts; what came before and behind it is left."""
    read = sse(ROLE, words("Don't"), words(" \"pass\" 'é'\n"), words(""), words(" me\\by"), FINISH, USAGE)
    found = DeltaCoalescer().find(read)
    assert found is not None
    event = found.event
    assert event.words == "Don't \"pass\" 'é'\n me\\by"
    assert (event.token, event.choices, event.finished, event.usage) == (True, 1, False, None)
    assert msgspec.structs.replace(event, run=None) == decode_event(event.payload, "")
    assert event.run is not None
    assert event.run.tokens == 3
    assert read[: found.start] == sse(ROLE)
    assert read[found.end :] == sse(FINISH, USAGE)
    assert sse(*payloads_of(event)) == read[found.start : found.end]


@pytest.mark.parametrize(
    "payloads",
    [
        pytest.param((words("a"),), id="one event"),
        pytest.param((words("a"), FINISH, words("b")), id="another between them"),
        pytest.param((words("a"), words("b\\"), words("c")), id="a mark that a backslash may belong to"),
        pytest.param((words("a"), HEAD + b'b"' + TAIL, words("c")), id="a mark too many"),
        pytest.param((words("a"), HEAD + b'b","c' + TAIL), id="two texts"),
        pytest.param(
            (words("a"), HEAD + b'\\","' + TAIL, HEAD + b',"b' + TAIL), id="marks that make up for each other"
        ),
        pytest.param((words("a"), HEAD + b"\\x" + TAIL), id="an escape that is none"),
        pytest.param((words("a"), HEAD + b"\xff" + TAIL), id="no UTF-8"),
        pytest.param((words("a"), HEAD + b"\\ud83d" + TAIL), id="half a letter"),
        pytest.param((words("a"), HEAD + b"\t" + TAIL), id="a control character"),
        pytest.param((words(""), words("")), id="no text"),
        pytest.param((b'{"content":"a","choices":[]}',) * 3, id="content of something else"),
        pytest.param((words("a").replace(b"null", b'"stop"'),) * 3, id="finished"),
        pytest.param((counted(words("a"), 1), words("b"), counted(words("c"), 3)), id="some with usage"),
        pytest.param((words("a")[:-1] + b',"usage":{"prompt_tokens":1"}}',) * 3, id="usage that is none"),
        pytest.param((words("a")[:-1] + b',"error":"no"}',) * 3, id="an error"),
        pytest.param((words("a").replace(b'"index":0', b'"index":1'),) * 3, id="another choice"),
    ],
)
def test_what_is_no_run(payloads: tuple[bytes, ...]) -> None:
    """Whatever is not just text, alike in all else and written as JSON wants it, is decoded one by one."""
    assert found_in(*payloads) is None


def test_the_last_usage_counts() -> None:
    """An engine that tells the usage with each event is a run as well, which tells the last."""
    found = found_in(counted(words("a"), 1), counted(words("b"), 2), counted(FINISH, 2), counted(USAGE, 2))
    assert found is not None
    event = found.event
    assert (event.words, event.usage) == ("ab", WireUsage(prompt_tokens=1, completion_tokens=2))
    assert msgspec.structs.replace(event, run=None) == decode_event(event.payload, "")
    assert payloads_of(event) == [words("a"), words("b")]


def test_another_form_is_found_next() -> None:
    """An upstream may change how it writes; after many reads without a run none is looked for any more."""
    runs = DeltaCoalescer()
    assert runs.find(sse(words("a"), words("b"))) is not None
    other = words("a").replace(b"c-1", b"c-2")
    assert runs.find(sse(other, other)) is None
    assert runs.find(sse(other, other)) is not None
    for _ in range(8):
        assert runs.find(sse(FINISH, FINISH)) is None
    assert runs.find(sse(other, other)) is None


_payload = st.one_of(
    st.text(st.sampled_from('a"\\,\n {}é'), max_size=3).map(words), st.sampled_from([ROLE, FINISH, USAGE])
)


class _Reads:
    """A connection, of which a stream is told what came."""

    def __init__(self, reads: list[bytes]) -> None:
        self.left = reads

    def take(self) -> bytes:
        return self.left.pop(0)

    def limit_silence(self, idle_s: float) -> None:
        """Nobody is silent here."""

    def gather(self) -> None: ...


@given(st.lists(_payload, min_size=1, max_size=30), st.lists(st.integers(0, 3_000), max_size=4), st.booleans())
def test_runs_say_what_their_events_say(payloads: list[bytes], cuts: list[int], counts: bool) -> None:
    """Any stream, cut anywhere: the same payloads, text, tokens and usage as event by event."""
    if counts:
        payloads = [counted(bare(payload), number) for number, payload in enumerate(payloads)]
    reads = _Reads(split(sse(*payloads), [cut for cut in cuts if cut < len(sse(*payloads))]))
    stream = _Stream(
        ConnectionPool(),
        cast("Connection", reads),
        upstream_call(deployment()),
        HttpLimits(),
        Share(HeldBytes(0)),
        None,
    )
    events: list[Event] = []
    while reads.left:
        events += stream.unread()
    singly = [decode_event(payload, "") for payload in payloads]
    told = [bare(payload) for event in events for payload in payloads_of(event)]
    assert told == list(map(bare, payloads))
    usages = [[event.usage for event in each if event.usage is not None] for each in (events, singly)]
    assert usages[0][-1:] == usages[1][-1:]
    assert "".join(event.words for event in events) == "".join(event.words for event in singly)
    assert sum(event.text_chars for event in events) == sum(event.text_chars for event in singly)
    assert tokens_of(events) == tokens_of(singly)
