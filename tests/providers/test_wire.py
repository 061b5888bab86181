"""Payloads become events without being written again, and requests keep what we do not know."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.errors import (
    MalformedReply,
    PromptTooLong,
    UpstreamError,
    UpstreamOverloaded,
    UpstreamRateLimited,
    UpstreamUnavailable,
)
from providers.wire import ChatRequest, Event, decode_embeddings, decode_event, fields_of, upstream_body
from tests.providers.calls import chat_request, deployment


def event(delta: Any, key: str = "delta", **more: Any) -> Event:
    return decode_event(json.dumps({"choices": [{"index": 0, key: delta, **more}]}).encode(), "t/a")


CALL = {"index": 0, "function": {"name": "weigh", "arguments": '{"kg"'}}


@pytest.mark.parametrize(
    ("delta", "token", "chars"),
    [
        ({"role": "assistant"}, False, 0),
        ({"role": "assistant", "content": ""}, False, 0),
        ({"content": None}, False, 0),
        ({}, False, 0),
        (None, False, 0),
        ({"content": "héllo"}, True, 5),
        ({"content": " "}, True, 1),
        ({"content": [{"type": "text", "text": "abc"}]}, True, 3),
        ({"refusal": "no"}, True, 2),
        ({"reasoning_content": "hmm"}, True, 3),
        ({"reasoning": "hmm"}, True, 3),
        ({"tool_calls": [CALL]}, True, 10),
        ({"content": "x", "tool_calls": [CALL]}, True, 11),
        ({"tool_calls": []}, False, 0),
        ({"tool_calls": None}, False, 0),
        ({"function_call": {"name": "f", "arguments": "{}"}}, True, 3),
        ({"content": 7}, True, 0),
    ],
)
@pytest.mark.parametrize("key", ["delta", "message"])
def test_what_is_a_token(key: str, delta: Any, token: bool, chars: int) -> None:
    """Text, refusals, reasoning and tool calls are tokens; a role or nothing is none."""
    found = event(delta, key)
    assert (found.token, found.text_chars, found.choices) == (token, chars, 1)


def test_the_payload_is_untouched() -> None:
    """An event carries the very bytes that came, with all their oddities."""
    payload = b'{"x" : 1.10, "choices":[ {"delta":{"content":"\\u00e9"},"finish_reason":"stop"} ] }'
    found = decode_event(payload, "t/a")
    assert found.payload is payload
    assert found.finished


@pytest.mark.parametrize("usage", [None, 7, "x", [], {"prompt_tokens": "many"}, {"prompt_tokens": -1, "new": {}}])
def test_odd_usage_breaks_nothing(usage: Any) -> None:
    """Usage is untrusted: whatever it is, the answer goes on."""
    found = decode_event(json.dumps({"choices": [], "usage": usage}).encode(), "t/a")
    assert found.choices == 0
    assert (found.usage is not None) == isinstance(usage, dict)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["choices", "delta", "message", "content", "tool_calls", "usage", "error", "code", "function"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=15,
    )
)
def test_any_json_is_an_event_or_our_error(value: Any) -> None:
    """No JSON value makes the decoder fail in a way of its own."""
    with contextlib.suppress(UpstreamError):
        assert decode_event(json.dumps(value).encode(), "t/a").choices >= 0


@given(st.binary(max_size=50))
def test_any_bytes_are_an_event_or_our_error(payload: bytes) -> None:
    """Nor do any bytes."""
    with contextlib.suppress(UpstreamError):
        found = decode_event(payload, "t/a").payload
        assert found == b"{}" or found.startswith(b'{"')


_ESCAPES = st.lists(
    st.sampled_from(["\\ud83d", "\\uDE00", "\\u00e9", "\\\\", "\\n", "ud83d", "\\ud83d\\ude00", "x"])
).map("".join)


@given(_ESCAPES, st.sampled_from([" ", "\n", "\r\n", ""]))
def test_any_escapes_go_through_as_they_came(text: str, space: str) -> None:
    """What JSON allows, lone surrogates included, reaches the caller unchanged, on one line."""
    whole = f'{space}{{{space}"choices":{space}[{{"delta":{{"content":"{text}"}}}}],{space}"usage":{{"prompt_tokens":1}}}}{space}'
    found = decode_event(whole.encode(), "t/a")
    assert found.payload.startswith(b'{"')
    assert not {ord("\n"), ord("\r")} & set(found.payload)
    assert json.loads(found.payload) == json.loads(whole)
    assert found.token == bool(text)
    assert found.usage is not None
    assert {name: json.loads(bytes(raw)) for name, raw in fields_of(found.payload).items()} == json.loads(whole)


@pytest.mark.parametrize(
    "payload", [b'{"choices":[{"delta":{"content":"a\nb"}}]}', b'{"choices":[{"delta":{"content":"\\ud83"}}]}']
)
def test_what_is_no_json_stays_malformed(payload: bytes) -> None:
    """Leniency ends where JSON does."""
    with pytest.raises(MalformedReply):
        decode_event(payload, "t/a")


def test_deep_nesting_is_malformed() -> None:
    """A payload made to exhaust the stack is refused."""
    with pytest.raises(MalformedReply):
        decode_event(b'{"choices":' + b"[" * 100_000, "t/a")


def body_of(request: ChatRequest, kind: Any = "openai") -> dict[str, Any]:
    found = json.loads(upstream_body(request, deployment(kind, upstream_model="theirs")))
    assert isinstance(found, dict)
    return found


def test_unknown_fields_and_raw_values_pass_through() -> None:
    """Only the model's name changes; numbers keep their spelling and unknown fields their place."""
    request = chat_request(temperature=0.1, novel={"deep": [1]})
    request.fields["seed"] = msgspec.Raw(b"1.50e2")
    sent = upstream_body(request, deployment(upstream_model='th"eirs'))
    assert b'"seed":1.50e2' in sent
    assert json.loads(sent) == {
        "model": 'th"eirs',
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.1,
        "novel": {"deep": [1]},
        "seed": 150.0,
    }


