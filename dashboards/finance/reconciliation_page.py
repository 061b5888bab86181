"""/dashboard/finance/reconciliation: a provider's export compared with the books, and the differences posted so far."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from api.web.reading import reading
from cost.close.checklist import ProviderMonth, providers_of
from cost.dimensions import UsageFilters
from cost.prices import usd
from cost.reconcile.coverage import keep_compared, outcomes
from cost.reconcile.ledger_side import TooManyRows
from cost.reconcile.matching import ALL, Line, Reconciliation
from cost.reconcile.reconciliation_report import Tolerance, differing, tolerance_of
from cost.reconcile.statement import TOKEN_METERS, BadExport
from cost.reports.period import PeriodReader
from cost.reports.usage import UsageQuery, UsageReader, UsageRow
from cost.shown import rounded_money
from cost.times import day_of
from dashboards.finance.comparison import EXPORTERS, Exporter, compared, upstream_models
from dashboards.finance.upload import Files, read_upload
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.forms import Form, FormError
from dashboards.web.period import Period, period_of, presets, team_names, whole_organisation
from dashboards.web.view import PageRequest
from proxy.errors import Refused, UsageUnavailable

router: Final = APIRouter(include_in_schema=False)

PATH: Final = "/dashboard/finance/reconciliation"
_MOST_ROWS: Final = 5_000
_MOST_LINES: Final = 1_000
_MOST_CHARS: Final = 2_000
_PATIENCE_S: Final = 30.0
_POSTED: Final = (
    Column("day", "Day (UTC)", "day"),
    Column("provider", "Provider"),
    Column("model", "Model"),
    Column("team", "Team"),
    Column("kind", "Why", "badge"),
    Column("input_tokens", "Tokens in", "number"),
    Column("output_tokens", "Tokens out", "number"),
    Column("cost", "Difference", "money", "Change to the amount booked before; negative if that was too high"),
)
_PROVIDERS: Final = (
    Column("provider", "Provider"),
    Column("booked", "Booked", "money", "As requests were booked"),
    Column("corrections", "Corrections", "money", "Prices that were wrong"),
    Column("reconciliations", "Reconciled", "money", "To the provider's own figures"),
    Column("cost", "In the books now", "money"),
    Column("state", "State", "badge"),
)
_COMPARED: Final = (
    Column("day", "Day (UTC)", "day"),
    Column("model", "Model"),
    Column("upstream", "Their name", "code", "The model as the provider's export has it"),
    Column("meter", "Meter"),
    Column("theirs", "Theirs"),
    Column("ours", "Ours"),
    Column("difference", "Difference"),
    Column("only", "Where", "badge"),
)
_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "reconciliation": ("reconciled", "info"),
    "correction": ("price corrected", "quiet"),
}


@router.get(PATH)
async def show(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Show the differences posted for the chosen days, and the form that compares an export."""
    return await _page(view)


