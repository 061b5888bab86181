"""Bytes of a stream of events: counted, cut at a number, and what the last of them says."""

import pytest

from proxy.responses.background.events import beyond, count_of, response_in, terminal

_THREE = b"".join(b'event: a\ndata: {"n":%d}\n\n' % n for n in range(5, 8))


@pytest.mark.parametrize(("after", "left"), [(-1, 3), (4, 3), (5, 2), (6, 1), (7, 0), (99, 0)])
def test_a_stream_is_cut_between_two_events(after: int, left: int) -> None:
    """What is beyond a number are whole events, the last ones."""
    cut = beyond(_THREE, 5, after)
    assert count_of(cut) == left
    assert _THREE.endswith(cut)


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
def test_the_last_event_has_the_response(status: str) -> None:
    """Also behind others; events that end nothing have none."""
    response = {"id": "resp_1", "status": status}
    last = terminal(response, 8)
    assert response_in(_THREE + last) == response
    assert response_in(_THREE) is None
    assert response_in(b"") is None
    assert response_in(b'{"error": {}}') is None
