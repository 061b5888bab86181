"""The wire of POST /v1/messages, and that of its token count, which asks no model."""

from typing import Final

import msgspec

from providers.wire import ChatRequest
from proxy.wires.messages.errors import error_event, error_reply_of
from proxy.wires.messages.parser import read_for_counting, read_messages
from proxy.wires.wire import Header, Wire

_REQUEST_ID: Final = b"request-id"
_ESTIMATED: Final[tuple[Header, ...]] = ((b"x-weighbridge-token-count", b"estimated"),)


def _count(_request: ChatRequest, input_tokens: int) -> tuple[bytes, tuple[Header, ...]]:
    return msgspec.json.encode({"input_tokens": input_tokens}), _ESTIMATED


MESSAGES: Final = Wire(
    name="messages",
    path="/v1/messages",
    read=read_messages,
    error=error_reply_of,
    error_event=error_event,
    request_id_header=_REQUEST_ID,
)
COUNT_TOKENS: Final = Wire(
    name="messages",
    path="/v1/messages/count_tokens",
    read=read_for_counting,
    error=error_reply_of,
    error_event=error_event,
    request_id_header=_REQUEST_ID,
    answer=_count,
)
