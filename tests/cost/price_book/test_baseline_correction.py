"""Baselines follow the correction of the price that they were computed at."""

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.entries import Entry
from cost.ledger.postings import reverse
from cost.ledger.store import LedgerStore
from cost.price_book.correction import post_correction
from cost.price_book.store import PriceStore
from cost.prices import price_from_usd
from tests.cost.entries import reserve
from tests.cost.ledger.verified import verify
from tests.cost.price_book.test_correction import DAY_US, MIDNIGHT_US, WRONG, booked, find, used

REFERENCE = "m@v1"
LOWER = price_from_usd(version="right", input_usd="0.9", output_usd="1.8")


@pytest.fixture
def ledger(engine: AsyncEngine) -> LedgerStore:
    return LedgerStore(engine)


@pytest.fixture
async def prices(engine: AsyncEngine) -> PriceStore:
    store = PriceStore(engine)
    await store.remember("m", WRONG, "config")
    return store


def compared(request_id: str, baseline: int | None, **changes: Any) -> Entry:
    """An attempt that is compared with `m` at its wrong price, as reference and as host."""
    facts = {
        "baseline_nanousd": baseline,
        "baseline_price": "" if baseline is None else REFERENCE,
        "hosted_nanousd": baseline,
        "hosted_price": "" if baseline is None else REFERENCE,
        "tag": "t",
    }
    return booked(request_id, used(1_000, output=500), **facts | changes)


def with_reserves(entries: list[Entry]) -> list[Entry]:
    """As in a ledger: each attempt was reserved first."""
    return [each for entry in entries for each in (reserve(entry.request_id, at_us=entry.at_us), entry)]


async def sums(engine: AsyncEngine) -> tuple[int, ...]:
    """Return cost, baselines and the number of attempts with one, by the roll-ups."""
    query = "SELECT SUM(cost_nanousd), SUM(baseline_nanousd), SUM(hosted_nanousd), SUM(baseline_rows) FROM rollup_day"
    async with engine.connect() as connection:
        return tuple(map(int, (await connection.execute(text(query))).one()))


async def test_who_is_compared_with_itself_saves_nothing(
    engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore
) -> None:
    """Before a correction of its price and after it; and the books agree."""
    own = WRONG.cost_nanousd(used(1_000, output=500))
    await ledger.insert(with_reserves([compared(f"r{number}", own) for number in range(3)]))
    assert await sums(engine) == (3 * own, 3 * own, 3 * own, 3)
    await post_correction(ledger, prices, await find(engine, LOWER))
    right = LOWER.cost_nanousd(used(1_000, output=500))
    assert await sums(engine) == (3 * right, 3 * right, 3 * right, 3)
    assert await verify(engine, MIDNIGHT_US, MIDNIGHT_US + DAY_US) == []


async def test_others_are_compared_with_the_right_price(
    engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore
) -> None:
    """In the ratio of both prices for their tokens; what has no baseline, or one at another price, keeps it."""
    other = {"target_id": "own", "price_version": "p1", "pool": "pool"}
    await ledger.insert(
        with_reserves(
            [
                # Counted by another tokenizer, so that its baseline is one tenth more than its tokens at that price.
                compared("a", 2_200_000, **other),
                compared("b", None, **other),
                compared("c", 5_000_000, **(other | {"baseline_price": "n@v1", "hosted_price": "n@v1"})),
            ]
        )
    )
    found = await find(engine, LOWER)
    assert (found.rows, len(found.differences), len(found.baselines)) == (0, 0, 1)
    await post_correction(ledger, prices, found)
    cost, baseline, hosted, rows = await sums(engine)
    assert cost == 3 * WRONG.cost_nanousd(used(1_000, output=500))
    assert (baseline, hosted, rows) == (1_980_000 + 5_000_000, 1_980_000 + 5_000_000, 2)
    assert await verify(engine, MIDNIGHT_US, MIDNIGHT_US + DAY_US) == []


async def test_baselines_are_corrected_once_and_taken_back(
    engine: AsyncEngine, ledger: LedgerStore, prices: PriceStore
) -> None:
    """Posting again adds nothing, a correction can be corrected, and its reversal leaves what was there before."""
    own = WRONG.cost_nanousd(used(1_000, output=500))
    await ledger.insert(with_reserves([compared("a", own)]))
    first = await find(engine, LOWER)
    await post_correction(ledger, prices, first)
    again = await find(engine, LOWER)
    assert not again.differences
    assert not again.baselines
    dearer = price_from_usd(version="dearer", input_usd=2, output_usd=4)
    await post_correction(ledger, prices, await find(engine, dearer))
    assert (await sums(engine))[:2] == (2 * own, 2 * own)
    back = await find(engine, LOWER)
    await post_correction(ledger, prices, back)
    right = LOWER.cost_nanousd(used(1_000, output=500))
    assert (await sums(engine))[:2] == (right, right)
    await reverse(engine, f"correction/{back.posting_id}")
    assert (await sums(engine))[:2] == (2 * own, 2 * own)
    assert await verify(engine, MIDNIGHT_US, MIDNIGHT_US + DAY_US) == []
