"""Whatever a caller sends is read or refused by name, and whatever an upstream says is written: nothing else is raised."""

import contextlib
import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.claude.request import claude_body
from providers.errors import UpstreamError
from providers.litellm_client import litellm_arguments
from providers.wire import decode_event, upstream_body
from proxy.errors import BadRequest
from proxy.parse.chat_request import input_tokens, prompt_of
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.completions.wire import COMPLETIONS
from proxy.parse.wires.messages.wire import COUNT_TOKENS, MESSAGES
from proxy.parse.wires.responses.continuing import names_in
from proxy.parse.wires.responses.wire import INPUT_TOKENS, RESPONSES
from proxy.parse.wires.wire import Wire
from tests.providers.calls import deployment, upstream_call
from tests.proxy.parse.wires.reading import understood
from tests.proxy.parse.wires.writing import served

WIRES: Final = (MESSAGES, COUNT_TOKENS, RESPONSES, INPUT_TOKENS, COMPLETIONS)
CLAUDE: Final = deployment("litellm", upstream_model="anthropic/claude-x", base_url="")
OTHER_CLAUDE: Final = deployment("litellm", upstream_model="bedrock/anthropic.claude-x", base_url="")

_WORDS: Final = st.sampled_from(
    [
        *(
            "",
            "hi",
            "user",
            "assistant",
            "system",
            "developer",
            "tool",
            "auto",
            "any",
            "none",
            "text",
            "image",
            "document",
        ),
        *(
            "tool_use",
            "tool_result",
            "thinking",
            "redacted_thinking",
            "search_result",
            "base64",
            "url",
            "content",
            "x" * 70,
        ),
        *(
            "message",
            "function_call",
            "function_call_output",
            "custom_tool_call",
            "custom_tool_call_output",
            "reasoning",
        ),
        *("item_reference", "input_text", "output_text", "refusal", "input_image", "input_file", "function", "custom"),
        *(
            "namespace",
            "allowed_tools",
            "json_schema",
            "json_object",
            "enabled",
            "high",
            "data:image/png;base64,aGk=",
            "é",
        ),
    ]
)
_NAMES: Final = st.sampled_from(
    [
        *(
            "type",
            "role",
            "content",
            "text",
            "id",
            "name",
            "input",
            "source",
            "data",
            "media_type",
            "tool_use_id",
            "is_error",
        ),
        *(
            "signature",
            "thinking",
            "cache_control",
            "call_id",
            "arguments",
            "output",
            "summary",
            "encrypted_content",
            "tools",
        ),
        *("parameters", "input_schema", "description", "format", "schema", "strict", "mode", "namespace", "image_url"),
        *("file_data", "detail", "title", "refusal", "effort", "user_id", "disable_parallel_tool_use", "verbosity"),
    ]
)
_LEAVES: Final = st.one_of(st.none(), st.booleans(), st.integers(-5, 10**12), st.floats(allow_nan=False), _WORDS)
_VALUES: Final = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_NAMES, inner, max_size=6)),
    max_leaves=25,
)
_FIELDS: Final = st.sampled_from(
    [
        *(
            "messages",
            "system",
            "max_tokens",
            "tools",
            "tool_choice",
            "thinking",
            "output_config",
            "metadata",
            "stop_sequences",
        ),
        *(
            "input",
            "instructions",
            "text",
            "reasoning",
            "include",
            "previous_response_id",
            "prompt_cache_key",
            "max_output_tokens",
        ),
        *(
            "prompt",
            "suffix",
            "echo",
            "logprobs",
            "best_of",
            "n",
            "stop",
            "stream",
            "stream_options",
            "temperature",
            "top_k",
        ),
        *(
            "store",
            "background",
            "top_logprobs",
            "safety_identifier",
            "parallel_tool_calls",
            "x-session-id",
            "service_tier",
        ),
    ]
)
_TURNS: Final = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system"]),
            "content": st.one_of(_WORDS, st.lists(_VALUES, max_size=4)),
        }
    ),
    max_size=5,
)
_ITEMS: Final = st.lists(st.dictionaries(_NAMES, _VALUES, max_size=6), max_size=4)
_BODIES: Final = st.builds(
    lambda turns, items, tools, more: {
        "model": "auto",
        "max_tokens": 9,
        "messages": turns,
        "input": turns + items,
        "tools": tools,
        "prompt": "hi",
        **more,
    },
    _TURNS,
    _ITEMS,
    _ITEMS,
    st.dictionaries(_FIELDS, _VALUES, max_size=4),
)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.path)
@given(body=_BODIES)
def test_any_body_is_read_or_refused(wire: Wire, body: dict[str, Any]) -> None:
    """And what was read can be weighed, and sent to every kind of target."""
    try:
        names_in(json.dumps(body).encode())
        request = understood(wire, body, "llama").request
    except BadRequest:
        return
    assert input_tokens(request, prompt_of(request)) > 0
    for kind in ("openai", "azure", "vllm"):
        json.loads(upstream_body(request, deployment(kind)))
    with contextlib.suppress(UpstreamError):
        litellm_arguments(upstream_call(OTHER_CLAUDE, request))
    if request.as_written is None:
        with contextlib.suppress(UpstreamError):
            json.loads(claude_body(upstream_call(CLAUDE, request, marks_cache=True)).body)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.path)
