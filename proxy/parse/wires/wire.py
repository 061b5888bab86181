"""The interface between a caller's API and the pipeline, which works with chat completions throughout.

Reading turns a body into a `ChatRequest` and a dialect. The dialect belongs to the one request: it writes the
upstream's chat completion as this wire's reply or events, and may remember the caller's fields.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

import msgspec

from accounts.caller import Caller
from cost.usage import Usage
from providers.provider_tools import AsWritten
from providers.wire import ChatRequest, Event, Operation
from proxy.errors import ErrorReply
from proxy.http.exchange import COMMENT
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
    """The facts of the answering attempt that a writer needs."""

    request_id: str
    target_id: str
    input_tokens: int
    """The estimated tokens of the prompt, for replies that begin before the upstream counted."""
    created_at: int
    """The attempt's beginning, in seconds since 1970."""
    now_s: Callable[[], int]
    """The present time by the same clock, in seconds since 1970."""
    tally: Callable[[], Tally]
    native: bool = False
    """True when the answer is in the wire's own dialect, rather than in chat's: it passes as its upstream wrote it."""


class EventWriter(Protocol):
    """A writer of one stream, in order."""

    def render(self, events: Iterable[Event]) -> bytes:
        """Return the bytes for these events; empty when this wire has nothing to write for them."""
        ...

    def last_words(self) -> bytes:
        """Return the bytes that close a stream that went well."""
        ...

    def failed(self, told: ErrorReply) -> bytes:
        """Return the bytes that end a stream that failed."""
        ...


class Change(msgspec.Struct, frozen=True):
    """A change of a record that is kept."""

    name: str
    """The record's id."""
    edit: Callable[[bytes], bytes]
    """The function from the present record to the changed one. Called again where another change came first. Raises
    BadRequest.
    """


class Kept(msgspec.Struct, frozen=True):
    """An answer that its caller may fetch, and continue from, later."""

    response_id: str
    record: bytes
    """The response and its whole input, as JSON."""
    is_stored: bool = True
    """False for an answer that is not to be kept itself."""
    turn: Change | None = None
    """The answer's addition to a conversation."""
    told: bytes = b""
    """The response alone, as JSON, of an answer that is queued."""


class Memory(Protocol):
    """The answers of one connection, whether they are kept or not."""

    def find(self, name: str) -> bytes | None:
        """Return an answer's record."""
        ...

    def remember(self, kept: Kept) -> None: ...


class Dialect(Protocol):
    """A writer of the answer to one request."""

    keeps: bool
    """True when the caller wants the answer kept. Set to False when it cannot be, before the end is written."""

    def whole(self, payload: bytes, served: Served) -> bytes:
        """Return a whole chat completion as this wire's reply, in JSON; or a reply of this wire's own, where `served`
        says so.
        """
        ...

    def events(self, served: Served) -> EventWriter: ...

    def to_keep(self, payload: bytes | None, served: Served) -> Kept | None:
        """Return the record of a whole answer, or, without a payload, of the stream whose events were all rendered;
        None when nothing is kept.
        """
        ...


class Later(msgspec.Struct, frozen=True):
    """The later delivery of an answer that its caller does not wait for."""

    queued: Callable[[str, int], Kept]
    """The record to be kept from now on, by the request's id and the time in seconds since 1970."""
    streams: bool
    """True when its events are kept for its caller to follow."""


class Understood(msgspec.Struct, frozen=True):
    """A body that was read."""

    request: ChatRequest
    dialect: Dialect
    later: Later | None = None
    to_count: AsWritten | None = None
    """The body for a target that counts in its dialect, for a request that asks for its tokens alone."""


class Continuing(msgspec.Struct, frozen=True, kw_only=True):
    """The functions that turn a body that continues from kept answers into one that holds them. Both raise
    BadRequest.
    """

    names: Callable[[bytes], tuple[str, ...]]
    """The ids of the answers that a body refers to; empty for most."""
    continued: Callable[[bytes, Mapping[str, bytes]], bytes]
    """The body with the items of the records, which are given by id."""


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
    """Further paths of the same API, as other clients know it."""
    operation: Operation = "chat"
    read: Callable[[bytes, RequestHeaders, IsModel], Understood]
    """The parser of a body. Raises BadRequest."""
    error: Callable[[ErrorReply, str], ErrorReply]
    """The function that writes an error reply in this wire's shape, for a request id."""
    error_event: Callable[[ErrorReply, str], bytes]
    """The function that writes an error in a stream before any answer is known."""
    probe: bytes = COMMENT
    """Bytes that may stand between any two events of its streams, and mean nothing."""
    files: Mapping[str, int] = {}
    """Parts that are files, the needed one first, with how many there may be, of a wire whose body is a form; `read` is given its
    fields as JSON, and of each file its description.
    """
    continuing: Continuing | None = None
    """The functions for a wire whose answers can be kept; None for all others."""
    request_id_header: bytes | None = None
    """A second header with the request id, for clients that look for it there."""
    answer: Callable[[ChatRequest, int], tuple[bytes, tuple[Header, ...]]] | None = None
    """The function that makes the reply of the request and its estimated tokens alone, for a wire that asks no model."""
    count: Callable[[int], bytes] | None = None
    """The function that writes a prompt's tokens, for a wire on which nothing else is asked."""
