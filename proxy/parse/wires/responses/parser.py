"""The body of a response's request as the internal chat request. No I/O."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from providers.thoughts import Thought
from providers.wire import Message
from proxy.errors import BadRequest
from proxy.parse.chat_request import ChatFields, PlainMessage, chat_request, request_of
from proxy.parse.headers import RequestHeaders
from proxy.parse.reasoning_effort import effort_of
from proxy.parse.wires.reading import (
    an_object,
    encoded,
    is_plain,
    object_of,
    own_fields_of,
    plain_fields,
    raw,
    said,
    text,
    unread,
    unsupported,
    whole_number,
    wrong,
)
from proxy.parse.wires.responses.as_written import ResponsesAsWritten, response_as_written
from proxy.parse.wires.responses.dialect import ResponsesDialect
from proxy.parse.wires.responses.items import Item, chat_messages, items_of
from proxy.parse.wires.responses.tools import NO_TOOLS, Toolbox, chat_tool_choice, toolbox_of, tools_run_by_providers
from proxy.parse.wires.wire import IsModel, Kept, Later, Understood

_SAME: Final = frozenset({"temperature", "top_p", "stream", "parallel_tool_calls", "user"})
"""Fields that chat has under the same name, with the same meaning."""
_OPENAI_ONLY: Final = frozenset({"prompt_cache_key", "prompt_cache_retention", "safety_identifier"})
_READ: Final = frozenset(
    {"background", "client_metadata", "conversation", "include", "input", "instructions", "max_output_tokens", "metadata", "model", "previous_response_id",
     "reasoning", "service_tier", "store", "stream_options", "text", "tool_choice", "tools", "top_logprobs", *_SAME, *_OPENAI_ONLY}
)  # fmt: skip
_COMMON: Final = frozenset(
    {
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "metadata",
        "model",
        "previous_response_id",
        "store",
        *_SAME,
    }
)
"""Fields that each target has under some name, or that are the gateway's. Most requests have no others."""
_PLAIN: Final = _COMMON - {"include", "parallel_tool_calls"}
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Efforts in the words that every engine knows."""
_LOGPROBS: Final = "message.output_text.logprobs"


class _Plain(ChatFields, frozen=True, kw_only=True):
    """A body with none but the usual fields."""

    input: str | list[PlainMessage]
    instructions: str = ""
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = msgspec.field(name="max_output_tokens", default=None)
    stream: bool = False
    store: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    user: str = ""
    metadata: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    previous_response_id: str = ""


_decode_plain: Final = msgspec.json.Decoder(_Plain).decode
_SAME_PLAIN: Final = (_SAME & _PLAIN) | {"model"}


def read_response(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parse a request whose earlier turns stand in its `input`. Raises BadRequest."""
    del is_model
    plain = plain_fields(body, _PLAIN, _decode_plain)
    if plain is not None:
        given = plain[1].input
        if isinstance(given, str) or is_plain(given):
            return _read_plain(*plain, headers)
    return _understood(body, headers)


def _read_plain(fields: dict[str, Any], asked: _Plain, headers: RequestHeaders) -> Understood:
    """Return the request of a body that is a chat in all but a few names, as most are: its texts are passed on as
    they were written.
    """
    given = written = fields["input"]
    messages: list[Message]
    if isinstance(asked.input, str):
        messages = [Message("user", asked.input)]
        written = msgspec.Raw(b'[{"role":"user","content":%b}]' % bytes(given))
    else:
        messages = [*asked.input]
    if asked.instructions:
        messages.insert(0, Message("system", asked.instructions))
        said_first = bytes(fields["instructions"])
        written = msgspec.Raw(b'[{"role":"system","content":%b},%b' % (said_first, bytes(written)[1:]))
    chat = {name: value for name, value in fields.items() if name in _SAME_PLAIN}
    chat["messages"] = written
    if "max_output_tokens" in fields:
        chat["max_tokens"] = fields["max_output_tokens"]
    request = request_of(
        chat,
        asked,
        messages,
        headers,
        translated=True,
        for_anthropic=lambda: _for_anthropic(asked.instructions, _items_in(given), NO_TOOLS, None),
    )
    fields["store"] = asked.store
    return Understood(request, ResponsesDialect(fields, lambda: _items_in(given), NO_TOOLS))


def _items_in(given: msgspec.Raw) -> list[Item]:
    return items_of(msgspec.json.decode(given))


