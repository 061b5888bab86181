"""Monthly statement as CSV: a line per team, model, pool, unit and kind of cost. Its amounts add up to the spending."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final

from cost.close.month import Month
from cost.prices import usd
from cost.reports.cells import Cell, csv_line
from cost.reports.period import PeriodLine

COLUMNS: Final = (
    "month",
    "organisation_id",
    "team_id",
    "team",
    "provider",
    "model",
    "pool",
    "kind",
    "requests",
    "attempts",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "cost_usd",
    "reference_usd",
    "unpriced_attempts",
    "estimated_attempts",
    "batch_saved_usd",
    "unit",
    "quantity",
)
_MILLI: Final = 1_000


def statement_csv(
    month: Month,
    organisation_id: str,
    lines: Sequence[PeriodLine],
    teams: Mapping[str, str],
    *,
    gateway_nanousd: int = 0,
) -> str:
    """Return the CSV file.

    `teams` maps ids to names; `gateway_nanousd` above 0 adds a line for the gateway's machines.
    """
    rows = _rows(month, organisation_id, lines, teams, gateway_nanousd)
    return "".join(csv_line(row) for row in (COLUMNS, *rows))


def _rows(
    month: Month, organisation_id: str, lines: Sequence[PeriodLine], teams: Mapping[str, str], gateway_nanousd: int
) -> Iterator[tuple[Cell, ...]]:
    for line in lines:
        # Unpriced attempts and no cost: unknown, which is not 0.
        unknown = line.unpriced_attempts and not line.cost_nanousd
        yield (
            month.text,
            organisation_id,
            line.team_id,
            teams.get(line.team_id, ""),
            line.provider,
            line.target_id,
            line.pool,
            line.part,
            line.requests,
            line.attempts,
            line.input_tokens,
            line.cached_input_tokens,
            line.output_tokens,
            None if unknown else usd(line.cost_nanousd),
            usd(line.baseline_nanousd) if line.baseline_rows else None,
            line.unpriced_attempts,
            line.estimated_attempts,
            usd(line.batch_saved_nanousd),
            line.unit,
            Decimal(line.quantity_milli) / _MILLI if line.unit else None,
        )
    if gateway_nanousd:
        zeros: tuple[Cell, ...] = (0,) * 5
        yield (
            month.text,
            organisation_id,
            "",
            "",
            "",
            "",
            "",
            "gateway",
            *zeros,
            usd(gateway_nanousd),
            None,
            0,
            0,
            usd(0),
            "",
            None,
        )
