"""A call as the body of Anthropic's messages. Pure.

A request that came in Anthropic's dialect goes as its caller wrote it; any other one is translated from chat's fields.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from providers.cache_marks import mark_body
from providers.claude.conversation import claude_conversation, tool_name
from providers.claude.schema import answer_schema
from providers.errors import CannotCarry
from providers.parameters import DECISIVE, MINOR, NOTES, is_said
from providers.provider_tools import AsWritten, model_of_dialect
from providers.quirks import Quirks, media_type, tool_schemas
from providers.target import Deployment
from providers.tool_schemas import fitting_schema
from providers.upstream import UpstreamCall
from providers.wire import field_of

_VERSION: Final = (("anthropic-version", "2023-06-01"),)
_READ: Final = frozenset(
    {"function_call", "functions", "max_completion_tokens", "max_tokens", "messages", "parallel_tool_calls", "reasoning_effort",
     "response_format", "stop", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p", "user", "web_search_options"}
)  # fmt: skip
_PASSED_OVER: Final = NOTES | {"model", "stream"}
"""Notes, and what is ours to set."""
_USUAL_TOKENS: Final = 4_096
"""The longest answer where nobody says one: Anthropic wants to be told."""
_BUDGETS: Final[Mapping[str, int]] = {
    "minimal": 1_024, "low": 1_024, "medium": 2_048, "high": 4_096, "xhigh": 8_192, "max": 16_384,
}  # fmt: skip
"""Tokens to think with, by effort, for models that are asked so; the least is Anthropic's own."""
_EFFORT_OF_BUDGET: Final = ("low", "medium", "high", "xhigh", "max")
_LEAST_BUDGET: Final = 1_024
_EFFORTS: Final[Mapping[str, tuple[str, ...]]] = {
    "minimal": ("low",), "low": ("low",), "medium": ("medium",), "high": ("high",), "xhigh": ("xhigh", "high"),
    "max": ("max", "high"),
}  # fmt: skip
"""The names of an effort at models that have efforts, the closest first."""
_SEARCHES: Final[Mapping[str, int]] = {"low": 1, "medium": 5, "high": 10}
_SPEAKS_OF_A_PERSON: Final = re.compile(r"[\w.%+-]+@[\w.-]+|\+?[\d\s()-]{7,}", re.ASCII)
"""Mail addresses and telephone numbers, which Anthropic refuses as names of users."""
_SAMPLING: Final = ("temperature", "top_p", "top_k")

Fields = dict[str, Any]


class ClaudeBody(msgspec.Struct, frozen=True):
    """A body, the dialect's headers, and the original names of tools that had to be renamed."""

    body: bytes
    headers: tuple[tuple[str, str], ...]
    names: Mapping[str, str]


def effort_of_budget(tokens: int) -> str:
    """Return the effort that a thinking budget stands for: the highest one whose budget is no larger."""
    if tokens <= 0:
        return "none"
    return next((effort for effort in reversed(_EFFORT_OF_BUDGET) if _BUDGETS[effort] <= tokens), "low")


def claude_body(call: UpstreamCall) -> ClaudeBody:
    """Return the call for a Claude. Raises CannotCarry for what would change what the caller gets."""
    written = call.request.in_messages
    if written is not None:
        return _as_written(written(), call)
    names: dict[str, str] = {}
    fields = _translated(call, names)
    if call.marks_cache:
        mark_body(fields)
    return ClaudeBody(_encoded(fields, call), _VERSION, names)


def claude_params(call: UpstreamCall) -> bytes:
    """Return the same as one request of a batch, which cannot be streamed. Raises CannotCarry."""
    if call.deployment.options:
        raise _cannot_carry(call.deployment, "What only litellm can call does not go into a batch.", "model")
    fields = msgspec.json.decode(claude_body(call).body, type=dict[str, msgspec.Raw])
    fields.pop("stream", None)
    return msgspec.json.encode(fields)


def _encoded(fields: Fields, call: UpstreamCall) -> bytes:
    try:
        return msgspec.json.encode(fields)
    except (UnicodeEncodeError, RecursionError) as error:
        raise _cannot_carry(
            call.deployment, "The request has half a letter in it, which no model can read.", "messages"
        ) from error


