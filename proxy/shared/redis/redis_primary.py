"""Which server takes writes now: asked of Sentinels, or of a cluster's nodes, before each connection and while it lasts.

All are asked at once, and what most of them say counts: one that hangs, is cut off or has not heard yet delays nothing and decides nothing.
All keys lie in one slot (the part of the prefix in braces), so of a cluster only the slot's primary is of interest.

This module imports redis, as `redis_wire` does.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from redis.crc import key_slot
from redis.exceptions import RedisError

from proxy.shared.redis.redis_address import MOST_NODES, Node, RedisAddress
from proxy.shared.redis.redis_wire import Connected, connect

_PRIMARY: Final = b"master"
_NO_HOST: Final = frozenset({b"", b"?", None})


class NotThePrimary(ConnectionError):
    """No server is known that takes writes."""


class RedisPrimary:
    """The server behind an address that takes writes for keys with this prefix."""

    def __init__(self, address: RedisAddress, prefix: str) -> None:
        self._address = address
        self._slot = key_slot(prefix.encode())
        self._learnt: tuple[Node, ...] = ()
        """A cluster's other nodes, for when those of the address are gone."""

    async def find(self, timeout_s: float) -> Node | None:
        """Return the server that most name; None for an address of one server. Raises NotThePrimary, RedisError or OSError when none
        is named in time.
        """
        if self._address.kind == "server":
            return None
        asked = dict.fromkeys((*self._address.nodes, *self._learnt))
        return await _most_named([self._named_by(node, timeout_s) for node in asked], timeout_s)

    async def check(self, connection: Connected) -> None:
        """Ask a server found whether it is the primary still. Raises NotThePrimary."""
        if self._address.kind == "server":
            return
        # HELLO, as ROLE and INFO are forbidden to many users.
        told = await connection.ask("HELLO")
        facts = dict(zip(told[::2], told[1::2], strict=False))
        if facts.get(b"role") != _PRIMARY:
            raise NotThePrimary("the server that was named is a replica still")

    async def _named_by(self, node: Node, timeout_s: float) -> Node:
        address = self._address
        of_sentinels = address.kind == "sentinel"
        connection = await connect(address.url_of_sentinel(node) if of_sentinels else address.url_of(node), timeout_s)
        try:
            if of_sentinels:
                return _of_service(
                    await connection.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service), address.service
                )
            return self._of_slot(await connection.ask("CLUSTER", "SLOTS"), node)
        finally:
            await connection.aclose()

    def _of_slot(self, told: Any, asked: Node) -> Node:
        found: Node | None = None
        nodes: dict[Node, None] = {}
        for first, last, *servers in told:
            here = [Node(asked.host if host in _NO_HOST else host.decode(), int(port)) for host, port, *_ in servers]
            nodes |= dict.fromkeys(here)
            if first <= self._slot <= last and here:
                found = here[0]
        if found is None:
            raise NotThePrimary(f"no node of the cluster has the slot {self._slot}")
        self._learnt = tuple(nodes)[:MOST_NODES]
        return found


def _of_service(told: Any, service: str) -> Node:
    if not told:
        raise NotThePrimary(f"the Sentinels know no {service}")
    host, port = told
    return Node(host.decode(), int(port))


async def _most_named(asking: Sequence[Any], timeout_s: float) -> Node:
    """Return what more than half of them name, or at the end what most of those name that answered in time."""
    tasks = {asyncio.ensure_future(each) for each in asking}
    named: Counter[Node] = Counter()
    problem: Exception = NotThePrimary("nobody names the primary in time")
    deadline = asyncio.get_running_loop().time() + timeout_s
    waiting = set(tasks)
    try:
        while waiting and not any(2 * votes > len(tasks) for votes in named.values()):
            left_s = deadline - asyncio.get_running_loop().time()
            done, waiting = await asyncio.wait(waiting, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            for each in done:
                try:
                    named[each.result()] += 1
                except (RedisError, OSError, TimeoutError, ValueError, TypeError) as error:
                    # The last two: an answer of another shape.
                    problem = error
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not named:
        raise (
            problem
            if isinstance(problem, RedisError | OSError)
            else NotThePrimary(f"{type(problem).__name__} instead of a server")
        )
    return named.most_common(1)[0][0]
