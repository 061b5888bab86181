"""TLS and SASL in front of librdkafka's mock brokers, which have neither: a server that signs in by PLAIN and SCRAM as Apache Kafka's
protocol has it, and passes on all else. What SCRAM computes is scramp's; that the front speaks Kafka is shown by librdkafka's own client.
"""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped]

_HOST: Final = b"127.0.0.1"
_HANDSHAKE: Final = 17
_VERSIONS: Final = 18
_AUTHENTICATE: Final = 36
_FLEXIBLE_VERSIONS: Final = 3
_REFUSED: Final = 58
_UNSUPPORTED: Final = 33
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class KafkaFront:
    """Fronts of the brokers; `servers` are what a client is told."""

    def __init__(self, brokers: Sequence[str], users: Mapping[str, str], context: ssl.SSLContext | None) -> None:
        self.servers: list[str] = []
        self.users = dict(users)
        self.peers: list[Any] = []
        """The certificates that clients showed."""
        self._brokers = [int(each.rpartition(":")[2]) for each in brokers]
        self._ports: dict[int, int] = {}
        self._context = context
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["KafkaFront"]:
        """Listen until the block ends."""
        async with contextlib.AsyncExitStack() as stack:
            for broker in self._brokers:
                server = await asyncio.start_server(self._client_of(broker), "127.0.0.1", 0, ssl=self._context)
                stack.push_async_callback(self._stop, server)
                self._ports[broker] = server.sockets[0].getsockname()[1]
            self.servers = [f"127.0.0.1:{port}" for port in self._ports.values()]
            yield self

    async def _stop(self, server: asyncio.Server) -> None:
        server.close()
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _client_of(self, broker: int) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self.peers.append(writer.get_extra_info("peercert"))
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                await self._serve(reader, writer, broker)
            writer.close()

        return serve

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, broker: int) -> None:
        behind, to = await asyncio.open_connection("127.0.0.1", broker)
        versions: list[int] = []
        back: asyncio.Task[None] | None = None
        sign_in = _SignIn(self.users)
        try:
            while True:
                asked = await _frame(reader)
                api, version, correlation = struct.unpack(">hhi", asked[:8])
                if api in {_HANDSHAKE, _AUTHENTICATE}:
                    (length,) = struct.unpack(">h", asked[8:10])
                    answer = sign_in.answer(api, version, asked[10 + max(0, length) :])
                    _send(writer, struct.pack(">i", correlation) + answer)
                elif api == _VERSIONS and not sign_in.done:
                    versions.append(version)
                    _send(to, asked)
                    _send(writer, _with_sign_in(await _frame(behind), version))
                elif not sign_in.done:
                    return
                else:
                    if back is None:
                        back = asyncio.create_task(self._pass_back(behind, writer))
                    _send(to, asked)
                await writer.drain()
        finally:
            to.close()
            if back is not None:
                back.cancel()

    async def _pass_back(self, behind: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                told = await _frame(behind)
                # Brokers tell their own addresses.
                for broker, port in self._ports.items():
                    told = told.replace(_HOST + struct.pack(">i", broker), _HOST + struct.pack(">i", port))
                _send(writer, told)
                await writer.drain()


class _SignIn:
    def __init__(self, users: Mapping[str, str]) -> None:
        self.done = False
        self._users = users
        self._mechanism = ""
        self._scram: Any = None

    def answer(self, api: int, version: int, asked: bytes) -> bytes:
        if api == _HANDSHAKE:
            self._mechanism = asked[2:].decode()
            known = self._mechanism in MECHANISMS
            if self._mechanism.startswith("SCRAM") and known:
                self._scram = _Scram(self._mechanism, self._users)
            names = b"".join(struct.pack(">h", len(each)) + each.encode() for each in MECHANISMS)
            return struct.pack(">hi", 0 if known else _UNSUPPORTED, len(MECHANISMS)) + names
        flexible = version >= 2
        assert not flexible
        lifetime = struct.pack(">q", 0) if version else b""
        try:
            given = self._scram.step(asked[4:].decode()) if self._scram is not None else self._plain(asked[4:])
        except (ScramException, LookupError):
            told = b"Authentication failed"
            return struct.pack(">hh", _REFUSED, len(told)) + told + struct.pack(">i", 0) + lifetime
        self.done = self._scram is None or self._scram.done
        return struct.pack(">hhi", 0, -1, len(given)) + given + lifetime

    def _plain(self, told: bytes) -> bytes:
        _, user, password = told.decode().split("\0")
        if self._users.get(user) != password:
            raise LookupError(user)
        return b""


class _Scram:
    def __init__(self, name: str, users: Mapping[str, str]) -> None:
        mechanism = ScramMechanism(name)
        self.done = False
        self._server = mechanism.make_server(lambda user: mechanism.make_auth_info(users[user]))
        self._begun = False

    def step(self, told: str) -> bytes:
        if not self._begun:
            self._begun = True
            self._server.set_client_first(told)
            return str(self._server.get_server_first()).encode()
        self._server.set_client_final(told)
        self.done = True
        return str(self._server.get_server_final()).encode()


def _with_sign_in(told: bytes, version: int) -> bytes:
    """Add the two calls of a sign-in to what a broker says it can do."""
    both = [struct.pack(">hhh", api, 0, 1) for api in (_HANDSHAKE, _AUTHENTICATE)]
    head, error = told[:4], told[4:6]
    if version < _FLEXIBLE_VERSIONS:
        (count,) = struct.unpack(">i", told[6:10])
        return head + error + struct.pack(">i", count + 2) + b"".join(both) + told[10:]
    # A varint, of one byte for so few.
    assert told[6] < 126
    return head + error + bytes([told[6] + 2]) + b"".join(each + b"\0" for each in both) + told[7:]


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


def _send(writer: asyncio.StreamWriter, told: bytes) -> None:
    writer.write(struct.pack(">i", len(told)) + told)
