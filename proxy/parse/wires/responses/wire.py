"""The wire of POST /v1/responses, and that of its token count, for which no model answers."""

from functools import partial
from typing import Final

import msgspec

from proxy.errors import ErrorReply
from proxy.parse.wires.completions_of_chat import sse
from proxy.parse.wires.openai_errors import as_told
from proxy.parse.wires.responses.compaction import read_compaction
from proxy.parse.wires.responses.continuing import continued, names_in
from proxy.parse.wires.responses.dialect import failed_response
from proxy.parse.wires.responses.parser import read_again, read_for_counting, read_response
from proxy.parse.wires.wire import Continuing, Wire

_CONTINUING: Final = Continuing(names=names_in, continued=continued)


def _count(tokens: int) -> bytes:
    return msgspec.json.encode({"object": "response.input_tokens", "input_tokens": tokens})


def error_event(told: ErrorReply, request_id: str) -> bytes:
    """Return the events of an error before any response is known. Some clients know an error by its object, others by the
    response that failed.
    """
    words = {"code": told.code, "message": told.message, "param": told.param}
    error = {"type": "error", "sequence_number": 0, **words, "error": {"type": "error", **words}}
    failed = {"type": "response.failed", "sequence_number": 1, "response": failed_response(told, request_id)}
    return sse(b"error", error) + sse(b"response.failed", failed)


RESPONSES: Final = Wire(
    name="responses",
    path="/v1/responses",
    read=read_response,
    error=as_told,
    error_event=error_event,
    continuing=_CONTINUING,
)
COMPACT: Final = Wire(
    name="responses",
    path="/v1/responses/compact",
    read=read_compaction,
    error=as_told,
    error_event=error_event,
    continuing=_CONTINUING,
)
INPUT_TOKENS: Final = Wire(
    name="responses",
    path="/v1/responses/input_tokens",
    read=read_for_counting,
    error=as_told,
    error_event=error_event,
    continuing=_CONTINUING,
    count=_count,
)


def queued_response_wire(response_id: str, events: int) -> Wire:
    """Return the wire that answers one queued response: its body has all earlier turns."""
    return msgspec.structs.replace(RESPONSES, read=partial(read_again, response_id, events), continuing=None)
