"""OpenAI's chat wire: what a caller may send and what an upstream answers.

Only what routing needs is decoded; everything else travels as the bytes it came in.
"""

from typing import Any

import msgspec

from providers.target import Tier


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content; other fields travel untouched in the raw body."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Part] | None = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. `fields` is the caller's body, a raw JSON value a key, without our own fields."""

    fields: dict[str, msgspec.Raw]
    model: str
    messages: list[Message]
    stream: bool = False
    include_usage: bool = False
    """The caller asked for the usage chunk (`stream_options.include_usage`)."""
    max_output_tokens: int | None = None
    n: int = 1
    tools: int = 0
    images: int = 0
    json_mode: bool = False
    tier: Tier = "interactive"
    team_id: str | None = None
    """The team the caller claims; it must be the key's."""
    session_id: str | None = None


class WireUsage(msgspec.Struct, frozen=True):
    """OpenAI's usage object as sent; every figure is untrusted until `cost.usage` normalised it."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    total_tokens: Any = None
    prompt_tokens_details: Any = None
    completion_tokens_details: Any = None
    cache_creation_input_tokens: Any = None
    cache_read_input_tokens: Any = None


class Event(msgspec.Struct, frozen=True):
    """One JSON payload of a reply: an SSE event's data, or the whole body when not streaming."""

    payload: bytes
    """A JSON object, exactly as the upstream wrote it."""
    token: bool
    """Carries generated content (text, refusal, reasoning or a tool call); a role alone does not."""
    choices: int
    """How many choices it has; 0 for the extra usage chunk."""
    text_chars: int
    """Characters of generated content, for an estimate when the usage never comes."""
    usage: WireUsage | None
    finished: bool
    """A finish_reason was seen."""
