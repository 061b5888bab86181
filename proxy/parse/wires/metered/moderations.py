"""The wire of POST /v1/moderations: texts and pictures to be judged, in OpenAI's shape."""

from typing import Final

import msgspec

from classifier.tokens import estimate_tokens
from providers.wire import ChatRequest, Part
from proxy.errors import BadRequest
from proxy.parse.chat_request import MAX_EMBEDDED, OwnFields, decoded, request_without_messages
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.chat.dialect import ChatDialect
from proxy.parse.wires.openai_errors import as_told, error_event
from proxy.parse.wires.wire import IsModel, Understood, Wire


class _Body(OwnFields, frozen=True, kw_only=True):
    """The body's fields that the gateway reads."""

    input: str | list[str | Part]
    model: str = ""


_decoder: Final = msgspec.json.Decoder(_Body)


def read_moderation(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parse the body. Raises BadRequest."""
    del is_model
    fields, typed = decoded(body, _decoder)
    parts = [typed.input] if isinstance(typed.input, str) else typed.input
    if not parts or len(parts) > MAX_EMBEDDED:
        raise BadRequest(f"`input` must have 1 to {MAX_EMBEDDED} texts.", param="input")
    sizes = [estimate_tokens(part if isinstance(part, str) else part.text or "") for part in parts]
    request = ChatRequest(
        operation="moderations",
        fields={},
        model=typed.model,
        messages=[],
        given_texts_tokens=sum(sizes),
        # Several texts are judged one by one.
        longest_tokens=max(1, *sizes),
    )
    request = request_without_messages(fields, headers, typed, request)
    return Understood(request, ChatDialect(request))


MODERATIONS: Final = Wire(
    name="moderations",
    path="/v1/moderations",
    operation="moderations",
    read=read_moderation,
    error=as_told,
    error_event=error_event,
)
