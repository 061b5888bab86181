"""Where decisions are kept, on both databases."""

from sqlalchemy.ext.asyncio import AsyncEngine

from selfhosted.registry.store import RegistryStore
from selfhosted.scale.policy import ScaleDecision
from selfhosted.scale.target import Targets

HOUR_US = 3_600_000_000


async def test_only_the_holder_of_the_lease_writes(engine: AsyncEngine) -> None:
    """Others are told so, and what was learnt stays until something new is given."""
    registry, targets = RegistryStore(engine), Targets(engine)
    assert not await targets.store("p", "a", ScaleDecision(1, "steady", ""), "learnt")
    assert await targets.state("p") == ""
    assert await registry.hold("p", "a", HOUR_US)
    assert await targets.store("p", "a", ScaleDecision(3, "queue", "w" * 1_000), "learnt")
    assert await targets.store("p", "a", ScaleDecision(4, "memory", "70 %"), None)
    assert not await targets.store("p", "b", ScaleDecision(9, "queue", ""), "other")
    wish = (await registry.read(["p"])).wishes[0]
    assert (wish.desired, wish.reason) == (4, "memory: 70 %")
    assert await targets.state("p") == "learnt"


async def test_a_lease_that_ran_out_writes_nothing(engine: AsyncEngine) -> None:
    """A process that slept must not overwrite what its successor decided."""
    registry, targets = RegistryStore(engine), Targets(engine)
    await registry.hold("p", "a", HOUR_US)
    await registry.release("a", ["p"])
    assert not await targets.store("p", "a", ScaleDecision(3, "queue", ""), None)
