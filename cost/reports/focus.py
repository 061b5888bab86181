"""The FOCUS 1.2 export: what the roll-ups hold, as the FinOps Foundation's cost and usage dataset.

One row a day (or hour), team, key, model, tier, tag and price version, and of these one a meter. `BilledCost` and
`EffectiveCost` are the ledger's own amounts, so they add up to it exactly. `ListCost` and `ContractedCost` are price
times quantity, as the standard defines them; they differ from what was booked by its rounding to nano-dollars.

What costs money without having been used by anybody, or was posted after the fact, is told apart:

- Idle GPUs are a usage row of a day, with no sub account and the tier `idle`.
- True-ups are adjustments. So are corrections, until their month is over: the standard's `Correction` is one of a
  period that was invoiced before.
- What has no price is an adjustment of 0 that says so, for as usage it would look free.
"""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final
from unicodedata import combining, normalize

import msgspec
from sqlalchemy import func, literal, literal_column, select, tuple_
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.periods import bounds_us
from cost.calendar import UTC_CALENDAR, Calendar
from cost.ledger.rolled_up import days_with, rolled_up
from cost.ledger.rollups import ROLLUP_KEY
from cost.meters import METER_COLUMNS, METER_NAMES, METERS, split_row
from cost.prices import Price
from cost.reports.cells import Cell, csv_line
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import scoped
from cost.tables import ROLLUP_SUMS
from cost.times import DAY_US, HOUR_US, iso

MAX_DAYS: Final = 400
MAX_DAYS_BY_HOUR: Final = 31
_PAGE: Final = 500

FOCUS_COLUMNS: Final = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "CommitmentDiscountStatus",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrency",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
)
CUSTOM_COLUMNS: Final = (
    "x_Model",
    "x_TokenType",
    "x_Quantity",
    "x_RequestCount",
    "x_KeyId",
    "x_Tier",
    "x_ServedBy",
    "x_Origin",
    "x_PriceTableVersion",
    "x_UnpricedAttemptCount",
    "x_EstimatedAttemptCount",
    "x_CounterfactualCost",
    "x_BatchSavings",
)
"""Custom columns of ours.

Counts, counterfactual cost and the savings of the tier batch are on a group's first row only, so that they can be
summed.
"""
COLUMNS: Final = FOCUS_COLUMNS + CUSTOM_COLUMNS

_LABELS: Final = {each.name: each.focus_label for each in METERS}
_UNITS: Final = {
    "second": ("Seconds", "Audio Seconds"),
    "character": ("Characters", "Characters Spoken"),
    "image": ("Images", "Images"),
    "search": ("Searches", "Searches"),
}
"""Units in the plural, and their meters' names."""
_MILLI_PLACES: Final = 3
_AFTER_THE_FACT: Final = frozenset({"true-up", "correction", "reconciliation"})
_CORRECTIONS: Final = frozenset({"correction", "reconciliation"})
_IN_PRICING_CURRENCY: Final = ("ContractedUnitPrice", "EffectiveCost", "ListUnitPrice")
_NANO_PLACES: Final = 9
_FIGURE_PLACES: Final = 15
"""Decimal places of a dollar figure for one token: nano-dollars for a million."""
_BLENDED_PLACES: Final = 18
_MILLI: Final = 1_000
_PER_MILLION: Final = 1_000_000

Figures = Callable[[str, str], Awaitable[Price | None]]
"""Returns the figures of a target's price version; None when they are unknown."""
Row = Mapping[str, Any]


class FocusNames(msgspec.Struct, frozen=True):
    """Names of accounts by id; one without a name is called by its id."""

    organisations: Mapping[str, str]
    teams: Mapping[str, str]


class FocusQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query of whole days of a calendar from `start` up to `end`. Periods are told in UTC, as the standard has them."""

    scope: ReadScope
    start: dt.date
    end: dt.date
    by_hour: bool = False
    calendar: Calendar = UTC_CALENDAR

    def checked(self) -> "FocusQuery":
        """Return the query itself. Raises BadQuery for a range that is empty or too long."""
        most = MAX_DAYS_BY_HOUR if self.by_hour else MAX_DAYS
        if self.end <= self.start:
            raise BadQuery("it must be after `start`; it is the first day that is not included", param="end")
        if (self.end - self.start).days > most:
            raise BadQuery(f"an export has at most {most} days", param="end")
        return self


class _UnitPrice(msgspec.Struct, frozen=True):
    """Dollars per unit as an integer at a decimal place. `kind` tells one SKU's prices apart."""

    scaled: int
    places: int
    kind: str = ""


class FocusExport:
    """An export of the roll-ups as FOCUS; price figures and account names are injected."""

    def __init__(self, engine: AsyncEngine, figures: Figures, names: FocusNames, now_us: Callable[[], int]) -> None:
        self._engine = engine
        self._figures = figures
        self._names = names
        self._now_us = now_us

    async def csv(self, query: FocusQuery) -> AsyncIterator[str]:
        """Yield the CSV file in pieces, its heading first. Raises BadQuery."""
        yield csv_line(COLUMNS)
        async for page in self.rows(query):
            yield await asyncio.to_thread(_lines, page)

    async def rows(self, query: FocusQuery) -> AsyncIterator[list[dict[str, Cell]]]:
        """Yield pages of rows, each row by column. Raises BadQuery."""
        query.checked()
        known: dict[tuple[str, str], Price | None] = {}
        day = query.start
        while day < query.end:
            is_empty = True
            async for groups in self._groups(query, day):
                is_empty = False
                keys = [(group["target_id"], group["price_version"]) for group in groups]
                for key in keys:
                    if key not in known:
                        known[key] = await self._figures(*key)
                prices = [known[key] for key in keys]
                # A tenth of a second of work: not in the event loop.
                page = await asyncio.to_thread(self._charges, groups, prices, query)
                if page:
                    yield page
            day = await self._next_day(query, day) if is_empty else day + dt.timedelta(days=1)

    async def _next_day(self, query: FocusQuery, empty: dt.date) -> dt.date:
        """Return the first day after this one with data, so that an empty year is not 365 queries."""
        scope = query.scope
        days = days_with(["organisation_id"] if scope.team_id is None else ["organisation_id", "team_id"]).c
        start, following = days.start_us, empty + dt.timedelta(days=1)
        from_us, to_us = query.calendar.start(following), query.calendar.start(query.end)
        later = select(func.min(start)).where(*scoped(dict(days), scope), start > from_us - DAY_US, start < to_us)
        async with self._engine.connect() as connection:
            found = await connection.scalar(later)
        return query.end if found is None else max(following, query.calendar.day(int(found)))

    def _charges(
        self, groups: Sequence[Row], prices: Sequence[Price | None], query: FocusQuery
    ) -> list[dict[str, Cell]]:
        now_us = self._now_us()
        return [
            row
            for group, price in zip(groups, prices, strict=True)
            for row in charges(group, price, self._names, now_us, by_hour=query.by_hour, calendar=query.calendar)
        ]

    async def _groups(self, query: FocusQuery, day: dt.date) -> AsyncIterator[list[Row]]:
        """Yield one day's groups in pages, so that no connection is held while a caller reads slowly."""
        start_us, end_us = query.calendar.days(day, day)
        names = [name for name in ROLLUP_KEY if name != "start_us"]
        rows = rolled_up(
            self._engine, start_us, end_us, names, partial(scoped, scope=query.scope), by_hour=query.by_hour
        ).c
        hours = [rows.start_us - rows.start_us % literal_column(str(HOUR_US))] if query.by_hour else []
        order = [*hours, *(rows[name] for name in names)]
        start = hours[0] if hours else literal(start_us)
        sums = (func.sum(rows[name]).label(name) for name in ROLLUP_SUMS)
        columns: list[Any] = [start.label("start_us"), *(rows[name] for name in names), *sums]
        wanted = select(*columns).group_by(*order).order_by(*order).limit(_PAGE)
        last: tuple[Any, ...] | None = None
        while True:
            page = wanted if last is None else wanted.where(tuple_(*order) > tuple_(*last))
            async with self._engine.connect() as connection:
                groups = [_as_group(row, start_us) for row in (await connection.execute(page)).mappings()]
            if groups:
                yield groups
            if len(groups) < _PAGE:
                return
            last = tuple(groups[-1][name] for name in (["hour_us"] if hours else []) + names)