def _as_written(written: AsWritten, call: UpstreamCall) -> ClaudeBody:
    """Return the caller's own body. Only what this model refuses, and what another one may have been meant to get, is left out."""
    quirks = call.deployment.quirks
    fields: Fields = {**written.fields, "model": model_of_dialect(call.deployment), "stream": call.request.stream}
    for name in call.dropped:
        fields.pop(name, None)
    if "messages" in fields:
        fields["messages"] = _with_known_types(fields["messages"])
    longest = _longest(call)
    if longest is not None:
        fields["max_tokens"] = longest
        _shorten_thinking(fields, longest, call.drops)
    if not quirks.refuses.isdisjoint(_SAMPLING) or "thinking" in fields or "output_config" in fields:
        for name in (*_SAMPLING, "max_tokens", "thinking", "output_config"):
            if isinstance(fields.get(name), msgspec.Raw):
                fields[name] = msgspec.json.decode(fields[name])
        _suit(fields, quirks, call.drops)
    if call.marks_cache:
        for name in ("cache_control", "messages", "system", "tools"):
            if name in fields:
                fields[name] = msgspec.json.decode(fields[name])
        mark_body(fields)
    return ClaudeBody(msgspec.json.encode(fields), written.headers, {})


def _with_known_types(messages: msgspec.Raw) -> msgspec.Raw:
    """Return the raw messages with the media types that Anthropic knows; within a text the quotation marks are escaped."""
    written = bytes(messages)
    if b'"image/' not in written:
        return messages

    def known(found: re.Match[bytes]) -> bytes:
        return b'"media_type":"%b"' % media_type(found[1].decode()).encode()

    return msgspec.Raw(_MEDIA_TYPE.sub(known, written))


_MEDIA_TYPE: Final = re.compile(rb'"media_type"\s*:\s*"(image/[\w.+-]{1,32})"')


def _longest(call: UpstreamCall) -> int | str | None:
    """Return the longest answer, where it is the gateway's to say."""
    own = call.engine_fields
    longest: int | str | None = own.get("max_tokens", own.get("max_completion_tokens"))
    return longest


def _shorten_thinking(fields: Fields, longest: int | str, drops: Callable[[str], None]) -> None:
    """Keep a thinking budget within the longest answer where that is not the caller's own: a larger one is refused."""
    thinking = fields.get("thinking")
    asked = msgspec.json.decode(thinking) if isinstance(thinking, msgspec.Raw) else thinking
    if not isinstance(asked, dict):
        return
    tokens = asked.get("budget_tokens")
    if not isinstance(tokens, int) or not isinstance(longest, int) or tokens < longest:
        return
    if (made := _budget(tokens, longest)) is not None:
        fields["thinking"] = {**asked, **made}
    else:
        del fields["thinking"]
        drops("thinking")


def _suit(fields: Fields, quirks: Quirks, drops: Callable[[str], None]) -> None:
    """Leave out fields that the model refuses and that only nudge an answer; write another model's thinking setting as
    its own.
    """
    for name in _SAMPLING:
        # Newer models take what comes anyway, and nothing else.
        if name in quirks.refuses and name in fields and not (name == "temperature" and fields[name] == 1):
            del fields[name]
            drops(name)
    _suit_thinking(fields, quirks, drops)
    config = fields.get("output_config")
    effort = config.get("effort") if isinstance(config, dict) else None
    if isinstance(config, dict) and str(effort) in _EFFORTS and effort not in quirks.efforts:
        fields["output_config"] = {name: value for name, value in config.items() if name != "effort"}
        closest = _closest_effort(effort, quirks)
        if closest is not None:
            fields["output_config"]["effort"] = closest
        else:
            drops("reasoning_effort")
        if not fields["output_config"]:
            del fields["output_config"]


def _suit_thinking(fields: Fields, quirks: Quirks, drops: Callable[[str], None]) -> None:
    thinking = fields.get("thinking")
    if not isinstance(thinking, dict):
        return
    kind = thinking.get("type")
    made: Fields | None = None
    if kind == "adaptive" and quirks.thinking in ("none", "budget"):
        made = _budget(_BUDGETS["medium"], fields.get("max_tokens")) if quirks.thinking == "budget" else None
    elif kind == "enabled" and quirks.thinking == "adaptive":
        made = {**{name: value for name, value in thinking.items() if name != "budget_tokens"}, "type": "adaptive"}
        tokens, config = thinking.get("budget_tokens"), fields.get("output_config")
        if isinstance(tokens, int) and (config is None or (isinstance(config, dict) and "effort" not in config)):
            fields["output_config"] = {**(config or {}), "effort": effort_of_budget(tokens)}
    elif not ((kind == "enabled" and quirks.thinking == "none") or (kind == "disabled" and quirks.thinks_always)):
        return
    del fields["thinking"]
    if made is None:
        drops("thinking")
    else:
        fields["thinking"] = made


