"""Parsing: everything of OpenAI's passes, what is ours is read, what would steer the gateway is refused."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.errors import BadRequest
from proxy.parse.chat_request import (
    ENGINE_FIELDS,
    MAX_EMBEDDED,
    MOST_IMAGE_TOKENS,
    conversation_key,
    input_tokens,
    messages_digest,
    most_input_tokens,
    needs,
    parse_chat,
    parse_embeddings,
    prompt_of,
)
from proxy.parse.headers import RequestHeaders, read_headers
from proxy.parse.parsed_request import parse_escalation
from proxy.parse.wires.reading import object_of
from proxy.parse.wires.responses.parser import read_response

NO_HEADERS = RequestHeaders()


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "auto", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def test_unknown_fields_pass_through_untouched() -> None:
    """What OpenAI adds tomorrow is kept, byte for byte."""
    request = parse_chat(body(seed=7, logit_bias={"50256": -100}, tomorrow={"a": [1, None]}), NO_HEADERS)
    assert bytes(request.fields["tomorrow"]) == b'{"a": [1, null]}'
    assert {"seed", "logit_bias", "messages", "model"} <= set(request.fields)


def test_the_gateways_own_fields_are_read_and_taken_out() -> None:
    """Team, tier and session come as body fields too, and no upstream sees them."""
    request = parse_chat(body(**{"x-tier": "batch", "x-team-id": "team_a", "x-session-id": "s1"}), NO_HEADERS)
    assert (request.tier, request.team_id, request.session_id) == ("batch", "team_a", "s1")
    assert not {"x-tier", "x-team-id", "x-session-id", "service_tier"} & set(request.fields)


@pytest.mark.parametrize(
    ("service_tier", "tier"),
    [("flex", "batch"), ("auto", "interactive"), ("priority", "interactive"), ("new", "interactive")],
)
def test_service_tier_is_the_tier_switch(service_tier: str, tier: str) -> None:
    """OpenAI's flex means batch; everything else wants an answer now."""
    assert parse_chat(body(service_tier=service_tier), NO_HEADERS).tier == tier


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"max_tokens": 100_000, "max_completion_tokens": 1}, 100_000),
        ({"max_tokens": 1, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 5}, 5),
        ({}, None),
    ],
)
def test_the_larger_bound_of_the_answer_counts(fields: dict[str, int], most: int | None) -> None:
    """Both go upstream, and some know only one of them; a budget must hold for either."""
    assert parse_chat(body(**fields), NO_HEADERS).max_output_tokens == most


