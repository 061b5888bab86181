"""When a pool is scaled by money, and what its work costs elsewhere."""

from decimal import Decimal

import pytest

from cost.fleet.earnings import EarningsReader
from cost.fleet.pool_config import PoolSection, SecondsPerMillion
from gateway.wiring.scaling import PriceElsewhere, is_economic
from selfhosted.config import ScaleConfig

POOL = PoolSection(
    name="own",
    targets=("llama",),
    usd_per_gpu_hour=Decimal(3),
    seconds_per_million=SecondsPerMillion(input=Decimal(70), output=Decimal(140)),
)


@pytest.mark.parametrize(
    ("objective", "sold", "economic"),
    [(None, True, True), (None, False, False), ("latency", True, False), ("economic", False, True)],
)
def test_money_decides_where_overflow_has_somewhere_to_go(objective: str | None, sold: bool, economic: bool) -> None:
    """Or where the configuration says so."""
    assert is_economic(ScaleConfig.model_validate({"objective": objective}), sold=sold) is economic


class Books(EarningsReader):
    """Books that know what is given."""

    def __init__(self, *found: float | None) -> None:
        self._found = list(found)

    async def usd_per_busy_s(self, pool: PoolSection, start_us: int, end_us: int) -> float | None:
        del pool, start_us, end_us
        return self._found.pop(0)


async def test_the_newest_time_that_was_booked_tells_the_price() -> None:
    """A second of a busy replica is a million seventieths of prompt tokens; what was known stays known."""
    prices = PriceElsewhere(Books(None, 0.007, None, None, None), POOL)
    assert prices.usd_per_work is None
    await prices.refresh()
    assert prices.usd_per_work == pytest.approx(0.007 * 70 / 1e6)
    await prices.refresh()
    assert prices.usd_per_work == pytest.approx(0.007 * 70 / 1e6)
