"""Three wires to three kinds of targets: each cell of the table in docs/wires.md, of requests and of answers."""

import json
from typing import Any, Final

import msgspec
import pytest

from cost.usage import Usage, estimated, from_openai
from providers.claude.reply import chat_of_message
from providers.claude.request import claude_body
from providers.litellm_client import litellm_arguments
from providers.parameters import MINOR, lacking
from providers.target import Deployment
from providers.wire import decode_event, untaken, upstream_body
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.wire import RESPONSES
from proxy.parse.wires.wire import Wire
from tests.providers.calls import deployment, upstream_call
from tests.proxy.parse.wires.reading import read, understood
from tests.proxy.parse.wires.writing import served

TARGETS: Final = {
    "openai": deployment(base_url="https://api.openai.com/v1", upstream_model="gpt-5.5"),
    "engine": deployment("vllm"),
    "claude": deployment("litellm", upstream_model="anthropic/claude-opus-4-8", base_url=""),
    "elsewhere": deployment("litellm", upstream_model="bedrock/anthropic.claude-x", base_url=""),
}
"""The last is a Claude of another host, which litellm calls."""
_SCHEMA: Final = {"type": "object"}
ASKED: Final[dict[str, tuple[Wire, dict[str, Any]]]] = {
    "chat": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": {"name": "weigh", "parameters": _SCHEMA}}],
        },
    ),
    "responses": (RESPONSES, {"input": "hi", "tools": [{"type": "function", "name": "weigh", "parameters": _SCHEMA}]}),
    "messages": (
        MESSAGES,
        {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"name": "weigh", "input_schema": _SCHEMA}],
        },
    ),
}
_NAMED: Final = {"type": "function", "function": {"name": "weigh"}}

Sent = dict[str, Any]
NOTHING: Final[Sent] = {}
TOLD: Final = "told"
"""Left out, and named in `x-weighbridge-dropped`."""


def _kept(chat: Sent, claude: Sent) -> tuple[Sent, Sent, Sent, Sent]:
    """The same for all who chat, litellm included."""
    return chat, chat, claude, chat


def _effort(word: str) -> Sent:
    return {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": word}}


_ONE: Final[Sent] = {"tool_choice": {"type": "tool", "name": "weigh"}}
_ANY: Final[Sent] = {"tool_choice": {"type": "any"}}
_ALONE: Final[Sent] = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}

CASES: Final[list[tuple[str, str, dict[str, Any], tuple[Any, Any, Any, Any]]]] = [
    # feature, wire, what is said on it, and what OpenAI, an engine of one's own, a Claude and one elsewhere are sent.
    (
        "effort",
        "chat",
        {"reasoning_effort": "xhigh"},
        (*({"reasoning_effort": "xhigh"},) * 2, _effort("xhigh"), {"reasoning_effort": "xhigh"}),
    ),
    (
        "effort",
        "responses",
        {"reasoning": {"effort": "xhigh"}},
        ({"reasoning_effort": "xhigh"}, {"reasoning_effort": "high"}, _effort("high"), {"reasoning_effort": "high"}),
    ),
    (
        "effort",
        "messages",
        {"output_config": {"effort": "max"}},
        (
            {"reasoning_effort": "high"},
            {"reasoning_effort": "high"},
            {"output_config": {"effort": "max"}},
            {"reasoning_effort": "max"},
        ),
    ),
    ("verbosity", "chat", {"verbosity": "low"}, ({"verbosity": "low"}, {"verbosity": "low"}, TOLD, TOLD)),
    ("verbosity", "responses", {"text": {"verbosity": "low"}}, ({"verbosity": "low"}, TOLD, TOLD, TOLD)),
    # Anthropic has none.
    ("verbosity", "messages", {}, (NOTHING,) * 4),
    ("choice", "chat", {"tool_choice": _NAMED}, _kept({"tool_choice": _NAMED}, _ONE)),
    (
        "choice",
        "responses",
        {"tool_choice": {"type": "function", "name": "weigh"}},
        _kept({"tool_choice": _NAMED}, _ONE),
    ),
    ("choice", "messages", _ONE, _kept({"tool_choice": _NAMED}, _ONE)),
    ("any", "chat", {"tool_choice": "required"}, _kept({"tool_choice": "required"}, _ANY)),
    ("any", "responses", {"tool_choice": "required"}, _kept({"tool_choice": "required"}, _ANY)),
    ("any", "messages", _ANY, _kept({"tool_choice": "required"}, _ANY)),
    ("parallel", "chat", {"parallel_tool_calls": False}, _kept({"parallel_tool_calls": False}, _ALONE)),
    ("parallel", "responses", {"parallel_tool_calls": False}, _kept({"parallel_tool_calls": False}, _ALONE)),
    ("parallel", "messages", _ALONE, _kept({"tool_choice": "auto", "parallel_tool_calls": False}, _ALONE)),
]


