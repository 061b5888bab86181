"""Which days a comparison covers, and what it leaves for the close of their month."""

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.reconcile.coverage import compared_days, keep_compared, outcomes
from cost.reconcile.matching import Matching, compare
from cost.reconcile.openai import read_openai
from cost.reconcile.reconciliation_report import Tolerance, tolerance_of
from tests.cost.reconcile.exports import DAY_LENGTH_S, DAY_US, file_of, openai_bucket, openai_usage, page
from tests.cost.reconcile.ours import row

LENGTH_US = DAY_LENGTH_S * 1_000_000
LATER_US = DAY_US + 10 * LENGTH_US
MATCHING = Matching(upstream_models={"gpt-4o": ("gpt-4o",)})


def test_a_day_without_a_line_is_covered_too() -> None:
    """One agrees, one differs, one has nothing on either side; a part of a day, and one that is not over, are no cover."""
    half = openai_bucket(openai_usage("gpt-4o", 9, 9), day=3)
    half["end_time"] -= DAY_LENGTH_S // 2
    days = (openai_bucket(openai_usage("gpt-4o", 5, 1)), openai_bucket(openai_usage("gpt-4o", 6, 1), day=1))
    told = page(*days, openai_bucket(day=2), half, openai_bucket(day=4))
    ours = (row(tokens=(5, 0, 0, 0, 1)), row(day_us=DAY_US + LENGTH_US, tokens=(5, 0, 0, 0, 1)))
    found = compare(read_openai([file_of(told)]), ours, MATCHING)
    now_us = DAY_US + 5 * LENGTH_US - 1
    expected = {DAY_US: "agrees", DAY_US + LENGTH_US: "differs", DAY_US + 2 * LENGTH_US: "agrees"}
    assert outcomes(found, Tolerance(), now_us) == expected
    assert outcomes(found, Tolerance(), now_us, posted=True)[DAY_US + LENGTH_US] == "posted"
    assert outcomes(found, tolerance_of("50%"), now_us)[DAY_US + LENGTH_US] == "agrees"


async def test_the_latest_comparison_counts(engine: AsyncEngine) -> None:
    """By organisation, and by the provider's name however it is written."""
    async with engine.begin() as connection:
        await keep_compared(connection, "acme", ["OpenAI", "azure"], {DAY_US: "differs"}, LATER_US)
        await keep_compared(connection, "acme", ["openai"], {DAY_US: "posted"}, LATER_US + 1)
        await keep_compared(connection, "rival", ["openai"], {DAY_US: "agrees"}, LATER_US)
        await keep_compared(connection, "acme", ["openai"], {}, LATER_US)
    found = await compared_days(engine, "acme", DAY_US, DAY_US + LENGTH_US)
    assert found == {"openai": {DAY_US: "posted"}, "azure": {DAY_US: "differs"}}
    assert await compared_days(engine, "acme", DAY_US + 1, LATER_US) == {}