def _as_group(row: Mapping[Any, Any], day_us: int) -> Row:
    """Return a row of the database with whole numbers; it begins with its hour or, where that is later, with the day."""
    # PostgreSQL sums integers to Decimals.
    hour_us = int(row["start_us"])
    sums = {name: int(row[name]) for name in ROLLUP_SUMS}
    return {**row, **sums, "hour_us": hour_us, "start_us": max(hour_us, day_us)}


def _lines(rows: Sequence[Mapping[str, Cell]]) -> str:
    return "".join(csv_line(row[name] for name in COLUMNS) for row in rows)


def charges(
    group: Row,
    price: Price | None,
    names: FocusNames,
    now_us: int,
    *,
    by_hour: bool = False,
    calendar: Calendar = UTC_CALENDAR,
) -> list[dict[str, Cell]]:
    """Return the FOCUS rows of one roll-up row. `now_us` decides which billing periods are over."""
    month = bounds_us("month", group["start_us"], calendar)
    common = _common_cells(group, names, _charge_period(group, calendar, by_hour=by_hour), month)
    if group["origin"] == "idle":
        found = [_idle_cells(group)]
    else:
        period_is_over = month[1] <= now_us
        found = [_meter_row(group, meter, price, period_is_over=period_is_over) for meter in _used_meters(group, price)]
        rest = _unsplit_cost(group)
        if rest:
            told = f"{group['target_id']}: cost that is not split by meter"
            found.append(_adjustment_cells(rest, told))
    for place, row in enumerate(found):
        row.update({name: value for name, value in common.items() if name not in row})
        # One currency; the validator asks for these columns of everybody who publishes a price list. And of everybody
        # who measures usage it asks for CommitmentDiscountStatus, which is always null here, as InvoiceId is.
        row.update({f"PricingCurrency{name}": row[name] for name in _IN_PRICING_CURRENCY})
        if place == 0:
            row.update(_first_row_cells(group))
    return found


def _charge_period(group: Row, calendar: Calendar, *, by_hour: bool) -> tuple[int, int]:
    """Return the day, or the hour as far as it is within the day."""
    day = calendar.day(group["start_us"])
    start_us, end_us = calendar.days(day, day)
    # Postings of our own concern a day, whichever hour they are dated.
    if not by_hour or group["origin"] in _AFTER_THE_FACT or group["origin"] == "idle":
        return start_us, end_us
    hour_us = group["start_us"] - group["start_us"] % HOUR_US
    return max(hour_us, start_us), min(hour_us + HOUR_US, end_us)


def _common_cells(group: Row, names: FocusNames, charged: tuple[int, int], month: tuple[int, int]) -> dict[str, Cell]:
    """Return the columns that all rows of a group share. A group's own columns come first in every row."""
    organisation, team, pool = group["organisation_id"], group["team_id"] or None, _pool(group)
    provider = group["provider"] or organisation
    row: dict[str, Cell] = dict.fromkeys(COLUMNS)
    row.update(
        {
            "BillingAccountId": organisation,
            "BillingAccountName": _account_name(names.organisations, organisation),
            "BillingAccountType": "Organisation",
            "BillingCurrency": "USD",
            "BillingPeriodStart": iso(month[0]),
            "BillingPeriodEnd": iso(month[1]),
            "ChargePeriodStart": iso(charged[0]),
            "ChargePeriodEnd": iso(charged[1]),
            "InvoiceIssuerName": provider,
            "PricingCurrency": "USD",
            "ProviderName": provider,
            "PublisherName": provider,
            "ServiceCategory": "AI and Machine Learning",
            "ServiceName": "Language Model Inference",
            "ServiceSubcategory": "Generative AI",
            "SubAccountId": team,
            "SubAccountName": team and _account_name(names.teams, team),
            "SubAccountType": team and "Team",
            "Tags": _json({"tag": group["tag"]}) if group["tag"] else None,
            "x_Model": group["target_id"],
            "x_KeyId": group["key_id"] or None,
            "x_Tier": group["tier"],
            "x_ServedBy": f"pool {pool}" if pool else group["provider"] or None,
            "x_Origin": group["origin"],
            "x_PriceTableVersion": group["price_version"] or None,
        }
    )
    if pool:
        row.update({"ResourceId": f"pool/{pool}", "ResourceName": pool, "ResourceType": "GPU Pool"})
    return row


