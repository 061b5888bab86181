"""Stores of sealed answers."""

import asyncio

from proxy.cache.cache_store import LocalStore, StoreObserver


class Counted(StoreObserver):
    """What a store told."""

    def __init__(self) -> None:
        self.held = self.evicted = 0

    def set_bytes(self, held: int) -> None:
        self.held = held

    def count_evicted(self) -> None:
        self.evicted += 1


async def test_the_least_used_goes_first_and_bytes_are_bounded() -> None:
    """Whatever comes in which order."""
    told = Counted()
    store = LocalStore(10_000, lambda: 0.0, told)
    for number in range(50):
        await store.put(f"n{number}", b"x" * 1_000, 60)
        await store.get("n0")
        assert store.held == told.held <= 10_000
    assert await store.get("n0") is not None
    assert await store.get("n1") is None
    assert await store.get("n49") is not None
    assert told.evicted > 0


async def test_what_is_put_twice_counts_once_and_what_is_too_large_not_at_all() -> None:
    """The bound is not lost by either."""
    store = LocalStore(10_000, lambda: 0.0)
    for _ in range(30):
        await store.put("n", b"x" * 5_000, 60)
    assert store.held < 6_000
    await store.put("m", b"x" * 10_000, 60)
    assert await store.get("m") is None
    assert await store.get("n") is not None


async def test_what_is_too_old_is_gone() -> None:
    """And its bytes with it."""
    now = 0.0
    store = LocalStore(10_000, lambda: now)
    await store.put("n", b"x", 60)
    now = 59.9
    assert await store.get("n") == b"x"
    now = 60.0
    assert await store.get("n") is None
    assert store.held == 0
    await asyncio.sleep(0)
