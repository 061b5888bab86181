"""Inputs of the savings report: the scope's own rows, bills that are not posted yet, and the experiment's arms."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.fleet.cost_adjustment import TrueUpRounds, TrueUpStore
from cost.fleet.hours import HoursStore
from cost.ledger.store import LedgerStore
from cost.prices import usd
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.savings.comparisons import Ground
from cost.savings.holdout import ArmSums
from cost.savings.savings_reader import MAX_DAYS, SavingsInputs, SavingsReader
from cost.savings.savings_report import DAILY_COLUMNS, SavingsReport, daily, savings_as_json, savings_report
from cost.times import DAY_US, HOUR_US
from gateway.database import make_engine
from tests.cost.fleet.pools import DAY, pool, work
from tests.sqlite import newest_sqlite

ALL = ReadScope(organisation_id="default", team_id=None)
PAYMENTS = ReadScope(organisation_id="default", team_id="team_payments")
BILL = 141_600_000_000
NEXT = DAY + DAY_US
NIGHT = NEXT + HOUR_US
MEASURED: Callable[[str], Ground] = lambda _target_id: "measured"  # noqa: E731
POOLS = (pool(up_since=date(2026, 11, 20)),)


def bought(request_id: str, **changes: Any) -> Any:
    """A request that was bought."""
    usual = {"pool": "", "provider": "openai", "target_id": "small", "hosted_nanousd": 3_000_000}
    return work(request_id, **{**usual, **changes})


class Books:
    """A real database with the readers on it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.ledger = LedgerStore(engine)
        self.hours = HoursStore(engine)
        self.fleet = TrueUpStore(engine, self.ledger)
        self.reader = SavingsReader(engine, self.fleet, ground_of=MEASURED)

    async def read(
        self, scope: ReadScope = ALL, *, days: int = 1, now_us: int = NIGHT, pools: Any = POOLS
    ) -> SavingsInputs:
        return await self.reader.read(scope, pools, DAY, DAY + days * DAY_US, now_us)

    async def report(self, scope: ReadScope = ALL, **how: Any) -> SavingsReport:
        found = await self.read(scope, **how)
        return savings_report(
            found,
            target=Decimal("0.4"),
            gateway_usd_per_hour=Decimal(0),
            now_us=how.get("now_us", NIGHT),
            judged=(9, 10),
        )

    async def true_up(self) -> None:
        await TrueUpRounds(self.fleet, lambda: POOLS, lambda: NIGHT).true_up("h100", date(2026, 11, 20))


@pytest.mark.parametrize("scope", [ALL, PAYMENTS])
async def test_the_arms_are_read_from_their_index_alone(tmp_path: Path, scope: ReadScope) -> None:
    """Also by a team, of whose other requests there are a hundred times as many. SQLite plans without statistics."""
    engine = make_engine(newest_sqlite(tmp_path / "books.sqlite"))
    said: list[tuple[str, Any]] = []
    try:
        event.listen(
            engine.sync_engine,
            "before_cursor_execute",
            lambda *notice: said.append((notice[2], notice[3])),
        )
        await Books(engine).read(scope, pools=())
        ((statement, values),) = [each for each in said if "holdout" in each[0] or ".arm" in each[0]]
        async with engine.connect() as connection:
            plan = [str(row[-1]) for row in await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)]
    finally:
        await engine.dispose()
    assert any("USING COVERING INDEX ix_ledger_entry_arm" in step for step in plan), plan
    assert not any("SCAN ledger_entry" in step or "team_id_at_us" in step for step in plan), plan


@pytest.fixture
def books(engine: AsyncEngine) -> Books:
    return Books(engine)


async def test_a_report_is_the_same_before_and_after_its_bill_is_posted(books: Books) -> None:
    """What the night will post is computed on the fly, and marked; afterwards it is in the books."""
    await books.ledger.insert([work("a", output_tokens=2_000_000), work("b", team_id="team_b"), bought("c")])
    before = await books.report()
    assert before.provisional_days == (DAY,)
    assert before.cost_nanousd == BILL + 3_000_000
    await books.true_up()
    after = await books.report()
    assert after.provisional_days == ()
    assert (after.comparisons, after.fleets, after.parts) == (before.comparisons, before.fleets, before.parts)
    (fleet,) = after.fleets
    assert (fleet.fleet.bill_nanousd, fleet.fleet.up_us) == (BILL, DAY_US)
    assert fleet.today is None