def _account_name(names: Mapping[str, str], account_id: str) -> str:
    """Return an account's name in ASCII as the standard wants it; its id if too little of the name is left."""
    bare = "".join(each for each in normalize("NFKD", names.get(account_id, "")) if not combining(each))
    told = bare.encode("ascii", "replace").decode()
    return told if any(map(str.isalnum, told)) else account_id


def _pool(group: Row) -> str:
    pool: str = group["pool"] or (group["target_id"] if group["origin"] == "idle" else "")
    return pool


def _first_row_cells(group: Row) -> dict[str, Cell]:
    return {
        "x_RequestCount": group["requests"],
        "x_UnpricedAttemptCount": group["unpriced_attempts"],
        "x_EstimatedAttemptCount": group["estimated_attempts"],
        "x_CounterfactualCost": _decimal(group["baseline_nanousd"], _NANO_PLACES) if group["baseline_rows"] else None,
        "x_BatchSavings": _decimal(group["batch_saved_nanousd"], _NANO_PLACES),
    }


def _used_meters(group: Row, price: Price | None) -> Iterator[str]:
    """Yield the meters that a group has something on; requests only if they have a unit, a price or a cost."""
    figures = dict(zip(METER_NAMES, price.figures(), strict=True)) if price is not None else {}
    for meter in METER_NAMES:
        has_cost = group[f"{meter}_nanousd"] != 0
        if has_cost or (_quantity(group, meter) != 0 and (meter != "request" or group["unit"] or figures.get(meter))):
            yield meter


def _unsplit_cost(group: Row) -> int:
    """Return the cost that was booked before costs were split by meter."""
    rest: int = group["cost_nanousd"] - sum(group[name] for name in METER_COLUMNS)
    return rest


def _quantity(group: Row, meter: str) -> int:
    """Return the units used of one meter, without overlap."""
    if meter == "request" and group["unit"]:
        quantity: int = group["quantity_milli"]
        return quantity
    return split_row(group, group["attempts"])[METER_NAMES.index(meter)]


def _scale(group: Row, meter: str) -> int:
    """Return the divisor of a meter's quantity: quantities of units are in thousandths."""
    return _MILLI if meter == "request" and group["unit"] else 1


def _shown(group: Row, meter: str) -> Decimal:
    return _decimal(_quantity(group, meter), 0 if _scale(group, meter) == 1 else _MILLI_PLACES)


def _unit(group: Row, meter: str) -> str:
    if meter != "request":
        return "Tokens"
    return _UNITS[_kind(group)][0] if group["unit"] else "Requests"


def _label(group: Row, meter: str) -> str:
    if meter == "request" and group["unit"]:
        return unit_label(group["unit"])
    return _LABELS[meter]


def unit_label(unit: str) -> str:
    """Return the words for a unit of the ledger: `image/hd` is `Images (hd)`."""
    name, _, kind = unit.partition("/")
    return _UNITS[name][1] + (f" ({kind})" if kind else "")


def _kind(group: Row) -> str:
    kind: str = group["unit"].partition("/")[0]
    return kind