@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff", b'{"model": "\\ud83d"}', b"[" * 100_000, b'{"input": 1e999}']
)
def test_what_is_no_json_object_is_refused(wire: Wire, body: bytes) -> None:
    """Before anything else is looked at."""
    with pytest.raises(BadRequest):
        wire.read(body, RequestHeaders(), lambda _name: False)


_SAID: Final = st.dictionaries(
    st.sampled_from(["content", "refusal", "reasoning", "reasoning_content", "thinking_blocks", "role"]),
    _VALUES,
    max_size=4,
)
_CALLS: Final = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "index": st.one_of(st.none(), st.integers(0, 2)),
            "id": st.one_of(st.none(), _WORDS),
            "function": st.fixed_dictionaries(
                {}, optional={"name": _LEAVES, "arguments": st.one_of(_LEAVES, st.just('{"a'))}
            ),
        },
    ),
    max_size=3,
)
_CHOICES: Final = st.fixed_dictionaries(
    {"index": st.one_of(st.none(), st.integers(0, 1))},
    optional={
        "delta": st.builds(lambda said, calls: {**said, "tool_calls": calls}, _SAID, _CALLS),
        "message": st.builds(lambda said, calls: {**said, "tool_calls": calls}, _SAID, _CALLS),
        "finish_reason": _LEAVES,
        "stop_reason": _LEAVES,
        "logprobs": _VALUES,
    },
)
_PAYLOADS: Final = st.fixed_dictionaries(
    {"choices": st.lists(_CHOICES, min_size=1, max_size=2)},
    optional={"model": _LEAVES, "id": _LEAVES, "service_tier": _LEAVES},
)
_ASKED: Final[dict[str, Any]] = {
    "model": "auto",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
    "input": "hi",
    "prompt": "hi",
    "thinking": {"type": "enabled"},
}


@pytest.mark.parametrize("wire", [CHAT, MESSAGES, RESPONSES, COMPLETIONS], ids=lambda wire: wire.path)
@given(payloads=st.lists(_PAYLOADS, min_size=1, max_size=5))
def test_any_answer_is_written(wire: Wire, payloads: list[dict[str, Any]]) -> None:
    """Whole and streamed, whatever stands in the places of text, calls and reasons."""
    asked = {name: value for name, value in _ASKED.items() if name != "prompt" or wire is COMPLETIONS}
    dialect = understood(wire, asked).dialect
    try:
        events = [decode_event(json.dumps(payload).encode(), "t0/a") for payload in payloads]
    except UpstreamError:
        return
    writer = dialect.events(served())
    data = b"".join(writer.render([event]) for event in events)
    dialect.to_keep(None, served())
    assert data + writer.last_words()
    json.loads(understood(wire, asked).dialect.whole(events[-1].payload, served()))


@pytest.mark.parametrize("wire", [CHAT, MESSAGES, RESPONSES, COMPLETIONS], ids=lambda wire: wire.path)
def test_half_a_letter_in_an_answer_is_written(wire: Wire) -> None:
    """As an escape, in a whole answer as in a stream."""
    said = {"completions": "prompt", "responses": "input"}.get(wire.name, "messages")
    names = ("model", said) if wire is RESPONSES else ("model", said, "max_tokens")
    asked = {name: _ASKED[name] for name in names}
    payload = b'{"choices":[{"message":{"content":"a\\ud83d"}}]}'
    assert b'"a\\ud83d"' in understood(wire, asked).dialect.whole(payload, served())
