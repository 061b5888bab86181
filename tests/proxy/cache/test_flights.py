"""Equal requests that wait for one."""

import asyncio

from proxy.cache.flights import Flight


async def test_who_stops_to_wait_ends_it_for_nobody_else() -> None:
    """Nor does one that comes after it has landed wait."""
    flight = Flight()
    waiting = [asyncio.create_task(flight.landed(60)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    flight.land("gone")
    flight.land("kept")
    assert await asyncio.gather(*waiting[1:]) == ["gone", "gone"]
    assert await flight.landed(0) == "gone"


async def test_none_waits_longer_than_it_will() -> None:
    """The flight goes on."""
    flight = Flight()
    assert await flight.landed(0) is None
    assert await flight.landed(-1) is None
    assert not flight.is_over