async def test_rows_that_came_after_the_posting_are_trued_up_on_the_fly(books: Books) -> None:
    """The report is never off by what the next night will mend."""
    await books.ledger.insert([work("a")])
    await books.true_up()
    await books.ledger.insert([work("late", team_id="team_b", output_tokens=5_000_000)])
    found = await books.report()
    assert (found.provisional_days, found.cost_nanousd) == ((DAY,), BILL)


async def test_today_is_billed_until_now(books: Books) -> None:
    """Six hours are 35.40 $, and the rest of the day is nobody's yet."""
    await books.ledger.insert([work("a")])
    found = await books.report(now_us=DAY + 6 * HOUR_US)
    (fleet,) = found.fleets
    assert (found.cost_nanousd, fleet.fleet.up_us) == (35_400_000_000, 6 * HOUR_US)
    assert fleet.today == fleet.fleet


async def test_a_team_sees_its_own_rows_and_no_idle_gpu(books: Books) -> None:
    """Neither another team's rows nor what is nobody's; its share of the pool is trued up all the same."""
    await books.ledger.insert([work("a", output_tokens=2_000_000), work("b", team_id="team_b"), bought("c")])
    mine, theirs = (
        await books.report(PAYMENTS),
        await books.report(ReadScope(organisation_id="default", team_id="team_b")),
    )
    assert (mine.fleets, mine.parts["idle"]) == ((), 0)
    assert (mine.figures.served, theirs.figures.served) == (2, 1)
    whole = await books.report()
    assert mine.cost_nanousd + theirs.cost_nanousd + whole.parts["idle"] == whole.cost_nanousd == BILL + 3_000_000
    stranger = await books.report(ReadScope(organisation_id="other", team_id=None))
    assert (stranger.figures.served, stranger.cost_nanousd, stranger.fleets) == (0, 0, ())


async def test_an_organisation_sees_no_other_ones_rows(books: Books) -> None:
    """Also where both use one pool: each pays for its own, and the owner for what is idle."""
    await books.ledger.insert([work("a"), work("b", organisation_id="other", team_id="team_x", output_tokens=900_000)])
    owner = await books.report()
    other = await books.report(ReadScope(organisation_id="other", team_id=None))
    assert (other.parts["idle"], other.fleets) == (0, ())
    assert owner.cost_nanousd + other.cost_nanousd == BILL


async def test_what_failed_costs_and_has_no_baseline(books: Books) -> None:
    """Attempts that nobody was served by stand on the side of the cost alone."""
    await books.ledger.insert(
        [
            bought("a", baseline_nanousd=10_000_000, cheapest_nanousd=5_000_000),
            bought("b", served=False, status=502, baseline_nanousd=None, hosted_nanousd=None),
            bought("s", served=False, origin="shadow", baseline_nanousd=None, hosted_nanousd=None),
        ]
    )
    reference, cheapest, hosted = (await books.report(pools=())).comparisons
    assert (reference.baseline_nanousd, reference.cost_nanousd) == (10_000_000, 9_000_000)
    assert (cheapest.baseline_nanousd, cheapest.cost_nanousd) == (5_000_000, 9_000_000)
    assert (hosted.baseline_nanousd, hosted.cost_nanousd) == (3_000_000, 9_000_000)


async def test_an_unknown_price_is_counted_and_a_pools_is_known_by_its_bill(books: Books) -> None:
    """A bought attempt without a price leaves the verdict open; a pool's is billed."""
    unpriced: dict[str, Any] = {"cost_nanousd": None, "input_nanousd": 0, "output_nanousd": 0}
    await books.ledger.insert([bought("a", **unpriced), work("b", **unpriced)])
    assert (await books.report()).figures.unpriced_attempts == 1
    assert (await books.report(pools=())).figures.unpriced_attempts == 2
    await books.hours.enter("h100", DAY, NEXT, 0)
    found = await books.report()
    assert found.figures.unpriced_attempts == 2
    assert found.fleets[0].fleet.overfull


async def test_a_pool_that_was_taken_out_before_its_bill_has_none(books: Books) -> None:
    """At its planned rate, and without its idle hours, it would save what it never did; a posted day keeps its bill."""
    await books.ledger.insert([work(f"a{number}", at_us=DAY + HOUR_US) for number in range(150)])
    await books.true_up()
    posted = await books.report(pools=())
    assert (posted.figures.unpriced_attempts, posted.cost_nanousd) == (0, BILL)
    await books.ledger.insert([work(f"b{number}", at_us=NEXT + HOUR_US) for number in range(150)])
    found = await books.report(pools=(), days=2)
    assert (found.figures.unpriced_attempts, found.verdict) == (150, "not enough data")


