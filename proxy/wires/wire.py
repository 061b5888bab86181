"""A wire: what a caller's API needs of the line, which works with chat completions throughout.

Reading turns a body into a `ChatRequest` and a dialect. The dialect belongs to the one request: it writes the upstream's
chat completion as this wire's reply or events, and may remember what the caller sent.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from cost.usage import Usage
from providers.wire import ChatRequest, Event, Operation
from proxy.errors import ErrorReply
from proxy.request import RequestHeaders

Header = tuple[bytes, bytes]
IsModel = Callable[[str], bool]
"""True for a name that is an alias or a target of the configuration."""


class Tally(msgspec.Struct, frozen=True):
    """Usage and money (nano-dollars, None without a price) as they would be booked now."""

    usage: Usage
    cost_nanousd: int | None
    baseline_nanousd: int | None


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer is told of the attempt that answers."""

    request_id: str
    target_id: str
    input_tokens: int
    """The estimated tokens of the prompt, for what has to be told before the upstream counted."""
    created_at: int
    """When the attempt began, in seconds since 1970."""
    tally: Callable[[], Tally]


class EventWriter(Protocol):
    """Writes one stream, in order."""

    def render(self, events: Iterable[Event]) -> bytes:
        """The bytes for these events; empty when they say nothing in this wire."""
        ...

    def last_words(self) -> bytes:
        """The bytes that close a stream that went well."""
        ...

    def failed(self, told: ErrorReply) -> bytes:
        """The bytes that end a stream that failed."""
        ...


class Dialect(Protocol):
    """Writes the answer to one request."""

    def whole(self, payload: bytes, served: Served) -> bytes:
        """A whole chat completion as this wire's reply, in JSON."""
        ...

    def events(self, served: Served) -> EventWriter: ...


class Understood(msgspec.Struct, frozen=True):
    """A body that was read."""

    request: ChatRequest
    dialect: Dialect


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """One API of the data plane."""

    name: str
    path: str
    operation: Operation = "chat"
    read: Callable[[bytes, RequestHeaders, IsModel], Understood]
    """Raises BadRequest."""
    error: Callable[[ErrorReply, str], ErrorReply]
    """An error reply in this wire's shape, for a request id."""
    error_event: Callable[[ErrorReply, str], bytes]
    """An error in a stream of which nothing else is known."""
    request_id_header: bytes | None = None
    """A second header with the request id, for clients that look for it there."""
    answer: Callable[[ChatRequest, int], tuple[bytes, tuple[Header, ...]]] | None = None
    """The reply, made of the request and its estimated tokens alone, for a wire that asks no model."""
