"""Where the lines of a batch run, on SQLite and on PostgreSQL."""

from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.store import LedgerStore
from proxy.batch.served import Served, latest_served
from tests.cost.entries import reserve, settle
from tests.proxy.batch.made_up import HOLDER, SECOND_US, Clock, a_batch, result, stores


async def test_answers_are_counted_by_who_gave_them(engine: AsyncEngine, tmp_path: Path) -> None:
    """Of this batch alone, reserves left out; one answer without a price leaves the cost open."""
    store, _ = stores(engine, tmp_path / "files", Clock())
    batch = await a_batch(store, 3)
    assert await latest_served(engine, "team_a", batch.batch_id) == []
    results = [result(each) for each in await store.claim(batch.batch_id, 3, HOLDER, 60 * SECOND_US)]
    await store.answer(results)
    first, second, third = (each.request_id for each in results)
    await LedgerStore(engine).insert(
        [
            reserve(first, team_id="team_a"),
            settle(first, team_id="team_a", pool="h100"),
            settle(second, team_id="team_a", pool="h100"),
            settle(third, team_id="team_a", target_id="bought", cost_nanousd=None),
            settle("req_of_nobody", team_id="team_a", target_id="bought"),
            settle(third, team_id="team_b", target_id="elsewhere", attempt=2),
        ]
    )
    assert await latest_served(engine, "team_a", batch.batch_id) == [
        Served(target_id="llama-3-70b", pool="h100", lines=2, tokens=2_000, cost_nanousd=2_000_000),
        Served(target_id="bought", pool="", lines=1, tokens=1_000, cost_nanousd=None),
    ]
