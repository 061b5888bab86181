"""A reply that passes as the bytes it comes in, such as speech: nothing of it is held, and only usage is looked for."""

from typing import Any, Final

import msgspec

from providers.connections.connection import Connection
from providers.connections.pool import ConnectionPool
from providers.errors import MalformedReply, UpstreamError
from providers.held_bytes import HeldTooMuch, Share
from providers.sse import EventTooLarge, SseParser
from providers.upstream import READ_ERRORS, UpstreamCall, read_error
from providers.upstream_faults import error_in_reply
from providers.wire import EVENTS_TYPE, Event, WireUsage
from settings.decoding import DECODE_ERRORS

_USAGE: Final = b'"usage"'
_ERROR: Final = b'"error"'


class _Told(msgspec.Struct):
    """The part of an event that is looked at."""

    usage: Any = None
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Told).decode


class PassedStream:
    """An open reply, in pieces. Closing it cuts the connection unless the reply was read to its end."""

    ended = False

    def __init__(
        self,
        pool: ConnectionPool,
        connection: Connection,
        call: UpstreamCall,
        media_type: str,
        *,
        max_reply_bytes: int,
        max_event_bytes: int,
        share: Share,
    ) -> None:
        self._pool = pool
        self._connection = connection
        self._call = call
        self._media_type = media_type
        self._left = max_reply_bytes
        self._share = share
        self._events = SseParser(max_event_bytes) if media_type.startswith(EVENTS_TYPE) else None
        self._begun = False

    async def read(self) -> list[Event] | None:
        """Return the next piece as one event, with the usage that it tells. Raises an UpstreamError."""
        try:
            data = await self._connection.read()
        except READ_ERRORS as error:
            raise read_error(error, self._call) from error
        if not data:
            return None
        self._left -= len(data)
        if self._left < 0:
            raise self._malformed("The upstream's answer is too long.")
        usage = self._told_in(data) if self._events is not None else None
        self._begun = True
        return [Event(data, True, 1, 0, usage, False, media_type=self._media_type)]

    def _told_in(self, data: bytes) -> WireUsage | None:
        """Return the usage in events. Raises the error of a stream that begins with one, as nothing was passed on yet."""
        assert self._events is not None  # noqa: S101  The one caller looked.
        usage: WireUsage | None = None
        try:
            payloads = self._events.feed(data)
        except EventTooLarge as error:
            raise self._malformed("The upstream sent an event that is too large.") from error
        try:
            self._share.grow(self._events.held_bytes)
        except HeldTooMuch as error:
            raise read_error(error, self._call) from error
        for payload in payloads:
            if _USAGE not in payload and (self._begun or _ERROR not in payload):
                continue
            try:
                told = _decode(payload)
            except DECODE_ERRORS:
                continue
            if told.error is not None and not self._begun:
                deployment = self._call.deployment
                raise error_in_reply(told.error, deployment.deployment_id, deployment.api_key)
            if isinstance(told.usage, dict):
                usage = wire_usage(told.usage)
        return usage

    def _malformed(self, message: str) -> UpstreamError:
        return MalformedReply(message, deployment_id=self._call.deployment.deployment_id)

    def unread(self) -> list[Event]:
        """Return nothing, always: the bill does not follow from pieces."""
        return []

    async def aclose(self) -> None:
        self._pool.release(self._connection)
        if self._events is not None:
            self._events.clear()
        self._share.give_back()


def wire_usage(usage: dict[str, Any]) -> WireUsage | None:
    """Return tokens under any of the names that they have, in OpenAI's older ones; None where there are none."""
    prompt = _first(usage, "prompt_tokens", "input_tokens", "total_tokens")
    if prompt is None:
        return None
    completion = _first(usage, "completion_tokens", "output_tokens")
    return usage | {
        "prompt_tokens": prompt,
        "completion_tokens": 0 if completion is None else completion,
        "prompt_tokens_details": _first(usage, "prompt_tokens_details", "input_tokens_details", "input_token_details"),
        "completion_tokens_details": _first(
            usage, "completion_tokens_details", "output_tokens_details", "output_token_details"
        ),
    }


def _first(usage: dict[str, Any], *names: str) -> Any:
    return next((usage[name] for name in names if usage.get(name) is not None), None)
