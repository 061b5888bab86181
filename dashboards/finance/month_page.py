"""/dashboard/finance/month: a month's close, with open steps, figures, and the statement."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import Response

from cost.close.checklist import MonthFacts, ProviderMonth, State, is_ready, providers_of, steps
from cost.close.checks import MonthChecks
from cost.close.month import Month, month_of, parse_month
from cost.close.statement import statement_csv
from cost.reports.period import Part, SpendSum
from dashboards.finance.month_close import ClosingMonth, MonthClose
from dashboards.finance.period import team_names, whole_organisation
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.reading import reading
from dashboards.web.view import PageRequest
from proxy.errors import BadRequest

router: Final = APIRouter(include_in_schema=False)

PATH: Final = "/dashboard/finance/month"
_STATEMENT: Final = "statement"
_STATES: Final[Mapping[State, tuple[str, str]]] = {
    "done": ("Done", "good"),
    "look": ("Look", "info"),
    "open": ("Open", "bad"),
    "waiting": ("Waits", "quiet"),
}
_PARTS: Final[Mapping[Part, str]] = {
    "requests": "Requests",
    "shadow": "Shadow calls",
    "corrections": "Corrections of prices",
    "reconciliations": "Reconciled with providers",
    "true-up": "True-up of our own GPUs",
    "idle": "Idle GPU hours, nobody's",
}
_PROVIDERS: Final = (
    Column("provider", "Provider"),
    Column("cost", "Invoice should say", "money"),
    Column("booked", "Booked", "money", "As requests were booked"),
    Column("posted", "Posted since", "money", "Corrections of prices and reconciliations"),
    Column("state", "Reconciliation", "badge"),
    Column("input_tokens", "Tokens in", "number"),
    Column("output_tokens", "Tokens out", "number"),
    Column("unpriced", "Without a price", "number", "Attempts that stand in no sum"),
)


@router.get(PATH)
async def show(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """One month; the last complete one where the address names none."""
    now_us = view.now_us
    month, problem = _month(view.query.get("month", ""), now_us)
    close = _close(view)
    scope = whole_organisation(view)
    if view.is_part:
        async with reading(view.gateway, on=True):
            facts = await close.facts(scope, month)
        return view.part("finance/steps.html", month=month, **_listed(facts))
    async with reading(view.gateway, on=True):
        found = await close.read(scope, month)
        names = await team_names(view)
    providers = Table.of(
        _PROVIDERS,
        map(_provider_row, providers_of(found.lines)),
        view.query,
        name="providers",
        caption="Providers",
        sort="-cost",
    )
    parts = Table.of(_part_columns(month), _part_rows(found), view.query, name="parts", caption="Kinds of cost")
    stem = f"month-{month.text}"
    if view.query.get("table") == _STATEMENT and view.query.get("format") == "csv":
        text = statement_csv(month, scope.organisation_id, found.lines, names, gateway_nanousd=found.gateway_nanousd)
        return view.csv(f"statement-{month.text}.csv", text)
    return view.csv_asked(stem, parts, providers) or view.page(
        "finance/month.html",
        title="Month close",
        month=month,
        problem=problem,
        is_last=month.next > month_of(now_us),
        spent=found.facts.spent,
        before=found.before,
        # An incomplete month is not comparable with a complete one.
        change=_change(found.facts.spent, found.before) if month.is_over(now_us) else None,
        is_over=month.is_over(now_us),
        claim=found.claim,
        parts=parts,
        providers=providers,
        statement=f"?month={month.text}&format=csv&table={_STATEMENT}",
        **_listed(found.facts),
    )


@router.post(f"{PATH}/check")
async def check(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Requests a new check of the month against the ledger, in the background. The books do not change."""
    if not view.principal.of_operators:
        # The check reads all organisations' books and may take hours.
        return view.redirect(PATH, told="Who runs the gateway has the books checked.", tone="info")
    given = (await view.form()).text("month", required=True)
    try:
        month = parse_month(given)
    except ValueError as error:
        raise BadRequest(f"{error}.", param="month") from error
    async with reading(view.gateway, on=True):
        asked = await MonthChecks(view.gateway.database).ask(month)
    told = (
        f"{month.title} will be checked." if asked else f"{month.title} waits for its check already, or has not begun."
    )
    return view.redirect(f"{PATH}?month={month.text}", told=told, tone="good" if asked else "info")


def _close(view: PageRequest) -> MonthClose:
    now_us = view.now_us
    return MonthClose(view.gateway.database, view.gateway.claims, lambda: now_us)


def _month(given: str, now_us: int) -> tuple[Month, str]:
    usual = month_of(now_us).previous
    if not given:
        return usual, ""
    try:
        found = parse_month(given)
    except ValueError as error:
        return usual, f"{str(error).capitalize()}. {usual.title} is shown."
    if found > month_of(now_us):
        return usual, f"{found.title} has not begun. {usual.title} is shown."
    return found, ""


def _listed(facts: MonthFacts) -> dict[str, Any]:
    found = steps(facts)
    return {
        "steps": [(step, *_STATES[step.state]) for step in found],
        "is_ready": is_ready(found),
        "left": sum(step.state == "open" for step in found),
        "to_see": sum(step.state == "look" for step in found),
        "check": facts.check,
        "is_checking": facts.check.state in {"waiting", "running"},
    }


def _part_rows(found: ClosingMonth) -> list[dict[str, Any]]:
    """Spend by component, beside the previous month's; components that are 0 in both are left out, except requests."""
    now, before = found.facts.spent, found.before
    rows = [{"part": label, "now": now.part(part), "before": before.part(part)} for part, label in _PARTS.items()]
    kept = [row for row in rows if row["now"] or row["before"] or row["part"] == _PARTS["requests"]]
    return [*kept, {"part": "The bill", "now": now.cost_nanousd, "before": before.cost_nanousd}]


def _part_columns(month: Month) -> tuple[Column, ...]:
    return (
        Column("part", "Kind of cost", sortable=False),
        Column("now", month.title, "money", sortable=False),
        Column("before", month.previous.title, "money", sortable=False),
    )


def _change(now: SpendSum, before: SpendSum) -> float | None:
    return (now.cost_nanousd - before.cost_nanousd) / before.cost_nanousd if before.cost_nanousd > 0 else None


def _provider_row(each: ProviderMonth) -> dict[str, Any]:
    return {
        "provider": each.provider or "(not named)",
        "input_tokens": each.spent.input_tokens,
        "output_tokens": each.spent.output_tokens,
        "booked": None if each.spent.known_cost_nanousd is None else each.booked_nanousd,
        "posted": each.posted_nanousd,
        "cost": each.spent.known_cost_nanousd,
        "unpriced": each.spent.unpriced_attempts,
        "state": ("posted", "good") if each.is_reconciled else ("none posted", "quiet"),
    }
