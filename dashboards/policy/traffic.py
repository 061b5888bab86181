"""What a scope asked of `auto` lately, for forecasts of floors."""

from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.reports.latency import LatestReader
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageQuery, UsageReader, UsageSums
from cost.times import DAY_US
from proxy.policy import AUTO

DAYS: Final = 30
_S: Final = 1_000_000


class AutoTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """The last 30 days."""

    totals: UsageSums
    auto_share: float | None
    """The share of recent requests that let the gateway choose; None without recent ones."""

    @property
    def requests(self) -> int | None:
        """Requests for `auto`."""
        return None if self.auto_share is None else round(self.totals.requests * self.auto_share)

    @property
    def per_s(self) -> float | None:
        """The same a second, on average over days and nights."""
        return None if self.requests is None else self.requests * _S / (DAYS * DAY_US)


async def auto_traffic(engine: AsyncEngine, scope: ReadScope, now_us: int) -> AutoTraffic:
    """Reads the roll-ups and the newest requests of a scope."""
    end_us = now_us - now_us % DAY_US + DAY_US
    query = UsageQuery(scope=scope, start_us=max(0, end_us - DAYS * DAY_US), end_us=end_us)
    used = await UsageReader(engine).page(query)
    return AutoTraffic(totals=used.totals or UsageSums(), auto_share=await LatestReader(engine).named(scope, AUTO))
