"""A wire: what a caller's API needs of the line, which works with chat completions throughout.

Reading turns a body into a `ChatRequest` and a dialect. The dialect belongs to the one request: it writes the upstream's
chat completion as this wire's reply or events, and may remember what the caller sent.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

import msgspec

from accounts.caller import Caller
from cost.usage import Usage
from providers.provider_tools import AsWritten
from providers.wire import ChatRequest, Event, Operation
from proxy.errors import ErrorReply
from proxy.parse.headers import RequestHeaders

_T = TypeVar("_T")
Header = tuple[bytes, bytes]
IsModel = Callable[[str], bool]
"""True for a name that is an alias or a target of the configuration."""


class Tally(msgspec.Struct, frozen=True):
    """Usage and money (dollars in decimal text, None without a price) as they would be booked now."""

    usage: Usage
    cost_usd: str | None
    baseline_usd: str | None


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer is told of the attempt that answers."""

    request_id: str
    target_id: str
    input_tokens: int
    """The estimated tokens of the prompt, for what has to be told before the upstream counted."""
    created_at: int
    """When the attempt began, in seconds since 1970."""
    now_s: Callable[[], int]
    """The same clock now."""
    tally: Callable[[], Tally]
    native: bool = False
    """Whether the answer is in the wire's own dialect, rather than in chat's: it passes as its upstream wrote it."""


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


class Change(msgspec.Struct, frozen=True):
    """A change of a record that is kept."""

    name: str
    """The record's id."""
    edit: Callable[[bytes], bytes]
    """The changed record. Called again where another change came first. Raises BadRequest."""


class Kept(msgspec.Struct, frozen=True):
    """An answer that its caller may ask for, and go on from, later."""

    response_id: str
    record: bytes
    """The response and its whole input, as JSON."""
    is_stored: bool = True
    """False for an answer that is not to be kept itself."""
    turn: Change | None = None
    """What the answer adds to a conversation."""
    told: bytes = b""
    """Of an answer that is queued: the response alone, as JSON."""


class Memory(Protocol):
    """What a caller's connection remembers of its answers, whether they are kept or not."""

    def find(self, name: str) -> bytes | None:
        """An answer's record."""
        ...

    def remember(self, kept: Kept) -> None: ...


class Dialect(Protocol):
    """Writes the answer to one request."""

    keeps: bool
    """True when the caller wants the answer kept. Set to False when it cannot be, before the end is written."""

    def whole(self, payload: bytes, served: Served) -> bytes:
        """A whole chat completion as this wire's reply, in JSON; or a reply of this wire's own, where `served` says so."""
        ...

    def events(self, served: Served) -> EventWriter: ...

    def to_keep(self, payload: bytes | None, served: Served) -> Kept | None:
        """What is to be kept of a whole answer, or, without a payload, of the stream whose events were all rendered."""
        ...


class Later(msgspec.Struct, frozen=True):
    """An answer that its caller does not wait for."""

    queued: Callable[[str, int], Kept]
    """What is kept of it from now on, by the request's id and the time in seconds since 1970."""
    streams: bool
    """Whether its events are kept for its caller to follow."""


class Understood(msgspec.Struct, frozen=True):
    """A body that was read."""

    request: ChatRequest
    dialect: Dialect
    later: Later | None = None
    to_count: AsWritten | None = None
    """The body for a target that counts in its dialect, where tokens are all that is asked for."""


class Continuing(msgspec.Struct, frozen=True, kw_only=True):
    """How a body that goes on from kept answers becomes one that holds them. Both functions raise BadRequest."""

    names: Callable[[bytes], tuple[str, ...]]
    """The ids of the answers that a body refers to; empty for most."""
    continued: Callable[[bytes, Mapping[str, bytes]], bytes]
    """The body with what the records, by id, say."""


class Read(Protocol):
    """Returns what a function makes of a body, on a thread where that takes long."""

    async def __call__(self, body: bytes, read: Callable[[], _T], /) -> _T: ...


class EarlierTurns(Protocol):
    """The kept answers that a body may go on from."""

    async def body_with_earlier(
        self,
        team_id: str,
        body: bytes,
        continuing: Continuing,
        read: Read,
        *,
        most_bytes: int,
        memory: Memory | None,
    ) -> bytes: ...

    async def keep(self, caller: Caller, kept: Kept) -> bool: ...


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """One API of the data plane."""

    name: str
    path: str
    other_paths: tuple[str, ...] = ()
    """Further paths of the same, as other clients know it."""
    operation: Operation = "chat"
    read: Callable[[bytes, RequestHeaders, IsModel], Understood]
    """Raises BadRequest."""
    error: Callable[[ErrorReply, str], ErrorReply]
    """An error reply in this wire's shape, for a request id."""
    error_event: Callable[[ErrorReply, str], bytes]
    """An error in a stream of which nothing else is known."""
    takes_file: bool = False
    """True for a wire whose body is a form with a file; `read` is given its fields as JSON."""
    continuing: Continuing | None = None
    """For a wire whose answers can be kept; None for all others."""
    request_id_header: bytes | None = None
    """A second header with the request id, for clients that look for it there."""
    answer: Callable[[ChatRequest, int], tuple[bytes, tuple[Header, ...]]] | None = None
    """The reply, made of the request and its estimated tokens alone, for a wire that asks no model."""
    count: Callable[[int], bytes] | None = None
    """The reply that tells a prompt's tokens, for a wire on which nothing else is asked."""
