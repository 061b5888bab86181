"""The savings report and its JSON: three comparisons, our own GPUs by themselves, and the certainty."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Any, Final

import msgspec

from cost.calendar import UTC_CALENDAR, Calendar
from cost.prices import nanousd, usd
from cost.savings.comparisons import (
    COMPARATORS,
    Comparison,
    Figures,
    FleetComparison,
    FleetTotals,
    Line,
    Part,
    Quality,
    Word,
    compare,
    compare_fleet,
    cost_parts,
    figures,
    floor,
    quality,
)
from cost.savings.holdout import ArmSums, Measured, measured
from cost.savings.savings_reader import SavingsInputs
from cost.times import DAY_US, HOUR_US, day_of

_HOURS_PLACES: Final = Decimal("0.01")


class FleetSavings(msgspec.Struct, frozen=True, kw_only=True):
    """One pool, or all pools together: its figures and its three comparisons."""

    pool: str
    """Pool name; empty for all together."""
    fleet: FleetTotals
    today: FleetTotals | None
    """The last day of the range by itself when that is today, else None."""
    comparisons: tuple[FleetComparison, ...]


class SavingsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Savings of a range of whole days, with the verdict against the target share."""

    start_us: int
    end_us: int
    target: Decimal
    figures: Figures
    parts: dict[Part, int]
    """Spending by kind of cost, in nano-dollars; the parts add up to all of it."""
    comparisons: tuple[Comparison, ...]
    fleets: tuple[FleetSavings, ...]
    """All pools together, then each; empty without pools and for a single team. A single pool stands alone."""
    quality: Quality | None
    measured: Measured | None
    holdout: ArmSums
    control: ArmSums
    arms_from_us: int | None
    provisional_days: tuple[int, ...]
    """UTC days, of which our own GPUs are billed."""
    calendar: Calendar = UTC_CALENDAR

    @property
    def cost_nanousd(self) -> int:
        """Everything that was spent."""
        return sum(self.parts.values())

    @property
    def verdict(self) -> Word:
        """The verdict against the configured reference."""
        return self.comparisons[0].verdict


class Comparability(msgspec.Struct, frozen=True, kw_only=True):
    """The calculated saving beside the measured one: who is in each, and whether they agree."""

    calculated: Decimal
    measured: Measured
    took_part: int
    """Requests of both arms."""
    served: int
    each_nanousd: int
    """Mean cost of a request that took part and was routed as always."""
    all_each_nanousd: int
    """Mean cost of all requests that were served."""

    @property
    def agrees(self) -> bool:
        """True if the calculated share lies within the measured interval."""
        return self.measured.low <= self.calculated <= self.measured.high

    @property
    def part(self) -> Decimal | None:
        """Share of the served requests that took part, rounded down."""
        return _share(min(self.took_part, self.served), self.served)


def comparability(found: SavingsReport) -> Comparability | None:
    """Return the comparison of calculation and experiment; None while either has no figure."""
    calculated = found.comparisons[0].share
    if found.measured is None or calculated is None or not found.figures.served:
        return None
    return Comparability(
        calculated=calculated,
        measured=found.measured,
        took_part=found.holdout.requests + found.control.requests,
        served=found.figures.served,
        each_nanousd=found.control.cost_nanousd // found.control.requests,
        all_each_nanousd=found.parts["requests"] // found.figures.served,
    )


def savings_report(
    inputs: SavingsInputs,
    *,
    target: Decimal,
    gateway_usd_per_hour: Decimal,
    now_us: int,
    judged: tuple[int, int] | None,
    is_unbilled: Callable[[str], bool] = lambda _target_id: False,
) -> SavingsReport:
    """Compute the report. `target` is the promised share; `judged` is (adequate answers, judged answers), or None.
    `is_unbilled` tells of a target whether it runs on own engines that nobody has said the cost of.
    """
    served_by = {line.target_id for line in inputs.lines if line.served and not line.pool}
    unbilled = sorted(filter(is_unbilled, served_by))
    gateway = gateway_nanousd(gateway_usd_per_hour, inputs.start_us, inputs.end_us, now_us)
    found, parts = figures(inputs.lines, billed=inputs.billed), cost_parts(inputs.lines, gateway)
    interval = measured(
        inputs.holdout, inputs.control, _overhead_per_request(parts, found.served - inputs.holdout.requests)
    )
    return SavingsReport(
        start_us=inputs.start_us,
        end_us=inputs.end_us,
        calendar=inputs.calendar,
        target=target,
        figures=found,
        parts=parts,
        comparisons=compare(found, gateway, target, interval, inputs.overworked, unbilled),
        fleets=tuple(_fleets(inputs, target, now_us)),
        quality=None if judged is None else quality(*judged),
        measured=interval,
        holdout=inputs.holdout,
        control=inputs.control,
        arms_from_us=inputs.arms_from_us,
        provisional_days=inputs.provisional_days,
    )


