"""The wires of POST /v1/images/generations, /v1/images/edits and /v1/images/variations: pictures of a prompt, and of other pictures,
in OpenAI's shape.
"""

import re
from typing import Final

import msgspec

from classifier.tokens import estimate_tokens
from providers.wire import ChatRequest, Operation
from proxy.errors import BadRequest
from proxy.parse.chat_request import MAX_CHOICES, OwnFields, decoded, request_without_messages
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.chat.dialect import ChatDialect
from proxy.parse.wires.openai_errors import as_told, error_event
from proxy.parse.wires.wire import IsModel, Understood, Wire

_MILLI: Final = 1_000
_MOST_DIGITS: Final = 3
_KIND: Final = re.compile(r"[A-Za-z0-9._-]{1,24}", re.ASCII)
_DEFAULT_QUALITY: Final = "standard"
_DEFAULT_SIZE: Final = "1024x1024"


class _Body(OwnFields, frozen=True, kw_only=True):
    """The body's fields that the gateway reads."""

    model: str = ""
    prompt: str
    n: int | None = None
    quality: str | None = None
    size: str | None = None
    stream: bool | None = None


_decoder: Final = msgspec.json.Decoder(_Body)


def read_image(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parse the body. Raises BadRequest."""
    del is_model
    fields, typed = decoded(body, _decoder)
    if not typed.prompt:
        raise BadRequest("`prompt` is empty; say what the picture shows.", param="prompt")
    count = 1 if typed.n is None else typed.n
    if not 1 <= count <= MAX_CHOICES:
        raise BadRequest(f"`n` must be between 1 and {MAX_CHOICES}.", param="n")
    request = _request("images", typed.model, typed.prompt, count, typed.quality, typed.size, stream=bool(typed.stream))
    request = request_without_messages(fields, headers, typed, request)
    return Understood(request, ChatDialect(request))


class _Form(OwnFields, frozen=True, kw_only=True):
    """The form's fields that the gateway reads."""

    model: str = ""
    prompt: str = ""
    n: str = "1"
    quality: str | None = None
    size: str | None = None
    stream: str = "false"


_form_decoder: Final = msgspec.json.Decoder(_Form)


def _form_reader(operation: Operation, path: str, files: dict[str, int]) -> Wire:
    def read(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
        """Parse the form's fields. Raises BadRequest."""
        del is_model
        fields, typed = decoded(body, _form_decoder)
        if operation == "image_edits" and not typed.prompt:
            raise BadRequest("`prompt` is empty; say what is to become of the picture.", param="prompt")
        count = int(typed.n) if typed.n.isascii() and typed.n.isdigit() and len(typed.n) <= _MOST_DIGITS else 0
        if not 1 <= count <= MAX_CHOICES:
            raise BadRequest(f"`n` must be between 1 and {MAX_CHOICES}.", param="n")
        stream = typed.stream.lower() in {"true", "1"}
        request = _request(operation, typed.model, typed.prompt, count, typed.quality, typed.size, stream=stream)
        request = request_without_messages(fields, headers, typed, request)
        return Understood(request, ChatDialect(request))

    return Wire(
        name=operation,
        path=path,
        operation=operation,
        files=files,
        read=read,
        error=as_told,
        error_event=error_event,
    )


def _request(
    operation: Operation, model: str, prompt: str, count: int, quality: str | None, size: str | None, *, stream: bool
) -> ChatRequest:
    tokens = estimate_tokens(prompt)
    return ChatRequest(
        operation=operation,
        fields={},
        model=model,
        messages=[],
        given_texts_tokens=tokens,
        longest_tokens=max(1, tokens),
        n=count,
        stream=stream,
        unit="/".join(("image", _kind(quality, _DEFAULT_QUALITY), _kind(size, _DEFAULT_SIZE))),
        units_milli=count * _MILLI,
        most_units_milli=count * _MILLI,
    )


def _kind(said: str | None, otherwise: str) -> str:
    """Return a quality or a size as a part of the unit's name. Raises BadRequest."""
    if said is None:
        return otherwise
    if _KIND.fullmatch(said) is None:
        raise BadRequest(f"{said[:40]!r} is no quality and no size, such as `high` or `1024x1024`.", param="size")
    return said


IMAGES: Final = Wire(
    name="images",
    path="/v1/images/generations",
    operation="images",
    read=read_image,
    error=as_told,
    error_event=error_event,
)
EDITS: Final = _form_reader("image_edits", "/v1/images/edits", {"image": 16, "image[]": 16, "mask": 1})
VARIATIONS: Final = _form_reader("image_variations", "/v1/images/variations", {"image": 1})
