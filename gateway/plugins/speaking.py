"""Dialects of plug-ins, as the client of upstreams speaks them. What they get wrong fails the attempt, and the next candidate is asked."""

from collections.abc import Callable

import msgspec

from gateway.plugins.calls import Calls, NoAnswer
from providers.errors import MalformedReply, UpstreamRefusedUs
from providers.regular_replies import regular_answer
from providers.spoken_dialects import Asked
from providers.upstream import UpstreamCall
from providers.wire import EMPTY_OBJECT, Event, decode_event
from weighbridge.plugins import Call, Dialect, Outgoing, ReplyReader
from weighbridge.plugins.checking import checked_chunk, checked_outgoing

_GATEWAYS = frozenset(
    {"authorization", "api-key", "x-api-key", "cookie", "host", "content-length", "transfer-encoding", "connection"}
)
"""Headers that no dialect sets."""
_NOTHING = Event(EMPTY_OBJECT, False, 0, 0, None, False)


class Speaking(msgspec.Struct, frozen=True):
    """One dialect, a SpokenDialect of the client."""

    dialect: Dialect
    calls: Calls

    def asked(self, call: UpstreamCall, body: bytes) -> Asked:
        """Write the request. Raises UpstreamRefusedUs."""
        try:
            found = self.calls.ask_now(
                lambda: checked_outgoing(self.dialect.request(msgspec.json.decode(body), _told(call)))
            )
        except NoAnswer as none:
            raise UpstreamRefusedUs(
                f"The request could not be written: {none}.", deployment_id=call.deployment.deployment_id
            ) from none
        return Asked(found.path, found.body, _headers(found))

    def reader(self, call: UpstreamCall) -> "SpokenReader":
        """Return the reader of the call's reply. Raises UpstreamRefusedUs."""
        try:
            reader = self.calls.ask_now(lambda: self.dialect.reader(_told(call)))
        except NoAnswer as none:
            raise UpstreamRefusedUs(
                f"The reply could not be read: {none}.", deployment_id=call.deployment.deployment_id
            ) from none
        return SpokenReader(reader, self.calls, call)


class SpokenReader:
    """A reader of one reply."""

    def __init__(self, reader: ReplyReader, calls: Calls, call: UpstreamCall) -> None:
        self._reader = reader
        self._calls = calls
        self._call = call
        self.ended = False
        """False, always: a stream ends by its finish reason."""

    def event(self, payload: bytes) -> Event:
        """Return one event of a stream. Raises MalformedReply."""
        chunk = self._read(lambda: None if (found := self._reader.event(payload)) is None else _encoded(found))
        return _NOTHING if chunk is None else self._decoded(chunk)

    def whole(self, payload: bytes) -> Event:
        """Return a whole reply. Raises MalformedReply."""
        answer = self._read(lambda: _encoded(self._reader.whole(payload)))
        if answer is None:
            raise self._malformed("it is empty")
        return regular_answer(
            self._decoded(answer), self._call.request, self._call.request_id, self._call.deployment.deployment_id
        )

    def _read(self, act: Callable[[], bytes | None]) -> bytes | None:
        try:
            return self._calls.ask_now(act)
        except NoAnswer as none:
            raise self._malformed(str(none)) from none

    def _decoded(self, payload: bytes) -> Event:
        return decode_event(payload, self._call.deployment.deployment_id, self._call.deployment.api_key)

    def _malformed(self, why: str) -> MalformedReply:
        return MalformedReply(
            f"The upstream's reply could not be read: {why}.", deployment_id=self._call.deployment.deployment_id
        )


def _encoded(found: object) -> bytes:
    return msgspec.json.encode(checked_chunk(found))


def _told(call: UpstreamCall) -> Call:
    return Call(request_id=call.request_id, model=call.deployment.upstream_model, stream=call.request.stream)


def _headers(found: Outgoing) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in (found.headers or {}).items() if name.lower() not in _GATEWAYS)
