"""Books of an earlier version: what its rows tell is carried over, and the roll-ups agree with them."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.store import LedgerStore
from cost.ledger.verify import check
from cost.tables import COARSER_DAYS
from gateway.database import make_engine, migrate, upgrade
from tests.cost.entries import reserve, settle

NOON_US = reserve().at_us
_COLUMNS = (
    "request_id, attempt, entry, at_us, boot_id, organisation_id, team_id, key_id, tier, alias, target_id, deployment_id, "
    "provider, price_version, input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens, "
    "cost_nanousd, baseline_nanousd, usage_source, flags, status, stream, complexity, reason, ttft_us, duration_us"
)


async def _book(engine: AsyncEngine, request_id: str, entry: str, at_us: int = NOON_US, **changes: object) -> None:
    values: dict[str, object] = {
        "attempt": 1,
        "alias": "auto",
        "cost_nanousd": 1_000_000,
        "baseline_nanousd": None,
        "usage_source": "upstream",
        "flags": "[]",
        "status": 200,
        "boot_id": "boot1",
        **changes,
    }
    statement = text(
        f"INSERT INTO ledger_entry ({_COLUMNS}) VALUES (:request_id, :attempt, :entry, :at_us, :boot_id, 'default', "  # noqa: S608
        "'team_payments', 'key_abc', 'interactive', :alias, 'llama', 'llama/0', 'vllm', 'v1', 800, 0, 0, 200, 0, "
        ":cost_nanousd, :baseline_nanousd, :usage_source, :flags, :status, false, NULL, '', NULL, NULL)"
    )
    async with engine.begin() as connection:
        await connection.execute(statement, {"request_id": request_id, "entry": entry, "at_us": at_us, **values})


async def _fill(engine: AsyncEngine) -> None:
    for name in ("done", "weak", "cut", "failed", "unpriced", "asked-shadow", "taken", "dead", "open"):
        alias = "shadow" if name == "asked-shadow" else "auto"
        boot_id = "boot2" if name == "open" else "boot1"
        await _book(engine, name, "reserve", status=0, alias=alias, usage_source="estimated", boot_id=boot_id)
    await _book(engine, "done", "settle", baseline_nanousd=4_000_000)
    await _book(engine, "weak", "settle", flags='["escalated"]')
    await _book(engine, "cut", "settle", flags='["caller_gone", "usage_missing"]', usage_source="estimated")
    await _book(engine, "failed", "settle", status=502)
    await _book(engine, "unpriced", "settle", cost_nanousd=None, flags='["usage_missing"]')
    await _book(engine, "asked-shadow", "settle", alias="shadow")
    await _book(engine, "taken", "void", cost_nanousd=0, usage_source="none")
    # Two days later, so that the days between have nothing.
    await _book(engine, "dead", "settle", NOON_US + 2 * 86_400_000_000, flags='["orphaned"]', usage_source="estimated")


async def test_earlier_books_verify_clean(empty_database_url: str) -> None:
    """Rows of the second schema get meters, an origin, who was served and their roll-ups, and go on from there."""
    engine = make_engine(empty_database_url)
    async with engine.begin() as connection:
        await connection.run_sync(upgrade, "0002")
    await _fill(engine)
    await migrate(engine)
    later = settle("new", input_nanousd=1_000_000, served=True)
    await LedgerStore(engine).insert([reserve("new"), later])
    found = await check(engine, 0, NOON_US * 2, now_us=NOON_US * 2)
    assert (found.told, found.rows, found.cost_nanousd, found.open_reserves) == ((), 9, 7_000_000, 1)
    async with engine.connect() as connection:
        served = await connection.execute(text("SELECT request_id FROM ledger_entry WHERE served ORDER BY request_id"))
        assert served.scalars().all() == ["done", "new", "unpriced"]
        shadow = await connection.execute(text("SELECT DISTINCT request_id FROM ledger_entry WHERE origin = 'shadow'"))
        assert shadow.scalars().all() == ["asked-shadow"]
        meters = await connection.execute(text("SELECT sum(request_nanousd), sum(input_nanousd) FROM rollup_day"))
        assert tuple(map(int, meters.one())) == (6_000_000, 1_000_000)
        boots = await connection.execute(text("SELECT boot_id, seen_us FROM boot"))
        assert [tuple(row) for row in boots] == [("boot2", NOON_US)]
    await engine.dispose()


async def test_what_end_users_spent_before_is_summed(empty_database_url: str) -> None:
    """Budgets and the team's page have it from the day of the upgrade on, by day and by month; and they go back again."""
    engine = make_engine(empty_database_url)
    async with engine.begin() as connection:
        await connection.run_sync(upgrade, "0030")
    for name, before in (("a", 0), ("b", 0), ("c", 40)):
        await _book(engine, name, "settle", NOON_US - before * 86_400_000_000)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE ledger_entry SET end_user = 'ada'"))
    await migrate(engine)
    found = await check(engine, 0, NOON_US * 2, now_us=NOON_US * 2)
    assert {each.table for each in found.told} & {"end_user_month"} == set()
    async with engine.begin() as connection:
        days = await connection.execute(
            text("SELECT spent_nanousd FROM spend_day WHERE scope = 'end_user' ORDER BY day_us")
        )
        assert days.scalars().all() == [1_000_000, 2_000_000]
        months = await connection.execute(text("SELECT spent_nanousd FROM end_user_month ORDER BY month_us"))
        assert months.scalars().all() == [1_000_000, 2_000_000]
        await connection.run_sync(upgrade, "0030", down=True)
        assert (await connection.execute(text("SELECT count(*) FROM spend_day"))).scalar_one() == 0
    await engine.dispose()


async def test_coarser_roll_ups_are_made_of_the_finer(empty_database_url: str) -> None:
    """They agree with the ledger from the upgrade on; after the way back they are made anew."""
    engine = make_engine(empty_database_url)
    await migrate(engine)
    await LedgerStore(engine).insert([reserve("one"), settle("one", input_nanousd=1_000_000)])
    for _ in range(2):
        async with engine.begin() as connection:
            await connection.run_sync(upgrade, "0039", down=True)
        await migrate(engine)
        assert (await check(engine, 0, NOON_US * 2, now_us=NOON_US * 2)).told == ()
    async with engine.connect() as connection:
        for table in COARSER_DAYS:
            rows = await connection.execute(text(f"SELECT sum(requests), sum(cost_nanousd) FROM {table.name}"))  # noqa: S608
            assert tuple(map(int, rows.one())) == (1, 1_000_000)
    await engine.dispose()


async def test_books_without_rows_migrate(engine: AsyncEngine) -> None:
    """A new database has nothing to carry over."""
    assert (await check(engine, 0, NOON_US * 2, now_us=NOON_US)).rows == 0
