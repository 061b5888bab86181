"""CloudEvents to a subject of NATS that a stream of JetStream keeps, in structured mode: a message each. nats-py is the extra `nats`."""

import asyncio
import contextlib
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from cost.events.sink import Batch, BatchRefused, SinkFailed

_CONTENT_TYPE: Final = "application/cloudevents+json"
_CLOSE_S: Final = 2.0
_MOST_TOLD: Final = 200
_NO_END_S: Final = 3_600.0
_TRIES: Final = 1
"""Tries at each server after the first, as nats-py counts; it knows no 0."""
_TRY_AGAIN_S: Final = 0.1
_TOO_LARGE: Final = 10_054
"""JetStream's error for a message larger than its stream takes."""


class NatsSink:
    """One subject. The stream acknowledges each message, and takes an id once within its duplicate window."""

    def __init__(
        self, subject: str, settings: Mapping[str, Any], renewed: Callable[[], Mapping[str, Any]] = dict
    ) -> None:
        """Take `settings` of nats-py's own, such as `servers`; `renewed` are more of them, asked for after each failure. Raises ImportError
        without nats-py.
        """
        self._nats = importlib.import_module("nats.aio.client")
        self._errors = importlib.import_module("nats.errors")
        self._api_error = importlib.import_module("nats.js.errors").APIError
        self._subject = subject
        self._settings = settings
        self._renewed = renewed
        self._client: Any = None
        self._lost: asyncio.Future[Exception]

    async def send(self, batch: Batch) -> None:
        """Publish a batch and wait for the stream. Raises SinkFailed, and BatchRefused where a message is too large."""
        try:
            await self._send(batch)
        except BaseException as failure:
            if self._is_too_large(failure):
                raise BatchRefused("a message is too large") from None
            await self.aclose()
            if not isinstance(failure, self._errors.Error | OSError):
                raise
            raise SinkFailed(self._told(failure)) from None

    async def aclose(self) -> None:
        """Close the connection; one that cannot be closed is left."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(TimeoutError, self._errors.Error, OSError):
                async with asyncio.timeout(_CLOSE_S):
                    await client.close()

    def _is_too_large(self, failure: BaseException) -> bool:
        if isinstance(failure, self._errors.MaxPayloadError):
            return True
        return isinstance(failure, self._api_error) and failure.err_code == _TOO_LARGE

    def _told(self, failure: BaseException) -> str:
        """Return what failed, without an address."""
        if isinstance(failure, self._api_error):
            return f"JetStream's error {failure.err_code}"
        # What is of no kind of its own is in the server's words: 'Authorization Violation'.
        return str(failure)[:_MOST_TOLD] if type(failure) is self._errors.Error else type(failure).__name__

    async def _send(self, batch: Batch) -> None:
        if self._client is None or self._lost.done():
            await self.aclose()
            await self._connect()
        stream = self._client.jetstream()
        publishing = asyncio.gather(
            *(
                # Its own time-out is 5 s; the delivery's is what holds.
                stream.publish(self._subject, encoded, timeout=_NO_END_S, headers=_headers(event.id))
                for event, encoded in zip(batch.events, batch.encoded, strict=True)
            ),
            return_exceptions=True,
        )
        try:
            # nats-py lets what waits for an acknowledgement wait on where the connection is gone, or the subject not allowed.
            await asyncio.wait((publishing, self._lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not publishing.done():
                publishing.cancel()
                # Nobody else takes its end.
                publishing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        if not publishing.done():
            raise self._lost.result()
        told = publishing.result()
        for failure in told:
            if isinstance(failure, BaseException):
                raise failure

    async def _connect(self) -> None:
        lost = self._lost = asyncio.get_running_loop().create_future()

        async def lose(error: Exception) -> None:
            # Its callbacks of a lost connection are not called where it may not connect again by itself.
            if not lost.done():
                lost.set_result(error)

        self._client = self._nats.Client()
        # The delivery tries again, with a new connection.
        try:
            await self._client.connect(
                **self._settings,
                **self._renewed(),
                allow_reconnect=False,
                max_reconnect_attempts=_TRIES,
                reconnect_time_wait=_TRY_AGAIN_S,
                error_cb=lose,
            )
        except self._errors.NoServersError:
            # Why is what it told first.
            raise lost.result() if lost.done() else ConnectionRefusedError from None


def _headers(event_id: str) -> dict[str, str]:
    return {"Nats-Msg-Id": event_id, "content-type": _CONTENT_TYPE}