@pytest.mark.parametrize(
    ("part", "least", "below"),
    [
        ({"type": "text", "text": "x" * 400}, 400, 2_000),
        ({"type": "input_audio", "input_audio": {"data": "QUJD" * 100}}, 400, 2_000),
        ({"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}, MOST_IMAGE_TOKENS, 60_000),
        ({"type": "file", "file": {"file_id": "file-1"}}, 100_000_000, 10**10),
        ({"type": "video_url", "video_url": {"url": "https://a.example/b.mp4"}}, 100_000_000, 10**10),
    ],
)
def test_what_a_prompt_cannot_be_above(part: dict[str, Any], least: int, below: int) -> None:
    """Text and sound have at most a token for each byte; a picture's and a file's tokens do not follow from theirs."""
    raw = body(messages=[{"role": "user", "content": [part]}])
    request = parse_chat(raw, NO_HEADERS)
    assert least <= most_input_tokens(request, len(raw), input_tokens(request, prompt_of(request))) < below


@pytest.mark.parametrize(
    ("fields", "end_user"),
    [
        ({}, ""),
        ({"user": "u-17"}, "u-17"),
        ({"user": "u-17", "safety_identifier": "acme:9/b.c_d"}, "acme:9/b.c_d"),
        ({"user": "x" * 64}, "x" * 64),
        ({"user": "", "safety_identifier": None}, ""),
        ({"user": 17, "safety_identifier": {"a": []}}, ""),
        ({"user": "ann@example.com"}, "digest-"),
        ({"user": "+49 30 1234567"}, "digest-"),
        ({"user": "030-1234567"}, "digest-"),
        ({"user": "x" * 65}, "digest-"),
        ({"user": "=cmd"}, "digest-"),
        ({"user": "Müller\0"}, "digest-"),
    ],
)
def test_an_end_user_is_read_and_passed_on(fields: dict[str, Any], end_user: str) -> None:
    """An id is booked as it is; what may be a mail address or a telephone number, or fits no column, as a digest."""
    for parse, body in (
        (parse_chat, {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}),
        (parse_embeddings, {"model": "m", "input": "Hi", **fields}),
    ):
        request = parse(json.dumps(body).encode(), NO_HEADERS)
        if end_user.startswith("digest-"):
            assert request.end_user.startswith("digest-")
            assert len(request.end_user) == len("digest-") + 32
        else:
            assert request.end_user == end_user
        assert {name: msgspec.json.decode(request.fields[name]) for name in fields} == fields


@pytest.mark.parametrize("more", [{}, {"tools": [{"type": "function", "name": "look", "parameters": {}}]}])
def test_an_end_user_of_the_responses_api_is_the_same(more: dict[str, Any]) -> None:
    """The newer field counts, wherever the body goes on to."""
    body = {"model": "m", "input": "Hi", "user": "u-17", **more}
    for fields, end_user in ((body, "u-17"), ({**body, "safety_identifier": "s-9"}, "s-9")):
        assert read_response(json.dumps(fields).encode(), NO_HEADERS, lambda _name: True).request.end_user == end_user


def test_headers_and_fields_must_agree() -> None:
    """A contradiction is refused rather than guessed."""
    with pytest.raises(BadRequest, match="differ"):
        parse_chat(body(**{"x-tier": "batch"}), RequestHeaders(tier="interactive"))
    assert parse_chat(body(), RequestHeaders(tier="batch", team_id="t")).tier == "batch"


@pytest.mark.parametrize(
    "name", ["api_base", "base_url", "extra_headers", "api_key", "aws_region_name", "vertex_project", "mock_response"]
)
def test_fields_that_steer_the_gateways_calls_are_refused(name: str) -> None:
    """No request chooses an upstream address or key."""
    with pytest.raises(BadRequest) as refused:
        parse_chat(body(**{name: "http://169.254.169.254/"}), NO_HEADERS)
    assert refused.value.param == name
    assert "169.254" not in refused.value.message


@pytest.mark.parametrize("name", sorted(ENGINE_FIELDS))
def test_fields_that_steer_an_engine_are_refused(name: str) -> None:
    """Of chats and embeddings, however the name is spelt in JSON, and with what to send instead."""
    escaped = f"\\u{ord(name[0]):04x}{name[1:]}"
    chat = body(**{name: 1}).replace(f'"{name}"'.encode(), f'"{escaped}"'.encode())
    assert name.encode() not in chat
    with pytest.raises(BadRequest, match="not accepted") as refused:
        parse_chat(chat, NO_HEADERS)
    assert refused.value.param == name
    with pytest.raises(BadRequest, match="not accepted"):
        parse_embeddings(embedding(input="x", **{name: 1}), NO_HEADERS)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b"\xff\xfe", None),
        (b'{"model": "auto"}', None),
        (body(messages=[]), "messages"),
        (body(model=""), "model"),
        (body(n=0), "n"),
        (body(n=129), "n"),
        (body(max_tokens=0), "max_tokens"),
        (body(messages=[{"role": 3}]), "messages[0].role"),
        (body(**{"x-tier": "gold"}), "x-tier"),
    ],
)
def test_bad_bodies_are_refused_with_their_place(raw: bytes, param: str | None) -> None:
    """The error names the field that has to change."""
    with pytest.raises(BadRequest) as refused:
        parse_chat(raw, NO_HEADERS)
    assert refused.value.param == param


