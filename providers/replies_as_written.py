"""Replies in OpenAI's responses and in Anthropic's messages, read only as far as the gateway has to: what is an answer's
token, what is its end, and what was used. Their bytes pass as they are.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from providers.errors import MalformedReply, UpstreamError
from providers.provider_tools import tool_name
from providers.target import Deployment
from providers.upstream import UpstreamCall
from providers.upstream_faults import error_in_reply, original_of
from providers.wire import Event, WireUsage, on_one_line
from settings.decoding import DECODE_ERRORS

_ENDS: Final = frozenset({"response.completed", "response.incomplete"})
_CALL: Final = "_call"
_PER_CALL: Final = "_requests"
_Read = TypeVar("_Read")


class ReplyReader(Protocol):
    """A reader of one reply."""

    ended: bool
    """True after the last event of a stream."""

    def event(self, payload: bytes) -> Event:
        """Return one event of a stream. Raises an UpstreamError for what says that it failed."""
        ...

    def whole(self, payload: bytes) -> Event:
        """Return a whole reply. Raises an UpstreamError."""
        ...


def reader_of(call: UpstreamCall) -> ReplyReader | None:
    """Return the reader of a call's reply; None for one in chat's dialect."""
    written = call.request.as_written
    if written is None:
        return None
    return _ResponsesReader(call.deployment) if written.dialect == "responses" else _MessagesReader(call.deployment)


class _Response(msgspec.Struct):
    """A response as far as it is read."""

    status: Any = None
    error: Any = None
    usage: Any = None
    output: Any = None
    service_tier: Any = None


class _ResponsesEvent(msgspec.Struct):
    type: str = ""
    delta: Any = None
    response: _Response | None = None
    code: Any = None
    message: Any = None


_decode_response: Final = msgspec.json.Decoder(_Response).decode
_decode_event: Final = msgspec.json.Decoder(_ResponsesEvent).decode


class _ResponsesReader:
    """A reader of OpenAI's responses."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.ended = False

    def event(self, payload: bytes) -> Event:
        payload = on_one_line(payload)
        event = read_message(_decode_event, payload, self._deployment)
        kind = event.type
        if kind == "error":
            raise self._failed({"code": event.code, "message": event.message})
        if event.response is not None and kind == "response.failed":
            raise self._failed(event.response.error)
        chars = len(event.delta) if isinstance(event.delta, str) else 0
        token = chars > 0 or kind == "response.output_item.added"
        if event.response is None or kind not in _ENDS:
            return Event(payload, token, 1, chars, None, False, None, "", kind)
        self.ended = True
        response = event.response
        return Event(payload, token, 1, chars, _usage_of_response(response), True, _tier(response), "", kind)

    def whole(self, payload: bytes) -> Event:
        payload = on_one_line(payload)
        response = read_message(_decode_response, payload, self._deployment)
        if response.error is not None or not isinstance(response.output, list):
            raise self._failed(response.error)
        return Event(payload, True, 1, 0, _usage_of_response(response), True, _tier(response), "", "response")

    def _failed(self, error: Any) -> UpstreamError:
        return error_in_reply(error or {}, self._deployment.deployment_id, self._deployment.api_key)


def _tier(response: _Response) -> str | None:
    return response.service_tier if isinstance(response.service_tier, str) else None


def _usage_of_response(response: _Response) -> WireUsage | None:
    """Return the usage in chat's names. How often a tool was called is counted from the items of its calls."""
    usage = response.usage
    if not isinstance(usage, dict):
        return None
    calls = Counter(
        f"{tool_name(item['type'].removesuffix(_CALL))}{_PER_CALL}"
        for item in response.output or ()
        if isinstance(item, dict) and _is_run_by_provider(item.get("type"))
    )
    return usage | {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": usage.get("input_tokens_details"),
        "completion_tokens_details": usage.get("output_tokens_details"),
        "server_tool_use": dict(calls) or None,
    }


