"""/dashboard/finance/month: a month's close, with open steps, figures, and the statement."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.web.changing import REASON_CHARS
from api.web.reading import reading
from cost.calendar import Calendar
from cost.close.checklist import MonthFacts, ProviderMonth, State, is_ready, providers_of, steps
from cost.close.checks import MonthChecks
from cost.close.closing import MonthClosing, SignedMonth
from cost.close.month import Month, month_of, parse_month
from cost.close.statement import statement_csv
from cost.ledger.late_entries import Late
from cost.reports.period import Part, SpendSum, part_of
from dashboards.finance.month_change import mark_step, sign_off
from dashboards.finance.month_close import ClosingMonth, MonthClose
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.forms import Form, FormError
from dashboards.web.period import team_names, whole_organisation
from dashboards.web.view import PageRequest
from proxy.errors import BadRequest

router: Final = APIRouter(include_in_schema=False)

PATH: Final = "/dashboard/finance/month"
_STATEMENT: Final = "statement"
_SIGNED: Final = "signed"
_STATES: Final[Mapping[State, tuple[str, str]]] = {
    "done": ("Done", "good"),
    "look": ("Check", "info"),
    "open": ("Open", "bad"),
    "waiting": ("Waiting", "quiet"),
}
_PARTS: Final[Mapping[Part, str]] = {
    "requests": "Requests",
    "shadow": "Shadow calls",
    "corrections": "Corrections of prices",
    "reconciliations": "Reconciled with providers",
    "true-up": "Adjustment of our own GPUs",
    "idle": "Idle GPUs",
}
_PROVIDERS: Final = (
    Column("provider", "Provider"),
    Column("cost", "Invoice should say", "money"),
    Column("booked", "Booked", "money", "As requests were booked"),
    Column("posted", "Posted since", "money", "Corrections of prices and reconciliations"),
    Column("reconciled", "Of which reconciled", "money", "Differences to its own figures that were posted"),
    Column("input_tokens", "Tokens in", "number"),
    Column("output_tokens", "Tokens out", "number"),
    Column("unpriced", "Without a price", "number", "Attempts that are in no total"),
)

_LATE: Final = (
    Column("belongs", "Belongs to"),
    Column("day", "Of the day", "day"),
    Column("stands", "Stands in"),
    Column("kind", "Kind of cost"),
    Column("pool", "Pool"),
    Column("entries", "Entries", "number"),
    Column("cost", "Amount", "money"),
)


@router.get(PATH)
async def show(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Show one month; the last complete one where the address names none."""
    now_us = view.now_us
    async with reading(view.gateway, on=True):
        calendar = await view.calendar()
    month, problem = _month(view.query.get("month", ""), now_us, calendar)
    close = _close(view)
    scope = whole_organisation(view)
    closing = MonthClosing(view.gateway.database)
    if view.is_part:
        async with reading(view.gateway, on=True):
            facts = await close.facts(scope, month)
            signed = await closing.signed(scope.organisation_id, month)
        return view.part("finance/steps.html", month=month, **_listed(facts, signed, view))
    async with reading(view.gateway, on=True):
        found = await close.read(scope, month)
        signed = await closing.signed(scope.organisation_id, month)
        names = await team_names(view)
    if view.query.get("table") == _SIGNED and signed is not None:
        async with reading(view.gateway, on=True):
            kept = await closing.statement(scope.organisation_id, month)
        return view.csv(f"statement-{month.text}-signed.csv", kept or "")
    providers = Table.of(
        _PROVIDERS,
        map(_provider_row, providers_of(found.facts.invoiced)),
        view.query,
        name="providers",
        caption="Providers",
        sort="-cost",
    )
    late = Table.of(
        _LATE,
        (_late_row(each, calendar) for each in (*found.late, *found.taken_over)),
        view.query,
        name="late",
        caption="Later postings",
        sort="",
    )
    parts = Table.of(_part_columns(month), _part_rows(found), view.query, name="parts", caption="Kinds of cost")
    stem = f"month-{month.text}"
    if view.query.get("table") == _STATEMENT and view.query.get("format") == "csv":
        text = statement_csv(month, scope.organisation_id, found.lines, names, gateway_nanousd=found.gateway_nanousd)
        return view.csv(f"statement-{month.text}.csv", text)
    return view.csv_asked(stem, parts, providers, late, problem=problem) or view.page(
        "finance/month.html",
        title="Month close",
        month=month,
        problem=problem,
        is_last=month.next.mark_us > month_of(now_us, calendar).mark_us,
        spent=found.facts.spent,
        before=found.before,
        # An incomplete month is not comparable with a complete one.
        change=_change(found.facts.spent, found.before) if month.is_over(now_us) else None,
        is_over=month.is_over(now_us),
        savings=found.savings,
        parts=parts,
        providers=providers,
        statement=f"?month={month.text}&format=csv&table={_STATEMENT}",
        late=late if found.late or found.taken_over else None,
        differs=signed is not None and signed.figures.cost_nanousd != found.facts.spent.cost_nanousd,
        **_listed(found.facts, signed, view),
    )


