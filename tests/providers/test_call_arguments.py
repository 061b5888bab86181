"""Tests for arguments of earlier calls: each target gets what it reads, and what is fine is not touched."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.call_arguments import as_object, with_arguments

WRITTEN: tuple[tuple[Any, str], ...] = (
    ("", "{}"),
    (" \n", "{}"),
    (None, "{}"),
    ("null", "{}"),
    ({"kg": 7}, '{"kg":7}'),
    ("[]", '{"unparsed_arguments":"[]"}'),
    ('{"kg": 7', '{"unparsed_arguments":"{\\"kg\\": 7"}'),
    ("seven", '{"unparsed_arguments":"seven"}'),
    ([7], '{"unparsed_arguments":"[7]"}'),
    ('{"kg":7}', '{"kg":7}'),
    (' {"kg":7}\n', ' {"kg":7}\n'),
)


class Message(msgspec.Struct):
    tool_calls: msgspec.Raw = msgspec.Raw(b"")


def told(arguments: Any, *, any_text: bool) -> str:
    """The arguments as they are sent, of the second of two calls."""
    calls = [{"id": each, "type": "function", "function": {"name": "weigh", "arguments": "{}"}} for each in ("a", "b")]
    calls[1]["function"] = {"name": "weigh", "arguments": arguments}
    raw = msgspec.json.encode([{"role": "user", "content": "hello"}, {"role": "assistant", "tool_calls": calls}])
    found = with_arguments(msgspec.Raw(raw), msgspec.json.decode(raw, type=list[Message]), any_text=any_text)
    sent = msgspec.json.decode(raw if found is None else bytes(found))
    assert sent[0] == {"role": "user", "content": "hello"}
    assert sent[1]["tool_calls"][0] == calls[0]
    return str(sent[1]["tool_calls"][1]["function"]["arguments"])


@pytest.mark.parametrize(("arguments", "sent"), WRITTEN)
def test_a_target_that_parses_them_gets_an_object(arguments: Any, sent: str) -> None:
    assert told(arguments, any_text=False) == sent


@pytest.mark.parametrize(("arguments", "sent"), WRITTEN)
def test_a_target_that_takes_any_text_gets_the_text_as_it_came(arguments: Any, sent: str) -> None:
    """A prompt's beginning stays what it was, and with it the provider's cache."""
    assert told(arguments, any_text=True) == (arguments if isinstance(arguments, str) else sent)


def test_a_conversation_without_calls_is_not_read_again() -> None:
    raw = msgspec.Raw(b"not read")
    messages = [Message(), Message(msgspec.Raw(b"null")), Message(msgspec.Raw(b"[]"))]
    assert with_arguments(raw, messages, any_text=False) is None
    assert (
        with_arguments(raw, [Message(msgspec.Raw(b'[{"type":"custom","custom":{"input":"x"}}]'))], any_text=False)
        is None
    )
    assert with_arguments(raw, [Message(msgspec.Raw(b'"calls"'))], any_text=False) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    )
)
def test_anything_becomes_an_object_once(arguments: Any) -> None:
    found = as_object(arguments)
    assert isinstance(found, dict)
    assert as_object(msgspec.json.encode(found).decode()) == found