def test_usage_is_always_asked_of_a_stream() -> None:
    """The caller's stream options are kept, and the usage is asked for whatever the caller said."""
    assert body_of(chat_request(stream=True))["stream_options"] == {"include_usage": True}
    options = {"include_usage": False, "include_obfuscation": False}
    merged = body_of(chat_request(stream=True, stream_options=options))["stream_options"]
    assert merged == {"include_usage": True, "include_obfuscation": False}
    assert body_of(chat_request(stream=True, stream_options=None))["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body_of(chat_request())


def test_vllm_counts_on_every_chunk() -> None:
    """A vLLM is asked for usage on each chunk, so that an interrupted stream is metered exactly."""
    sent = body_of(chat_request(stream=True), "vllm")
    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


VECTORS: list[dict[str, Any]] = [{"object": "embedding", "index": 0, "embedding": [0.5, -1e-9]}]


def vectors(**fields: Any) -> bytes:
    return json.dumps({"object": "list", "data": VECTORS, "model": "bge", **fields}).encode()


def test_a_reply_with_vectors_is_one_whole_event() -> None:
    """As it came, with the tokens that went in and none that came out."""
    payload = vectors(usage={"prompt_tokens": 7, "total_tokens": 7})
    found = decode_embeddings(payload, "t/a")
    assert found.payload == payload
    assert (found.token, found.choices, found.text_chars, found.finished) == (False, 1, 0, True)
    assert found.usage is not None
    assert (found.usage["prompt_tokens"], found.usage["completion_tokens"], found.usage["total_tokens"]) == (7, 0, 7)


@pytest.mark.parametrize("usage", [None, 7, "many", [], {}, {"prompt_tokens": "7"}, {"prompt_tokens": {"a": 1}}])
def test_odd_usage_costs_no_caller_its_vectors(usage: Any) -> None:
    """What is wrong with it is for the books to find out; what is not there is told as absent."""
    found = decode_embeddings(vectors(usage=usage), "t/a")
    assert found.choices == 1
    assert (found.usage is None) is (usage is None)


@pytest.mark.parametrize("error", [{"message": "no such model", "code": 404}, "overloaded", {}])
def test_an_error_in_place_of_vectors_is_an_error(error: Any) -> None:
    """Although its status was a good one."""
    with pytest.raises(UpstreamError):
        decode_embeddings(json.dumps({"error": error}).encode(), "t/a")
    assert decode_embeddings(vectors(error=None), "t/a").choices == 1


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b" \r\n", b"\n\t"])
def test_vectors_on_many_lines_come_on_one(before: bytes) -> None:
    """So that our own fields can be put in front; a byte order mark is no reason to lose them."""
    written = json.dumps({"data": VECTORS, "usage": None}, indent=2).replace("\n", "\r\n").encode()
    found = decode_embeddings(before + written + b"\n", "t/a")
    assert found.payload[:2] == b'{"'
    assert not {*b"\r\n"} & {*found.payload}
    assert json.loads(found.payload) == {"data": VECTORS, "usage": None}


@pytest.mark.parametrize(
    "payload",
    [b"", b"null", b"[]", b"7", b'"x"', b"{", b'{"data": 7}', b'{"data": {}}', b"\xff", b"[" * 100_000, vectors()[:-9]],
)
def test_what_is_no_reply_with_vectors_is_malformed(payload: bytes) -> None:
    """Never anything else than an error of the upstream's."""
    with pytest.raises(MalformedReply):
        decode_embeddings(payload, "t/a")