def _sku(group: Row, meter: str) -> str:
    return f"{group['target_id']}/{group['unit'] if meter == 'request' and group['unit'] else meter}"


def _meter_row(group: Row, meter: str, price: Price | None, *, period_is_over: bool) -> dict[str, Cell]:
    cost_nanousd, quantity = group[f"{meter}_nanousd"], _quantity(group, meter)
    label = f"{_label(group, meter)} of {group['target_id']}"
    sku: dict[str, Cell] = {
        "SkuId": _sku(group, meter),
        "SkuMeter": _label(group, meter),
        "x_TokenType": group["unit"] or meter if meter == "request" else meter,
        "x_Quantity": quantity if _scale(group, meter) == 1 else _shown(group, meter),
    }
    if group["origin"] in _AFTER_THE_FACT:
        correction = group["origin"] in _CORRECTIONS and period_is_over
        made = _correction_cells(group, meter) if correction else _adjustment_cells(cost_nanousd, "")
        return {**sku, **made, "ChargeDescription": f"{label}: {group['origin']}"}
    if price is None and group["unpriced_attempts"] and not group["cost_nanousd"]:
        return {
            **sku,
            **_adjustment_cells(cost_nanousd, f"{label}: the price is unknown, so the cost is not in these books"),
        }
    if price is None and not cost_nanousd and _unsplit_cost(group):
        return {
            **sku,
            **_adjustment_cells(cost_nanousd, f"{label}: its cost stands in the row that is not split by meter"),
        }
    unit = _unit_price(group, meter, price)
    if unit is None:
        return {**sku, **_adjustment_cells(cost_nanousd, f"{label}: cost without a quantity that explains it")}
    return {**sku, **_usage_cells(group, meter, unit), "ChargeDescription": label}


def _usage_cells(group: Row, meter: str, unit: _UnitPrice) -> dict[str, Cell]:
    quantity, scale = _quantity(group, meter), _scale(group, meter)
    version = group["price_version"]
    details = {
        "x_Model": group["target_id"],
        "x_Meter": meter,
        "x_Unit": group["unit"] if meter == "request" else "",
        "x_PriceTableVersion": version,
        "x_Kind": unit.kind,
    }
    places = unit.places if scale == 1 else unit.places + _MILLI_PLACES
    product, price = _decimal(unit.scaled * quantity, places), _decimal(unit.scaled, unit.places)
    return {
        **_cost_cells(group[f"{meter}_nanousd"]),
        "ListCost": product,
        "ContractedCost": product,
        "ListUnitPrice": price,
        "ContractedUnitPrice": price,
        "PricingQuantity": _shown(group, meter),
        "PricingUnit": _unit(group, meter),
        "PricingCategory": "Standard",
        "ConsumedQuantity": _shown(group, meter),
        "ConsumedUnit": _unit(group, meter),
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "SkuPriceId": f"{_sku(group, meter)}@{version}" + (f"+{unit.kind}" if unit.kind else ""),
        "SkuPriceDetails": _json({name: value for name, value in details.items() if value}),
    }


def _idle_cells(group: Row) -> dict[str, Cell]:
    """Return the row of a pool's idle GPUs: one day, at its cost."""
    cost_nanousd = group["cost_nanousd"]
    told = f"Idle GPUs of pool {_pool(group)}"
    if cost_nanousd < 0:
        return _adjustment_cells(cost_nanousd, told)
    sku = f"{group['target_id']}/idle"
    unit_price = _decimal(cost_nanousd, _NANO_PLACES)
    return {
        **_cost_cells(cost_nanousd),
        "ListUnitPrice": unit_price,
        "ContractedUnitPrice": unit_price,
        "PricingQuantity": _decimal(1, 0),
        "PricingUnit": "Days",
        "PricingCategory": "Standard",
        "ConsumedQuantity": _decimal(1, 0),
        "ConsumedUnit": "Days",
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "ChargeDescription": told,
        "SkuId": sku,
        "SkuMeter": "Idle Capacity",
        "SkuPriceId": sku,
        "SkuPriceDetails": _json({"x_Pool": _pool(group)}),
    }


