"""Vectors are converted only where the upstream answered in another encoding than was asked for."""

import base64
import json

import pytest

from proxy.parse.wires.chat.vectors import encoded

_ONE = base64.b64encode(b"\x00\x00\x80\x3f").decode()


@pytest.mark.parametrize("spaced", [True, False])
def test_each_vector_is_converted_and_back(spaced: bool) -> None:
    """With all that stands beside it, whatever its shape."""
    separators = (", ", ": ") if spaced else (",", ":")
    floats = {"object": "list", "data": [{"object": "embedding", "embedding": [1.0], "index": 0, "x": {"a": None}}]}
    texts = {"object": "list", "data": [{"object": "embedding", "embedding": _ONE, "index": 0, "x": {"a": None}}]}
    assert json.loads(encoded(json.dumps(floats, separators=separators).encode(), "base64")) == texts
    assert json.loads(encoded(json.dumps(texts, separators=separators).encode(), "float")) == floats


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        b'{"data":[]}',
        b'{"data":[{"embedding":[1.0]}]}',
        b'{"data":[{"embedding":"bm90IGZsb2F0cw"}]}',
        b'{"data":[{"embedding":"%%%"}]}',
        b'{"data":[7,{"embedding":"AACAPw=="}]}',
        b'{"data":[{"object":"embedding"}]}',
    ],
)
def test_what_is_no_vector_stays_as_it_is(payload: bytes) -> None:
    """An odd reply costs no answer."""
    assert json.loads(encoded(payload, "float")) == json.loads(payload)