@given(
    st.binary(max_size=300)
    | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_no_body_makes_parsing_fail_otherwise(raw: bytes) -> None:
    """Whatever arrives is a request or a BadRequest."""
    with contextlib.suppress(BadRequest):
        parse_chat(raw, NO_HEADERS)


def test_deep_nesting_is_refused() -> None:
    """A body that would exhaust the stack is a bad request, not a crash."""
    with pytest.raises(BadRequest):
        parse_chat(
            b'{"model": "auto", "messages": [{"role": "user", "content": "x"}], "y": ' + b"[" * 100_000, NO_HEADERS
        )


def test_needs_follow_tools_images_and_json() -> None:
    """Each capability is asked for by the parameter that uses it."""
    image = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    request = parse_chat(
        body(
            messages=[{"role": "user", "content": image}],
            tools=[{"type": "function"}],
            response_format={"type": "json_object"},
        ),
        NO_HEADERS,
    )
    assert needs(request) == {"vision", "tools", "json"}
    assert needs(parse_chat(body(response_format={"type": "text"}), NO_HEADERS)) == frozenset()


def test_the_last_user_message_stands_apart_from_what_came_before() -> None:
    """The classifier weighs the question, and knows the rest as context."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "text", "text": "three"}]},
    ]
    prompt = prompt_of(parse_chat(body(messages=messages), NO_HEADERS))
    assert (prompt.text, prompt.system, prompt.history, prompt.turns) == ("three", "Be brief.", "one\ntwo", 2)
    assert (prompt.before, prompt.since) == ("one", "")


def test_the_proposal_is_the_assistant_s_last_words_before_the_user_s() -> None:
    """Of several the last, and none that came before an earlier message of the user's or in the present loop."""
    talk = [
        ("user", "hi"),
        ("assistant", "Hello!"),
        ("user", "move it"),
        ("assistant", "Wait."),
        ("assistant", "Shall I?"),
        ("user", "yes"),
    ]
    messages = [{"role": role, "content": text} for role, text in talk]
    assert prompt_of(parse_chat(body(messages=messages), NO_HEADERS)).proposal == "Shall I?"
    more = [*messages, {"role": "assistant", "content": "I begin."}]
    assert prompt_of(parse_chat(body(messages=more), NO_HEADERS)).proposal == "Shall I?"
    assert not prompt_of(parse_chat(body(messages=[*messages, {"role": "user", "content": "go"}]), NO_HEADERS)).proposal


def test_what_follows_the_question_is_no_part_of_the_history() -> None:
    """Within a tool loop the last user message stays the question; calls and results after it stand apart."""
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": "let me look"},
        {"role": "tool", "content": "result", "tool_call_id": "c1"},
    ]
    prompt = prompt_of(parse_chat(body(messages=messages), NO_HEADERS))
    assert (prompt.text, prompt.before) == ("question", "first")
    assert (prompt.history, prompt.since) == ("first\nanswer", "let me look\nresult")


def test_tokens_count_text_framing_tools_and_images() -> None:
    """The estimate grows with each of them."""
    plain = parse_chat(body(), NO_HEADERS)
    with_tools = parse_chat(
        body(tools=[{"type": "function", "function": {"name": "weather", "description": "tells it " * 20}}]), NO_HEADERS
    )
    assert input_tokens(plain, prompt_of(plain)) < 15
    assert input_tokens(with_tools, prompt_of(with_tools)) > input_tokens(plain, prompt_of(plain)) + 20


