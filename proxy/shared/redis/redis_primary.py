"""Which server takes writes now: asked of Sentinels, or of a cluster's nodes, before each connection and while it lasts.

All are asked at once, so one that hangs or is cut off delays nothing. Of Sentinels more than half of those that they know must name the
same server, as it takes more than half to elect one: the few that were cut off together with an old primary name it still. Nodes of a
cluster need no such count, as a primary that is cut off from most others refuses writes by itself.
All keys lie in one slot (the part of the prefix in braces), so of a cluster only the slot's primary is of interest.

This module imports redis, as `redis_wire` does.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec
from redis.crc import key_slot
from redis.exceptions import RedisError, ResponseError

from proxy.shared.redis.redis_address import MOST_NODES, Node, RedisAddress
from proxy.shared.redis.redis_wire import Connected, connect

_PRIMARY: Final = b"master"
_NO_HOST: Final = frozenset({b"", b"?", None})
_ASKED_SHARE: Final = 0.5
"""The part of the time after which others than those of the address are asked, too."""


class NotThePrimary(ConnectionError):
    """No server is known that takes writes."""


class _Answer(msgspec.Struct, frozen=True):
    """What one Sentinel or node says."""

    by: str
    """Who it is: a Sentinel that is asked at two addresses counts once."""
    named: Node
    others: tuple[Node, ...]
    """Whom else it knows."""


class RedisPrimary:
    """The server behind an address that takes writes for keys with this prefix."""

    def __init__(self, address: RedisAddress, prefix: str) -> None:
        self._address = address
        self._slot = key_slot(prefix.encode())
        self._learnt: tuple[Node, ...] = ()
        """Sentinels or nodes that those of the address know, for when these are gone."""

    async def find(self, timeout_s: float) -> Node | None:
        """Return the server that enough of them name; None for an address of one server. Raises NotThePrimary, RedisError or OSError when
        there is none in time.
        """
        if self._address.kind == "server":
            return None
        poll = _Poll(self, timeout_s)
        try:
            return await poll.result(self._address.nodes)
        finally:
            await poll.aclose()

    async def check(self, connection: Connected) -> None:
        """Ask a server found whether it is the primary still. Raises NotThePrimary."""
        if self._address.kind == "server":
            return
        # HELLO, as ROLE and INFO are forbidden to many users.
        told = await connection.ask("HELLO")
        facts = dict(zip(told[::2], told[1::2], strict=False))
        if facts.get(b"role") != _PRIMARY:
            raise NotThePrimary("the server that was named is a replica still")

    async def ask(self, node: Node, timeout_s: float) -> _Answer:
        """Ask one Sentinel or node. Raises RedisError, OSError, or ValueError and TypeError for an answer of another shape."""
        address = self._address
        of_sentinels = address.kind == "sentinel"
        connection = await connect(address.url_of_sentinel(node) if of_sentinels else address.url_of(node), timeout_s)
        try:
            if of_sentinels:
                return await _of_sentinel(connection, node, address.service)
            return self._of_slot(await connection.ask("CLUSTER", "SLOTS"), node)
        finally:
            await connection.aclose()

    def learn(self, answers: Collection[_Answer]) -> tuple[Node, ...]:
        """Return whom they know beside those of the address; without an answer, whom they knew before."""
        known = {node: None for each in answers for node in each.others if node not in self._address.nodes}
        self._learnt = tuple(known)[:MOST_NODES] or self._learnt
        return self._learnt

    def chosen(self, answers: Collection[_Answer], asked: int) -> Node | None:
        """Return the server that enough of them name, whatever the others will say; None without one."""
        named = Counter(each.named for each in answers)
        needed = asked // 2 + 1 if self._address.kind == "cluster" else _known(answers, self._address) // 2 + 1
        return next((node for node, count in named.most_common(1) if count >= needed), None)

    def settled(self, answers: list[_Answer]) -> Node:
        """Return what is to be made of all that was said, and is not enough to be sure. Raises NotThePrimary."""
        named = Counter(each.named for each in answers).most_common()
        if self._address.kind == "cluster" and named:
            return named[0][0]
        if not named:
            raise NotThePrimary("nobody names the primary in time")
        known = _known(answers, self._address)
        told = " and ".join(f"{count} of {known} Sentinels name {node}" for node, count in named)
        raise NotThePrimary(f"{told}: more than half of those that they know must agree")

    def _of_slot(self, told: Any, asked: Node) -> _Answer:
        found: Node | None = None
        nodes: dict[Node, None] = {}
        for first, last, *servers in told:
            here = [Node(asked.host if host in _NO_HOST else host.decode(), int(port)) for host, port, *_ in servers]
            nodes |= dict.fromkeys(here)
            if first <= self._slot <= last and here:
                found = here[0]
        if found is None:
            raise NotThePrimary(f"no node of the cluster has the slot {self._slot}")
        return _Answer(str(asked), found, tuple(nodes))


class _Poll:
    """One asking of all: first those of the address, and others that these know where they say too little."""

    def __init__(self, primary: RedisPrimary, timeout_s: float) -> None:
        self._primary = primary
        self._timeout_s = timeout_s
        self._now = asyncio.get_running_loop().time
        self._asked: dict[Node, asyncio.Task[_Answer]] = {}
        self._answers: dict[str, _Answer] = {}
        self._problem: Exception | None = None

    async def result(self, nodes: Iterable[Node]) -> Node:
        """Return the server. Raises as `RedisPrimary.find`."""
        begun = self._now()
        self._ask(nodes)
        chosen = await self._hear_until(begun + self._timeout_s * _ASKED_SHARE)
        if chosen is None:
            self._ask(self._primary.learn(self._answers.values()))
            chosen = await self._hear_until(begun + self._timeout_s)
        if chosen is not None:
            self._primary.learn(self._answers.values())
            return chosen
        if not self._answers and self._problem is not None:
            raise (
                self._problem
                if isinstance(self._problem, RedisError | OSError)
                else NotThePrimary(f"{type(self._problem).__name__} instead of a server")
            )
        return self._primary.settled(list(self._answers.values()))

    async def aclose(self) -> None:
        for each in self._asked.values():
            each.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)

    def _ask(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node not in self._asked:
                self._asked[node] = asyncio.ensure_future(self._primary.ask(node, self._timeout_s))

    async def _hear_until(self, deadline: float) -> Node | None:
        """Return the server that enough of them name, as soon as they do; None when all have answered, or it is too late."""
        while waiting := [task for task in self._asked.values() if not task.done()]:
            left_s = max(0.0, deadline - self._now())
            done, _ = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                self._hear(each)
            chosen = self._primary.chosen(self._answers.values(), len(self._asked))
            if chosen is not None or not done:
                return chosen
        return None

    def _hear(self, task: "asyncio.Task[_Answer]") -> None:
        try:
            answer = task.result()
        except (RedisError, OSError, TimeoutError, ValueError, TypeError, LookupError) as error:
            # The last three: an answer of another shape.
            self._problem = error
        else:
            self._answers[answer.by] = answer


async def _of_sentinel(connection: Connected, node: Node, service: str) -> _Answer:
    told = await connection.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    if not told:
        raise NotThePrimary(f"the Sentinels know no {service}")
    host, port = told
    named = Node(host.decode(), int(port))
    try:
        name = (await connection.ask("SENTINEL", "MYID")).decode()
        others = [
            dict(zip(each[::2], each[1::2], strict=False))
            for each in await connection.ask("SENTINEL", "SENTINELS", service)
        ]
    except ResponseError:
        # A user that may ask for nothing but the primary: how many there are is then what the address says.
        return _Answer(str(node), named, ())
    return _Answer(name, named, tuple(Node(each[b"ip"].decode(), int(each[b"port"])) for each in others))


def _known(answers: Collection[_Answer], address: RedisAddress) -> int:
    """Return how many Sentinels there are, those that are gone included: one stays known until `SENTINEL RESET`. One that knows no other
    does not decide alone where the address names several.
    """
    return max([min(len(address.nodes), 2), *(1 + len(each.others) for each in answers)])