def sent_to(target: Deployment, wire: Wire, body: dict[str, Any]) -> tuple[Sent, set[str]]:
    """What of the four features a target is sent, and what its caller is told was left out."""
    request = read(wire, {"model": "auto", **body})
    dropped = tuple(lacking([target]).lacks & request.fields.keys())
    noted: list[str] = []
    call = upstream_call(target, request, dropped=dropped, drops=noted.append)
    if target.speaks_messages:
        found = msgspec.json.decode(claude_body(call).body)
    elif target.kind == "litellm":
        found = litellm_arguments(call)
    else:
        found = msgspec.json.decode(upstream_body(request, target, dropped=dropped))
    names = ("reasoning_effort", "verbosity", "tool_choice", "parallel_tool_calls", "thinking", "output_config")
    told = {*noted, *untaken(request, target), *(name for name in dropped if name in MINOR)}
    return {name: found[name] for name in names if name in found}, told


@pytest.mark.parametrize(("feature", "wire", "said", "sent"), CASES)
def test_what_is_asked_for(feature: str, wire: str, said: dict[str, Any], sent: tuple[Any, Any, Any, Any]) -> None:
    """Sent in the target's words, or left out and told."""
    spoken, body = ASKED[wire]
    for name, expected in zip(TARGETS, sent, strict=True):
        found, told = sent_to(TARGETS[name], spoken, body | said)
        if expected == TOLD:
            assert (found, told & {"verbosity"}) == (NOTHING, {"verbosity"}), (feature, name)
        else:
            assert (found, told) == (expected, set()), (feature, name)


STOPS: Final[list[tuple[str, dict[str, Any], tuple[str, tuple[str, str | None], str]]]] = [
    # who says it, chat's choice or a Claude's reason, and what callers of chat, responses and messages read.
    ("openai", {"finish_reason": "stop"}, ("stop", ("completed", None), "end_turn")),
    ("openai", {"finish_reason": "length"}, ("length", ("incomplete", "max_output_tokens"), "max_tokens")),
    ("openai", {"finish_reason": "tool_calls"}, ("tool_calls", ("completed", None), "tool_use")),
    ("openai", {"finish_reason": "content_filter"}, ("content_filter", ("incomplete", "content_filter"), "refusal")),
    ("engine", {"finish_reason": "stop", "stop_reason": "END"}, ("stop", ("completed", None), "stop_sequence")),
    ("claude", {"stop_reason": "end_turn"}, ("stop", ("completed", None), "end_turn")),
    ("claude", {"stop_reason": "max_tokens"}, ("length", ("incomplete", "max_output_tokens"), "max_tokens")),
    ("claude", {"stop_reason": "tool_use"}, ("tool_calls", ("completed", None), "tool_use")),
    ("claude", {"stop_reason": "refusal"}, ("content_filter", ("incomplete", "content_filter"), "refusal")),
    ("claude", {"stop_reason": "stop_sequence"}, ("stop", ("completed", None), "stop_sequence")),
    # OpenAI's wires have no word for it.
    ("claude", {"stop_reason": "pause_turn"}, ("stop", ("completed", None), "pause_turn")),
    (
        "claude",
        {"stop_reason": "model_context_window_exceeded"},
        ("length", ("incomplete", "max_output_tokens"), "model_context_window_exceeded"),
    ),
    # litellm has chat's words alone.
    ("elsewhere", {"stop_reason": "refusal"}, ("content_filter", ("incomplete", "content_filter"), "refusal")),
    ("elsewhere", {"stop_reason": "stop_sequence"}, ("stop", ("completed", None), "end_turn")),
    ("elsewhere", {"stop_reason": "pause_turn"}, ("stop", ("completed", None), "end_turn")),
    ("elsewhere", {"stop_reason": "model_context_window_exceeded"}, ("stop", ("completed", None), "end_turn")),
]


