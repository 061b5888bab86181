"""What was posted, and taken back."""

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.entries import Entry
from cost.ledger.postings import PostingRefused, postings, reverse
from cost.ledger.store import LedgerStore
from cost.meters import METER_COLUMNS
from cost.times import DAY_US
from tests.cost.entries import settle
from tests.cost.ledger.verified import verify

DAY = 1_775_347_200_000_000
"""2026-04-05."""
MINE = "reconciliation/openai/abc"


def posted(number: int, **changes: Any) -> Entry:
    """An entry of a posting, with amounts in more than one meter."""
    usual = {
        "entry": "adjust",
        "boot_id": "books",
        "origin": "reconciliation",
        "at_us": DAY + 5,
        "input_tokens": 10,
        "cached_input_tokens": 4,
        "output_tokens": 3,
        "cost_nanousd": 7,
        "input_nanousd": 5,
        "output_nanousd": 2,
        "baseline_nanousd": None,
        "usage_source": "none",
        "status": 0,
        "reason": "reconciliation with the provider's own books",
    }
    return settle(f"{MINE}/{number}", **{**usual, **changes})


async def test_taking_a_posting_back_leaves_the_sums_as_they_were(engine: AsyncEngine) -> None:
    """Every amount once more with the other sign, in the roll-ups too; doing it twice changes nothing."""
    store = LedgerStore(engine)
    await store.insert([posted(1), posted(2, at_us=DAY + DAY_US, cost_nanousd=-3, input_nanousd=-3, output_nanousd=0)])
    taken_back = await reverse(engine, MINE)
    assert await reverse(engine, MINE) == taken_back
    assert [each.request_id for each in taken_back] == [f"{MINE}/reversal/1", f"{MINE}/reversal/2"]
    found = {each.posting_id: each for each in await postings(engine, DAY, DAY + 2 * DAY_US)}
    assert found.keys() == {MINE, f"{MINE}/reversal"}
    first, second = found[MINE], found[f"{MINE}/reversal"]
    assert (first.entries, first.first_us, first.last_us) == (2, DAY + 5, DAY + DAY_US)
    assert first.cost_nanousd == -second.cost_nanousd == 4
    assert first.input_tokens + second.input_tokens == first.output_tokens + second.output_tokens == 0
    for before, after in zip(
        [posted(1), posted(2, cost_nanousd=-3, input_nanousd=-3, output_nanousd=0)], taken_back, strict=True
    ):
        assert [getattr(after, name) for name in METER_COLUMNS] == [-getattr(before, name) for name in METER_COLUMNS]
        assert after.cached_input_tokens == -4
    assert await verify(engine, DAY, DAY + 2 * DAY_US) == []


async def test_what_was_taken_back_may_be_had_again(engine: AsyncEngine) -> None:
    """The reversal is a posting like any other."""
    await LedgerStore(engine).insert([posted(1)])
    await reverse(engine, MINE)
    (again,) = await reverse(engine, f"{MINE}/reversal")
    assert (again.request_id, again.cost_nanousd) == (f"{MINE}/reversal/reversal/1", 7)
    assert sum(each.cost_nanousd for each in await postings(engine, DAY, DAY + DAY_US)) == 7


@pytest.mark.parametrize(
    "posting_id", [f"{MINE}x", "reconciliation/openai", "true-up/h100/2026-04-05/1", "req_1", "", f"{MINE}%", "x" * 500]
)
async def test_only_what_was_posted_by_people_is_taken_back(engine: AsyncEngine, posting_id: str) -> None:
    """Nothing that merely begins alike, no true-up, and no request."""
    await LedgerStore(engine).insert([posted(1), settle("req_1", at_us=DAY)])
    with pytest.raises(PostingRefused):
        await reverse(engine, posting_id)
    assert len(await postings(engine, DAY, DAY + DAY_US)) == 1