async def test_hours_that_cannot_be_save_nothing(books: Books) -> None:
    """Entered as one, the day's bill is a twenty-fourth: not to be believed, and what is not met stays so."""
    await books.ledger.insert(
        [
            work(f"a{number}", output_tokens=500_000, baseline_nanousd=5_000_000_000, cheapest_nanousd=1)
            for number in range(150)
        ]
    )
    assert (await books.report()).verdict == "met"
    await books.hours.enter("h100", DAY, NEXT, 0)
    await books.hours.enter("h100", DAY, DAY + HOUR_US, 1)
    for scope in (ALL, PAYMENTS):
        reference, cheapest, _ = (await books.report(scope)).comparisons
        assert (reference.verdict, cheapest.verdict) == ("not enough data", "not met")
        assert "h100 worked longer than it was up" in reference.reasons[-1]
    (fleet,) = (await books.report()).fleets
    assert fleet.comparisons[0].verdict == "not enough data"


async def test_arms_are_summed_by_request(books: Books) -> None:
    """All attempts of a request together; one that was never settled, or has no price, is in no mean."""
    await books.ledger.insert(
        [
            bought("a", arm="holdout", cost_nanousd=30),
            bought("b", arm="holdout", cost_nanousd=5, served=False),
            bought("b", arm="holdout", cost_nanousd=35, attempt=2),
            bought("c", arm="holdout", entry="void", cost_nanousd=0),
            bought("d", arm="control", cost_nanousd=None),
            bought("e", arm="control", cost_nanousd=10, team_id="team_b"),
            bought("f", cost_nanousd=77),
            bought("g", arm="control", cost_nanousd=10, at_us=NEXT),
            bought("h", arm="control", cost_nanousd=10, organisation_id="other"),
            bought("a", arm="holdout", entry="reserve", cost_nanousd=500),
        ]
    )
    found = await books.read()
    assert found.holdout == ArmSums(requests=2, cost_nanousd=70, squares=2_500.0)
    assert found.control == ArmSums(requests=1, cost_nanousd=10, squares=100.0, unpriced=1)
    mine = await books.read(PAYMENTS)
    assert mine.control == ArmSums(unpriced=1)


async def test_large_amounts_do_not_overflow(books: Books) -> None:
    """Squares of a thousand dollars are beyond the database's integers."""
    await books.ledger.insert([bought(f"r{number}", arm="holdout", cost_nanousd=10**12) for number in range(40)])
    found = (await books.read()).holdout
    assert found.cost_nanousd == 40 * 10**12
    assert found.squares == pytest.approx(40e24)


async def test_with_very_many_requests_the_arms_are_of_the_latest_days(books: Books) -> None:
    """When the time is up no earlier day is begun; both arms are of the same days, and the report says from when on."""
    days = [DAY, DAY + DAY_US, DAY + 2 * DAY_US]
    await books.ledger.insert(
        [
            bought(f"{arm}{number}", arm=arm, at_us=day + 1, cost_nanousd=10)
            for number, day in enumerate(days)
            for arm in ("holdout", "control")
        ]
    )
    ticks = iter(range(100))
    hurried = SavingsReader(
        books.engine, books.fleet, ground_of=MEASURED, arms_within_s=2, clock=lambda: float(next(ticks))
    )
    found = await hurried.read(ALL, POOLS, DAY, DAY + 3 * DAY_US, NIGHT + 3 * DAY_US)
    assert (found.holdout.requests, found.control.requests, found.arms_from_us) == (2, 2, days[1])
    whole = await books.read(days=3, now_us=NIGHT + 3 * DAY_US)
    assert (whole.holdout.requests, whole.arms_from_us) == (3, None)


async def test_ranges_are_whole_days_and_bounded(books: Books) -> None:
    """Anything else is the reader's to mend."""
    for start, end in ((DAY + 1, NEXT), (DAY, DAY), (NEXT, DAY), (DAY, DAY + (MAX_DAYS + 1) * DAY_US)):
        with pytest.raises(BadQuery):
            await books.reader.read(ALL, POOLS, start, end, NIGHT)


