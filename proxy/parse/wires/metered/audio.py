"""The wires of POST /v1/audio/transcriptions and /v1/audio/translations: a recording that is written down, in
OpenAI's shape.
"""

from typing import Final

import msgspec

from classifier.tokens import estimate_tokens
from providers.wire import ChatRequest, Operation
from proxy.errors import BadRequest
from proxy.parse.chat_request import OwnFields, decoded, request_without_messages
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.chat.dialect import ChatDialect
from proxy.parse.wires.openai_errors import as_told, error_event
from proxy.parse.wires.wire import IsModel, Understood, Wire

_MILLI: Final = 1_000
_USUAL_BYTES_A_SECOND: Final = 4_000
"""The assumed bytes per second of a recording of unknown length: 32 kbit/s, the usual rate of speech recorders."""
LEAST_BYTES_A_SECOND: Final = 500
"""The bytes per second by which a hard budget bounds a recording: 4 kbit/s, less than Opus can write."""


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """The description of the file that came beside the fields."""

    size: int = msgspec.field(name="bytes")


class _Body(OwnFields, frozen=True, kw_only=True):
    """The form's fields that the gateway reads."""

    model: str
    file: _File
    prompt: str = ""
    stream: str = "false"


_decoder: Final = msgspec.json.Decoder(_Body)


def _reader(operation: Operation) -> "Wire":
    def read(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
        """Parse the body. Raises BadRequest."""
        del is_model
        fields, typed = decoded(body, _decoder)
        if not typed.file.size:
            raise BadRequest("`file` is empty; send a recording.", param="file")
        tokens = estimate_tokens(typed.prompt)
        request = ChatRequest(
            operation=operation,
            fields={},
            model=typed.model,
            messages=[],
            given_texts_tokens=tokens,
            longest_tokens=max(1, tokens),
            stream=typed.stream.lower() in {"true", "1"},
            unit="second",
            units_milli=_milliseconds(typed.file.size, _USUAL_BYTES_A_SECOND),
            most_units_milli=_milliseconds(typed.file.size, LEAST_BYTES_A_SECOND),
        )
        request = request_without_messages(fields, headers, typed, request)
        return Understood(request, ChatDialect(request))

    return Wire(
        name=operation,
        path=f"/v1/audio/{operation}",
        operation=operation,
        files={"file": 1},
        read=read,
        error=as_told,
        error_event=error_event,
    )


def _milliseconds(size: int, bytes_a_second: int) -> int:
    return -(-size * _MILLI // bytes_a_second)


TRANSCRIPTIONS: Final = _reader("transcriptions")
TRANSLATIONS: Final = _reader("translations")
