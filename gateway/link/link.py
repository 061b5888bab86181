"""A worker's end of the link: connects to the control plane, again and again, and asks it."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gateway.link.codec import Question, Vocabulary
from gateway.link.connection import Connection, Handlers, LinkDown

_log: Final = logging.getLogger("weighbridge.link")

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_STARTS_WITHIN_S: Final = 15.0
"""How long after a worker's start a control plane that is not there yet is no warning."""
_ANSWER_S: Final = 5.0

Answer = TypeVar("Answer")


class Hello(msgspec.Struct, frozen=True):
    """The first message of a worker."""

    boot_id: str
    pid: int


class Synced(msgspec.Struct, frozen=True):
    """The control plane has told a new worker everything that it told the others before."""


class Link:
    """The connection to the control plane, as long as there is one."""

    def __init__(self, path: Path, vocabulary: Vocabulary) -> None:
        self._path = path
        self._hello: Hello | None = None
        self.handlers = Handlers(vocabulary)
        self._connection: Connection | None = None
        self._gone = asyncio.Event()
        self._synced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.came: list[Callable[[], None]] = []
        """Called each time that a connection stands."""
        self.handlers.when_told(Synced, lambda _connection, _message: self._synced.set())

    @property
    def is_up(self) -> bool:
        return self._connection is not None and self._connection.is_open

    @property
    def has_room(self) -> bool:
        """True where a message that may be left out can be sent."""
        return self._connection is not None and self._connection.is_open and self._connection.has_room

    def start(self, hello: Hello) -> None:
        """Begin to connect; `hello` is the first message of each connection."""
        self._hello = hello
        self._task = asyncio.create_task(self._stay_connected(), name="link")

    async def synced(self, timeout_s: float | None) -> None:
        """Wait until everything that was told to others is told to this worker; without a time, for ever. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._synced.wait()

    def tell(self, message: msgspec.Struct) -> bool:
        """Send a message; False when the control plane is not there."""
        return self._connection is not None and self._connection.tell(message)

    async def ask(self, question: Question[Answer], timeout_s: float = _ANSWER_S) -> Answer:
        """Return the answer to a question. Raises LinkDown, NotAnswered or TimeoutError."""
        if self._connection is None:
            raise LinkDown("the control plane is not there")
        return await self._connection.ask(question, timeout_s)

    async def aclose(self) -> None:
        """Close the connection for good."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._connection is not None:
            await self._connection.aclose()

    async def _stay_connected(self) -> None:
        pause_s, told = _FIRST_PAUSE_S, False
        # At a start both planes come up at once, and one of them is first.
        missed_from_s = asyncio.get_running_loop().time() + _STARTS_WITHIN_S
        while True:
            connection = await self._connect()
            if connection is None:
                if not told and asyncio.get_running_loop().time() >= missed_from_s:
                    _log.warning("the control plane is not there; requests go on with what is known")
                    told = True
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
                continue
            pause_s, told, missed_from_s = _FIRST_PAUSE_S, False, 0.0
            await self._gone.wait()
            self._connection = None

    async def _connect(self) -> Connection | None:
        self._gone.clear()
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(
                lambda: Connection(self.handlers, lambda _: self._gone.set()), str(self._path)
            )
        except OSError:
            return None
        if self._hello is not None:
            connection.tell(self._hello)
        self._connection = connection
        for came in self.came:
            came()
        return connection