def read_again(response_id: str, events: int, body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parse, as a stream, a queued request that is now answered. `events` is the number of those that an earlier run
    of it has written. Raises BadRequest.
    """
    del is_model
    number = response_id.removeprefix("resp_")
    understood = _understood(body, headers, streams=True, number=number, events=events)
    return msgspec.structs.replace(understood, later=None)


def _understood(
    body: bytes, headers: RequestHeaders, *, streams: bool = False, number: str | None = None, events: int = 0
) -> Understood:
    fields = object_of(body)
    if streams:
        fields["stream"] = True
    if fields.get("prompt"):
        raise unsupported("prompt", "Prompts are not kept here: send `instructions` and `input`.")
    items = items_of(fields.get("input"))
    tools = fields.get("tools") or ()
    box = toolbox_of(tools) if tools else NO_TOOLS
    run = tools_run_by_providers(tools) if tools else {}
    instructions = fields.get("instructions")
    thoughts: dict[int, Thought] = {}
    messages = chat_messages(instructions, items, box, signed=False, foreign=run, thoughts=thoughts)
    # Items that a provider alone can read are left out for the classifier.
    choice, offered = ("auto", box) if run else chat_tool_choice(fields.get("tool_choice") or "auto", box)
    chat: dict[str, Any] = {
        "model": text(fields.get("model"), "model"),
        "messages": messages,
        **said(fields, _SAME),
        **longest_answer(fields),
    }
    more: dict[str, Any] = {}
    effort: str | None = None
    engines: dict[str, Any] = {}
    if offered.functions:
        chat |= _tools(offered, choice)
    else:
        # A host without tools to call refuses to be told how.
        chat.pop("parallel_tool_calls", None)
    if run or not fields.keys() <= _COMMON:
        effort = _effort(fields)
        engines["reasoning_effort"] = _EFFORTS.get(effort or "")
        chat |= _rarely_asked(fields)
        more = {
            "left_out": unread(fields, _READ),
            "for_openai": raw(said(fields, _OPENAI_ONLY)),
            "for_reasoners": raw({"reasoning_effort": effort, "verbosity": _text_config(fields).get("verbosity")}),
            "as_written": response_as_written(body, fields, items, run) if run else None,
            "effort": effort_of(fields),
        }
    elif fields.get("include"):
        chat |= _logprobs(fields)
    request = chat_request(
        chat,
        headers,
        for_engines=raw(engines),
        for_anthropic=lambda: _for_anthropic(instructions, items, box, effort),
        thoughts=thoughts,
        **more,
    )
    # It tells conversations apart, and goes to OpenAI alone.
    request.fields.pop("prompt_cache_key", None)
    kind = ResponsesAsWritten if run else ResponsesDialect
    dialect = kind(fields, lambda: items, box, number=number, events=events)
    return Understood(request, dialect, _later(fields, dialect) if fields.get("background") else None)


def _later(fields: Mapping[str, Any], dialect: ResponsesDialect) -> Later:
    if fields["background"] is not True:
        raise wrong("background", "true or false")
    if fields.get("store") is False:
        raise BadRequest("What is made in the background is kept: leave out `store`.", param="store")
    return Later(dialect.queued, streams=fields.get("stream") is True)


def read_warming(body: bytes, headers: RequestHeaders, request_id: str, created_at: int) -> tuple[Understood, Kept]:
    """Parse a request that is not to be answered yet, and return it with the record to be remembered. Raises
    BadRequest.
    """
    understood = _understood(body, headers)
    assert isinstance(understood.dialect, ResponsesDialect)  # noqa: S101  # It was made here.
    return understood, understood.dialect.warmed(request_id, created_at)


def read_for_counting(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parse a request whose tokens are to be counted. Raises BadRequest."""
    fields = object_of(body)
    fields.pop("stream", None)
    fields.setdefault("model", "auto")
    understood = read_response(encoded(fields), headers, is_model)
    return msgspec.structs.replace(
        understood, to_count=response_as_written(body, fields, items_of(fields.get("input")), {})
    )


def _rarely_asked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rare fields of a body as chat's."""
    asked = {**own_fields_of(fields), **_logprobs(fields)}
    if fields.get("prompt_cache_key") is not None:
        asked["prompt_cache_key"] = text(fields["prompt_cache_key"], "prompt_cache_key")
    form = _text_config(fields).get("format")
    if form is not None:
        asked |= _response_format(an_object(form, "text.format"))
    return asked


def _logprobs(fields: Mapping[str, Any]) -> dict[str, Any]:
    include = fields.get("include")
    if not fields.get("top_logprobs") and not (isinstance(include, list) and _LOGPROBS in include):
        return {}
    return {"logprobs": True, "top_logprobs": whole_number(fields.get("top_logprobs") or 0, "top_logprobs")}


def _response_format(form: Mapping[str, Any]) -> dict[str, Any]:
    match form.get("type"):
        case "text":
            return {}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "json_schema":
            named = {
                name: form[name] for name in ("name", "description", "schema", "strict") if form.get(name) is not None
            }
            an_object(named.get("schema"), "text.format.schema")
            return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", **named}}}
        case _:
            raise wrong("text.format.type", "`text`, `json_object` or `json_schema`")


def _text_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    config = fields.get("text")
    return {} if config is None else an_object(config, "text")


def _effort(fields: Mapping[str, Any]) -> str | None:
    reasoning = fields.get("reasoning")
    effort = None if reasoning is None else an_object(reasoning, "reasoning").get("effort")
    return None if effort is None else text(effort, "reasoning.effort")


def _tools(offered: Toolbox, choice: Any) -> dict[str, Any]:
    if not offered.functions:
        return {}
    return {"tools": offered.functions, **({} if choice == "auto" else {"tool_choice": choice})}


def _for_anthropic(instructions: Any, items: list[Item], box: Toolbox, effort: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"messages": chat_messages(instructions, items, box, signed=True, foreign={})}
    known = _EFFORTS.get(effort or "")
    return found if known is None else {**found, "reasoning_effort": known}


def longest_answer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bound of the answer, where there is one. Raises BadRequest."""
    if fields.get("max_output_tokens") is None:
        return {}
    most = whole_number(fields["max_output_tokens"], "max_output_tokens")
    if most < 1:
        raise wrong("max_output_tokens", "at least 1")
    return {"max_tokens": most}
