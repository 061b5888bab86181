"""Who decides, and what the others show."""

from sqlalchemy.ext.asyncio import AsyncEngine

from selfhosted.config import ScaleConfig
from selfhosted.registry.store import RegistryStore
from selfhosted.scale.loop import ScaleLoop, ScaleObserver
from selfhosted.scale.policy import Reason, ScalePolicy
from selfhosted.scale.signals import Signals
from selfhosted.scale.target import Targets


class Process(ScaleObserver):
    """What one gateway process has of a pool: its lease, its view and its metrics."""

    def __init__(self, engine: AsyncEngine, holder: str) -> None:
        self.holder = holder
        self.leads = False
        self.now = 0.0
        self.waiting = 0
        self.row: int | None = None
        self.shown: list[int] = []
        self.reasons: list[Reason] = []
        self.states: list[str] = []
        self.loop = ScaleLoop(
            "p",
            targets=Targets(engine),
            lease=self,
            wished=lambda: self.row,
            observe=self.observe,
            policy=self.policy,
            observer=self,
            clock=lambda: self.now,
        )

    def held(self, pool: str) -> bool:
        return pool == "p" and self.leads

    def observe(self) -> Signals:
        self.now += 10
        return Signals(at_s=self.now, wall_s=self.now, ready=1, waiting=self.waiting, kv_used=0.5)

    def policy(self, state: str) -> ScalePolicy:
        self.states.append(state)
        return ScalePolicy(ScaleConfig(), state=state)

    def set_desired_replicas(self, pool: str, desired: int) -> None:
        del pool
        self.shown.append(desired)

    def count_scale_decision(self, pool: str, reason: Reason) -> None:
        del pool
        self.reasons.append(reason)


async def test_the_leader_decides_and_everybody_shows_it(engine: AsyncEngine) -> None:
    """Who takes over goes on from what was decided and learnt before."""
    registry = RegistryStore(engine)
    first, second = Process(engine, "a"), Process(engine, "b")
    first.leads = await registry.hold("p", "a", 3_600_000_000)
    first.waiting = 15
    await first.loop.step()
    wish = (await registry.read(["p"])).wishes[0]
    assert (wish.desired, first.reasons, first.shown) == (3, ["queue"], [3])
    second.row = wish.desired
    await second.loop.step()
    assert (second.shown, second.reasons) == ([3], [])
    await registry.release("a", ["p"])
    second.leads = await registry.hold("p", "b", 3_600_000_000)
    await second.loop.step()
    assert second.shown[-1] == 3
    assert '"desired":3' in second.states[0]
    # The first does not know yet that it lost the lease: nothing of it is written.
    first.waiting = 500
    await first.loop.step()
    assert (await registry.read(["p"])).wishes[0].desired == 3


async def test_a_database_that_is_down_changes_nothing(engine: AsyncEngine) -> None:
    """The decision is made again when it answers."""
    process = Process(engine, "a")
    process.leads = True
    await engine.dispose()
    async with engine.begin() as connection:
        await connection.exec_driver_sql("DROP TABLE pool_target")
    process.row = 4
    await process.loop.step()
    assert process.shown == [4]