def _closest_effort(effort: Any, quirks: Quirks) -> str | None:
    """Return the model's name of an effort like this; None where it has none, or nobody knows the word."""
    return next((each for each in _EFFORTS.get(str(effort), ()) if each in quirks.efforts), None)


def _budget(tokens: int, longest: Any) -> Fields | None:
    """Return the setting for thinking with that many tokens, within the longest answer; None where that leaves too few."""
    if isinstance(longest, int) and tokens >= longest:
        tokens = longest - 1
    return {"type": "enabled", "budget_tokens": tokens} if tokens >= _LEAST_BUDGET else None


def _translated(call: UpstreamCall, names: dict[str, str]) -> Fields:
    asked, quirks = _asked(call), call.deployment.quirks
    talk = claude_conversation(asked.get("messages"), call.deployment)
    longest = _longest(call) or asked.get("max_completion_tokens") or asked.get("max_tokens") or _USUAL_TOKENS
    fields: Fields = {
        "model": model_of_dialect(call.deployment),
        "messages": talk.messages,
        "max_tokens": longest,
        "stream": call.request.stream,
        **{name: asked[name] for name in (*_SAMPLING, "thinking") if name in asked},
    }
    if talk.system:
        fields["system"] = talk.system
    if stops := _stops(asked.get("stop")):
        fields["stop_sequences"] = stops
    user = asked.get("user")
    if isinstance(user, str) and not _SPEAKS_OF_A_PERSON.fullmatch(user):
        fields["metadata"] = {"user_id": user}
    _add_tools(fields, asked, call, names)
    _think(fields, asked.get("reasoning_effort"), quirks, call.drops)
    _shape(fields, asked.get("response_format"), call.drops)
    _suit(fields, quirks, call.drops)
    _cool(fields, call.drops)
    return fields


def _asked(call: UpstreamCall) -> Fields:
    """Return the caller's fields, decoded, as far as they ask for something. Raises CannotCarry for those that may not be left out."""
    request, deployment = call.request, call.deployment
    if request.operation != "chat":
        raise _cannot_carry(
            deployment, f"This model's provider is reached for chats only, not for {request.operation}.", "model"
        )
    asked: Fields = {}
    for name, given in request.fields.items():
        if name in call.dropped or name in _PASSED_OVER:
            continue
        if name in _READ:
            asked[name] = field_of(request, name, deployment.deployment_id)
        elif name not in DECISIVE | MINOR:
            raise _cannot_carry(
                deployment, f"The parameter {name[:64]!r} is not supported by this model's provider.", name
            )
        elif is_said(name, given):
            if name in DECISIVE:
                raise _cannot_carry(
                    deployment,
                    f"This model's provider cannot take the parameter {name!r}: leave it out, or send another model.",
                    name,
                )
            call.drops(name)
    if request.for_anthropic is not None:
        asked |= request.for_anthropic()
    return {name: value for name, value in asked.items() if value is not None}


def _stops(given: Any) -> list[str]:
    """Return the stop sequences. Anthropic refuses those of blanks alone."""
    stops = [given] if isinstance(given, str) else given
    return [each for each in stops if isinstance(each, str) and each.strip()] if isinstance(stops, list) else []


def _add_tools(fields: Fields, asked: Fields, call: UpstreamCall, names: dict[str, str]) -> None:
    tools = [_tool(each, call.deployment, names) for each in _list(asked.get("tools"))]
    tools += [
        _tool({"type": "function", "function": each}, call.deployment, names) for each in _list(asked.get("functions"))
    ]
    search = asked.get("web_search_options")
    if isinstance(search, dict):
        tools.append(_search(search))
    if tools:
        fields["tools"] = tools
        choice = _choice(asked, names)
        if choice is not None and choice["type"] in ("any", "tool") and not call.deployment.quirks.forces_tools:
            raise _cannot_carry(
                call.deployment, "This model cannot be made to call a tool: leave out `tool_choice`, or send another model.",
                "tool_choice",
            )  # fmt: skip
        if choice is not None:
            fields["tool_choice"] = choice


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _tool(tool: Any, deployment: Deployment, names: dict[str, str]) -> Fields:
    function = tool.get("function") if isinstance(tool, dict) else None
    if isinstance(tool, dict) and tool.get("type") not in (None, "function", "custom") and "name" in tool:
        # One that Anthropic knows by its type, in its own words.
        return tool
    if not isinstance(function, dict):
        raise _cannot_carry(deployment, "This model's provider takes tools of the type `function` alone.", "tools")
    schema = function.get("parameters")
    found: Fields = {
        "name": _name(function.get("name"), names),
        "input_schema": fitting_schema(schema if isinstance(schema, dict) else {}, tool_schemas("anthropic")),
    }
    if function.get("description"):
        found["description"] = function["description"]
    if function.get("strict"):
        found |= {"strict": True, "input_schema": answer_schema(found["input_schema"])}
    mark = tool.get("cache_control") or function.get("cache_control")
    return found if mark is None else {**found, "cache_control": mark}


