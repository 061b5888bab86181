"""A wrong price is corrected by postings alone, on SQLite and on PostgreSQL."""

import asyncio
from datetime import date
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.errors import PriceRefused, UnknownPrice
from cost.ledger.entries import Entry
from cost.ledger.postings import reverse
from cost.ledger.store import LedgerStore
from cost.meters import METER_COLUMNS, TOKEN_COLUMNS, ZERO_METERS
from cost.price_book.correction import (
    MOST_DAYS,
    Correction,
    Difference,
    find_correction,
    post_correction,
    postings,
)
from cost.price_book.store import PriceStore
from cost.prices import LongPrompt, Price, UnitPrice, price_from_usd
from cost.usage import Usage
from tests.cost.by_meter import by_meter
from tests.cost.entries import reserve, settle
from tests.cost.ledger.verified import verify

DAY = date(2026, 4, 5)
MIDNIGHT_US = 1_775_347_200_000_000
DAY_US = 86_400_000_000
WRONG = price_from_usd(version="v1", input_usd=1, output_usd=2)
RIGHT = price_from_usd(version="right", input_usd=3, output_usd=2, cached_input_usd="0.5")


@pytest.fixture
def ledger(engine: AsyncEngine) -> LedgerStore:
    return LedgerStore(engine)


@pytest.fixture
async def prices(engine: AsyncEngine) -> PriceStore:
    store = PriceStore(engine)
    await store.remember("m", WRONG, "config")
    return store


def booked(request_id: str, usage: Usage, price: Price | None = WRONG, **changes: Any) -> Entry:
    """A settled attempt of target `m`, booked as the gateway does."""
    meters = ZERO_METERS if price is None else price.costs_nanousd(usage)
    tokens = {name: getattr(usage, name) for name in TOKEN_COLUMNS}
    facts = {
        "target_id": "m",
        "price_version": "" if price is None else price.version,
        "cost_nanousd": None if price is None else sum(meters),
        "at_us": MIDNIGHT_US + 5,
        **tokens,
        **dict(zip(METER_COLUMNS, meters, strict=True)),
    }
    return settle(request_id, **facts | changes)


def used(fresh: int, cached: int = 0, output: int = 0) -> Usage:
    return Usage(input_tokens=fresh + cached, cached_input_tokens=cached, output_tokens=output)


async def find(engine: AsyncEngine, price: Price = RIGHT, version: str = "v1", days: int = 1) -> Correction:
    return await find_correction(engine, "m", version, price, DAY, date.fromordinal(DAY.toordinal() + days - 1))


async def cost(engine: AsyncEngine, where: str = "1 = 1") -> int:
    async with engine.connect() as connection:
        found = await connection.execute(text(f"SELECT SUM(cost_nanousd) FROM ledger_entry WHERE {where}"))  # noqa: S608
        return int(found.scalar() or 0)


async def test_the_difference_of_each_group_is_exact(
    engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore
) -> None:
    """By day and by everything that roll-ups tell apart; a batch line cost what any other does."""
    await ledger.insert(
        [
            reserve("a", target_id="m", price_version="v1"),
            booked("a", used(100, 40, 10)),
            booked("b", used(10)),
            booked("c", used(10), tag="x"),
            booked("d", used(10), at_us=MIDNIGHT_US + DAY_US),
            booked("e", used(10), tier="batch", team_id="team_b"),
        ]
    )
    found = await find(engine, days=2)
    assert (found.rows, found.left_rows) == (5, 0)
    told = [
        (each.day_us - MIDNIGHT_US, each.team_id, each.tier, each.tag, each.rows, each.meters)
        for each in found.differences
    ]
    plain = by_meter(input=20_000)
    assert told == [
        (0, "team_b", "batch", "", 1, plain),
        (0, "team_payments", "interactive", "", 2, by_meter(input=220_000, cached_input=-20_000)),
        (0, "team_payments", "interactive", "x", 1, plain),
        (DAY_US, "team_payments", "interactive", "", 1, plain),
    ]
    assert found.total_nanousd == 260_000


