"""/dashboard/finance: the savings report, its comparators, its uncertainty, and the verdict on the promise."""

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.web.reading import reading
from cost.prices import NANO_PER_USD
from cost.reports.usage import known_cost
from cost.savings.comparisons import ComparatorName, Part, Word
from cost.savings.savings_reader import SavingsInputs
from cost.savings.savings_report import DAILY_COLUMNS, FleetSavings, SavingsReport, comparability, daily
from cost.times import start_of
from dashboards.ui.charts import Chart, Series
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.period import chosen_scope, kept_fields, period_of, presets, team_names, whose, whose_asked
from dashboards.web.view import PageRequest

router: Final = APIRouter(include_in_schema=False)

TONES: Final[Mapping[Word, str]] = {"met": "good", "not met": "bad", "not measured": "warn", "not enough data": "warn"}
_COMPARED: Final[Mapping[ComparatorName, str]] = {
    "reference": "The baseline model",
    "cheapest": "Cheapest good-enough model",
    "hosted": "Same weights, hosted by others",
}
_PARTS: Final[Mapping[Part, tuple[str, str]]] = {
    "requests": ("Requests", "failed attempts and retries too"),
    "shadow": ("Shadow calls", "comparisons made behind requests, their judge, and measuring of models"),
    "corrections": ("Corrections", "of prices, and to the provider's own figures"),
    "true-up": ("Adjustment of our GPUs", "from the planned rate to the bill"),
    "idle": ("Idle GPUs", "hours that no team used"),
    "gateway": ("The gateway's machines", "beside the ledger"),
}
_COMPARISONS: Final = (
    Column("compared", "Compared with"),
    Column("verdict", "Savings target", "badge"),
    Column("share", "Saved", "exact_share", "As a share of what it would have cost, rounded down"),
    Column("saved", "In dollars", "money"),
    Column("baseline", "Would have cost", "money", "The same served requests, at those prices"),
    Column("cost", "Cost", "money", "All spend, except requests that this comparison has no figure for"),
    Column("coverage", "Coverage", "exact_share", "Served requests that have a figure to compare with"),
)
_FLEET: Final = (
    Column("pool", "Pool"),
    Column("compared", "Compared with"),
    Column("verdict", "Savings target", "badge"),
    Column("share", "Here / elsewhere", "exact_share", "Rounded up; 60 % or less is a saving of 40 %"),
    Column("cost", "Here", "money", "The bill for the hours up, idle or not"),
    Column("baseline", "Elsewhere", "money", "What its tokens would have cost there"),
    Column(
        "needed", "Needed utilisation", "share", "Where the target would be reached at these prices; above 100 % never"
    ),
)
_DAYS: Final = (
    Column("day", "Day", "day"),
    Column("served", "Requests served", "number"),
    Column("cost", "Cost", "money"),
    Column("reference", "At the baseline model", "money"),
    Column("reference_share", "Saved", "share"),
    Column("cheapest", "At the cheapest good enough", "money"),
    Column("hosted", "Same weights, hosted", "money", usual=False),
    Column("idle", "Idle GPUs", "money", usual=False),
    Column("bill", "GPUs' bill", "money", usual=False),
    Column("utilisation", "Utilisation", "share", usual=False),
    Column("estimated", "Estimated", "share", usual=False),
    Column("unpriced", "Without a price", "number", usual=False),
    Column("state", "State", "badge"),
)


