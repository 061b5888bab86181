"""A scope's latest requests for `auto`, and their bill: the anchor of forecasts of a minimum quality."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.reports.latency import FEWEST, LATEST, Asked, LatestReader, Sample
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageQuery, UsageReader, UsageSums, added
from cost.times import DAY_US
from proxy.parse.chat_request import AUTO

DAYS: Final = 30
_S: Final = 1_000_000
_CALLER: Final = "caller"


class TargetSpend(msgspec.Struct, frozen=True, kw_only=True):
    """The share of one target in the requests for `auto`."""

    served: float
    """Requests that it answered."""
    cost_nanousd: float
    cost_error_nanousd: float
    """The standard error of the cost: above 0 where only the latest attempts tell which of them were for `auto`."""
    baseline_nanousd: float


class AutoTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """The last 30 days."""

    totals: UsageSums
    """Everything that was booked: named models, failed attempts, comparisons and adjustments too."""
    auto_share: float | None
    """The share of recent requests that let the gateway choose; None without recent ones."""
    by_target: dict[str, TargetSpend] = {}
    answer_s: dict[str, float] = {}
    """The median seconds of a whole answer of each target, of those that answered often enough lately."""

    @property
    def requests(self) -> int | None:
        """Requests for `auto`."""
        return None if self.auto_share is None else round(self.totals.requests * self.auto_share)

    @property
    def per_s(self) -> float | None:
        """The same a second, on average over days and nights."""
        return None if self.requests is None else self.requests * _S / (DAYS * DAY_US)

    @property
    def served(self) -> float:
        """Requests for `auto` that were answered."""
        return sum(each.served for each in self.by_target.values())


async def auto_traffic(engine: AsyncEngine, scope: ReadScope, now_us: int) -> AutoTraffic:
    """Read the roll-ups and the newest requests of a scope."""
    end_us = now_us - now_us % DAY_US + DAY_US
    start_us = max(0, end_us - DAYS * DAY_US)
    query = UsageQuery(scope=scope, start_us=start_us, end_us=end_us, group_by=("model", "origin"))
    used = await UsageReader(engine).page(query)
    asked = await LatestReader(engine).asked(scope, start_us)
    booked: dict[str, list[UsageSums]] = {}
    for row in used.rows:
        target_id, origin = row.group
        if origin == _CALLER:
            booked.setdefault(str(target_id), []).append(row.sums)
    latest = await LatestReader(engine).read(scope)
    firsts = [each.alias == AUTO for each in asked if each.attempt == 1]
    return AutoTraffic(
        totals=used.totals or UsageSums(),
        auto_share=sum(firsts) / len(firsts) if firsts else None,
        by_target={
            name: _spend(added(parts), [each for each in asked if each.target_id == name], whole=len(asked) < LATEST)
            for name, parts in sorted(booked.items())
        },
        answer_s=_answer_s(latest),
    )


def _answer_s(latest: Sequence[Sample]) -> dict[str, float]:
    taken: dict[str, list[float]] = {}
    for each in latest:
        if each.served and each.duration_us is not None:
            taken.setdefault(each.target_id, []).append(each.duration_us / _S)
    return {name: median(values) for name, values in taken.items() if len(values) >= FEWEST}


def _spend(booked: UsageSums, latest: Sequence[Asked], *, whole: bool) -> TargetSpend:
    """Return the part of a target's bill that was for `auto`, by its latest attempts. `whole` says that these are all of them."""
    served = [each.alias == AUTO for each in latest if each.served]
    costs = [(each.cost_nanousd or 0, each.alias == AUTO) for each in latest]
    share = _share(costs)
    whole_cost = sum(cost for cost, _ in costs)
    spread = math.sqrt(sum((cost * (chosen - share)) ** 2 for cost, chosen in costs))
    # Of a month that was read whole nothing is left to chance.
    unread = 0.0 if whole or not whole_cost else math.sqrt(max(0.0, 1 - len(latest) / max(1, booked.attempts)))
    return TargetSpend(
        served=booked.served * sum(served) / len(served) if served else 0.0,
        cost_nanousd=booked.cost_nanousd * share,
        cost_error_nanousd=booked.cost_nanousd * spread / whole_cost * unread if whole_cost else 0.0,
        baseline_nanousd=booked.baseline_nanousd
        * _share([(each.baseline_nanousd or 0, each.alias == AUTO) for each in latest]),
    )


def _share(amounts: Sequence[tuple[int, bool]]) -> float:
    """Return the share of the amounts that was for `auto`; 0 without any."""
    whole = sum(amount for amount, _ in amounts)
    return sum(amount for amount, chosen in amounts if chosen) / whole if whole else 0.0