def _name(given: Any, names: dict[str, str]) -> str:
    """Return the tool's name as Anthropic takes it, and note the name that it had."""
    taken = tool_name(given)
    if taken != str(given):
        names[taken] = str(given)
    return taken


def _search(options: Fields) -> Fields:
    found: Fields = {"type": "web_search_20250305", "name": "web_search"}
    most = _SEARCHES.get(str(options.get("search_context_size")))
    if most is not None:
        found["max_uses"] = most
    place = options.get("user_location")
    near = place.get("approximate") if isinstance(place, dict) else None
    if isinstance(near, dict):
        told = {name: near[name] for name in ("city", "region", "country", "timezone") if name in near}
        found["user_location"] = {"type": "approximate", **told}
    return found


def _choice(asked: Fields, names: dict[str, str]) -> Fields | None:
    given = asked.get("tool_choice", asked.get("function_call"))
    made: Fields | None = None
    if isinstance(given, str):
        kind = {"auto": "auto", "required": "any", "any": "any", "none": "none"}.get(given)
        made = None if kind is None else {"type": kind}
    elif isinstance(given, dict):
        function = given.get("function", given if "name" in given else None)
        if isinstance(function, dict):
            made = {"type": "tool", "name": _name(function.get("name"), names)}
    parallel = asked.get("parallel_tool_calls")
    if isinstance(parallel, bool) and (made is None or made["type"] != "none"):
        made = {**(made or {"type": "auto"}), "disable_parallel_tool_use": not parallel}
    return made


def _think(fields: Fields, effort: Any, quirks: Quirks, drops: Callable[[str], None]) -> None:
    """Ask for an effort in this model's own way of thinking, where the caller did not choose one itself."""
    if effort is None or effort == "none" or "thinking" in fields:
        return
    if quirks.thinking in ("both", "adaptive"):
        closest = _closest_effort(effort, quirks)
        if closest is not None:
            # Unasked for, what was thought comes without its text.
            fields["thinking"] = {"type": "adaptive", "display": "summarized"}
            fields["output_config"] = {"effort": closest}
            return
    elif quirks.thinking == "budget" and str(effort) in _EFFORTS and _may_think(fields):
        made = _budget(_BUDGETS[str(effort)], fields["max_tokens"])
        if made is not None:
            fields["thinking"] = made
            return
    drops("reasoning_effort")


def _may_think(fields: Fields) -> bool:
    """Return False where Anthropic refuses thinking with a budget: beside a forced tool, and in the middle of a loop of tools whose
    beginning was not thought about, or whose caller did not send the thoughts back.
    """
    if fields.get("tool_choice", {}).get("type") in ("any", "tool"):
        return False
    for message in reversed(fields["messages"]):
        if message["role"] == "assistant":
            return bool(message["content"][0]["type"] in ("thinking", "redacted_thinking"))
        if message["role"] == "user" and all(block["type"] != "tool_result" for block in message["content"]):
            return True
    return True


def _shape(fields: Fields, wanted: Any, drops: Callable[[str], None]) -> None:
    """Ask for an answer by a schema. A mere JSON object cannot be asked for, and its caller's prompt says so anyway."""
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_schema" and isinstance(wanted.get("json_schema"), dict):
        schema = wanted["json_schema"].get("schema")
        if isinstance(schema, dict):
            form = {"type": "json_schema", "schema": answer_schema(schema)}
            fields["output_config"] = {**fields.get("output_config", {}), "format": form}
    elif kind == "json_object":
        drops("response_format")


def _cool(fields: Fields, drops: Callable[[str], None]) -> None:
    """Drop a temperature that OpenAI takes and Anthropic does not: more than 1, or another one than 1 beside thinking."""
    thinks = fields.get("thinking", {}).get("type") in ("enabled", "adaptive")
    heat = fields.get("temperature")
    if isinstance(heat, int | float) and (heat > 1 or (thinks and heat != 1)):
        del fields["temperature"]
        drops("temperature")
    if thinks and "top_k" in fields:
        del fields["top_k"]
        drops("top_k")


def _cannot_carry(deployment: Deployment, message: str, param: str) -> CannotCarry:
    return CannotCarry(
        message, deployment_id=deployment.deployment_id, status=400, param=param[:64], code="unsupported_parameter"
    )
