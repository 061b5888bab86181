"""A year of a plan's GPUs, bought in whole nodes, hour by hour as a day goes, beside what the same requests cost elsewhere.

A reserved node costs all hours of a year and an on-demand one those in which it is up. So a node is worth reserving that is needed for
more of the hours than a reserved hour costs of an on-demand one.
"""

import functools
import tomllib
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final, Literal

import msgspec

from planner.plans.comparators import Comparator
from planner.plans.economics import HOURS_A_YEAR
from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import Plan, carried

How = Literal["reserved", "on demand by the hour", "both"]
_DATA: Final = Path(__file__).with_name("data")
_HOUR_S: Final = 3_600
_MILLION: Final = 1_000_000
_DAY: Final = 24
_WEEK: Final = 168


class Hours(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of each hour as a share of the busiest one."""

    source: str
    url: str = ""
    as_of: str
    hours: tuple[Decimal, ...]

    @property
    def mean(self) -> Decimal:
        return sum(self.hours, Decimal(0)) / len(self.hours)


class ReservedPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a GPU's hour that is paid for a whole year."""

    name: str = ""
    usd_per_hour: Decimal
    source: str
    url: str = ""
    as_of: str


class Purchase(msgspec.Struct, frozen=True, kw_only=True):
    """One way to buy the nodes."""

    how: How
    reserved_nodes: int
    nodes: int
    """In the busiest hour."""
    mean_nodes: Decimal
    """Paid for, as a mean over the hours."""
    usd_per_year: Decimal


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """The same requests elsewhere."""

    name: str
    title: str
    as_of: str
    usd_per_year: Decimal
    saving: Decimal | None
    """1 - the cheapest purchase / this."""
    verdict: Literal["met", "not met", "no price"]


class Year(msgspec.Struct, frozen=True, kw_only=True):
    """A year of a plan."""

    hours_source: str
    mean_share: Decimal
    """Mean of the hours as a share of the busiest one."""
    requests: int
    gpus_a_node: int
    nodes_a_replica: int
    nodes: int
    """In the busiest hour, rounded up to whole ones."""
    gpus: int
    fewest_nodes: int
    fewest_requests_per_s: float
    """No hour is planned for less: one team's peak may come in any."""
    on_demand_usd: Decimal | None
    on_demand_source: str
    reserved_usd: Decimal | None
    reserved_source: str
    purchases: tuple[Purchase, ...]
    alternatives: tuple[Alternative, ...]
    saving_target: Decimal

    @property
    def cheapest(self) -> Purchase | None:
        return min(self.purchases, key=lambda each: each.usd_per_year, default=None)


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """What the mean request costs elsewhere."""

    name: str
    title: str
    as_of: str
    usd_per_request: Decimal


@functools.cache
def usual_hours() -> Hours:
    """Return the hours of `data/hours.toml`."""
    return msgspec.convert(
        tomllib.loads((_DATA / "hours.toml").read_text(encoding="utf-8"), parse_float=Decimal), Hours
    )


def hours_given(text: str) -> Hours:
    """Parse shares of the busiest hour: 24 for a day or 168 for a week, comma-separated. Raises PlanRefused."""
    refused = PlanRefused(
        "--hours is 24 or 168 shares of the busiest hour, such as 0.3,0.2,…: each from 0 to 1, and one of them 1"
    )
    try:
        shares = tuple(Decimal(each.strip()) for each in text.split(","))
    except ArithmeticError:
        raise refused from None
    if len(shares) not in (_DAY, _WEEK) or not all(each.is_finite() and 0 <= each <= 1 for each in shares):
        raise refused
    if max(shares) != 1:
        raise refused
    return Hours(source="as given", as_of="as given", hours=shares)


@functools.cache
def reserved_prices() -> dict[str, ReservedPrice]:
    """Return the prices of `data/reserved_prices.toml`, by GPU."""
    found = msgspec.convert(
        tomllib.loads((_DATA / "reserved_prices.toml").read_text(encoding="utf-8"))["gpu"], list[ReservedPrice]
    )
    return {each.name: each for each in found}


def elsewhere_at(comparator: Comparator, found: Plan, *, batch: bool) -> Elsewhere:
    """Return what the plan's mean request costs at a provider."""
    work = found.work
    million = comparator.blended_usd(
        work.input_tokens, work.output_tokens, cached_share=Decimal(repr(work.prefix_hit_rate)), batch=batch
    )
    return Elsewhere(
        name=comparator.name,
        title=comparator.title,
        as_of=comparator.as_of,
        usd_per_request=million * work.whole / _MILLION,
    )


def year_of(
    found: Plan,
    *,
    hours: Hours,
    reserved: ReservedPrice | None,
    elsewhere: Sequence[Elsewhere],
    saving: Decimal,
    fewest_requests_per_s: float = 0.0,
) -> Year:
    """Return the year of a plan whose rate is that of the busiest hour."""
    a_node = found.gpu.per_node
    rates = [max(found.requests_per_s * float(share), fewest_requests_per_s) for share in hours.hours]
    nodes = [nodes_for(found, rate) for rate in rates]
    most = max(nodes)
    price = None if found.cost is None else found.cost.usd_per_gpu_hour
    overhead = Decimal(1) if found.cost is None else found.cost.overhead
    purchases = _purchases(
        nodes,
        on_demand=None if price is None else price * overhead * a_node,
        reserved=None if reserved is None else reserved.usd_per_hour * overhead * a_node,
    )
    requests = Decimal(repr(found.requests_per_s)) * hours.mean * _HOUR_S * HOURS_A_YEAR
    cheapest = min((each.usd_per_year for each in purchases), default=None)
    return Year(
        hours_source=hours.source,
        mean_share=hours.mean,
        requests=int(requests),
        gpus_a_node=a_node,
        nodes_a_replica=-(-(found.gpus // found.replicas) // a_node),
        nodes=most,
        gpus=most * a_node,
        fewest_nodes=min(nodes),
        fewest_requests_per_s=fewest_requests_per_s,
        on_demand_usd=price,
        on_demand_source=found.gpu.price_source if found.cost is None else found.cost.price_source,
        reserved_usd=None if reserved is None else reserved.usd_per_hour,
        reserved_source=f"no price is known here for {found.gpu.name}; give --reserved-usd-hour"
        if reserved is None
        else reserved.source,
        purchases=purchases,
        alternatives=tuple(_alternative(each, requests, cheapest, saving) for each in elsewhere),
        saving_target=saving,
    )


def nodes_for(found: Plan, requests_per_s: float) -> int:
    """Return the whole nodes that a rate takes, spare replicas included: a replica never lies on two, unless it needs them."""
    replicas = carried(found, requests_per_s) + found.spare
    gpus, a_node = found.gpus // found.replicas, found.gpu.per_node
    if gpus >= a_node:
        return replicas * -(-gpus // a_node)
    return -(-replicas // (a_node // gpus))


def _purchases(nodes: list[int], *, on_demand: Decimal | None, reserved: Decimal | None) -> tuple[Purchase, ...]:
    """Return the ways that have a price: all reserved, all by the hour, and each node as it is cheaper. Prices are of a node's hour."""
    most, count = max(nodes), len(nodes)

    def bought(how: How, base: int) -> Purchase:
        above = Decimal(sum(max(0, each - base) for each in nodes)) / count
        hour = (0 if reserved is None else base * reserved) + (0 if on_demand is None else above * on_demand)
        return Purchase(
            how=how, reserved_nodes=base, nodes=most, mean_nodes=base + above, usd_per_year=Decimal(hour) * HOURS_A_YEAR
        )

    found = []
    if reserved is not None:
        found.append(bought("reserved", most))
    if on_demand is not None:
        found.append(bought("on demand by the hour", 0))
    if reserved is not None and on_demand is not None:
        # The n-th node is up in the hours that take at least n.
        base = sum(reserved * count < sum(each >= node for each in nodes) * on_demand for node in range(1, most + 1))
        found.append(bought("both", base))
    return tuple(found)


def _alternative(each: Elsewhere, requests: Decimal, ours: Decimal | None, target: Decimal) -> Alternative:
    dollars = each.usd_per_request * requests
    saving = None if ours is None or dollars <= 0 else 1 - ours / dollars
    return Alternative(
        name=each.name,
        title=each.title,
        as_of=each.as_of,
        usd_per_year=dollars,
        saving=saving,
        verdict="no price" if saving is None else "met" if saving >= target else "not met",
    )
