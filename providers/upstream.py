"""How the line speaks to any upstream: open a call, read batches of events, close it once."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from providers.target import Deployment
from providers.wire import ChatRequest, Event


def _told_nobody(_reached: bool) -> None:
    pass


class UpstreamCall(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one deployment. Deadlines are seconds from now."""

    deployment: Deployment
    request: ChatRequest
    request_id: str
    connect_timeout_s: float
    idle_timeout_s: float
    """The longest silence allowed between two reads once the reply has begun."""
    total_timeout_s: float
    headers: dict[str, str] = {}
    """Extra headers of ours (trace context); never the caller's."""
    engine_fields: Mapping[str, int | str] = {}
    """Extra fields of the body, for an engine of our own; never the caller's."""
    reaches: Callable[[bool], None] = _told_nobody
    """Told False while there is no connection yet, so that nothing of the request can have left, and True once there is.
    Who cannot know says nothing: then the upstream may have seen the request from the start.
    """


class UpstreamStream(Protocol):
    """An open reply. Streaming or not, it is read the same way."""

    async def read(self) -> list[Event] | None:
        """The next events (at least one), or None after the end marker.

        Raises a providers.errors.UpstreamError when the reply is cut, silent too long or malformed.
        """
        ...

    def unread(self) -> list[Event]:
        """What has come and was not read; never waits, never fails. Asked before a stream is cut that nobody reads any
        more: the upstream made it, so it counts.
        """
        ...

    async def aclose(self) -> None:
        """Gives the connection back, or cuts it when the reply was not read to its end. Idempotent."""
        ...


class Upstream(Protocol):
    """Speaks one wire to many deployments."""

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        """Sends the request and returns once a success status arrived.

        Raises a providers.errors.UpstreamError otherwise.
        """
        ...

    async def aclose(self) -> None: ...
