"""What the gateway stands on, as it is told to operators: never with a password, and also when it is away."""

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from api.live.workers import WorkersNow
from api.operations import stores
from api.webhooks.outbox import Outbox
from cost.ledger.drain import Drain
from cost.ledger.journal import JournalState
from cost.ledger.orphan_reaper import OrphanReaper
from cost.ledger.store import LedgerStore
from gateway.database import make_engine
from proxy.admin.worker_report import WorkerReport, redis_state
from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.redis_link import RedisLink


async def test_a_database_that_answers(engine: AsyncEngine) -> None:
    """Its kind, its schema, its size and how long the smallest question took."""
    told = await stores.database(engine)
    assert told["answers"]
    assert told["kind"] == ("PostgreSQL" if engine.dialect.name == "postgresql" else "SQLite")
    assert told["schema"]
    assert told["bytes"] > 0
    assert 0 <= told["took_s"] < 5


async def test_a_database_that_is_away() -> None:
    """It is told so within a second, without the password of its address."""
    engine = make_engine("postgresql://me:canary-password@127.0.0.1:1/books")
    told = await stores.database(engine)
    assert not told["answers"]
    assert told["took_s"] is None
    assert told["place"] == "127.0.0.1:1/books"
    assert "canary-password" not in str(told)
    await engine.dispose()


async def test_what_processes_wrote_down(engine: AsyncEngine) -> None:
    """Who lives, when the books were checked, and what waits to be sent."""
    nothing = await stores.in_database(engine, "me", 0)
    assert nothing["processes"] == []
    assert nothing["books_check"] == {"done_us": None, "differences": None}
    assert nothing["webhooks"] == {"waiting": 0, "oldest_us": None}
    await OrphanReaper(engine, LedgerStore(engine), host="here").show(["me"])
    await Outbox(engine, lambda: 5).put("m1", "ops", "test", {})
    told = await stores.in_database(engine, "me")
    assert [(each["boot_id"], each["is_this"]) for each in told["processes"]] == [("me", True)]
    assert told["processes"][0]["silent_s"] < 600
    assert told["webhooks"] == {"waiting": 1, "oldest_us": 5}


async def test_a_redis_that_is_not_there() -> None:
    """None configured is no trouble; one that does not answer is told by its place alone."""
    assert stores.redis(None) == {"configured": False, "answers": False, "place": None, "live": None, "problem": None}
    link = RedisLink("redis://me:canary-password@127.0.0.1:1/0", RedisSection(), "boot")
    await link.start()
    told = stores.redis(redis_state(link))
    await link.aclose()
    assert (told["configured"], told["answers"], told["place"]) == (True, False, "127.0.0.1:1")
    assert told["problem"]
    assert "canary-password" not in str(told)


@pytest.mark.parametrize("backend", ["sqlite"])
async def test_the_journals(engine: AsyncEngine, tmp_path: Path) -> None:
    """How much waits in all workers' together and for how long, in plain numbers; nothing, where no worker answers."""
    drain = Drain(tmp_path / "journal", LedgerStore(engine))
    told = stores.journal(WorkersNow(()), drain)
    assert (told["accepting"], told["waiting"], told["oldest_s"], told["unbooked"]) == (True, 0, 0.0, 0)
    one, other = (
        report(JournalState(depth=2, oldest_age_s=1.5, accepting=True, write_failures=1, unwritten=0)),
        report(JournalState(depth=3, oldest_age_s=9.0, accepting=False, write_failures=0, unwritten=3)),
    )
    told = stores.journal(WorkersNow((one, other)), drain)
    assert (told["accepting"], told["waiting"], told["oldest_s"]) == (False, 5, 9.0)
    assert (told["write_failures"], told["unwritten"]) == (1, 3)


def report(journal: JournalState) -> WorkerReport:
    return WorkerReport(
        boot_id="one",
        draining=False,
        in_flight=0,
        max_in_flight=1,
        is_refusing=False,
        limits_mode="share",
        live=1,
        redis=None,
        breakers={},
        queues=(),
        journal=journal,
        settle_failures=0,
        scored_by_rule=0,
    )
