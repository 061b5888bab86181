"""The rule at work: what it does to a canary, and that the audit log says so."""

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog, Scope
from api.fleet.rollout_round import RolloutRound
from api.fleet.rollouts import add_version, promote, start_canary
from cost.ledger.store import LedgerStore
from cost.times import wall_us
from selfhosted.config import PoolConfig
from selfhosted.rollouts.reading import SETTLING_US, VersionReader
from selfhosted.rollouts.store import RolloutStore
from selfhosted.rollouts.versions import ModelVersion, Rollout, Rule
from tests.cost.entries import reserve, settle

_ADA = Actor(kind="person", actor_id="ada", name="Ada", organisation_id="default")


class House:
    """A model with a version on trial, and the round that judges it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.log = AuditLog(engine)
        self.leads = True
        self.seen: Rollout | None = None
        self.round = RolloutRound(
            VersionReader(engine),
            self.log,
            leads=lambda _pool: self.leads,
            rollout_of=lambda _pool: self.seen,
            pools=[PoolConfig(name="own", targets=("llama",))],
            operator="default",
            now_us=lambda: wall_us() + SETTLING_US,
        )

    async def start(self, rule: Rule) -> None:
        await add_version(self.log, _ADA, ModelVersion(model="llama", version="v2", weights="/models/2"))
        self.seen = await start_canary(self.log, _ADA, "llama", "own", "v2", share_ppm=200_000, rule=rule)

    async def serve(self, version: str, attempts: int, failed: int) -> None:
        entries = []
        for number in range(attempts):
            facts = {"target_id": "llama", "version": version, "at_us": wall_us()}
            name = f"{version}-{number}"
            bad = (
                {"served": False, "status": 502, "flags": ("upstream_error",)} if number < failed else {"served": True}
            )
            entries += [reserve(name, **facts), settle(name, **facts | bad)]
        await LedgerStore(self.engine).insert(entries)

    async def now(self) -> Rollout:
        return await RolloutStore(self.engine).rollout("llama", "own")


async def test_a_faulty_version_is_rolled_back_by_who_leads(engine: AsyncEngine) -> None:
    """Once, with its reason, under the rule's own name; who does not lead looks on."""
    house = House(engine)
    await house.start(Rule())
    await house.serve("v1", 80, 0)
    await house.serve("v2", 20, 10)
    house.leads = False
    await house.round.step()
    assert (await house.now()).state == "canary"
    house.leads = True
    for _ in range(2):
        # As it was read last: the second time somebody was faster, and nothing is done.
        await house.round.step()
    done = await house.now()
    assert (done.state, done.candidate, done.share_ppm, done.changed_by) == ("rolled_back", "v2", 0, "The rule")
    entry, *older = await house.log.page(Scope(organisation_id="default"))
    assert (entry.action, entry.actor_kind, entry.object_id) == ("rollout.rolled_back", "gateway", "llama")
    assert entry.reason.startswith("50.0 % of 20 attempts failed, of the stable version's 80 0.0 %; at most one of ")
    assert [each.action for each in older] == ["rollout.canary", "model_version.added"]


async def test_a_sound_version_is_promoted_where_the_rule_says_so(engine: AsyncEngine) -> None:
    """After enough attempts, with nothing worse beyond doubt."""
    house = House(engine)
    await house.start(Rule(ttft_worse=None, promote_after=1_500))
    await house.serve("v1", 500, 0)
    await house.serve("v2", 1_490, 0)
    await house.round.step()
    assert (await house.now()).state == "canary"
    await house.serve("v2", 1_500, 0)
    await house.round.step()
    done = await house.now()
    assert (done.state, done.stable, done.reason) == ("settled", "v2", "nothing was worse in 1500 attempts")


async def test_the_rule_does_nothing_to_a_later_step(engine: AsyncEngine) -> None:
    """Somebody promoted it meanwhile."""
    house = House(engine)
    await house.start(Rule())
    await house.serve("v1", 80, 0)
    await house.serve("v2", 20, 10)
    await promote(house.log, _ADA, "llama", "own", "v2")
    await house.round.step()
    assert ((await house.now()).state, (await house.now()).stable) == ("settled", "v2")


async def test_an_attempt_is_counted_once(engine: AsyncEngine) -> None:
    """By whichever process looks, however often; and a new step begins anew."""
    house = House(engine)
    await house.start(Rule())
    await house.serve("v1", 80, 0)
    await house.serve("v2", 20, 1)
    assert house.seen is not None
    later_us = wall_us() + SETTLING_US
    for reader in (VersionReader(engine), VersionReader(engine), VersionReader(engine)):
        found = await reader.evidence(house.seen, ["llama"], later_us)
        assert (found.stable, found.candidate) == (80, 20)
        later_us += 1_000_000
    again = await start_canary(house.log, _ADA, "llama", "own", "v2", share_ppm=500_000, rule=Rule())
    found = await VersionReader(engine).evidence(again, ["llama"], wall_us() + SETTLING_US)
    assert (found.stable, found.candidate) == (0, 0)
