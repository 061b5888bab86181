"""Anthropic's request body as the internal chat request. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from providers.cache_marks import with_cache_marks
from providers.thoughts import Thought
from providers.wire import Message
from proxy.parse.chat_request import ChatFields, PlainMessage, chat_request, request_of
from proxy.parse.headers import RequestHeaders
from proxy.parse.reasoning_effort import effort_of
from proxy.parse.wires.messages.as_written import (
    MessagesAsWritten,
    in_own_words,
    message_as_written,
    tools_asked,
    without_tools,
)
from proxy.parse.wires.messages.conversation import chat_messages
from proxy.parse.wires.messages.dialect import MessagesDialect
from proxy.parse.wires.messages.tools import chat_tool_choice, chat_tools, given_names
from proxy.parse.wires.reading import (
    an_object,
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
from proxy.parse.wires.wire import IsModel, Understood
from settings.decoding import DECODE_ERRORS

CLAUDE_PREFIX: Final = "claude-"
"""Clients of Anthropic's show and send only names that begin so."""
_AUTO: Final = "auto"
_SAME: Final = frozenset({"temperature", "top_p", "stream"})
"""Fields that chat has under the same name, with the same meaning."""
_READ: Final = frozenset(
    {"cache_control", "container", "inference_geo", "mcp_servers", "max_tokens", "messages", "metadata", "model", "output_config", "service_tier",
     "stop_sequences", "system", "thinking", "tool_choice", "tools", "top_k", *_SAME}
)  # fmt: skip
_COMMON: Final = frozenset({"max_tokens", "messages", "metadata", "model", "stop_sequences", "system", *_SAME})
"""Fields that each target has under some name. Most requests have no others, so nothing else is looked for in them."""
_GLOBAL: Final = (None, "global")
_USUAL_SPEED: Final = (None, "standard")
_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Anthropic's efforts in the words that every engine knows."""
_MAX_SESSION_CHARS: Final = 256


class _Plain(ChatFields, frozen=True, kw_only=True):
    """A body with none but the usual fields."""

    messages: list[PlainMessage]
    max_tokens: int
    stream: bool = False
    system: str | msgspec.UnsetType = msgspec.UNSET
    temperature: float = 1.0
    top_p: float = 1.0
    stop_sequences: tuple[str, ...] = ()
    metadata: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


_decode_plain: Final = msgspec.json.Decoder(_Plain).decode
_PLAIN_DIALECT: Final = MessagesDialect(thinks=False)