def test_tool_calls_files_and_audio_are_counted() -> None:
    """A history of large tool calls must not slip through the context check as a handful of tokens."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "word " * 5_000}}
    media = [
        {"type": "file", "file": {"file_data": "A" * 40_000}},
        {"type": "input_audio", "input_audio": {"data": "A" * 20_000}},
    ]
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": media}]
    request = parse_chat(body(messages=messages), NO_HEADERS)
    assert input_tokens(request, prompt_of(request)) > 5_000 + 3_000


def test_broken_text_is_refused_wherever_it_stands() -> None:
    """Also in a field that is passed on unread: no upstream should be blamed for it."""
    with pytest.raises(BadRequest):
        parse_chat(body(metadata={"a": "X"}).replace(b"X", b"\xff"), NO_HEADERS)


def test_a_conversation_keeps_its_key_over_turns() -> None:
    """Later turns share the beginning, so they share the key; a session id overrides it."""
    first = [{"role": "user", "content": "one"}]
    later = [*first, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]
    one, two = (parse_chat(body(messages=messages), NO_HEADERS) for messages in (first, later))
    assert conversation_key(one, prompt_of(one)) == conversation_key(two, prompt_of(two))
    named = msgspec.structs.replace(two, session_id="s1")
    assert conversation_key(named, prompt_of(named)) == "s1"


def test_only_known_headers_are_read() -> None:
    """The first of a repeated header counts."""
    headers = read_headers(
        [(b"x-tier", b"batch"), (b"x-tier", b"interactive"), (b"cookie", b"x"), (b"authorization", b"Bearer k ")]
    )
    assert headers == RequestHeaders(authorization="Bearer k", tier="batch")


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [("true", "all"), ("True", "all"), ("false", "off"), ("FALSE", "off"), ("agreement", "agreement-all")],
)
def test_a_request_may_ask_for_escalation_or_forbid_it(sent: str, wanted: str) -> None:
    """In either case of letters."""
    assert parse_escalation(sent) == wanted


@pytest.mark.parametrize("sent", ["", "1", "yes", "true,true"])
def test_a_wish_for_escalation_that_is_neither_is_refused(sent: str) -> None:
    """A typing error must not silently cost or save money."""
    with pytest.raises(BadRequest, match="x-weighbridge-escalate"):
        parse_escalation(sent)


def test_the_digest_tells_a_repeated_request() -> None:
    """The same messages give the same hash, whatever else is sent; a change at either end of a large one shows."""
    long = "x" * 300_000
    sent: list[tuple[str, dict[str, Any]]] = [("a", {}), ("a", {"model": "gpt-4o", "temperature": 1})]
    sent += [(content, {}) for content in ("b", long + "1", long + "2", "3" + long)]
    digests = [
        messages_digest(parse_chat(body(messages=[{"role": "user", "content": content}], **fields), NO_HEADERS))
        for content, fields in sent
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 5


def embedding(**fields: Any) -> bytes:
    return json.dumps({"model": "bge", **fields}).encode()


@pytest.mark.parametrize(
    ("given", "in_all", "longest"),
    [
        ([1, 2, 3], 3, 3),
        ([0], 1, 1),
        ([[1, 2], [3], [4, 5, 6]], 6, 3),
        (["x"], 2, 2),
        ([" "], 1, 1),
        (["x", [1, 2, 3]], 5, 3),
        ([[1]] * MAX_EMBEDDED, MAX_EMBEDDED, 1),
    ],
)
def test_what_is_to_be_embedded_is_counted_text_by_text(given: Any, in_all: int, longest: int) -> None:
    """Texts and lists of tokens: all together are paid, the longest has to fit."""
    request = parse_embeddings(embedding(input=given), NO_HEADERS)
    assert (request.given_texts_tokens, request.longest_tokens) == (in_all, longest)
    assert input_tokens(request, prompt_of(request)) == in_all
    assert needs(request) == {"embeddings"}
    assert request.operation == "embeddings"
    assert not request.stream
    assert bytes(request.fields["input"]) == json.dumps(given).encode()


def test_one_text_and_a_list_of_it_are_the_same() -> None:
    """As they are to OpenAI."""
    one, listed = (parse_embeddings(embedding(input=each), NO_HEADERS) for each in ("a gate", ["a gate"]))
    assert one.given_texts_tokens == listed.given_texts_tokens == one.longest_tokens == listed.longest_tokens > 0


def test_embeddings_pass_unknown_fields_and_keep_ours() -> None:
    """The engine's own parameters arrive, what is ours is read and taken out, headers too."""
    request = parse_embeddings(
        embedding(input="x", dimensions=256, encoding_format="base64", tomorrow=[1], **{"x-tier": "batch"}),
        RequestHeaders(tag="red", priority="low", session_id="s1"),
    )
    assert (request.tier, request.tag, request.priority, request.session_id) == ("batch", "red", -1, "s1")
    assert set(request.fields) == {"model", "input", "dimensions", "encoding_format", "tomorrow"}
    assert request.n == 1
    assert request.max_output_tokens is None


