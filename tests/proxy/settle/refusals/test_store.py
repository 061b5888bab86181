"""The table of refusals: twice is once, hours are sums of minutes, and organisations are apart."""

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.times import HOUR_US, MINUTE_US
from proxy.settle.refusals.counting import RefusalsTold, Refused, RefusedCount
from proxy.settle.refusals.store import KEPT_US, RefusalStore

NOW_US = 490_000 * HOUR_US


def told(count: int, *, minute_us: int = NOW_US, boot_id: str = "b", organisation_id: str = "acme") -> RefusalsTold:
    refused = Refused(minute_us, organisation_id, "team", "key", "auto", "rate_limit_exceeded", 429)
    return RefusalsTold(boot_id, (RefusedCount(refused, count),), 1)


async def test_a_count_is_replaced_by_a_larger_one(engine: AsyncEngine) -> None:
    """What a process tells twice, or late, changes nothing; another process's is added."""
    store = RefusalStore(engine)
    for count in (3, 5, 5, 4):
        await store.keep(told(count))
    await store.keep(told(10, boot_id="other"))
    await store.keep(told(7, organisation_id="rival"))
    (mine,) = await store.read(NOW_US, organisation_id="acme", team_id="team")
    assert (mine.refusals, mine.status, mine.last_us) == (15, 429, NOW_US)
    assert [each.refusals for each in await store.read(NOW_US)] == [15, 7]
    assert await store.read(NOW_US, organisation_id="acme", team_id="nobody") == ()


async def test_minutes_become_hours_and_nothing_is_lost(engine: AsyncEngine) -> None:
    """Once; a second round finds nothing to add. After three months they are gone."""
    store = RefusalStore(engine)
    for minute in range(0, 180, 30):
        await store.keep(told(2, minute_us=NOW_US + minute * MINUTE_US))
    for _ in range(2):
        await store.roll_up(NOW_US + 4 * HOUR_US)
        (found,) = await store.read(NOW_US)
        assert found.refusals == 12
    (later,) = await store.read(NOW_US + 2 * HOUR_US)
    assert later.refusals == 4
    await store.roll_up(NOW_US + KEPT_US + 4 * HOUR_US)
    assert await store.read(0) == ()