def read_messages(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parse a request for an answer. Raises BadRequest."""
    plain = plain_fields(body, _COMMON, _decode_plain)
    if plain is not None and is_plain(plain[1].messages):
        return _read_plain(body, *plain, headers, is_model)
    fields = object_of(body)
    if "max_tokens" not in fields:
        raise wrong("max_tokens", "the most tokens that the answer may have")
    return _read(body, fields, headers, is_model)


def read_for_counting(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parse a request whose tokens are to be counted. Raises BadRequest."""
    fields = object_of(body)
    # No answer is made, so neither its length nor its speed matters.
    for name in ("max_tokens", "stream", "speed"):
        fields.pop(name, None)
    understood = _read(body, fields, headers, is_model)
    return msgspec.structs.replace(understood, to_count=message_as_written(body, headers, {}))


def model_named(name: str, is_model: IsModel) -> str:
    """Return the model that a name stands for: `claude-NAME` is NAME where the configuration has it, and else `auto`."""
    if not name.startswith(CLAUDE_PREFIX) or is_model(name):
        return name
    rest = name.removeprefix(CLAUDE_PREFIX)
    return rest if is_model(rest) else _AUTO


def _read_plain(
    body: bytes, fields: dict[str, msgspec.Raw], asked: _Plain, headers: RequestHeaders, is_model: IsModel
) -> Understood:
    """Return the request of a body that is a chat in all but a few names, as most are: its texts are passed on as
    they were written.
    """
    model = model_named(asked.model, is_model)
    messages: list[Message] = [*asked.messages]
    if asked.system is not msgspec.UNSET:
        messages.insert(0, Message("system", asked.system))
        said = b'[{"role":"system","content":%b},%b' % (fields.pop("system"), bytes(fields["messages"])[1:])
        fields["messages"] = msgspec.Raw(said)
    if model != asked.model:
        fields["model"], asked = msgspec.Raw(b'"%b"' % model.encode()), msgspec.structs.replace(asked, model=model)
    user, session = "", None
    if "metadata" in fields:
        del fields["metadata"]
        user, session = _who(asked.metadata)
    if "stop_sequences" in fields:
        stops = fields.pop("stop_sequences")
        if asked.stop_sequences:
            fields["stop"] = stops
    request = request_of(
        fields,
        asked,
        messages,
        headers,
        session=session,
        end_user=user,
        translated=True,
        for_anthropic=lambda: _for_anthropic(object_of(body)),
        in_messages=lambda: in_own_words(body, headers),
    )
    return Understood(request, _PLAIN_DIALECT)


def _read(body: bytes, fields: dict[str, Any], headers: RequestHeaders, is_model: IsModel) -> Understood:
    is_common = fields.keys() <= _COMMON
    run = {} if is_common else _run_by_anthropic(fields)
    if run:
        # Blocks that Anthropic alone can read are left out for the classifier.
        fields = without_tools(fields)
    thoughts: dict[int, Thought] = {}
    messages = chat_messages(fields.get("system"), fields.get("messages"), marked=False, foreign=run, thoughts=thoughts)
    chat: dict[str, Any] = {
        "model": model_named(text(fields.get("model"), "model"), is_model),
        "messages": messages,
        **said(fields, _SAME),
    }
    if fields.get("max_tokens") is not None:
        chat["max_tokens"] = whole_number(fields["max_tokens"], "max_tokens")
    if fields.get("stop_sequences"):
        chat["stop"] = fields["stop_sequences"]
    more: dict[str, Any] = {}
    thinks = False
    engines: dict[str, Any] = {}
    if run or not is_common:
        thinks = _thinks(fields.get("thinking"))
        effort = {"reasoning_effort": _effort(fields)}
        engines |= {**_for_engines(fields), **effort}
        chat |= _rarely_asked(fields)
        more = {
            "claudes_only": ("thinking",) if thinks else (),
            "left_out": unread(fields, _READ),
            "for_reasoners": raw(effort),
            "as_written": message_as_written(body, headers, run) if run else None,
            "effort": effort_of(fields),
        }
    user, session = _who(fields.get("metadata"))
    request = chat_request(
        chat,
        headers,
        session=session,
        end_user=user,
        for_engines=raw(engines),
        for_anthropic=lambda: _for_anthropic(fields),
        in_messages=None if run else lambda: in_own_words(body, headers),
        thoughts=thoughts,
        **more,
    )
    dialect = MessagesDialect(thinks=thinks, names=given_names(fields.get("tools")))
    return Understood(request, MessagesAsWritten() if run else dialect)


def _run_by_anthropic(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the tools that only Anthropic has, by name. Raises BadRequest for options that no request here may
    choose.
    """
    if fields.get("inference_geo") not in _GLOBAL:
        raise unsupported(
            "inference_geo",
            "Where a model runs is not chosen by a request here: name a model of the region that you need.",
        )
    if fields.get("speed") not in _USUAL_SPEED:
        raise unsupported(
            "speed", "Faster answers have prices of their own, which are in no book here: leave out `speed`."
        )
    return tools_asked(fields)


def _rarely_asked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rare fields of a body as chat's."""
    asked = own_fields_of(fields)
    # Anthropic's values mean an answer now, whichever of its own queues they choose.
    asked.pop("service_tier", None)
    if fields.get("tools"):
        asked["tools"] = chat_tools(fields["tools"], marked=False)
        if fields.get("tool_choice") is not None:
            asked |= chat_tool_choice(fields["tool_choice"])
    form = _output_config(fields).get("format")
    if form is not None:
        form = an_object(form, "output_config.format")
        if form.get("type") != "json_schema":
            raise wrong("output_config.format.type", "`json_schema`")
        schema = an_object(form.get("schema"), "output_config.format.schema")
        named = {"name": "answer", "strict": True, "schema": schema}
        asked["response_format"] = {"type": "json_schema", "json_schema": named}
    return asked


def _output_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    config = fields.get("output_config")
    return {} if config is None else an_object(config, "output_config")


def _thinks(thinking: Any) -> bool:
    # Anthropic adds kinds of thinking; one alone is none.
    return thinking is not None and an_object(thinking, "thinking").get("type") != "disabled"


def _for_engines(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that self-hosted engines take beside chat's."""
    found: dict[str, Any] = {}
    if fields.get("top_k") is not None:
        found["top_k"] = whole_number(fields["top_k"], "top_k")
    return found


def _effort(fields: Mapping[str, Any]) -> str | None:
    return _EFFORTS.get(str(_output_config(fields).get("effort")))


def _for_anthropic(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that replace the plain ones for targets that speak Anthropic's dialect. The body was read
    before.
    """
    found: dict[str, Any] = {"messages": chat_messages(fields.get("system"), fields.get("messages"), marked=True)}
    if fields.get("tools"):
        found["tools"] = chat_tools(fields["tools"], marked=True)
    whole = fields.get("cache_control")
    if isinstance(whole, dict):
        # A mark of the whole request asks for what the gateway does by itself where it pays: marks where they serve.
        found["messages"] = with_cache_marks(found["messages"], found.get("tools"), whole)
    for name in ("top_k", "thinking"):
        if fields.get(name) is not None:
            found[name] = fields[name]
    effort = _output_config(fields).get("effort")
    choice = fields.get("tool_choice")
    if fields.get("tools") and choice is not None and choice.get("type") == "tool":
        found["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    if effort is not None and fields.get("thinking") is None:
        found["reasoning_effort"] = effort
    return found


def _who(metadata: Any) -> tuple[str, str | None]:
    """Return the end user and the session in `metadata.user_id`. One client of Anthropic's writes both there, as JSON or as words
    with `_session_`.
    """
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user_id, str):
        return "", None
    user, found = user_id, None
    if "_session_" in user_id:
        user, _, found = user_id.rpartition("_session_")
    if user_id[:1] == "{":
        try:
            said = msgspec.json.decode(user_id)
        except DECODE_ERRORS:
            return user_id, None
        if isinstance(said, dict):
            named = (said.get("account_uuid"), said.get("device_id"))
            user = next((each for each in named if isinstance(each, str) and each), user_id)
            found = said.get("session_id")
    return user, found[:_MAX_SESSION_CHARS] if isinstance(found, str) and found else None