def _overhead_per_request(parts: dict[Part, int], requests: int) -> int:
    """Return the spending beside requests per request that was routed as usual, in nano-dollars."""
    return (sum(parts.values()) - parts["requests"]) // requests if requests > 0 else 0


def gateway_nanousd(usd_per_hour: Decimal, start_us: int, end_us: int, now_us: int) -> int:
    """Return the cost of the gateway's machines in the past part of the range, rounded half up."""
    amount = Fraction(nanousd(usd_per_hour) * max(0, min(end_us, now_us) - start_us), HOUR_US)
    return (2 * amount.numerator + amount.denominator) // (2 * amount.denominator)


def _fleets(inputs: SavingsInputs, target: Decimal, now_us: int) -> Iterator[FleetSavings]:
    names = sorted({each.pool for each in inputs.pools})
    today = now_us - now_us % DAY_US
    for name in ["", *names] if len(names) != 1 else names:
        days = [each for each in inputs.pools if name in {"", each.pool}]
        if days:
            whole = reduce(add, (each.fleet for each in days), FleetTotals())
            now = [each.fleet for each in days if each.day_us == today]
            yield FleetSavings(
                pool=name,
                fleet=whole,
                today=reduce(add, now) if now else None,
                comparisons=compare_fleet(whole, target),
            )


def savings_as_json(found: SavingsReport) -> dict[str, Any]:
    """Return the report as JSON-ready values: money as exact Decimals in dollars, shares as numbers from 0 to 1."""
    counted = found.figures
    return {
        "object": "savings",
        "start": found.calendar.day(found.start_us).isoformat(),
        "end": found.calendar.day(found.end_us).isoformat(),
        "time_zone": found.calendar.at(found.end_us - 1).time_zone,
        "target_share": found.target,
        "verdict": found.verdict,
        "comparisons": [_comparison_as_json(each) for each in found.comparisons],
        "cost_usd": usd(found.cost_nanousd),
        "cost": {f"{name.replace('-', '_')}_usd": usd(amount) for name, amount in found.parts.items()},
        "served_requests": counted.served,
        "attempts": counted.attempts,
        "estimated_share": _share(counted.estimated_attempts, counted.attempts),
        "unpriced_attempts": counted.unpriced_attempts,
        "quality": _quality_as_json(found.quality),
        "measured": _measured_as_json(found),
        "fleet": [_fleet_as_json(each) for each in found.fleets],
        "provisional": bool(found.provisional_days),
        "provisional_days": [day_of(day).isoformat() for day in found.provisional_days],
    }


def _comparison_as_json(each: Comparison) -> dict[str, Any]:
    return {
        "comparator": each.comparator,
        "baseline_usd": usd(each.baseline_nanousd),
        "cost_usd": usd(each.cost_nanousd),
        "savings_usd": usd(each.saving_nanousd),
        "savings_share": each.share,
        "coverage": each.coverage,
        "verdict": each.verdict,
        "reasons": each.reasons,
    }


def _quality_as_json(found: Quality | None) -> dict[str, Any] | None:
    return None if found is None else msgspec.structs.asdict(found)


