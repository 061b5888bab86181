"""A network in memory between asyncio's protocols: late, in pieces, refused, cut and lost as the seed says."""

import asyncio
import contextvars
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tests.simulation.machine import NODE, Machine, Node

Address = tuple[str, int]
_HIGH_BYTES: Final = 64 * 1024
_LEAST_S: Final = 1e-7
"""Between two pieces: a later one never overtakes an earlier one."""


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """How bad the network is."""

    latency_s: float = 0.001
    refused: float = 0.0
    """Share of connections that are refused."""
    lost: float = 0.0
    """Share of connections that nobody ever answers."""
    cut: float = 0.0
    """Share of connections that break at a moment of their own."""
    pieces: float = 0.1
    """Share of writes that arrive in several pieces."""


class Wire(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: "Network", protocol: Any, peer: Address, context: contextvars.Context) -> None:
        super().__init__({"peername": peer, "sockname": peer})
        self.silent: socket.socket | None = None
        self._network = network
        self._protocol = protocol
        self._context = context
        self.node: Node | None = context.get(NODE)
        self.other: Wire
        self._closing = self._lost = self._eof_sent = False
        self._paused = self._told_to_wait = False
        self._kept: deque[bytes | None] = deque()
        self._under_way = 0
        self._last_at = 0.0

    # What a protocol does with it.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.silent if name == "socket" else super().get_extra_info(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._paused

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._under_way

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: all have the same."""

    def write(self, data: Any) -> None:
        if self._closing or self._eof_sent or not data:
            return
        whole = bytes(data)
        for piece in self._network.pieces(whole):
            self._under_way += len(piece)
            self._send(self.other.receive, piece)
        if self._under_way > _HIGH_BYTES and not self._told_to_wait:
            self._told_to_wait = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._closing and not self._eof_sent:
            self._eof_sent = True
            self._send(self.other.receive, None)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused and not self._closing:
            self._paused = False
            self._soon(self._hand_over)

    def close(self) -> None:
        if self._closing:
            return
        if not self._eof_sent:
            self._send(self.other.receive, None)
        self._end(None)

    def abort(self) -> None:
        if not self._closing:
            self._send(self.other.reset)
            self._end(None)

    # What the network does with it.

    def start(self) -> None:
        """Tell the protocol that it is connected."""
        self._context.run(self._protocol.connection_made, self)

    def receive(self, piece: bytes | None) -> None:
        """Take a piece that has arrived, or the end."""
        if self._lost or self._closing:
            return
        self._kept.append(piece)
        if not self._paused:
            self._hand_over()

    def _hand_over(self) -> None:
        while self._kept and not self._paused and not self._closing:
            piece = self._kept.popleft()
            if piece is None:
                if not self._protocol.eof_received():
                    self.close()
                return
            self.other.delivered(len(piece))
            self._protocol.data_received(piece)

    def delivered(self, size: int) -> None:
        """Note that the other end has taken so many bytes."""
        self._under_way -= size
        if self._told_to_wait and self._under_way <= _HIGH_BYTES // 4:
            self._told_to_wait = False
            if not self._lost:
                self._soon(self._protocol.resume_writing)

    def reset(self) -> None:
        """Lose the connection, as by a packet that resets it."""
        if not self._closing:
            self._end(ConnectionResetError(104, "Connection reset by peer"))

    def cut(self) -> None:
        """Lose the connection at both ends."""
        self.reset()
        self.other.reset()

    def _end(self, why: Exception | None) -> None:
        self._closing = True
        self._soon(self._tell_lost, why)

    def _tell_lost(self, why: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._protocol.connection_lost(why)

    def _soon(self, act: Callable[..., Any], *arguments: Any) -> None:
        self._network.loop.call_soon(act, *arguments, context=self._context)

    def _send(self, act: Callable[..., Any], *arguments: Any) -> None:
        loop = self._network.loop
        self._last_at = max(self._last_at + _LEAST_S, loop.time() + self._network.latency_s())
        loop.call_at(self._last_at, act, *arguments, context=self.other._context)


class Door:
    """A listening address; closed like asyncio's servers."""

    def __init__(self, network: "Network", address: Address, factory: Callable[[], Any]) -> None:
        self._network = network
        self._address = address
        self.factory = factory
        self.context = contextvars.copy_context()

    def close(self) -> None:
        if self._network.listening.get(self._address) is self:
            del self._network.listening[self._address]

    async def wait_closed(self) -> None:
        """Return at once: it is closed."""