def _adjustment_cells(cost_nanousd: int, told: str) -> dict[str, Cell]:
    return {
        **_cost_cells(cost_nanousd),
        "ChargeCategory": "Adjustment",
        "ChargeFrequency": "One-Time",
        "ChargeDescription": told,
    }


def _correction_cells(group: Row, meter: str) -> dict[str, Cell]:
    used: dict[str, Cell] = {
        "ConsumedQuantity": _shown(group, meter),
        "ConsumedUnit": _unit(group, meter),
        "PricingQuantity": _shown(group, meter),
        "PricingUnit": _unit(group, meter),
    }
    return {
        **_cost_cells(group[f"{meter}_nanousd"]),
        **(used if _quantity(group, meter) else {}),
        "ChargeCategory": "Usage",
        "ChargeClass": "Correction",
        "ChargeFrequency": "Usage-Based",
    }


def _cost_cells(cost_nanousd: int) -> dict[str, Cell]:
    exact = _decimal(cost_nanousd, _NANO_PLACES)
    return {"BilledCost": exact, "EffectiveCost": exact, "ListCost": exact, "ContractedCost": exact}


def _unit_price(group: Row, meter: str, price: Price | None) -> _UnitPrice | None:
    """Return the listed price that explains the cost, else the usual listed one, else the blended one.

    Roll-ups do not tell long prompts from others, so a group may have been booked at two of a version's figures. None
    when nothing but a negative price would explain the cost.
    """
    quantity, cost_nanousd = _quantity(group, meter), group[f"{meter}_nanousd"]
    scale = _scale(group, meter)
    if price is not None:
        # Each attempt's part may be rounded by one nano-dollar.
        most_rounding = max(1, abs(group["attempts"])) * _PER_MILLION
        offered = [(kind, _figure(each, group, meter)) for kind, each in _prices_within(price)]
        for kind, figure in offered:
            if abs(figure * quantity - cost_nanousd * _PER_MILLION * scale) <= most_rounding * scale:
                return _UnitPrice(figure, _FIGURE_PLACES, kind)
        if len(offered) == 1 or group["unpriced_attempts"]:
            return _UnitPrice(offered[0][1], _FIGURE_PLACES) if quantity else None
    if quantity == 0 or cost_nanousd * quantity < 0:
        return None
    blended = (2 * abs(cost_nanousd) * scale * 10 ** (_BLENDED_PLACES - _NANO_PLACES) + abs(quantity)) // (
        2 * abs(quantity)
    )
    return _UnitPrice(blended, _BLENDED_PLACES, "blended")


def _figure(price: Price, group: Row, meter: str) -> int:
    """Return a meter's figure, in nano-dollars per million."""
    if meter == "request" and group["unit"]:
        priced = price.priced_unit(group["unit"])
        return 0 if priced is None else priced.nanousd
    return price.figures()[METER_NAMES.index(meter)]


def _prices_within(price: Price) -> list[tuple[str, Price]]:
    """Return the prices within a version by kind, the usual one first."""
    found = [("", price), *((f"above-{each.above_tokens}", each.price) for each in price.long_prompts)]
    for terms, other in (("batch", price.batch), ("flex", price.flex), ("priority", price.priority)):
        if other is not None:
            found += [(f"{terms}-{kind}" if kind else terms, each) for kind, each in _prices_within(other)]
    return found


def _decimal(scaled: int, places: int) -> Decimal:
    """Return `scaled` x 10^-`places` exactly, whatever the precision of the decimal context is.

    It keeps a decimal place also when it is whole: readers guess a column's type from its values.
    """
    if places == 0:
        scaled, places = scaled * 10, 1
    while places > 1 and scaled % 10 == 0:
        scaled //= 10
        places -= 1
    return Decimal(f"{scaled}E-{places}")


def _json(value: Mapping[str, str]) -> str:
    return msgspec.json.encode(value).decode()