async def test_what_is_posted_makes_the_books_right(
    engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore
) -> None:
    """The sum is what the right price gives; no row and no baseline is changed; the roll-ups follow."""
    usages = [used(101, 7, 3), used(55), used(1, 1, 1)]
    rows = [booked(f"r{n}", usage) for n, usage in enumerate(usages)]
    await ledger.insert(rows)
    before = [await ledger.entries(row.request_id) for row in rows]
    new, version = await post_correction(ledger, prices, await find(engine))
    assert (new, version) == (1, "right")
    assert await cost(engine) == sum(RIGHT.cost_nanousd(usage) for usage in usages)
    assert [await ledger.entries(row.request_id) for row in rows] == before
    async with engine.connect() as connection:
        entry = (await connection.execute(text("SELECT * FROM ledger_entry WHERE entry = 'adjust'"))).mappings().one()
        day = await connection.execute(
            text(
                "SELECT SUM(cost_nanousd) AS cost, SUM(baseline_rows) AS baselines, SUM(requests) AS requests FROM rollup_day"
            )
        )
        assert day.mappings().one() == {"cost": await cost(engine), "baselines": 3, "requests": 3}
        spent = await connection.execute(text("SELECT spent_nanousd FROM spend_day WHERE scope = 'team'"))
        assert spent.scalar() == await cost(engine)
    assert (entry["origin"], entry["price_version"], entry["baseline_nanousd"]) == ("correction", "right", None)
    assert (entry["boot_id"], entry["usage_source"], entry["input_tokens"], entry["attempt"]) == ("books", "none", 0, 1)
    assert entry["reason"] == "corrects v1"
    assert sum(entry[name] for name in METER_COLUMNS) == entry["cost_nanousd"]
    assert MIDNIGHT_US <= entry["at_us"] < MIDNIGHT_US + DAY_US
    assert await prices.figures("m", "right") == RIGHT
    assert await prices.overrides() == []


async def test_what_was_used_by_other_units_is_corrected(
    engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore
) -> None:
    """By their price, in their own group, and the books agree afterwards."""
    wrong, right = (
        msgspec.structs.replace(price, units=(UnitPrice(unit="second", nanousd=figure),))
        for price, figure in ((WRONG, 100_000_000_000), (RIGHT, 300_000_000_000))
    )
    await prices.remember("m", msgspec.structs.replace(wrong, version="heard"), "config")
    usage = Usage(unit="second", quantity_milli=2_500)
    heard = msgspec.structs.replace(wrong, version="heard")
    entry = booked("a", usage, heard, unit="second", quantity_milli=2_500)
    await ledger.insert([reserve("a", target_id="m", price_version="heard"), entry])
    assert entry.cost_nanousd == entry.request_nanousd == 250_000
    found = await find(engine, right, "heard")
    (difference,) = found.differences
    assert (difference.unit, difference.meters) == ("second", by_meter(request=500_000))
    await post_correction(ledger, prices, found)
    assert await cost(engine, "entry <> 'reserve'") == 750_000
    assert (await find(engine, right, "heard")).differences == ()
    assert await verify(engine, MIDNIGHT_US, MIDNIGHT_US + DAY_US) == []


async def test_posting_again_adds_nothing(engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore) -> None:
    """Neither what was found before nor what is found now; and a late row is corrected alone."""
    await ledger.insert([booked("a", used(10))])
    found = await find(engine)
    assert (await post_correction(ledger, prices, found))[0] == 1
    assert (await post_correction(ledger, prices, found))[0] == 0
    assert (await find(engine)).differences == ()
    await ledger.insert([booked("late", used(10))])
    again = await find(engine)
    assert (again.total_nanousd, again.posting_id != found.posting_id) == (20_000, True)
    await post_correction(ledger, prices, again)
    assert await cost(engine) == 2 * RIGHT.cost_nanousd(used(10))


async def test_two_who_post_at_once_post_once(engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore) -> None:
    """The posting's name follows from what it corrects, so the second finds the first's entries."""
    await ledger.insert([booked(f"r{n}", used(10), key_id=f"key_{n}") for n in range(5)])

    async def correct() -> int:
        return (await post_correction(ledger, prices, await find(engine)))[0]

    assert sum(await asyncio.gather(*(correct() for _ in range(4)))) == 5
    assert await cost(engine) == 5 * RIGHT.cost_nanousd(used(10))


