"""A Redis for queues that is none: what processes wrote down, and links to it that tests bring up and down."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from proxy.queues.capacity import Record, divided
from proxy.redis.scripts import Script
from proxy.redis.shared_state import Argument, ScriptRunner, SharedStateUnavailable


class Book:
    """What Redis would hold, for links that need none."""

    def __init__(self) -> None:
        self.written: dict[str, Record] = {}
        self.down = False


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
        assert keys == ("{t}:queue:own", "{t}:holders")
        self.asked += 1
        return self._run(args)

    def tell(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Argument]) -> bool:
        self._run(args)
        return True

    def _run(self, args: Sequence[Argument]) -> int:
        holder, capacity, demand, held, large, waited_ms, most = str(args[0]), *map(int, args[1:])
        if most == 0:
            del self.book.written[holder]
            return 0
        records = {**self.book.written, holder: Record(demand, held, large, waited_ms)}
        part, held = divided(records, holder, capacity, most)
        self.book.written[holder] = Record(demand, held, large, waited_ms)
        return part

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
