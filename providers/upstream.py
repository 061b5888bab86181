"""The interface to an upstream: open a call, read batches of events, close it once."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from providers.connections.errors import NotHttp, ReplyLost, ReplySilent, ReplyTimeout, ReplyUnbounded
from providers.errors import MalformedReply, StreamCut, UpstreamError, UpstreamTimeout
from providers.held_bytes import HeldTooMuch
from providers.target import Deployment
from providers.wire import ChatRequest, Event


def ignore(_told: object) -> None:
    """Ignore a call's report, where nobody books or reports it."""


class UpstreamCall(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one deployment. Timeouts are seconds from now."""

    deployment: Deployment
    request: ChatRequest
    request_id: str
    connect_timeout_s: float
    idle_timeout_s: float
    """The longest silence allowed between two reads once the reply has begun."""
    total_timeout_s: float
    headers: dict[str, str] = {}
    """Additional headers of the gateway (trace context); never the caller's."""
    engine_fields: Mapping[str, Any] = {}
    """Body fields of the gateway in place of the caller's: an engine's own, the longest answer, the service tier."""
    marks_cache: bool = False
    """True when a Claude's prompt cache is to be marked where the caller has not."""
    dropped: tuple[str, ...] = ()
    """The caller's parameters that the target cannot take, and that are left out."""
    drops: Callable[[str], None] = ignore
    """Called with the name of each further parameter that is found not to be taken, and is left out."""
    reaches: Callable[[bool], None] = ignore
    """Called with False while there is no connection, so that nothing of the request can have left, and with True once
    there is one. An upstream that cannot tell does not call it: the request then counts as sent from the start.
    """


def took_too_long(call: UpstreamCall) -> UpstreamTimeout:
    """Return the error for a reply that took all the time that the call had."""
    return UpstreamTimeout(
        f"The upstream did not finish its answer within {call.total_timeout_s:g} s (`providers.timeouts.total_s`, or less "
        "where the request's deadline left less).",
        deployment_id=call.deployment.deployment_id,
    )


class NoRoomForReply(UpstreamError):
    """A process holds as much of replies as it may. That is no deployment's fault, and another answer may be shorter."""

    gateway_failure = False


READ_ERRORS: Final = (TimeoutError, ReplyTimeout, ReplyLost, NotHttp, HeldTooMuch)
"""Errors that reading a reply may raise; `read_error` turns them into an UpstreamError."""


def read_error(error: Exception, call: UpstreamCall) -> UpstreamError:
    """Return the error for a reply whose connection failed while it was read."""
    deployment_id = call.deployment.deployment_id
    if isinstance(error, ReplySilent):
        return UpstreamTimeout(
            f"The upstream fell silent for {call.idle_timeout_s:g} s in the middle of its reply "
            "(`providers.timeouts.idle_s`).",
            deployment_id=deployment_id,
        )
    if isinstance(error, ReplyTimeout):
        return took_too_long(call)
    if isinstance(error, ReplyUnbounded):
        return MalformedReply(
            "The upstream's reply goes on and on in chunks or fields without content.", deployment_id=deployment_id
        )
    if isinstance(error, HeldTooMuch):
        return NoRoomForReply(
            "The answer is too large for what is left of the memory that this gateway process has for answers "
            "(`server.max_replies_bytes`): ask for less at once or for a stream, or try again shortly.",
            deployment_id=deployment_id,
        )
    return StreamCut("The upstream's connection broke in the middle of its reply.", deployment_id=deployment_id)


class UpstreamStream(Protocol):
    """An open reply, read the same way whether it is streamed or not."""

    @property
    def ended(self) -> bool:
        """True when all of it was read, so that `read` returns None at once. False as long as that is not known."""
        ...

    async def read(self) -> list[Event] | None:
        """Return the next events (at least one), or None after the end marker.

        Raises an UpstreamError when the reply is cut, silent too long or malformed.
        """
        ...

    def unread(self) -> list[Event]:
        """Return events that arrived and were not read; never waits, never fails.

        Called before an abandoned stream is cut: the upstream generated them, so they are metered.
        """
        ...

    async def aclose(self) -> None:
        """Return the connection to the pool, or cut it when the reply was not read to its end. Idempotent."""
        ...


@runtime_checkable
class Impatient(Protocol):
    """A stream over a connection of its own, whose silence can be limited while it is read."""

    def limit_silence(self, idle_s: float) -> None:
        """Limit the silence from now on: a longer one ends the stream with UpstreamTimeout."""
        ...


class Upstream(Protocol):
    """A client of one protocol, for many deployments."""

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        """Send the request, and return once a success status arrived. Raises an UpstreamError otherwise."""
        ...

    async def aclose(self) -> None: ...
