"""One fetch for all who ask at about the same time."""

import asyncio

import pytest

from selfhosted.engines.fetching import Fetched, FetchFailed
from selfhosted.engines.shared_fetch import SharedFetch


class Engine:
    """Counts what it is asked, and answers when its gate opens."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = False
        self.gate = asyncio.Event()
        self.now = 0.0

    async def __call__(self, url: str, *, timeout_s: float, max_bytes: int, with_key: bool = True) -> Fetched:
        self.asked.append(url)
        await self.gate.wait()
        if self.fails:
            raise FetchFailed("slow", "no answer")
        return Fetched(200, url.encode())

    def shared(self) -> SharedFetch:
        return SharedFetch(self, 0.5, lambda: self.now)


async def _ask(shared: SharedFetch, url: str = "a") -> Fetched:
    return await shared(url, timeout_s=1.0, max_bytes=10)


async def test_who_asks_at_the_same_time_shares_the_answer() -> None:
    """It counts for half a second, and each page has its own."""
    engine = Engine()
    shared = engine.shared()
    asking = [asyncio.create_task(_ask(shared)) for _ in range(8)]
    await asyncio.sleep(0)
    engine.gate.set()
    assert {each.body for each in await asyncio.gather(*asking)} == {b"a"}
    engine.now = 0.4
    await _ask(shared)
    assert engine.asked == ["a"]
    engine.now = 0.6
    assert [(await _ask(shared, url)).body for url in "ab"] == [b"a", b"b"]
    assert engine.asked == ["a", "a", "b"]


async def test_who_leaves_takes_nothing_from_the_others() -> None:
    """The others get the answer, or the same failure."""
    engine = Engine()
    shared = engine.shared()
    first, second = asyncio.create_task(_ask(shared)), asyncio.create_task(_ask(shared))
    await asyncio.sleep(0)
    first.cancel()
    engine.fails = True
    engine.gate.set()
    with pytest.raises(FetchFailed):
        await second
    assert first.cancelled()
    assert engine.asked == ["a"]
