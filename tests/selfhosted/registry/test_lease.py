"""At most one process leads a pool at any moment, and soon another one when it ends."""

from random import Random

from sqlalchemy.ext.asyncio import AsyncEngine

from selfhosted.registry.lease import Lease
from tests.selfhosted.registry.registered import Clock, Process


def _lease(process: Process, name: str, clock: Clock) -> Lease:
    return Lease(process.store, process.registry, name, ["own"], clock=clock)


async def test_one_of_three_leads_and_another_when_it_ends(engine: AsyncEngine) -> None:
    """At once when it says so, otherwise when its lease has run out."""
    clock = Clock()
    processes = [Process(engine, clock) for _ in range(3)]
    leases = [_lease(process, name, clock) for process, name in zip(processes, "abc", strict=True)]

    async def leader(*alive: int) -> list[str]:
        for at in alive:
            await processes[at].registry.refresh()
            await leases[at].step()
        return [leases[at].holder for at in alive if leases[at].held("own")]

    for _ in range(30):
        assert await leader(0, 1, 2) == ["a"]
        clock.at += 1
    await leases[0].release()
    assert not leases[0].held("own")
    assert await leader(1, 2) == ["b"]
    found = []
    for _ in range(13):
        clock.at += 1
        found.append(await leader(2))
    assert found[:9] == [[]] * 9
    assert found[-1] == ["c"]


async def test_never_do_two_lead(engine: AsyncEngine) -> None:
    """Whoever sleeps, for however long, does not believe to lead when it wakes up and another does."""
    clock, chance = Clock(), Random(6)
    processes = [Process(engine, clock) for _ in range(3)]
    leases = [_lease(process, name, clock) for process, name in zip(processes, "abc", strict=True)]
    led = set()
    for _ in range(150):
        clock.at += chance.choice((0.3, 1.0, 2.0, 7.0))
        for at in chance.sample(range(3), chance.choice((0, 1, 1, 2))):
            await processes[at].registry.refresh()
            await leases[at].step()
        leaders = [lease.holder for lease in leases if lease.held("own")]
        assert len(leaders) <= 1
        led.update(leaders)
    assert led == {"a", "b", "c"}
