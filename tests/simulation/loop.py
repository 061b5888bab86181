"""An event loop in simulated time: whenever nothing is ready, the next timer is due at once.

It is asyncio's own loop without a selector. Threads' work is done in the loop, some simulated time later. Of a process that was killed
nothing runs any more, not even what its code would do at last.
"""

import asyncio
import collections
import heapq
import socket
from asyncio import events
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.machine import NODE, Machine, Node, is_wanted

if TYPE_CHECKING:
    from tests.simulation.network import Network

_STEP_S = 1e-6
"""What one step takes: code that waits until it is later must see that."""


class Stuck(Exception):
    """Nothing can happen any more, and the simulation has not ended."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of one seed."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._jitter: Random = machine.chance("threads")
        self.network: Network | None = None
        self.stepped: Callable[[Node], None] = lambda _node: None
        """Called after each step of a node."""
        self.killed: Callable[[Node], None] = lambda _node: None
        """Called for a node whose last step was taken."""
        self.steps = 0
        self.graves: list[Any] = []
        """What dead processes left: it must not even be collected, which would run their `finally`."""
        self.set_exception_handler(self._keep_exception)
        self.exceptions: list[str] = []

    def _keep_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if is_wanted(context.get("exception")):
            return
        task = context.get("task") or context.get("future")
        if "Task was destroyed" in context["message"] and task in self.graves:
            return
        self.exceptions.append(f"{context['message']}: {context.get('exception')!r}")

    def time(self) -> float:
        return self._machine.now

    def _run_once(self) -> None:
        ready: collections.deque[Any] = self._ready  # type: ignore[attr-defined]
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not ready:
            if not timers:
                raise Stuck
            self._machine.now = max(self._machine.now, timers[0]._when)
        while timers and timers[0]._when <= self._machine.now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                self._step(handle)

    def _step(self, handle: Any) -> None:
        node = handle._context.get(NODE)
        if node is not None and not node.alive:
            self.graves.append(handle)
            return
        handle._run()
        self.steps += 1
        self._machine.now += _STEP_S
        if node is None:
            return
        self.stepped(node)
        if node.steps_left > 0:
            node.steps_left -= 1
            if not node.steps_left:
                self.killed(node)

    def call_soon_threadsafe(  # type: ignore[override]  # The base has a type for each number of arguments; so below.
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Do a thread's work in the loop, when its turn would have come."""
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - it is the future's to tell
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self._jitter.expovariate(1_000), work)
        return future

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there are no sockets."""

    def _write_to_self(self) -> None:
        """Do nothing: no thread has to wake the loop."""

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Do nothing: nothing comes by a real socket."""

    def remove_reader(self, fd: Any) -> bool:
        return False

    async def getaddrinfo(self, host: Any, port: Any, **_named: Any) -> Any:
        """Return an address that stands for the name."""
        assert self.network is not None
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.network.number_of(str(host)), int(port)))]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Find whom a real socket is to be connected with; it is by `create_connection`."""
        assert self.network is not None
        found = (self.network.name_of(address[0]), address[1])
        self.network.dialled[sock] = (found, await self.network.reach(*found))

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **named: Any) -> Any:
        assert self.network is not None
        assert named.get("ssl") is None
        if (made := named.get("sock")) is not None:
            (host, port), door = self.network.dialled.pop(made)
            made.close()
            return await self.network.connect(protocol_factory, host, port, door)
        return await self.network.connect(protocol_factory, str(host), int(port))

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **named: Any) -> Any:
        assert self.network is not None
        door: socket.socket | None = named.get("sock")
        address = (str(host), int(port)) if door is None else self.network.doors[door]
        return self.network.listen(address, protocol_factory)

    async def create_unix_connection(self, protocol_factory: Any, path: Any = None, **_named: Any) -> Any:
        assert self.network is not None
        return await self.network.connect(protocol_factory, str(path), 0)

    async def create_unix_server(self, protocol_factory: Any, path: Any = None, **_named: Any) -> Any:
        assert self.network is not None
        return self.network.listen((str(path), 0), protocol_factory)


def install(loop: SimulatedLoop) -> None:
    """Make it the loop that code asks for."""
    events.set_event_loop(loop)