def told_on(wire: str, payload: dict[str, Any], usage: Usage | None = None) -> dict[str, Any]:
    """A whole answer as a caller of this wire reads it."""
    spoken, body = ASKED[wire]
    event = decode_event(json.dumps(payload).encode(), "t0/a")
    dialect = understood(spoken, {"model": "auto", **body}).dialect
    found: dict[str, Any] = json.loads(dialect.whole(event.payload, served() if usage is None else served(usage)))
    return found


def completion(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}]}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("who", "choice", "read_as"), STOPS)
def test_why_an_answer_stopped(who: str, choice: dict[str, Any], read_as: tuple[str, Any, str]) -> None:
    """In each wire's own words, as far as it and the way there have one."""
    if who == "claude":
        message = {"content": [{"type": "text", "text": "a"}], "stop_sequence": None, **choice}
        payload = json.loads(chat_of_message(json.dumps(message).encode(), TARGETS["claude"]))
        chat, responses = (told_on(wire, payload) for wire in ("chat", "responses"))
        # On the wire that it speaks it is passed as it came.
        dialect = understood(MESSAGES, {"model": "auto", **ASKED["messages"][1]}).dialect
        messages = json.loads(
            dialect.whole(json.dumps(message).encode(), msgspec.structs.replace(served(), native=True))
        )
    else:
        if who == "elsewhere":
            from litellm.litellm_core_utils.core_helpers import map_finish_reason

            choice = {"finish_reason": map_finish_reason(choice["stop_reason"])}
        payload = completion({"role": "assistant", "content": "a"}, **choice)
        chat, responses, messages = (told_on(wire, payload) for wire in ASKED)
    reason = (responses["incomplete_details"] or {}).get("reason")
    assert (chat["choices"][0]["finish_reason"], (responses["status"], reason), messages["stop_reason"]) == read_as, who


def test_a_refusal() -> None:
    """OpenAI's own field; engines have none, and a Claude's is its stop reason, above."""
    payload = completion({"role": "assistant", "content": None, "refusal": "No."})
    assert told_on("chat", payload)["choices"][0]["message"]["refusal"] == "No."
    (item,) = told_on("responses", payload)["output"]
    assert item["content"] == [{"type": "refusal", "refusal": "No."}]
    message = told_on("messages", payload)
    assert (message["content"], message["stop_reason"]) == ([{"type": "text", "text": "No."}], "refusal")


@pytest.mark.parametrize(
    ("who", "usage"),
    [
        ("openai", {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60}}),
        ("engine", {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60}}),
        (
            "claude",
            {"prompt_tokens": 100, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 10},
        ),
    ],
)
def test_cached_tokens(who: str, usage: dict[str, Any]) -> None:
    """Inclusive on OpenAI's wires, beside the input on Anthropic's; only a Claude tells what it wrote to a cache."""
    told = {**usage, "completion_tokens": 7}
    counted = from_openai(
        told, estimate=estimated(input_tokens=1, output_tokens=1), max_input_tokens=1_000, max_output_tokens=100
    )
    written = 10 if who == "claude" else 0
    payload = {**completion({"role": "assistant", "content": "a"}), "usage": told}
    # Chat passes the upstream's own report.
    assert told_on("chat", payload, counted)["usage"]["prompt_tokens"] == 100
    response = told_on("responses", payload, counted)["usage"]
    assert (response["input_tokens"], response["input_tokens_details"]) == (
        100,
        {"cached_tokens": 60, "cache_write_tokens": written},
    )
    message = told_on("messages", payload, counted)["usage"]
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert [message[name] for name in names] == [40 - written, 60, written]