def test_flex_is_batch_for_embeddings_too() -> None:
    """OpenAI's switch, by its field."""
    request = parse_embeddings(embedding(input="x", service_tier="flex"), NO_HEADERS)
    assert request.tier == "batch"
    assert "service_tier" not in request.fields


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, ""),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [[1], []]}, "input"),
        ({"input": ["x", 1]}, "input"),
        ({"input": [1, [2]]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [["x"]]}, "input"),
        ({"input": {"text": "x"}}, "input"),
        ({"input": [{"image": "http://10.0.0.1"}]}, "input"),
        ({"input": ["x"] * (MAX_EMBEDDED + 1)}, "input"),
        ({"input": "x", "model": ""}, "model"),
        ({"input": "x", "model": "auto"}, "model"),
        ({"input": "x", "model": 7}, "model"),
        ({"input": "x", "api_base": "http://10.0.0.1"}, "api_base"),
        ({"input": "x", "vertex_project": "p"}, "vertex_project"),
        ({"input": "x", "priority": -9}, "priority"),
        ({"input": "x", "cache_salt": "theirs"}, "cache_salt"),
        ({"input": "x", "messages": []}, "messages"),
        ({"input": "x", "stream": True}, "stream"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    """Nothing that steers, nothing to be fetched or streamed, and nothing that is no text."""
    with pytest.raises(BadRequest) as refusal:
        parse_embeddings(embedding(**fields), NO_HEADERS)
    assert (refusal.value.param or "").startswith(param)


def test_what_is_said_not_to_be_streamed_is_embedded() -> None:
    """Some clients send every field that they know."""
    assert parse_embeddings(embedding(input=[1], stream=False, messages=None), NO_HEADERS).longest_tokens == 1


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"model":"bge","input":"\xff"}', b"[" * 100_000])
def test_what_is_no_object_is_refused_for_embeddings_too(raw: bytes) -> None:
    """With a 400, whatever it is."""
    with pytest.raises(BadRequest):
        parse_embeddings(raw, NO_HEADERS)


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(st.text()), st.lists(st.integers()), st.lists(st.lists(st.integers()))))
def test_whatever_is_embedded_has_a_bound_that_holds(given_input: Any) -> None:
    """It is refused, or its tokens are bounded by what was sent: budgets hold for the most that it can have."""
    raw = embedding(input=given_input)
    with contextlib.suppress(BadRequest):
        request = parse_embeddings(raw, NO_HEADERS)
        estimate = input_tokens(request, prompt_of(request))
        assert 1 <= request.longest_tokens <= estimate <= most_input_tokens(request, len(raw), estimate)
        assert messages_digest(request) != messages_digest(parse_embeddings(embedding(input="another"), NO_HEADERS))


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b'{"model": [}', r"not valid JSON \(invalid character at byte 11\)"),
        (b'{"model": 1', r"not valid JSON \(it ends too early, after 11 bytes\)"),
        (b'{"model": "auto" "x"}', r"not valid JSON \(expected ',' or '}' at byte 17\)"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"model": "h\xff"}', "not valid UTF-8 at byte 12"),
        (b'{"a":' + b"[" * 5_000, "nested too deeply"),
    ],
)
def test_what_is_no_json_is_told_with_its_place(sent: bytes, told: str) -> None:
    """And with nothing of what it says."""
    for parse in (lambda: parse_chat(sent, NO_HEADERS), lambda: object_of(sent)):
        with pytest.raises(BadRequest, match=told):
            parse()