async def test_the_books_agree_after_a_correction(engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore) -> None:
    """The ledger's sums are the roll-ups', to the nano-dollar, and each entry's meters are its cost."""
    for number in range(3):
        entry = booked(f"r{number}", used(10 * number + 1, number, 3), tag="x" * number)
        await ledger.insert([msgspec.structs.replace(entry, entry="reserve", served=False), entry])
    await post_correction(ledger, prices, await find(engine))
    assert await verify(engine, MIDNIGHT_US, MIDNIGHT_US + DAY_US) == []


async def test_a_correction_can_be_corrected(engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore) -> None:
    """The last price counts, not the sum of all, and one may go back and forth."""
    await ledger.insert([booked("a", used(1_000))])
    better = price_from_usd(version="better", input_usd=5, output_usd=2)
    for price in (RIGHT, better, RIGHT, WRONG.named("as it was")):
        await post_correction(ledger, prices, await find(engine, price))
        assert await cost(engine) == price.cost_nanousd(used(1_000))


async def test_what_was_unpriced_gets_its_price(engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore) -> None:
    """The rows stay unpriced, the books have their cost."""
    await ledger.insert([booked("a", used(10, 0, 5), None), booked("b", used(10))])
    found = await find(engine, version="")
    assert (found.rows, found.total_nanousd) == (1, RIGHT.cost_nanousd(used(10, 0, 5)))
    await post_correction(ledger, prices, found)
    assert await cost(engine, "entry = 'adjust'") == found.total_nanousd
    assert (await find(engine, version="")).differences == ()


async def test_what_got_its_price_is_no_longer_counted_as_unpriced(
    engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore
) -> None:
    """Once, also when the price is corrected again; an attempt that comes later is found by itself."""

    async def unpriced() -> int:
        async with engine.connect() as connection:
            return int((await connection.execute(text("SELECT SUM(unpriced_attempts) FROM rollup_day"))).scalar() or 0)

    await ledger.insert([reserve(each, at_us=MIDNIGHT_US) for each in "abc"])
    await ledger.insert([booked("a", used(10), None), booked("b", used(20), None)])
    assert await unpriced() == 2
    await post_correction(ledger, prices, await find(engine, version=""))
    assert await unpriced() == 0
    await post_correction(
        ledger, prices, await find(engine, msgspec.structs.replace(RIGHT, input_nanousd=7), version="")
    )
    assert await unpriced() == 0
    await ledger.insert([booked("c", used(1), None)])
    assert await unpriced() == 1
    await post_correction(
        ledger, prices, await find(engine, msgspec.structs.replace(RIGHT, input_nanousd=7), version="")
    )
    assert await unpriced() == 0
    assert await verify(engine, MIDNIGHT_US, MIDNIGHT_US + DAY_US) == []


async def test_what_was_taken_back_can_be_posted_again(
    engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore
) -> None:
    """The books are wrong again, so the same correction finds the same difference, and posts it under another id."""
    await ledger.insert([reserve("a", at_us=MIDNIGHT_US), reserve("b", at_us=MIDNIGHT_US)])
    await ledger.insert([booked("a", used(10)), booked("b", used(5), None)])
    for version in ("v1", ""):
        wrong = await cost(engine)
        first = await find(engine, version=version)
        await post_correction(ledger, prices, first)
        assert await cost(engine) - wrong == first.total_nanousd
        await reverse(engine, f"correction/{first.posting_id}")
        assert await cost(engine) == wrong
        second = await find(engine, version=version)
        assert (second.total_nanousd, second.differences[0].unpriced) == (
            first.total_nanousd,
            first.differences[0].unpriced,
        )
        assert (await post_correction(ledger, prices, second))[0] == 1
        assert await cost(engine) - wrong == first.total_nanousd
    assert await verify(engine, MIDNIGHT_US, MIDNIGHT_US + DAY_US) == []


