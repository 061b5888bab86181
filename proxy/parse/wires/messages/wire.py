"""The wire of POST /v1/messages, and that of its token count, for which no model answers."""

from typing import Final

import msgspec

from proxy.parse.wires.messages.dialect import PING
from proxy.parse.wires.messages.errors import error_event, error_reply_of
from proxy.parse.wires.messages.parser import read_for_counting, read_messages
from proxy.parse.wires.wire import Wire

_REQUEST_ID: Final = b"request-id"
ANTHROPIC_VERSION: Final = "anthropic-version"
"""The header by which Anthropic's clients say which API they speak, also on paths that others have, too."""


def _count(tokens: int) -> bytes:
    return msgspec.json.encode({"input_tokens": tokens})


MESSAGES: Final = Wire(
    name="messages",
    path="/v1/messages",
    read=read_messages,
    error=error_reply_of,
    error_event=error_event,
    probe=PING,
    request_id_header=_REQUEST_ID,
)
COUNT_TOKENS: Final = Wire(
    name="messages",
    path="/v1/messages/count_tokens",
    read=read_for_counting,
    error=error_reply_of,
    error_event=error_event,
    request_id_header=_REQUEST_ID,
    count=_count,
)