@router.get("/dashboard/finance")
async def show(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Show the savings of the chosen days, of the organisation or of one team."""
    gateway, now_us = view.gateway, view.now_us
    if (asked := await whose_asked(view)) is not None:
        return asked
    async with reading(gateway, on=True):
        period = period_of(view.query, now_us, await view.calendar())
        scope, team = await chosen_scope(view)
        teams = await team_names(view)
        inputs = await gateway.finance.savings.inputs(scope, period.span)
        found = await gateway.finance.savings.report(scope, inputs)
    section = gateway.config().cost
    days = _days(inputs, found, section.gateway_usd_per_hour, now_us, view.query)
    names = _names(section.reference_target)
    comparisons = Table.of(
        _COMPARISONS, _comparison_rows(found, names), view.query, name="comparisons", caption="Comparisons", sort=""
    )
    fleet = Table.of(
        _FLEET, _fleet_rows(found.fleets, names), view.query, name="pools", caption="Our own GPUs", sort=""
    )
    stem = f"claim-{period.first}-{period.last}"
    return view.csv_asked(stem, comparisons, fleet, days, problem=period.problem) or view.page(
        "finance/savings.html",
        title="Savings",
        period=period,
        presets=presets(view.query, now_us, period),
        kept=kept_fields(view.query),
        team=team,
        teams=whose(teams),
        savings=found,
        beside=comparability(found),
        cost=known_cost(found.figures.unpriced_attempts, found.cost_nanousd),
        tone=TONES[found.verdict],
        reference=section.reference_target,
        comparisons=comparisons,
        reasons=[(names[each.comparator], each.reasons) for each in found.comparisons if each.reasons],
        parts=_parts(found),
        fleets=[(each, _busy_share(each)) for each in found.fleets],
        fleet=fleet,
        days=days,
        chart=_chart(days.all_rows, period.time_zone),
        holdout_share=section.holdout_share,
    )


def _names(reference: str | None) -> dict[ComparatorName, str]:
    named = f"{reference} (the baseline model)" if reference else _COMPARED["reference"]
    return {**_COMPARED, "reference": named}


def _comparison_rows(found: SavingsReport, names: Mapping[ComparatorName, str]) -> list[dict[str, Any]]:
    return [
        {
            "compared": names[each.comparator],
            # Without a figure for any request there is nothing that it would have cost.
            "baseline": each.baseline_nanousd or None,
            "cost": known_cost(found.figures.unpriced_attempts, each.cost_nanousd),
            "saved": each.saving_nanousd if each.baseline_nanousd else None,
            "share": each.share,
            "coverage": each.coverage,
            "verdict": (each.verdict, TONES[each.verdict]),
        }
        for each in found.comparisons
    ]


def _parts(found: SavingsReport) -> list[tuple[str, str, int]]:
    """Return the cost by component as (label, note, nano-dollars), without empty components except requests."""
    return [
        (label, note, found.parts[part])
        for part, (label, note) in _PARTS.items()
        if found.parts[part] or part == "requests"
    ]


def _busy_share(each: FleetSavings) -> Decimal | None:
    utilisation = each.fleet.utilisation
    return None if utilisation is None else Decimal(utilisation.numerator) / utilisation.denominator


def _fleet_rows(fleets: Sequence[FleetSavings], names: Mapping[ComparatorName, str]) -> list[dict[str, Any]]:
    return [
        {
            "pool": each.pool or "All pools",
            "compared": names[one.comparator],
            "baseline": one.baseline_nanousd or None,
            "cost": one.cost_nanousd,
            "share": one.cost_share,
            "needed": one.needed_utilisation,
            "verdict": (one.verdict, TONES[one.verdict]),
        }
        for each in fleets
        for one in each.comparisons
    ]


def _days(
    inputs: SavingsInputs, found: SavingsReport, usd_per_hour: Decimal, now_us: int, query: Mapping[str, str]
) -> Table:
    # Only one organisation pays for the gateway; the report has decided already whether it is this one.
    paid = usd_per_hour if found.parts["gateway"] else Decimal(0)
    rows = [_day_row(row) for row in daily(inputs, gateway_usd_per_hour=paid, now_us=now_us)]
    return Table.of(
        _DAYS,
        rows,
        query,
        name="days",
        caption="Days",
        sort="-day",
        page_rows=15,
        empty="No day of this time has begun.",
    )


def _day_row(told: Sequence[Any]) -> dict[str, Any]:
    row = dict(zip(DAILY_COLUMNS, told, strict=True))
    return {
        "day": start_of(date.fromisoformat(row["day"])),
        "served": row["served_requests"],
        "cost": known_cost(row["unpriced_attempts"], _nanousd(row["cost_usd"])),
        # Without a figure for any request there is nothing that it would have cost.
        "reference": _nanousd(row["reference_baseline_usd"]) or None,
        "reference_share": row["reference_savings_share"],
        "cheapest": _nanousd(row["cheapest_baseline_usd"]) or None,
        "hosted": _nanousd(row["hosted_baseline_usd"]) or None,
        "idle": _nanousd(row["idle_usd"]),
        "bill": _nanousd(row["fleet_bill_usd"]),
        "utilisation": row["fleet_utilisation"],
        "estimated": row["estimated_share"],
        "unpriced": row["unpriced_attempts"],
        "state": ("provisional", "warn") if row["provisional"] == "yes" else ("final", "quiet"),
    }


def _nanousd(amount: Decimal) -> int:
    return int(amount * NANO_PER_USD)


def _chart(rows: Sequence[Mapping[str, Any]], time_zone: str) -> Chart:
    """Return the cost by day, in order of days however the table is sorted."""
    ordered = sorted(rows, key=lambda row: int(row["day"]))
    return Chart(
        shape="line",
        title="Cost and what it would have cost",
        x=[row["day"] for row in ordered],
        series=[
            Series("Cost", [row["cost"] for row in ordered], "accent"),
            Series("At the baseline model", [row["reference"] for row in ordered], "warn"),
            Series("At the cheapest good enough", [row["cheapest"] for row in ordered], "quiet"),
        ],
        unit="usd",
        x_label=f"Day ({time_zone})",
        caption="US dollars a day; the space between the lines is what was saved.",
    )