@pytest.mark.parametrize("payload", [b"{}", b'{"data": []}', b'{"data": null}', b'{"choices": [{"index": 0}]}'])
def test_a_reply_without_vectors_has_nothing(payload: bytes) -> None:
    """Whoever reads the reply refuses it for that."""
    assert decode_embeddings(payload, "t/a").choices == 0


def test_many_long_vectors_are_not_looked_into() -> None:
    """Numbers and base64 pass as they are, a hundred thousand of them."""
    many = [{"index": index, "embedding": "A" * 2_000 if index % 2 else [0.1] * 100} for index in range(1_000)]
    payload = json.dumps({"data": many}).encode()
    found = decode_embeddings(payload, "t/a")
    assert found.payload is payload
    assert found.choices == 1_000


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ([{"index": 0, "delta": {"content": "kg"}, "logprobs": None, "finish_reason": None}], "kg"),
        ([{"delta": {"role": "assistant", "content": "kg", "refusal": None, "tool_calls": None}}], "kg"),
        ([{"delta": {"content": ""}}], ""),
        ([{"delta": {"content": "kg"}, "finish_reason": "stop"}], ""),
        ([{"delta": {"content": "kg"}, "logprobs": {"content": []}}], ""),
        ([{"index": 1, "delta": {"content": "kg"}}], ""),
        ([{"delta": {"content": "kg", "reasoning": "heavy"}}], ""),
        ([{"delta": {"content": "kg", "refusal": "no"}}], ""),
        ([{"delta": {"content": "kg", "thinking_blocks": [{}]}}], ""),
        ([{"delta": {"content": [{"type": "text", "text": "kg"}]}}], ""),
        ([{"delta": {"content": "kg"}}, {"index": 1, "delta": {"content": "t"}}], ""),
        ([{"message": {"content": "kg"}}], ""),
        ([], ""),
    ],
)
def test_an_event_of_nothing_but_text_says_so(choices: list[Any], words: str) -> None:
    """So that writers of other wires need not read it again; whatever has anything beside is read."""
    assert decode_event(json.dumps({"choices": choices}).encode(), "t0/a").words == words


def test_half_a_letter_is_no_text_to_write() -> None:
    """Its writer reads the event again, and passes the half on."""
    event = decode_event(b'{"choices":[{"delta":{"content":"kg\\ud83d"}}]}', "t0/a")
    assert (event.token, event.words) == (True, "")


BARE: list[tuple[Any, type[UpstreamError]]] = [
    ({"object": "error", "message": "Service tier capacity exceeded for this model.", "code": None}, UpstreamOverloaded),
    ({"object": "error", "message": "The input (9 tokens) is longer than the model's context length (8 tokens).", "code": 400}, PromptTooLong),
    ([{"error": {"code": 429, "message": "Quota.", "status": "RESOURCE_EXHAUSTED"}}], UpstreamRateLimited),
    ([{"error": {"code": 500, "message": "Internal.", "status": "INTERNAL"}}], UpstreamUnavailable),
]  # fmt: skip
"""Errors within streams that no `error` is around."""


@pytest.mark.parametrize(("told", "kind"), BARE)
def test_an_error_without_its_frame_is_an_error(told: Any, kind: type[UpstreamError]) -> None:
    """Else the stream would end as if all had been said."""
    with pytest.raises(kind) as raised:
        decode_event(json.dumps(told).encode(), "t/a")
    assert type(raised.value) is kind


def test_an_error_in_a_hosts_own_object_is_an_error() -> None:
    """Groq says in it why a stream ended early; its usage there is the chunk's, and its id alone is nothing."""
    chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": None}]}
    for told in ("The model is over capacity, try again.", {"message": "over capacity"}):
        for each in (chunk, {**chunk, "choices": []}):
            with pytest.raises(UpstreamError):
                decode_event(json.dumps({**each, "x_groq": {"id": "r", "error": told}}).encode(), "t/a")
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    event = decode_event(json.dumps({**chunk, "x_groq": {"id": "r", "usage": usage}}).encode(), "t/a")
    assert event.usage == json.loads(event.payload)["usage"] == usage
    for odd in ({"id": "r"}, "r", None, {"usage": 7, "error": None}):
        assert decode_event(json.dumps({**chunk, "x_groq": odd}).encode(), "t/a").usage is None


@pytest.mark.parametrize(
    "told", [{"choices": []}, {"choices": [], "prompt_filter_results": [{"error": 1}]}, {"object": "x"}]
)
def test_an_event_that_says_nothing_is_no_error(told: Any) -> None:
    """As Azure's first one."""
    assert decode_event(json.dumps(told).encode(), "t/a").choices == 0