@router.post(f"{PATH}/check")
async def check(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Request a new check of the month against the ledger, in the background. The books do not change."""
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


@router.post(f"{PATH}/mark")
async def mark(view: Annotated[PageRequest, Depends(allowed("books.close"))]) -> Response:
    """Tick a step that is for a person to decide, untick it, or comment on a step."""
    form = await view.form()
    month = await _named_month(view, form)
    comment, ticked = _comment(form), form.flag("ticked")
    key = form.text("step", required=True)
    scope, now_us = whole_organisation(view), view.now_us
    await mark_step(
        view.gateway,
        view.actor,
        scope,
        month,
        key,
        ticked=ticked,
        comment=comment,
        comment_only=form.flag("only"),
        now_us=now_us,
    )
    told = "Ticked." if ticked else "The comment is kept; the step is not ticked."
    return view.redirect(f"{PATH}?month={month.text}", told=told)


@router.post(f"{PATH}/sign")
async def sign(view: Annotated[PageRequest, Depends(allowed("books.close"))]) -> Response:
    """Sign the month off: its figures are kept as they are, and later postings go to the next open month."""
    form = await view.form()
    month, comment = await _named_month(view, form), _comment(form)
    names = await team_names(view)
    scope, now_us = whole_organisation(view), view.now_us
    await sign_off(view.gateway, view.actor, scope, month, comment=comment, now_us=now_us, names=names)
    return view.redirect(f"{PATH}?month={month.text}", told=f"{month.title} is signed off and locked.")


async def _named_month(view: PageRequest, form: Form) -> Month:
    async with reading(view.gateway, on=True):
        calendar = await view.calendar()
    try:
        return parse_month(form.text("month", required=True), calendar)
    except ValueError as error:
        raise BadRequest(f"{error}.", param="month") from error


def _comment(form: Form) -> str:
    try:
        return form.text("comment", most=REASON_CHARS)
    except FormError as error:
        raise BadRequest(f"A comment has at most {REASON_CHARS} characters.", param="comment") from error


def _close(view: PageRequest) -> MonthClose:
    now_us = view.now_us
    return MonthClose(view.gateway.database, view.gateway.finance.savings, lambda: now_us)


def _month(given: str, now_us: int, calendar: Calendar) -> tuple[Month, str]:
    usual = month_of(now_us, calendar).previous
    if not given:
        return usual, ""
    try:
        found = parse_month(given, calendar)
    except ValueError as error:
        return usual, f"{str(error).capitalize()}. {usual.title} is shown."
    if found.start_us > now_us:
        return usual, f"{found.title} has not begun. {usual.title} is shown."
    return found, ""


def _listed(facts: MonthFacts, signed: SignedMonth | None, view: PageRequest) -> dict[str, Any]:
    found = steps(facts)
    return {
        "steps": [(step, *_STATES[step.state]) for step in found],
        "is_ready": is_ready(found),
        "signed": signed,
        "may_close": signed is None and view.may("books.close"),
        "comment_chars": REASON_CHARS,
        "left": sum(step.state == "open" for step in found),
        "to_see": sum(step.state == "look" for step in found),
        "check": facts.check,
        "is_checking": facts.check.state in {"waiting", "running"},
    }


def _part_rows(found: ClosingMonth) -> list[dict[str, Any]]:
    """Return spend by component, beside the previous month's; components that are 0 in both are left out, except
    requests.
    """
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


def _late_row(each: Late, calendar: Calendar) -> dict[str, Any]:
    return {
        "belongs": month_of(each.day_us).title,
        "day": each.day_us,
        "stands": month_of(each.posted_us, calendar).title,
        "kind": _PARTS.get(part_of(each.origin), each.origin),
        "pool": each.pool or None,
        "entries": each.entries,
        "cost": each.cost_nanousd,
    }


def _provider_row(each: ProviderMonth) -> dict[str, Any]:
    return {
        "provider": each.provider or "(not named)",
        "input_tokens": each.spent.input_tokens,
        "output_tokens": each.spent.output_tokens,
        "booked": None if each.spent.known_cost_nanousd is None else each.booked_nanousd,
        "posted": each.posted_nanousd,
        "cost": each.spent.known_cost_nanousd,
        "unpriced": each.spent.unpriced_attempts,
        "reconciled": each.spent.part("reconciliations") or None,
    }
