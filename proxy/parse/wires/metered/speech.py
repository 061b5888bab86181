"""The wire of POST /v1/audio/speech: a text that is spoken, in OpenAI's shape. The sound passes as it comes."""

from typing import Final

import msgspec

from classifier.tokens import estimate_tokens
from providers.wire import ChatRequest
from proxy.errors import BadRequest
from proxy.parse.chat_request import OwnFields, decoded, request_without_messages
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.chat.dialect import ChatDialect
from proxy.parse.wires.openai_errors import as_told, error_event
from proxy.parse.wires.wire import IsModel, Understood, Wire

MAX_SPOKEN_CHARS: Final = 100_000
_MILLI: Final = 1_000


class _Body(OwnFields, frozen=True, kw_only=True):
    """The body's fields that the gateway reads."""

    model: str
    input: str


_decoder: Final = msgspec.json.Decoder(_Body)


def read_speech(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parse the body. Raises BadRequest."""
    del is_model
    fields, typed = decoded(body, _decoder)
    if not 1 <= len(typed.input) <= MAX_SPOKEN_CHARS:
        raise BadRequest(f"`input` must have 1 to {MAX_SPOKEN_CHARS} characters.", param="input")
    tokens = estimate_tokens(typed.input)
    request = ChatRequest(
        operation="speech",
        fields={},
        model=typed.model,
        messages=[],
        given_texts_tokens=tokens,
        longest_tokens=max(1, tokens),
        # Its first sound comes long before its last.
        stream=True,
        unit="character",
        units_milli=len(typed.input) * _MILLI,
        most_units_milli=len(typed.input) * _MILLI,
    )
    request = request_without_messages(fields, headers, typed, request)
    return Understood(request, ChatDialect(request))


SPEECH: Final = Wire(
    name="speech",
    path="/v1/audio/speech",
    operation="speech",
    read=read_speech,
    error=as_told,
    error_event=error_event,
)