def _measured_as_json(found: SavingsReport) -> dict[str, Any] | None:
    if not found.holdout.requests and not found.control.requests:
        return None
    arms: dict[str, Any] = {
        f"{name}_requests": arm.requests for name, arm in (("holdout", found.holdout), ("control", found.control))
    }
    arms["left_out_unpriced"] = found.holdout.unpriced + found.control.unpriced
    # With very many requests only the latest days are read.
    from_us = found.start_us if found.arms_from_us is None else found.arms_from_us
    arms["from"] = found.calendar.day(from_us).isoformat()
    if found.measured is None:
        return {
            **arms,
            "savings_share": None,
            "low": None,
            "high": None,
            "beside_usd_per_request": None,
        } | _INCOMPARABLE
    beside = comparability(found)
    return {
        **arms,
        "savings_share": found.measured.saving,
        "low": found.measured.low,
        "high": found.measured.high,
        "beside_usd_per_request": usd(found.measured.beside_nanousd),
        "agrees_with_calculation": None if beside is None else beside.agrees,
        "share_of_served": None if beside is None else beside.part,
    }


_INCOMPARABLE: Final = {"agrees_with_calculation": None, "share_of_served": None}


def _fleet_as_json(each: FleetSavings) -> dict[str, Any]:
    fleet = each.fleet
    return {
        "pool": each.pool or None,
        "bill_usd": usd(fleet.bill_nanousd),
        "replica_hours_up": _hours(fleet.up_us),
        "replica_hours_busy": _hours(fleet.busy_us),
        "utilisation": _utilisation(fleet),
        "utilisation_today": None if each.today is None else _utilisation(each.today),
        "overfull": fleet.overfull,
        "comparisons": [
            {
                "comparator": one.comparator,
                "cost_usd": usd(one.cost_nanousd),
                "baseline_usd": usd(one.baseline_nanousd),
                "cost_share": one.cost_share,
                "coverage": one.coverage,
                "needed_utilisation": one.needed_utilisation,
                "verdict": one.verdict,
                "reasons": one.reasons,
            }
            for one in each.comparisons
        ],
    }


def _utilisation(fleet: FleetTotals) -> Decimal | None:
    return None if fleet.utilisation is None else floor(fleet.utilisation)


def _hours(time_us: int) -> Decimal:
    return (Decimal(time_us) / HOUR_US).quantize(_HOURS_PLACES)


def _share(part: int, whole: int) -> Decimal | None:
    return floor(Fraction(part, whole)) if whole else None


DAILY_COLUMNS: Final = (
    "day",
    "served_requests",
    "cost_usd",
    *(f"{name}_{what}" for name in COMPARATORS for what in ("baseline_usd", "cost_usd", "savings_share", "coverage")),
    "idle_usd",
    "fleet_bill_usd",
    "fleet_utilisation",
    "estimated_share",
    "unpriced_attempts",
    "provisional",
)


def daily(inputs: SavingsInputs, *, gateway_usd_per_hour: Decimal, now_us: int) -> Iterator[tuple[Any, ...]]:
    """Yield one row a day in the order of `DAILY_COLUMNS`, without verdicts: a day is too little for one."""
    by_day: dict[int, list[Line]] = {}
    for line in inputs.lines:
        # A bill that is not posted yet has no day of its own, and stands where it will.
        by_day.setdefault(inputs.shown_us(line.day_us) if line.mark_us is None else line.mark_us, []).append(line)
    provisional = {inputs.shown_us(day) for day in inputs.provisional_days}
    for day in inputs.days.marks:
        start_us, end_us = inputs.calendar.days(day_of(day), day_of(day))
        if start_us >= now_us:
            return
        lines = by_day.get(day, [])
        gateway = gateway_nanousd(gateway_usd_per_hour, start_us, end_us, now_us)
        found, parts = figures(lines, billed=inputs.billed), cost_parts(lines, gateway)
        fleet = reduce(add, (each.fleet for each in inputs.pools if inputs.shown_us(each.day_us) == day), FleetTotals())
        compared = [
            cell
            for each in compare(found, gateway, Decimal("0.5"))
            for cell in (usd(each.baseline_nanousd), usd(each.cost_nanousd), each.share, each.coverage)
        ]
        yield (
            day_of(day).isoformat(),
            found.served,
            usd(sum(parts.values())),
            *compared,
            usd(parts["idle"]),
            usd(fleet.bill_nanousd),
            _utilisation(fleet),
            _share(found.estimated_attempts, found.attempts),
            found.unpriced_attempts,
            "yes" if day in provisional else "no",
        )
