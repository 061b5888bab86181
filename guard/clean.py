"""Bodies of a usual form in which nothing is: one look at their bytes, in place of a walk over their texts. Pure.

Such a body has texts alone, in fields whose meaning is plain, so each text stands in it as it is meant once a few escapes are undone.
What is found in one of them is found in the bytes, too; whatever is seen there, or is of another form, is walked over. A name that an
object has twice hides nothing, as the bytes have both.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
import re2

from settings.decoding import DECODE_ERRORS

MOST_BYTES: Final = 32_768
"""In longer bodies most parts are remembered."""
_UNDONE: Final = ((b'\\"', b'"'), (b"\\n", b"\n"), (b"\\t", b"\t"), (b"\\r", b"\r"))
_MOST_ESCAPES: Final = 256
"""Of more, undoing them costs as much as the walk."""
_BACKSLASH: Final = 0x5C
_MANY: Final = 1e8
"""A larger number is looked at as a text."""
_POWER: Final = re2.compile(rb"[0-9][eE]\+?[0-9]")
"""Such a number in a call's arguments is not read as it stands."""
_LONG_NAMES: Final = tuple(
    f'"{name}"'.encode()
    for name in (
        "completion_tokens", "completion_tokens_details", "prompt_tokens_details", "reasoning_tokens", "system_fingerprint",
        "accepted_prediction_tokens", "rejected_prediction_tokens", "max_completion_tokens", "parallel_tool_calls",
    )
)  # fmt: skip
"""Names that are as long as what may be encoded: no text is."""
_ARGUMENTS: Final = b'"arguments"'
_Small = Annotated[float, msgspec.Meta(gt=-_MANY, lt=_MANY)]
_Role = Literal["system", "developer", "user", "assistant", "tool"]


class _Form(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Part(_Form):
    type: Literal["text", "input_text", "output_text"]
    text: str
    cache_control: dict[str, str] | None = None


_Content = str | list[_Part] | None


class _Function(_Form):
    name: str
    arguments: str


class _Call(_Form):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _Turn(_Form):
    role: _Role
    content: _Content = None
    type: Literal["message"] = "message"
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_Call] | None = None
    refusal: None = None


class _Common(_Form):
    model: str
    stream: bool | None = None
    temperature: _Small | None = None
    top_p: _Small | None = None
    max_tokens: _Small | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None


class _Chat(_Common):
    messages: list[_Turn] = []
    max_completion_tokens: _Small | None = None
    n: _Small | None = None
    seed: _Small | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    presence_penalty: _Small | None = None
    frequency_penalty: _Small | None = None
    stream_options: dict[str, bool] | None = None
    reasoning_effort: str | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


class _Messages(_Common):
    messages: list[_Turn] = []
    system: _Content = None
    stop_sequences: list[str] | None = None
    top_k: _Small | None = None


class _Responses(_Common):
    input: str | list[_Turn] = ""
    instructions: str | None = None
    max_output_tokens: _Small | None = None
    store: bool | None = None
    user: str | None = None
    parallel_tool_calls: bool | None = None


_FORMS: Final[Mapping[str, Any]] = {
    "chat": msgspec.json.Decoder(_Chat),
    "messages": msgspec.json.Decoder(_Messages),
    "responses": msgspec.json.Decoder(_Responses),
}


class Looking(Protocol):
    """Looks for values in bytes (`guard.scan.Scanner`)."""

    def sees_nothing(self, data: bytes) -> bool: ...


def is_clean(wire: str, body: bytes, scanner: Looking) -> bool:
    """Return True for a body of a usual form in which nothing is found. False says nothing."""
    form = _FORMS.get(wire)
    if form is None or not says_nothing(body, scanner):
        return False
    try:
        form.decode(body)
    except DECODE_ERRORS:
        return False
    return True


def says_nothing(raw: bytes, scanner: Looking) -> bool:
    """Return True where no text that stands in JSON says anything that is looked for. False says nothing."""
    if len(raw) > MOST_BYTES:
        return False
    text = raw
    if _BACKSLASH in text:
        if text.count(b"\\") > _MOST_ESCAPES or b"\\\\" in text:
            return False
        for escape, meant in _UNDONE:
            text = text.replace(escape, meant)
        if _BACKSLASH in text:
            return False
    for name in _LONG_NAMES:
        text = text.replace(name, b'""')
    return scanner.sees_nothing(text) and not (_ARGUMENTS in text and _POWER.search(text) is not None)
