"""The arguments of calls that stand earlier in a conversation, as its next target reads them. Pure.

Whoever answered before may have left them out, written null, a list or half an object, and clients replay what they got. OpenAI takes any
text; engines and other hosts parse it for their templates, and one bad call fails every turn from then on:
https://github.com/aws-samples/bedrock-access-gateway/pull/258, https://github.com/agentgateway/agentgateway/pull/2771.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from settings.decoding import DECODE_ERRORS

_UNPARSED: Final = "unparsed_arguments"
_NO_CALLS: Final = frozenset({b"", b"null", b"[]"})
_EMPTY: Final = "{}"


class _Function(msgspec.Struct):
    arguments: Any = None


class _Call(msgspec.Struct):
    function: _Function | None = None


class _WithCalls(Protocol):
    @property
    def tool_calls(self) -> msgspec.Raw: ...


_decode_calls: Final = msgspec.json.Decoder(list[_Call]).decode
_decode: Final = msgspec.json.Decoder(list[dict[str, Any]]).decode


def as_object(arguments: Any) -> dict[str, Any]:
    """Return arguments as an object: none for nothing, and what is no object as a text in one."""
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if not isinstance(arguments, str):
        return {_UNPARSED: msgspec.json.encode(arguments).decode()}
    try:
        found = msgspec.json.decode(arguments)
    except DECODE_ERRORS:
        return {_UNPARSED: arguments}
    if found is None:
        return {}
    return found if isinstance(found, dict) else {_UNPARSED: arguments}


def with_arguments(raw: msgspec.Raw, messages: Sequence[_WithCalls], *, any_text: bool) -> msgspec.Raw | None:
    """Return a chat's raw messages with arguments that this target reads; None where all are. `messages` are the same, parsed; `any_text`
    is True for one that takes any text for arguments.
    """
    if all(bytes(each.tool_calls) in _NO_CALLS or _are_read(bytes(each.tool_calls), any_text) for each in messages):
        return None
    made = _decode(raw)
    mend_arguments(made, any_text=any_text)
    return msgspec.Raw(msgspec.json.encode(made))


def mend_arguments(messages: Sequence[dict[str, Any]], *, any_text: bool) -> None:
    """Write arguments of these messages' calls in place as this target reads them."""
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and not _is_read(function.get("arguments"), any_text):
                function["arguments"] = _text(function.get("arguments"))


def _are_read(calls: bytes, any_text: bool) -> bool:
    try:
        found = _decode_calls(calls)
    except msgspec.DecodeError:
        # No calls of functions as chat has them: left to whom it is sent.
        return True
    return all(call.function is None or _is_read(call.function.arguments, any_text) for call in found)


def _is_read(arguments: Any, any_text: bool) -> bool:
    """Return True for what need not be written anew, by both its ends: whether all of it is JSON would cost as much as the answer."""
    if not isinstance(arguments, str):
        return False
    text = arguments.strip()
    return any_text or (text.startswith("{") and text.endswith("}"))


def _text(arguments: Any) -> str:
    found = as_object(arguments)
    return msgspec.json.encode(found).decode() if found else _EMPTY
