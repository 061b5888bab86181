"""Daily report as CSV: one row per group, exact amounts, cells that no spreadsheet runs."""

from collections.abc import Iterator

from cost.prices import usd
from cost.reports.cells import Cell, csv_line
from cost.reports.daily import SECTIONS, DailyReport, meters_of, saving
from cost.reports.usage import UsageSums

_COLUMNS = (
    "day",
    "organisation",
    "team",
    "section",
    "name",
    "requests",
    "attempts",
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cost_usd",
    "baseline_usd",
    "saving_usd",
    "estimated_attempts",
    "unpriced_attempts",
)


def daily_csv(report: DailyReport) -> str:
    """Return the CSV file."""
    return "".join(csv_line(row) for row in (_COLUMNS, *_rows(report)))


def _rows(report: DailyReport) -> Iterator[tuple[Cell, ...]]:
    def row(section: str, name: str, sums: UsageSums) -> tuple[Cell, ...]:
        return (*_place(report), section, name, *_figures(sums))

    yield row("total", "", report.total)
    yield row("month to date", "", report.month)
    yield row("7 days before", "", report.week_before)
    for meter in meters_of(report.total):
        # The meter's own count stands among the tokens that it is; here only what it cost.
        cells: list[Cell] = [*_place(report), "meter", meter.name, *[None] * 12]
        cells[_COLUMNS.index("cost_usd")] = usd(meter.cost_nanousd)
        yield tuple(cells)
    if report.total.cache_hits:
        # What was given again is in no other sum.
        cells = [*_place(report), "given again", "", *[None] * 12]
        cells[_COLUMNS.index("requests")] = report.total.cache_hits
        cells[_COLUMNS.index("saving_usd")] = usd(report.total.cache_saved_nanousd)
        yield tuple(cells)
    for section in report.sections:
        for group in section.groups:
            yield row(section.dimension, group.name, group.sums)
        if section.left_out is not None:
            yield row(section.dimension, f"all other {SECTIONS[section.dimension]}", section.left_out)
    for pool in report.pools:
        cells = [*_place(report), "pool hours", pool.pool, *[None] * 12]
        found = pool.earnings
        amounts = (found.paid_nanousd, found.avoided_nanousd, found.net_nanousd)
        for column, amount in zip(("cost_usd", "baseline_usd", "saving_usd"), amounts, strict=True):
            cells[_COLUMNS.index(column)] = usd(amount)
        yield tuple(cells)
    for each in report.days:
        yield row("day", each.day.isoformat(), each.sums)


def _place(report: DailyReport) -> tuple[str, str, str]:
    return report.day.isoformat(), report.organisation_id, report.team_id or ""


def _figures(sums: UsageSums) -> tuple[Cell, ...]:
    saved, spent = saving(sums), sums.known_cost_nanousd
    return (
        sums.requests,
        sums.attempts,
        sums.input_tokens,
        sums.cached_input_tokens,
        sums.cache_write_tokens,
        sums.output_tokens,
        sums.reasoning_tokens,
        None if spent is None else usd(spent),
        None if saved is None else usd(sums.baseline_nanousd),
        None if saved is None else usd(saved),
        sums.estimated_attempts,
        sums.unpriced_attempts,
    )