async def test_what_does_not_follow_from_tokens_stays(
    engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore
) -> None:
    """Holds that a crash left, lost hosts, attempts that used nothing, other versions, targets and days."""
    per_request = msgspec.structs.replace(RIGHT, request_nanousd=7)
    await ledger.insert(
        [
            booked("orphan", used(10), flags=("orphaned",)),
            booked("held", used(10), cost_nanousd=5_000, input_nanousd=5_000),
            booked("nothing", used(0), usage_source="none"),
            booked("lost", used(10), entry="expire"),
            booked("void", used(10), entry="void", cost_nanousd=0),
            booked("other version", used(10), price_version="v0"),
            booked("other target", used(10), target_id="n"),
            booked("before", used(10), at_us=MIDNIGHT_US - 1),
            booked("after", used(10), at_us=MIDNIGHT_US + DAY_US),
        ]
    )
    found = await find(engine, per_request)
    assert (found.rows, found.left_rows, found.differences) == (0, 3, ())


async def test_rows_of_an_older_release_have_a_cost_without_meters(
    engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore
) -> None:
    """Their cost counts as input, so that the meters of row and correction add up to the right ones' sum."""
    usage = used(10, 0, 5)
    without: dict[str, Any] = dict.fromkeys(METER_COLUMNS, 0)
    await ledger.insert([booked("a", usage, **without)])
    await post_correction(ledger, prices, await find(engine))
    assert await cost(engine) == RIGHT.cost_nanousd(usage)


async def test_what_cannot_be_asked_is_told(engine: AsyncEngine, prices: PriceStore) -> None:
    """A version that nobody knows is probably misspelt; a range is neither empty nor endless."""
    with pytest.raises(UnknownPrice, match="nothing of m was booked at 'v9'"):
        await find(engine, version="v9")
    assert (await find(engine)).rows == 0
    with pytest.raises(PriceRefused, match=f"1 to {MOST_DAYS} days"):
        await find(engine, days=0)
    with pytest.raises(PriceRefused, match=f"1 to {MOST_DAYS} days"):
        await find(engine, days=MOST_DAYS + 1)


async def test_a_long_history_is_corrected_whole(engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore) -> None:
    """More rows than are read at once, each with its own tier by length, to the nano-dollar."""
    tier = LongPrompt(above_tokens=2_500, price=price_from_usd(version="right", input_usd="7.777777777", output_usd=1))
    price = msgspec.structs.replace(RIGHT, long_prompts=(tier,))
    usages = [used(n, n % 3, n % 7) for n in range(5_000)]
    await ledger.insert([booked(f"r{n:05}", usage, key_id=f"key_{n % 4}") for n, usage in enumerate(usages)])
    found = await find(engine, price)
    assert (found.rows, len(found.differences)) == (5_000, 4)
    assert await post_correction(ledger, prices, found) == (4, "right")
    assert await cost(engine) == sum(price.cost_nanousd(usage) for usage in usages)


amounts = st.tuples(*[st.integers(-(10**12), 10**12)] * len(ZERO_METERS))


@given(st.lists(st.tuples(amounts, amounts), max_size=5))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_postings_add_up_to_the_correction(groups: list[tuple[Any, Any]]) -> None:
    """By meter and in total, each under its own name."""
    differences = tuple(
        Difference(
            day_us=MIDNIGHT_US,
            organisation_id="o",
            team_id=f"t{number}",
            key_id="k",
            provider="p",
            tier="interactive",
            tag="",
            pool="",
            last_us=MIDNIGHT_US + 1,
            rows=1,
            booked=booked_meters,
            right=right,
        )
        for number, (booked_meters, right) in enumerate(groups)
    )
    correction = Correction(
        target_id="m",
        version="v1",
        price=RIGHT,
        first_day=DAY,
        last_day=DAY,
        differences=differences,
        rows=len(groups),
        left_rows=0,
    )
    entries = postings(correction, "right")
    assert sum(entry.cost_nanousd or 0 for entry in entries) == correction.total_nanousd
    assert all(sum(getattr(entry, name) for name in METER_COLUMNS) == entry.cost_nanousd for entry in entries)
    assert len({entry.request_id for entry in entries}) == len(entries)
