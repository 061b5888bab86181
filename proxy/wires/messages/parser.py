"""Anthropic's request body as the internal chat request. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from providers.cache_marks import with_cache_marks
from proxy.request import RequestHeaders, parse_chat
from proxy.wires.messages.as_written import MessagesAsWritten, message_as_written, tools_asked, without_tools
from proxy.wires.messages.conversation import chat_messages
from proxy.wires.messages.dialect import MessagesDialect
from proxy.wires.messages.tools import chat_tool_choice, chat_tools, given_names
from proxy.wires.reading import (
    an_object,
    encoded,
    object_of,
    own_fields_of,
    raw,
    said,
    text,
    unread,
    unsupported,
    whole_number,
    wrong,
)
from proxy.wires.system_turns import with_system_first
from proxy.wires.wire import IsModel, Understood

CLAUDE_PREFIX: Final = "claude-"
"""Clients of Anthropic's show and send only names that begin so."""
_AUTO: Final = "auto"
_SAME: Final = frozenset({"temperature", "top_p", "stream"})
"""Fields that chat has under the same name, with the same meaning."""
_READ: Final = frozenset(
    {"cache_control", "container", "inference_geo", "mcp_servers", "max_tokens", "messages", "metadata", "model", "output_config", "service_tier",
     "stop_sequences", "system", "thinking", "tool_choice", "tools", "top_k", *_SAME}
)  # fmt: skip
_GLOBAL: Final = (None, "global")
_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Anthropic's efforts in the words that every engine knows."""
_MAX_SESSION_CHARS: Final = 256


def read_messages(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parses a request for an answer. Raises BadRequest."""
    fields = object_of(body)
    if "max_tokens" not in fields:
        raise wrong("max_tokens", "the most tokens that the answer may have")
    return _read(body, fields, headers, is_model)


def read_for_counting(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parses a request whose tokens are to be counted. Raises BadRequest."""
    fields = object_of(body)
    for name in ("max_tokens", "stream"):
        fields.pop(name, None)
    understood = _read(body, fields, headers, is_model)
    return msgspec.structs.replace(understood, to_count=message_as_written(body, headers, {}))


def model_named(name: str, is_model: IsModel) -> str:
    """The model that a name stands for: `claude-NAME` is NAME where the configuration has it, and else `auto`."""
    if is_model(name) or not name.startswith(CLAUDE_PREFIX):
        return name
    rest = name.removeprefix(CLAUDE_PREFIX)
    return rest if is_model(rest) else _AUTO


def _read(body: bytes, fields: dict[str, Any], headers: RequestHeaders, is_model: IsModel) -> Understood:
    if fields.get("inference_geo") not in _GLOBAL:
        raise unsupported(
            "inference_geo",
            "Where a model runs is not chosen by a request here: name a model of the region that you need.",
        )
    run = tools_asked(fields)
    if run:
        # What Anthropic alone can read is weighed as if it were not there.
        fields = without_tools(fields)
    messages = chat_messages(fields.get("system"), fields.get("messages"), marked=False, foreign=run)
    model = model_named(text(fields.get("model"), "model"), is_model)
    chat: dict[str, Any] = {
        **own_fields_of(fields),
        "model": model,
        "messages": messages,
        **said(fields, _SAME),
        **_asked(fields),
    }
    # Anthropic's values mean an answer now, whichever of its own queues they choose.
    chat.pop("service_tier", None)
    if fields.get("tools"):
        chat["tools"] = chat_tools(fields["tools"], marked=False)
        if fields.get("tool_choice") is not None:
            chat |= chat_tool_choice(fields["tool_choice"])
    request = parse_chat(encoded(chat), headers)
    thinks = _thinks(fields.get("thinking"))
    effort = {"reasoning_effort": _effort(fields)}
    return Understood(
        msgspec.structs.replace(
            request,
            translated=True,
            claudes_only=("thinking",) if thinks else (),
            left_out=unread(fields, _READ),
            session_id=request.session_id or _session(fields.get("metadata")),
            for_engines=raw({**_for_engines(fields), **effort, "messages": with_system_first(messages)}),
            for_reasoners=raw(effort),
            for_anthropic=lambda: _for_anthropic(fields),
            as_written=message_as_written(body, headers, run) if run else None,
        ),
        MessagesAsWritten() if run else MessagesDialect(thinks=thinks, names=given_names(fields.get("tools"))),
    )


def _asked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked of the answer, in chat's fields."""
    asked: dict[str, Any] = {}
    if fields.get("max_tokens") is not None:
        asked["max_tokens"] = whole_number(fields["max_tokens"], "max_tokens")
    if fields.get("stop_sequences"):
        asked["stop"] = fields["stop_sequences"]
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
    """What engines of one's own take beside chat's fields."""
    found: dict[str, Any] = {}
    if fields.get("top_k") is not None:
        found["top_k"] = whole_number(fields["top_k"], "top_k")
    return found


def _effort(fields: Mapping[str, Any]) -> str | None:
    return _EFFORTS.get(str(_output_config(fields).get("effort")))


def _for_anthropic(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What stands in place of the plain fields for targets that speak Anthropic's dialect. The body was read before."""
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


def _session(metadata: Any) -> str | None:
    """The session in `metadata.user_id`, as one client of Anthropic's writes it: JSON, or words with `_session_`."""
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user_id, str):
        return None
    found: Any = user_id.rpartition("_session_")[2] if "_session_" in user_id else None
    if user_id[:1] == "{":
        try:
            said = msgspec.json.decode(user_id)
        except msgspec.DecodeError:
            return None
        found = said.get("session_id") if isinstance(said, dict) else None
    return found[:_MAX_SESSION_CHARS] if isinstance(found, str) and found else None