class Network:
    """All addresses of a seed, and what happens between them."""

    def __init__(self, machine: Machine, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._chance = machine.chance("network")
        self.weather = Weather()
        self.listening: dict[Address, Door] = {}
        self.doors: dict[socket.socket, Address] = {}
        """Addresses for real listening sockets that code insists on."""
        self.dialled: dict[socket.socket, tuple[Address, Door]] = {}
        """The same for those that code has connected itself."""
        self._numbers: dict[str, str] = {}
        self._ports = 40_000
        self._wires: list[Wire] = []
        """The ends that have connected, those that are gone included."""
        # A real one of TCP, whose options clients set.
        with socket.create_server(("127.0.0.1", 0)) as door:
            self._silent = socket.create_connection(door.getsockname())
            self._unused, _ = door.accept()

    def number_of(self, name: str) -> str:
        """Return the number that stands for a name."""
        return self._numbers.setdefault(name, f"10.1.0.{len(self._numbers) + 1}")

    def name_of(self, number: str) -> str:
        return next(name for name, each in self._numbers.items() if each == number)

    def listen(self, address: Address, factory: Callable[[], Any]) -> Door:
        """Answer at an address, on behalf of the node that asks."""
        door = self.listening[address] = Door(self, address, factory)
        return door

    async def reach(self, host: str, port: int) -> Door:
        """Find who answers at an address. Raises ConnectionRefusedError."""
        chance, weather = self._chance, self.weather
        await asyncio.sleep(self.latency_s())
        door = self.listening.get((host, port))
        # A socket of the machine's own is there, or is not.
        if door is not None and port and chance.random() < weather.lost:
            await self.loop.create_future()
        if door is None or chance.random() < weather.refused:
            raise ConnectionRefusedError(111, f"Connect call failed {(host, port)}")
        return door

    async def connect(
        self, factory: Callable[[], Any], host: str, port: int, door: Door | None = None
    ) -> tuple[Wire, Any]:
        """Connect to an address, or with who was found there. Raises ConnectionRefusedError."""
        chance, weather = self._chance, self.weather
        door = door or await self.reach(host, port)
        self._ports += 1
        protocol = factory()
        near = Wire(self, protocol, (host, port), contextvars.copy_context())
        far = Wire(self, door.context.run(door.factory), ("10.0.0.1", self._ports), door.context.copy())
        near.other, far.other = far, near
        self._wires.append(near)
        # A client asks the kernel whether a kept connection still stands; here nothing is ever known before it is told.
        near.silent = self._silent
        for wire in (near, far):
            if wire.node is not None:
                wire.node.transports.append(wire)
        far.start()
        near.start()
        if chance.random() < weather.cut:
            self.loop.call_later(chance.expovariate(0.5), near.cut, context=contextvars.Context())
        await asyncio.sleep(self.latency_s())
        return near, protocol

    def gone(self, node: Node) -> None:
        """Lose all that a killed node had open: its kernel resets it."""
        for address, door in list(self.listening.items()):
            if door.context.get(NODE) is node:
                del self.listening[address]
        for wire in node.transports:
            self.loop.call_later(self.latency_s(), wire.other.reset, context=wire.other._context)

    def cut(self, address: Address) -> None:
        """Lose all connections with an address."""
        for wire in [each for each in self._wires if each.get_extra_info("peername") == address]:
            wire.cut()

    def latency_s(self) -> float:
        return self._chance.expovariate(1 / self.weather.latency_s)

    def pieces(self, data: bytes) -> list[bytes]:
        """Cut what was written once into what arrives."""
        if len(data) < 2 or self._chance.random() >= self.weather.pieces:
            return [data]
        at = self._chance.randrange(1, len(data))
        return [data[:at], data[at:]]
