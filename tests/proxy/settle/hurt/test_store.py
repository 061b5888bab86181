"""The table of hurt requests: twice is once, processes add up, and hours are sums of minutes."""

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.times import DAY_US, HOUR_US, MINUTE_US
from proxy.settle.hurt.counting import Hurt, HurtCount
from proxy.settle.hurt.store import KEPT_US, MINUTES_FOR_US, HurtStore

NOW_US = 490_000 * HOUR_US


def count(requests: int, *, minute_us: int = NOW_US, targets: tuple[str, ...] = ("a", "b")) -> HurtCount:
    return HurtCount(Hurt(minute_us, "acme", "team", "key", "auto", targets, "refused"), requests)


async def test_what_is_told_twice_is_counted_once(engine: AsyncEngine) -> None:
    """Two workers' counts are added; a smaller one changes nothing; several targets stay one row."""
    store = HurtStore(engine)
    for requests in (3, 5, 5, 4):
        await store.keep("one", [count(requests)])
    await store.keep("two", [count(10)])
    (found,) = await store.read(NOW_US)
    assert (found.requests, found.targets, found.is_minute) == (15, ("a", "b"), True)


async def test_minutes_become_hours_and_go(engine: AsyncEngine) -> None:
    """Only once they are long over, once, and with every request."""
    store = HurtStore(engine)
    for minute in range(0, 60, 20):
        await store.keep("one", [count(2, minute_us=NOW_US + minute * MINUTE_US)])
    await store.roll_up(NOW_US + HOUR_US)
    assert len(await store.read(NOW_US)) == 3
    for _ in range(2):
        await store.roll_up(NOW_US + HOUR_US + MINUTES_FOR_US)
        (found,) = await store.read(NOW_US + 30 * MINUTE_US)
        assert (found.requests, found.is_minute) == (6, False)
    await store.roll_up(NOW_US + KEPT_US + DAY_US)
    assert await store.read(0) == []


async def test_long_names_are_cut_at_a_name(engine: AsyncEngine) -> None:
    """So that no row is refused and no half name is matched."""
    store = HurtStore(engine)
    targets = tuple(f"{letter * 200}" for letter in "abcd")
    await store.keep("one", [count(1, targets=targets)])
    (found,) = await store.read(NOW_US)
    assert found.targets == targets[:2]
