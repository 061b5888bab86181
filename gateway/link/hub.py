"""The control plane's end of the link: all workers of this host, the messages to them, and their questions."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gateway.link.codec import Question, Vocabulary
from gateway.link.connection import Connection, Handlers, LinkDown, NotAnswered
from gateway.link.link import Hello, Synced

_ANSWER_S: Final = 2.0
_BACKLOG: Final = 128

Answer = TypeVar("Answer")


class Hub:
    """The control plane's end of all workers' links: it publishes to them, and answers them.

    What is published under a key replaces what was published under it before: a worker that comes, or that did not
    keep up, gets the newest message of each key.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.handlers = Handlers(vocabulary)
        self._newest: dict[Hashable, msgspec.Struct] = {}
        self._workers: dict[str, Connection] = {}
        self._open: set[Connection] = set()
        self._behind: dict[Connection, dict[Hashable, None]] = {}
        self._catching_up: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.came: list[Callable[[str], None]] = []
        """Called with the boot id of each worker that comes."""
        self.went: list[Callable[[str], None]] = []
        """Called with the boot id of each worker that is gone."""
        self.handlers.when_told(Hello, self._greeted)

    @property
    def workers(self) -> tuple[str, ...]:
        """The boot ids of the workers that are connected."""
        return tuple(self._workers)

    async def start(self, path: Path) -> None:
        """Listen at the path, which nobody else may open."""
        _remove(path)
        loop = asyncio.get_running_loop()
        before = os.umask(0o177)
        try:
            self._server = await loop.create_unix_server(self._connection, str(path), backlog=_BACKLOG)
        finally:
            os.umask(before)

    async def aclose(self) -> None:
        """Close all connections."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._catching_up):
            task.cancel()
        await asyncio.gather(*(each.aclose() for each in tuple(self._open)))
        await asyncio.gather(*self._catching_up, return_exceptions=True)

    def publish(self, key: Hashable, message: msgspec.Struct) -> None:
        """Tell all workers, and those that come later."""
        # Moved to the end: what comes later may build on what came before.
        self._newest.pop(key, None)
        self._newest[key] = message
        for connection in self._workers.values():
            self._tell(connection, key, message)

    def tell_others(self, boot_id: str, message: msgspec.Struct) -> None:
        """Send an optional message to all workers but this one; a worker that does not keep up does not get it."""
        for other, connection in self._workers.items():
            if other != boot_id and connection.has_room:
                connection.tell(message)

    def forget(self, key: Hashable) -> None:
        """Forget a key: workers that come later are not told of it."""
        self._newest.pop(key, None)

    def tell(self, boot_id: str, message: msgspec.Struct) -> bool:
        """Tell one worker; False when it is not there."""
        connection = self._workers.get(boot_id)
        return connection is not None and connection.tell(message)

    async def ask_all(self, question: Question[Answer], timeout_s: float = _ANSWER_S) -> dict[str, Answer]:
        """Return the answers of all workers that answer in time, by boot id."""

        async def ask(connection: Connection) -> tuple[str, Answer] | None:
            try:
                return connection.boot_id, await connection.ask(question, timeout_s)
            except (LinkDown, NotAnswered, TimeoutError):
                return None

        found = await asyncio.gather(*map(ask, tuple(self._workers.values())))
        return dict(each for each in found if each is not None)

    def _connection(self) -> Connection:
        connection = Connection(self.handlers, self._gone)
        self._open.add(connection)
        return connection

    def _tell(self, connection: Connection, key: Hashable, message: msgspec.Struct) -> None:
        behind = self._behind.get(connection)
        if behind is not None:
            behind[key] = None
        elif connection.has_room:
            connection.tell(message)
        else:
            self._behind[connection] = {key: None}
            task = asyncio.get_running_loop().create_task(self._catch_up(connection), name="link-catch-up")
            self._catching_up.add(task)
            task.add_done_callback(self._catching_up.discard)

    async def _catch_up(self, connection: Connection) -> None:
        """Tell a worker that did not keep up the newest of each key that it missed."""
        while connection.is_open:
            await connection.room()
            missed = self._behind.get(connection)
            if not missed:
                break
            key = next(iter(missed))
            del missed[key]
            message = self._newest.get(key)
            if message is not None:
                connection.tell(message)
        self._behind.pop(connection, None)

    def _greeted(self, connection: Connection, hello: Any) -> None:
        connection.boot_id = hello.boot_id
        self._workers[hello.boot_id] = connection
        for message in tuple(self._newest.values()):
            connection.tell(message)
        connection.tell(Synced())
        for came in self.came:
            came(hello.boot_id)

    def _gone(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._behind.pop(connection, None)
        if self._workers.get(connection.boot_id) is connection:
            del self._workers[connection.boot_id]
            for went in self.went:
                went(connection.boot_id)


def _remove(path: Path) -> None:
    # A control plane that was killed leaves its socket behind.
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
