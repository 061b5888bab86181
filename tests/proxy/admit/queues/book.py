"""A Redis for queues that is none: what processes wrote down, and links to it that tests bring up and down."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from proxy.admit.queues.capacity import Record, TeamUse, divided, since
from proxy.shared.redis.scripts import Script
from proxy.shared.redis.shared_state import Argument, ScriptRunner, SharedStateUnavailable


class Book:
    """What Redis would hold, for links that need none."""

    def __init__(self) -> None:
        self.written: dict[str, Record] = {}
        self.down = False
        self.clock: Callable[[], float] = lambda: 0.0


class BookLink:
    """A link to it, as one process has it."""

    healthy = True

    def __init__(self, book: Book, holder: str) -> None:
        self.book = book
        self.holder = holder
        self.prefix = "{t}:"
        self.asked = 0
        self._lost: list[Callable[[], None]] = []
        self._recovered: list[Callable[[ScriptRunner], Awaitable[None]]] = []
        self._usable: list[Callable[[], None]] = []

    async def call(
        self,
        script: Script,
        keys: Sequence[str | bytes],
        args: Sequence[Argument],
        *,
        unwanted: Callable[[Any], None] | None = None,
    ) -> Any:
        await asyncio.sleep(0)
        if self.book.down:
            raise SharedStateUnavailable("late")
        assert keys == ("{t}:queue:own", "{t}:holders", "{t}:queue:own:teams")
        self.asked += 1
        return self._run(args)

    def tell(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Argument]) -> bool:
        self._run(args)
        return True

    def _run(self, args: Sequence[Argument]) -> list[int]:
        holder, whole, demand, held, large, waited_ms, most = str(args[0]), *map(int, args[1:-1])
        if most == 0:
            del self.book.written[holder]
            return [0, 0]
        teams = tuple(_use(each) for each in str(args[-1]).split(";") if each)
        before = self.book.written.get(holder)
        began_ms = since(large, waited_ms, 0 if before is None else before.since_ms, round(self.book.clock() * 1000))
        asked = Record(demand, held, large, began_ms, whole, teams)
        given = divided({**self.book.written, holder: asked}, holder, whole, most)
        self.book.written[holder] = msgspec.structs.replace(asked, held=given.held)
        return [given.limit, given.whole]

    def on_lost(self, callback: Callable[[], None]) -> None:
        self._lost.append(callback)

    def on_recovered(self, callback: Callable[[ScriptRunner], Awaitable[None]]) -> None:
        self._recovered.append(callback)

    def on_usable(self, callback: Callable[[], None]) -> None:
        self._usable.append(callback)

    async def come(self) -> None:
        for recovered in self._recovered:
            await recovered(self)
        for usable in self._usable:
            usable()

    def go(self) -> None:
        for lost in self._lost:
            lost()


def _use(written: str) -> TeamUse:
    team, weight, tokens = written.split(",")
    return TeamUse(team, int(weight), int(tokens))
