"""Chat completions as they come from upstreams, decoded for writers of other wires. One odd value breaks nothing."""

import json
from typing import Any, Final

import msgspec

from providers.thoughts import text_of
from settings.decoding import DECODE_ERRORS


class Function(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class Call(msgspec.Struct):
    index: Any = None
    id: Any = None
    function: Function | None = None
    extra_content: Any = None
    provider_specific_fields: Any = None


class Said(msgspec.Struct):
    """A chunk's delta, or a whole message."""

    content: Any = None
    refusal: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None
    thinking_blocks: Any = None
    tool_calls: list[Call] | None = None

    @property
    def is_only_text(self) -> bool:
        """True where there is nothing but content."""
        return (
            self.refusal is None
            and self.tool_calls is None
            and self.reasoning_content is None
            and self.reasoning is None
            and self.reasoning_details is None
            and self.thinking_blocks is None
        )

    @property
    def only_text(self) -> str:
        """The text where there is nothing else, as in most of a stream's events; else empty."""
        return self.content if self.is_only_text and type(self.content) is str else ""

    @property
    def text(self) -> str:
        content = self.content
        if isinstance(content, list):
            # Some upstreams send parts in place of text.
            texts = (part.get("text") for part in content if isinstance(part, dict))
            return "".join(each for each in texts if isinstance(each, str))
        return content if isinstance(content, str) else ""

    @property
    def thought(self) -> str:
        thought = self.reasoning_content or self.reasoning
        if thought is None and self.reasoning_details is not None:
            return text_of({"reasoning_details": self.reasoning_details})
        return thought if isinstance(thought, str) else ""

    @property
    def declined(self) -> str:
        return self.refusal if isinstance(self.refusal, str) else ""


class Choice(msgspec.Struct):
    index: Any = 0
    delta: Said | None = None
    message: Said | None = None
    finish_reason: Any = None
    stop_reason: Any = None
    """The stop sequence that was met, from vLLM."""
    logprobs: Any = None

    @property
    def finish(self) -> str | None:
        return self.finish_reason if isinstance(self.finish_reason, str) else None


class Completion(msgspec.Struct):
    """A whole completion or a chunk."""

    choices: list[Choice] = []
    id: Any = None
    model: Any = None
    service_tier: Any = None

    @property
    def first(self) -> Choice | None:
        """The choice that wires with one answer write; an upstream need not number it."""
        for choice in self.choices:
            if choice.index in (0, None):
                return choice
        return None


_NOTHING: Final = Completion()
_decode: Final = msgspec.json.Decoder(Completion).decode


def completion_of(payload: bytes) -> Completion:
    """Decode the payload of an Event; an unreadable one gives an empty completion."""
    try:
        return _decode(payload)
    except DECODE_ERRORS:
        # Half a letter: engines cut an emoji between two events, and the caller's client joins them.
        try:
            return msgspec.convert(json.loads(payload.decode(errors="replace")), Completion)
        except (ValueError, msgspec.ValidationError):
            return _NOTHING


def to_json(value: Any) -> bytes:
    """Return JSON on one line; half a letter becomes an escape, which the caller's client joins with the other half."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, default=_plain).encode()


def _plain(value: Any) -> Any:
    """Convert a struct, or raw JSON, to a value that the standard library's encoder takes."""
    return json.loads(bytes(value)) if isinstance(value, msgspec.Raw) else msgspec.to_builtins(value)


def sse(name: bytes, value: Any) -> bytes:
    """Return one server-sent event with a name."""
    return b"event: " + name + b"\ndata: " + to_json(value) + b"\n\n"
