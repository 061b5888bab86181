"""One end of a connection between the planes: frames in both directions, and questions that wait for their answers."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

import msgspec

from gateway.link.codec import (
    ANSWERED,
    ASKED,
    REFUSED,
    TOLD,
    Envelope,
    Frames,
    FrameTooLarge,
    Question,
    Vocabulary,
    frame,
)
from settings.decoding import DECODE_ERRORS

_log: Final = logging.getLogger("weighbridge.link")

_HIGH_BYTES: Final = 1024 * 1024
"""Waiting bytes from which on optional messages are left out."""
_MAX_ASKED: Final = 1_024
"""Questions that wait for their answers; beyond them the other end counts as not there."""
_MAX_ANSWERING: Final = 64
"""Questions of the other end that are answered at once; beyond them no more are read."""

_CLOSE_S: Final = 1.0

Answer = TypeVar("Answer")
Answerer = Callable[["Connection", Any], Awaitable[Any]]
Told = Callable[["Connection", Any], None]

_Asked = TypeVar("_Asked", bound=Question[Any])


class LinkDown(OSError):
    """The other end is not there, or went before it answered. An OSError, as a database's failures are to the asker."""


class NotAnswered(OSError):
    """The other end could not answer; the message is the kind of its error."""


class Handlers:
    """The reactions of one end to the messages that come, by their classes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._told: dict[str, Told] = {}
        self._asked: dict[str, Answerer] = {}

    def when_told(self, message: type[msgspec.Struct], told: Told) -> None:
        """Call `told` with each message of this class; it must not raise and not wait."""
        self._told[message.__name__] = told

    def when_asked(self, question: type[_Asked], answerer: Callable[["Connection", _Asked], Awaitable[Any]]) -> None:
        """Answer questions of this class with what `answerer` returns, or with the kind of the error that it raises."""
        self._asked[question.__name__] = answerer

    def told(self, name: str) -> Told | None:
        return self._told.get(name)

    def asked(self, name: str) -> Answerer | None:
        return self._asked.get(name)


class Connection(asyncio.Protocol):
    """One connection. `lost` is called once, when it is gone."""

    def __init__(self, handlers: Handlers, lost: Callable[["Connection"], None]) -> None:
        self._handlers = handlers
        self._lost = lost
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._next_number = 0
        self._answering: set[asyncio.Task[None]] = set()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_gone = asyncio.Event()
        self.boot_id = ""
        """The peer's boot id, once it was told."""

    # asyncio's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._has_room.set()
        waiting, self._asked = self._asked, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(LinkDown("the other plane is gone"))
        for task in self._answering:
            task.cancel()
        self._is_gone.set()
        self._lost(self)

    def pause_writing(self) -> None:
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._has_room.set()

    def data_received(self, data: bytes) -> None:
        try:
            for envelope in self._frames.feed(data):
                self._take(envelope)
        except (FrameTooLarge, *DECODE_ERRORS) as error:
            _log.error("the other plane sent what cannot be read: %s", type(error).__name__)
            self.close()

    # What both ends do with it.

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_room(self) -> bool:
        """False while so many bytes wait to be sent that optional messages should be left out."""
        return self._has_room.is_set()

    async def room(self) -> None:
        """Wait until there is room to send, or the connection is gone."""
        await self._has_room.wait()

    def tell(self, message: msgspec.Struct) -> bool:
        """Send a message; False when the connection is gone."""
        return self._send(TOLD, 0, type(message).__name__, message)

    async def ask(self, question: Question[Answer], timeout_s: float) -> Answer:
        """Return the answer to a question. Raises LinkDown, NotAnswered or TimeoutError."""
        if len(self._asked) >= _MAX_ASKED:
            raise LinkDown("the other plane does not keep up")
        self._next_number += 1
        number = self._next_number
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if not self._send(ASKED, number, type(question).__name__, question):
            raise LinkDown("the other plane is not there")
        self._asked[number] = future
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            self._asked.pop(number, None)

    def close(self) -> None:
        """Close it once all messages have been sent."""
        if self._transport is not None:
            self._transport.close()

    async def aclose(self) -> None:
        """Close it and wait; messages that are not sent within a moment are dropped."""
        self.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._is_gone.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
            await self._is_gone.wait()

    def _send(self, kind: int, number: int, name: str, body: Any) -> bool:
        if not self.is_open:
            return False
        try:
            data = frame(kind, number, name, body)  # type: ignore[arg-type]  # One of the four.
        except FrameTooLarge as error:
            _log.error("a message for the other plane is left out: %s", error)
            return False
        cast("asyncio.Transport", self._transport).write(data)
        return True

    def _take(self, envelope: Envelope) -> None:
        if envelope.kind in {ANSWERED, REFUSED}:
            self._take_answer(envelope)
            return
        try:
            message = self._handlers.vocabulary.message(envelope)
        except DECODE_ERRORS as error:
            _log.error("a message %s cannot be read: %s", envelope.name[:64], error)
            if envelope.kind == ASKED:
                self._send(REFUSED, envelope.number, envelope.name, type(error).__name__)
            return
        if message is None:
            return
        if envelope.kind == TOLD:
            told = self._handlers.told(envelope.name)
            if told is not None:
                told(self, message)
            return
        task = asyncio.get_running_loop().create_task(self._answer(envelope, message), name="link-answer")
        self._answering.add(task)
        task.add_done_callback(self._answered)
        if len(self._answering) >= _MAX_ANSWERING and self._transport is not None:
            self._transport.pause_reading()

    def _answered(self, task: "asyncio.Task[None]") -> None:
        self._answering.discard(task)
        if len(self._answering) < _MAX_ANSWERING and self.is_open:
            with contextlib.suppress(RuntimeError):
                cast("asyncio.Transport", self._transport).resume_reading()

    def _take_answer(self, envelope: Envelope) -> None:
        future = self._asked.get(envelope.number)
        if future is None or future.done():
            return
        if envelope.kind == REFUSED:
            future.set_exception(NotAnswered(msgspec.msgpack.decode(envelope.body, type=str)))
            return
        try:
            future.set_result(self._handlers.vocabulary.answer(envelope))
        except (KeyError, *DECODE_ERRORS) as error:
            future.set_exception(NotAnswered(type(error).__name__))

    async def _answer(self, envelope: Envelope, question: msgspec.Struct) -> None:
        answerer = self._handlers.asked(envelope.name) or _nobody_answers
        try:
            answer = await answerer(self, question)
        except Exception as error:  # noqa: BLE001 - who asked is told its kind, and no more of it
            self._send(REFUSED, envelope.number, envelope.name, type(error).__name__)
            return
        self._send(ANSWERED, envelope.number, envelope.name, answer)


async def _nobody_answers(_connection: Connection, _question: Any) -> Any:
    raise LookupError