@router.post(PATH)
async def compare_export(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Compare an uploaded export with the books, and keep which days agree. Nothing is posted, no file is kept."""
    try:
        form, files = await read_upload(view.request, view.principal.principal_id)
    except Refused as error:
        # The page's script inserts the reply below the form.
        return _result_part(view, error=str(error))
    exporter = next((each for each in EXPORTERS if each == form.text("provider")), EXPORTERS[0])
    try:
        tolerance = tolerance_of(form.text("tolerance") or "0")
    except ValueError as error:
        return _result_part(view, error=f"{error}.")
    try:
        async with asyncio.timeout(_PATIENCE_S), view.gateway.finance.reads:
            found = await _compared(view, exporter, form, files, tolerance)
    except (BadExport, TooManyRows, FormError) as error:
        return _result_part(view, error=f"{error}.".replace("..", "."))
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise UsageUnavailable("The books could not be read in time; try again, or a shorter range.") from error
    return _result_part(view, found=found, tolerance=tolerance)


async def _compared(
    view: PageRequest, exporter: Exporter, form: Form, files: Files, tolerance: Tolerance
) -> Reconciliation:
    """Return the comparison; which days it covers is kept for the month's close."""
    if not files:
        raise BadExport("choose the files of the export first")
    named = frozenset({exporter, *filter(None, (each.strip() for each in form.text("booked_as").split(",")))})
    found = await compared(
        view.gateway.database,
        view.principal.organisation_id,
        exporter,
        files,
        providers=named,
        models=upstream_models(view.gateway.config().providers.models, named),
        same_models=_pairs(form.text("models", most=_MOST_CHARS)),
    )
    kept = outcomes(found, tolerance, view.now_us)
    async with view.gateway.database.begin() as connection:
        await keep_compared(connection, view.principal.organisation_id, named, kept, view.now_us)
    return found


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return pairs of model names from lines of `theirs=ours`. Raises FormError."""
    pairs = []
    for line in filter(None, map(str.strip, text.splitlines())):
        theirs, _, ours = (part.strip() for part in line.rpartition("="))
        if not theirs or not ours:
            raise FormError("models", f"write their name and ours, such as gpt-4o-2024-08-06=gpt-4o, not {line[:60]!r}")
        pairs.append((theirs, ours))
    return pairs


def _result_part(
    view: PageRequest, *, error: str = "", found: Reconciliation | None = None, tolerance: Tolerance | None = None
) -> Response:
    """Show the result of a comparison, as the fragment below the form."""
    allowed_for = tolerance or Tolerance()
    wrong = [] if found is None else differing(found, allowed_for)
    # What differs is looked for, so it comes first: the largest amounts before the smaller ones.
    lines = [] if found is None else sorted(found.lines, key=lambda line: _by_difference(line, allowed_for))
    rows = [row for line in lines for row in _line_rows(line, allowed_for)]
    table = Table.of(
        _COMPARED, rows[:_MOST_LINES], {}, name="compared", caption="Comparison", csv=False, page_rows=_MOST_LINES
    )
    unmatched = [] if found is None else _unmatched(found)
    return view.part(
        "finance/compared.html",
        error=error,
        found=found,
        wrong=len(wrong),
        within=0 if found is None else sum(line.differs for line in found.lines) - len(wrong),
        table=table,
        hidden=max(0, len(rows) - _MOST_LINES),
        unmatched=unmatched,
    )


def _by_difference(line: Line, tolerance: Tolerance) -> tuple[bool, int, int]:
    if tolerance.forgives(line):
        return True, 0, 0
    return False, -abs(line.nanousd_difference), -sum(map(abs, line.tokens_difference))


def _unmatched(found: Reconciliation) -> list[tuple[str, tuple[str, ...]]]:
    """Return the provider's names that none of our models has, each with ours that the export lacks: mostly one model under two names."""
    theirs = dict.fromkeys(line.model for line in found.lines if line.only == "theirs" and line.model != ALL)
    ours = tuple(sorted({name for line in found.lines if line.only == "ours" for name in line.our_models}))
    return [(name, ours) for name in theirs] if ours else []


def _line_rows(line: Line, tolerance: Tolerance) -> list[dict[str, Any]]:
    """Return one row for each meter that either side has a figure of. Amounts are exact text, whatever their unit."""
    is_forgiven = tolerance.forgives(line)
    only = (f"only {line.only}", "quiet" if is_forgiven else "warn") if line.only else None
    differs = ("within tolerance", "quiet") if is_forgiven else ("differs", "bad")
    name = ", ".join(line.our_models)
    place = {
        "day": line.day_us,
        "model": "all models" if line.model == ALL else name,
        "upstream": None if line.model in {ALL, name} else line.model,
    }
    rows = []
    if line.theirs_tokens is not None:
        for meter, theirs, ours in zip(TOKEN_METERS, line.theirs_tokens, line.ours_tokens, strict=True):
            if theirs or ours:
                rows.append(
                    {**place, "meter": f"{meter.replace('_', ' ')} tokens", **_sides(theirs, ours, money=False)}
                )
    if line.theirs_nanousd is not None:
        rows.append({**place, "meter": "cost", **_sides(line.theirs_nanousd, line.ours_nanousd, money=True)})
    return [{**row, "only": only or (differs if row["differs"] else ("agrees", "good"))} for row in rows]


def _sides(theirs: int, ours: int, *, money: bool) -> dict[str, Any]:
    def told(amount: int) -> str:
        return rounded_money(usd(amount), 6) if money else f"{amount:,}"

    return {
        "theirs": told(theirs),
        "ours": told(ours),
        "difference": ("+" if theirs > ours else "") + told(theirs - ours),
        "differs": theirs != ours,
    }


async def _page(view: PageRequest) -> Response:
    gateway, now_us = view.gateway, view.now_us
    period = period_of(view.query, now_us)
    scope = whole_organisation(view)
    async with reading(gateway, on=True):
        teams = await team_names(view)
        lines = await PeriodReader(gateway.database).lines(scope, period.start_us, period.end_us, ("provider",))
        posted = await UsageReader(gateway.database).page(_posted_query(view, period), with_totals=False)
    table = Table.of(
        _POSTED,
        [_posted_row(row, teams) for row in posted.rows],
        view.query,
        name="posted",
        caption="Posted differences",
        sort="-day",
        search=("provider", "model", "team"),
        empty="Nothing was posted for these days: neither a reconciliation nor a correction of a price.",
    )
    providers = Table.of(
        _PROVIDERS,
        map(_provider_row, providers_of(lines)),
        view.query,
        name="providers",
        caption="Providers",
        sort="-cost",
    )
    return view.csv_asked(
        f"reconciliation-{period.first}-{period.last}", table, providers, problem=period.problem
    ) or view.page(
        "finance/reconciliation.html",
        title="Reconciliation",
        period=period,
        presets=presets(view.query, now_us, period),
        table=table,
        more=posted.next_cursor is not None,
        most=_MOST_ROWS,
        providers=providers,
        exporters=[("openai", "OpenAI"), ("anthropic", "Anthropic")],
        last_day=day_of(period.end_us - 1).isoformat(),
    )


def _posted_query(view: PageRequest, period: Period) -> UsageQuery:
    return UsageQuery(
        scope=whole_organisation(view),
        start_us=period.start_us,
        end_us=period.end_us,
        group_by=("day", "provider", "model", "team", "origin"),
        filters=UsageFilters(origin=tuple(_KINDS)),
        limit=_MOST_ROWS,
    )


def _posted_row(row: UsageRow, teams: Mapping[str, str]) -> dict[str, Any]:
    day, provider, model, team, origin = row.group
    return {
        "day": day,
        "provider": provider or "(not named)",
        "model": model,
        "team": teams.get(str(team), str(team)) or "No team",
        "kind": _KINDS[str(origin)],
        "input_tokens": row.sums.input_tokens,
        "output_tokens": row.sums.output_tokens,
        "cost": row.sums.cost_nanousd,
    }


def _provider_row(each: ProviderMonth) -> dict[str, Any]:
    return {
        "provider": each.provider or "(not named)",
        "booked": None if each.spent.known_cost_nanousd is None else each.booked_nanousd,
        "corrections": each.spent.part("corrections"),
        "reconciliations": each.spent.part("reconciliations"),
        "cost": each.spent.known_cost_nanousd,
        "state": ("difference posted", "good")
        if each.spent.part("reconciliations")
        else ("no difference posted", "quiet"),
    }