_RUN_BY_CALLERS: Final = frozenset(
    {"apply_patch_call", "computer_call", "custom_tool_call", "function_call", "local_shell_call", "shell_call", "tool_search_call"}
)  # fmt: skip
"""Calls that the caller's program carries out, or that are part of the answer's tokens."""


def _is_run_by_provider(kind: Any) -> bool:
    return isinstance(kind, str) and kind.endswith(_CALL) and kind not in _RUN_BY_CALLERS


class _Delta(msgspec.Struct):
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    stop_reason: Any = None

    @property
    def chars(self) -> int:
        return sum(len(each) for each in (self.text, self.thinking, self.partial_json) if isinstance(each, str))


class _Message(msgspec.Struct):
    content: Any = None
    usage: Any = None


class _MessagesEvent(msgspec.Struct):
    type: str = ""
    delta: _Delta | None = None
    message: _Message | None = None
    usage: Any = None
    error: Any = None


_decode_message: Final = msgspec.json.Decoder(_Message).decode
_decode_messages_event: Final = msgspec.json.Decoder(_MessagesEvent).decode


class _MessagesReader:
    """A reader of Anthropic's messages."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._usage = MessagesUsage()
        self.ended = False

    def event(self, payload: bytes) -> Event:
        payload = on_one_line(payload)
        event = read_message(_decode_messages_event, payload, self._deployment)
        if event.type == "error":
            raise failure_in_messages(event.error, payload, self._deployment)
        self.ended = event.type == "message_stop"
        told = event.usage if event.message is None else event.message.usage
        usage = self._usage.told(told) if isinstance(told, dict) else None
        chars = 0 if event.delta is None else event.delta.chars
        token = chars > 0 or event.type == "content_block_start"
        finished = event.delta is not None and event.delta.stop_reason is not None
        return Event(payload, token, 1, chars, usage, finished, None, "", event.type)

    def whole(self, payload: bytes) -> Event:
        payload = on_one_line(payload)
        message = read_message(_decode_message, payload, self._deployment)
        if not isinstance(message.content, list):
            raise malformed_message(self._deployment)
        usage = self._usage.told(message.usage) if isinstance(message.usage, dict) else None
        return Event(payload, True, 1, 0, usage, True, None, "", "message")


class MessagesUsage:
    """The usage that one of Anthropic's replies tells. The input of a stream's first event holds until a later event
    has more.
    """

    def __init__(self) -> None:
        self._usage: dict[str, Any] = {}

    def told(self, told: Mapping[str, Any]) -> WireUsage:
        """Return the usage so far in chat's names: there the input contains what was read from and written to a cache."""
        self._usage |= {name: value for name, value in told.items() if value is not None}
        usage = self._usage
        parts = [usage.get(name, 0) for name in _INPUTS]
        counted = all(type(each) is int for each in parts) and "input_tokens" in usage
        read, output = usage.get("cache_read_input_tokens"), usage.get("output_tokens_details")
        thought = output.get("thinking_tokens") if isinstance(output, dict) else None
        return usage | {
            # What is no number stays as it came, for whoever judges reports.
            "prompt_tokens": sum(parts) if counted else usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
            "prompt_tokens_details": None if read is None else {"cached_tokens": read},
            "completion_tokens_details": None if thought is None else {"reasoning_tokens": thought},
        }


_INPUTS: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def failure_in_messages(told: Any, payload: bytes, deployment: Deployment) -> UpstreamError:
    """Return the error that an event of Anthropic's tells, with its own words."""
    failure = error_in_reply(told, deployment.deployment_id, deployment.api_key)
    failure.original = original_of(failure, [payload], deployment.api_key)
    return failure


def read_message(decode: Callable[[bytes], _Read], payload: bytes, deployment: Deployment) -> _Read:
    """Return a reply, or an event of one, as far as `decode` reads it. Raises MalformedReply."""
    try:
        return decode(payload)
    except DECODE_ERRORS as error:
        raise malformed_message(deployment) from error


def malformed_message(deployment: Deployment) -> MalformedReply:
    return MalformedReply(
        "The upstream's answer is not in the dialect that it was asked in.", deployment_id=deployment.deployment_id
    )
