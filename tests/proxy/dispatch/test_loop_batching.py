"""Requests of the same turn of the loop go in step, those that come alone wait for nobody."""

import asyncio

from proxy.dispatch.loop_batching import InStep

PARTS = 3


class Line:
    """A line of three parts, which notes what was done in which order."""

    def __init__(self, turn_s: float = 0.0) -> None:
        self.done: list[str] = []
        self._now = 0.0
        self._turn_s = turn_s
        self._in_step = InStep(self._clock)

    def _clock(self) -> float:
        self._now += self._turn_s
        return self._now

    async def together(self, *names: str, stream: bool = False) -> str:
        """Takes requests that begin in the same turn down the line."""
        self.done.clear()
        await asyncio.gather(*[self._pass(name, stream=stream) for name in names])
        return " ".join(self.done)

    async def _pass(self, name: str, *, stream: bool) -> None:
        self._in_step.came(stream=stream)
        for part in range(PARTS):
            await self._in_step.step(stream=stream)
            self.done.append(f"{name}{part}")


async def test_who_comes_alone_waits_for_nobody() -> None:
    line, turns = Line(), 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    for _ in range(PARTS):
        await line._pass("a", stream=False)
        assert turns == 0
        # Its turn ends.
        await asyncio.sleep(0)
        turns = 0
    counting.cancel()


async def test_several_go_in_step_once_a_turn_had_several() -> None:
    line = Line()
    # Nobody knows yet of those who come later in the turn.
    assert await line.together("a", "b") == "a0 a1 a2 b0 b1 b2"
    for _ in range(2):
        assert await line.together("a", "b", "c") == "a0 b0 c0 a1 b1 c1 a2 b2 c2"
    # The first one alone still goes by what was; the next does not.
    await line.together("a")
    assert await line.together("a", "b") == "a0 a1 a2 b0 b1 b2"


async def test_streams_neither_go_in_step_nor_count() -> None:
    line = Line()
    for _ in range(2):
        assert await line.together("a", "b", stream=True) == "a0 a1 a2 b0 b1 b2"
    assert await line.together("a", "b") == "a0 a1 a2 b0 b1 b2"
    assert await line.together("a", "b") == "a0 b0 a1 b1 a2 b2"
    assert await line.together("a", "b", stream=True) == "a0 a1 a2 b0 b1 b2"


async def test_nobody_waits_for_long_turns() -> None:
    line = Line(turn_s=0.003)
    for _ in range(3):
        assert await line.together("a", "b") == "a0 a1 a2 b0 b1 b2"