async def test_daily_rows_add_up_to_the_report(books: Books) -> None:
    """The CSV's days are the range of the report, cent by cent."""
    await books.ledger.insert([work("a"), bought("b"), bought("c", at_us=NEXT + 5)])
    found = await books.read(days=3, now_us=NEXT + 12 * HOUR_US)
    rate, now = Decimal("0.5"), NEXT + 12 * HOUR_US
    rows = [dict(zip(DAILY_COLUMNS, row, strict=True)) for row in daily(found, gateway_usd_per_hour=rate, now_us=now)]
    assert [row["day"] for row in rows] == ["2026-11-20", "2026-11-21"]
    whole = savings_report(found, target=Decimal("0.4"), gateway_usd_per_hour=rate, now_us=now, judged=None)
    assert sum(row["cost_usd"] for row in rows) == usd(whole.cost_nanousd)
    assert usd(whole.parts["gateway"]) == Decimal(18)
    assert sum(row["reference_baseline_usd"] for row in rows) == usd(whole.comparisons[0].baseline_nanousd)
    assert [row["provisional"] for row in rows] == ["yes", "yes"]


async def test_the_report_is_told_in_exact_decimals(books: Books) -> None:
    """No amount of money is a float on its way out."""
    await books.ledger.insert([work("a"), bought("b", arm="holdout")])
    found = savings_as_json(await books.report())
    amounts = [*found["cost"].values(), found["cost_usd"], *(each["cost_usd"] for each in found["comparisons"])]
    assert all(isinstance(amount, Decimal) for amount in amounts)
    assert sum(found["cost"].values()) == found["cost_usd"]
    assert [each["comparator"] for each in found["comparisons"]] == ["reference", "cheapest", "hosted"]
    assert (found["provisional"], found["provisional_days"]) == (True, ["2026-11-20"])
    assert found["quality"]["share"] == 0.9
    assert (found["measured"]["holdout_requests"], found["measured"]["savings_share"]) == (1, None)
    assert found["fleet"][0]["pool"] == "h100"


async def test_the_measured_saving_bears_what_was_spent_beside_requests(books: Books) -> None:
    """A day of GPUs for 40 requests: measured at the planned rate alone they would seem to save 70 %."""
    await books.ledger.insert(
        [bought(f"h{number}", arm="holdout", cost_nanousd=10_000_000_000) for number in range(40)]
        + [work(f"c{number}", arm="control", cost_nanousd=3_000_000_000) for number in range(40)]
    )
    found = (await books.report()).measured
    assert found is not None
    # The pool's rows are worth 120 $ at the planned rate, and 141.60 $ in truth: 0.54 $ more for each.
    assert found.beside_nanousd == 540_000_000
    assert found.saving == pytest.approx(1 - 3.54 / 10)


async def test_two_pools_are_told_together_and_apart(books: Books) -> None:
    """All of them first, then each by name; their bills add up."""
    second = pool(name="l4", targets=["tiny"], gpus_per_replica=1, usd_per_gpu_hour=1, up_since=date(2026, 11, 20))
    await books.ledger.insert([work("a"), work("b", target_id="tiny", pool="l4")])
    found = (await books.report(pools=(*POOLS, second))).fleets
    assert [each.pool for each in found] == ["", "h100", "l4"]
    assert [each.fleet.bill_nanousd for each in found] == [BILL + 24_000_000_000, BILL, 24_000_000_000]


async def test_a_day_that_is_over_is_read_once(engine: AsyncEngine) -> None:
    """What was read of the experiment is kept for ten minutes; today, and a day that ended just now, are always read."""
    now = 0.0
    books = Books(engine)
    reader = SavingsReader(engine, books.fleet, ground_of=MEASURED, clock=lambda: now)
    later = NEXT + 5 * HOUR_US

    async def held_out(now_us: int) -> int:
        return (await reader.read(ALL, (), DAY, NEXT, now_us)).holdout.requests

    await books.ledger.insert([bought("req_0", arm="holdout")])
    assert await held_out(NIGHT) == 1
    await books.ledger.insert([bought("req_1", arm="holdout")])
    assert await held_out(NIGHT) == 2
    assert await held_out(later) == 2
    await books.ledger.insert([bought("req_2", arm="holdout")])
    now = 599.0
    assert await held_out(later) == 2
    now = 600.0
    assert await held_out(later) == 3
