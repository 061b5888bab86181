"""One budget's page and its forms: a team's under the team, and every other under the organisation's budgets."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple, cast

import msgspec
from starlette.responses import Response

from accounts.store import TeamRecord
from api.budgets.change import put_budget, raise_budget, remove_budget, top_up
from cost.budgets.budget import Budget, BudgetStatus, OnExhausted
from cost.budgets.outlook import AHEAD_DAYS
from cost.budgets.periods import PERIODS
from cost.budgets.topups import Topup, new_topup_id
from cost.times import moment
from dashboards.limits.limit_fields import ENDS, KINDS, dollars_in
from dashboards.ui.formats import day
from dashboards.ui.tables import Row
from dashboards.web.forms import FormError
from dashboards.web.view import PageRequest
from proxy.errors import BadRequest, BudgetTaken, NotAllowed

MENDABLE: Final = (BadRequest, BudgetTaken, NotAllowed)
STATES: Final = {"open": ("open", "good"), "warning": ("80 % spent", "warn"), "spent": ("spent", "bad")}
IDLE: Final = ("not configured", "warn")

_WHOLE: Final = "The whole "


class Subject(NamedTuple):
    """The budget of a page, and what its viewer may do to it."""

    base: str
    """Address of the list that it stands in."""
    crumb: str
    standing: BudgetStatus
    row: Row
    topups: Sequence[Topup]
    may_change: bool
    only_keys_of: TeamRecord | None = None

    @property
    def budget(self) -> Budget:
        """The budget itself."""
        return self.standing.budget

    @property
    def place(self) -> str:
        """Address of the page."""
        return f"{self.base}/{self.budget.budget_id}"


def _within(of: str) -> str:
    """Return the name of what a budget is of, as it stands within a sentence."""
    return f"the whole {of.removeprefix(_WHOLE)}" if of.startswith(_WHOLE) else of


def show(
    view: PageRequest,
    subject: Subject,
    values: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
    status: int = 400,
) -> Response:
    """Show the budget's standing, and the forms to change it."""
    budget = subject.budget
    return view.page(
        "budgets/budget.html",
        title=f"Budget of {_within(subject.row['of'])}",
        status=status if errors else 200,
        base=subject.base,
        crumb=subject.crumb,
        budget=budget,
        row=subject.row,
        lasts_note=LASTS_NOTE,
        topups=subject.topups,
        new_topup=new_topup_id(),
        tomorrow=(moment(view.now_us) + timedelta(days=1)).date().isoformat(),
        words=dict(KINDS)[budget.kind],
        may_change=subject.may_change,
        ends=ENDS,
        webhooks=webhook_choices(view),
        values={
            "limit_usd": _dollars(budget.limit_nanousd),
            "on_exhausted": budget.on_exhausted,
            "webhook": budget.webhook,
            **(values or {}),
        },
        errors=errors or {},
    )


async def change(view: PageRequest, subject: Subject) -> Response:
    """Change a budget's limit and what happens when it is exhausted."""
    form = await view.form()
    try:
        changed = msgspec.structs.replace(
            subject.budget,
            limit_nanousd=required(dollars_in(form, "limit_usd"), "limit_usd"),
            on_exhausted=cast(OnExhausted, form.one_of("on_exhausted", tuple(name for name, _ in ENDS))),
            webhook=form.one_of("webhook", ("", *sorted(view.gateway.webhooks))),
        )
        await put(view, changed, subject.only_keys_of)
    except FormError as error:
        return show(view, subject, form.plain, {error.field: error.message})
    except MENDABLE as error:
        return show(view, subject, form.plain, {error.param or "limit_usd": error.message}, status_of(error))
    return view.redirect(subject.base, "The budget is changed; every server follows within seconds.")


async def raise_for_a_while(view: PageRequest, subject: Subject) -> Response:
    """Put another limit in force to the end of a day, or end a raise."""
    form = await view.form()
    try:
        last = form.day("raised_until")
        limit = dollars_in(form, "raised_usd")
        if (last is None) != (limit is None):
            raise FormError("raised_until", "A raise has an amount and a last day; leave both empty to end one.")  # noqa: TRY301
        until_us = 0 if last is None else subject.standing.calendar.start(last + timedelta(days=1))
        await raise_budget(
            view.gateway.identity.audit,
            view.actor,
            subject.budget.organisation_id,
            subject.budget.budget_id,
            limit or 0,
            until_us,
            only_keys_of=subject.only_keys_of,
        )
    except FormError as error:
        return show(view, subject, form.plain, {error.field: error.message})
    except MENDABLE as error:
        return show(view, subject, form.plain, {"raised_until": error.message}, status_of(error))
    told = (
        "The raise has ended." if last is None else "The limit is raised; afterwards the old one holds again by itself."
    )
    return view.redirect(subject.place, told)


async def pay_in(view: PageRequest, subject: Subject) -> Response:
    """Pay into a prepaid budget."""
    form = await view.form()
    try:
        topup = Topup(form.text("topup_id", most=64), required(dollars_in(form, "topup_usd"), "topup_usd"))
        await top_up(
            view.gateway.identity.audit,
            view.actor,
            subject.budget.organisation_id,
            subject.budget.budget_id,
            topup,
            only_keys_of=subject.only_keys_of,
        )
    except FormError as error:
        return show(view, subject, form.plain, {error.field: error.message})
    except MENDABLE as error:
        return show(view, subject, form.plain, {"topup_usd": error.message}, status_of(error))
    return view.redirect(subject.place, "It is paid in; every server follows within seconds.")


async def take(view: PageRequest, subject: Subject) -> Response:
    """Remove a budget. Its spend stays in the books."""
    await remove_budget(
        view.gateway.identity.audit,
        view.actor,
        subject.budget.organisation_id,
        subject.budget.budget_id,
        only_keys_of=subject.only_keys_of,
    )
    return view.redirect(subject.base, "The budget is removed; what was spent stays in the books.")


async def put(view: PageRequest, budget: Budget, only_keys_of: TeamRecord | None) -> None:
    """Set a budget as the viewer."""
    await put_budget(
        view.gateway.identity.audit,
        view.actor,
        budget,
        webhooks=view.gateway.webhooks,
        names=view.gateway.rules().names,
        only_keys_of=only_keys_of,
    )


def budget_row(view: PageRequest, standing: BudgetStatus, *, told: bool) -> Row:
    """Return the figures of a budget for tables and its page. What is spent is None unless it may be `told`."""
    budget = standing.budget
    return {
        "id": budget.budget_id,
        "period": budget.period,
        "kind": budget.kind,
        "per": PERIODS[budget.period].amount_per,
        "limit": standing.limit_nanousd,
        "usual": budget.limit_nanousd,
        "raised_until": budget.raised_until_us if standing.at_us < budget.raised_until_us else None,
        "spent": standing.spent_nanousd if told else None,
        "share": standing.share if told else None,
        "held": standing.held_nanousd if told else None,
        "state": state_of(view, standing) if told else None,
        "resets": standing.renews_us,
        "expected": standing.expected_nanousd if told else None,
        "lasts": lasts_of(standing) if told else None,
    }


LASTS_NOTE: Final = (
    "By the days of the last four weeks, each weekday by itself. Not known with fewer than three whole days, and of hourly "
    "budgets."
)


def lasts_of(standing: BudgetStatus) -> tuple[str, str]:
    """Return when a budget runs out, or that it lasts, in words with their tone."""
    if standing.state == "spent":
        return "has run out", "bad" if standing.budget.hard else "warn"
    if standing.lasts is None:
        return "not known", "quiet"
    if standing.runs_out_us is not None:
        return f"on {day(standing.runs_out_us)}", "bad" if standing.budget.hard else "warn"
    return "lasts" if standing.renews_us is not None else f"not within {AHEAD_DAYS} days", "good"


def state_of(view: PageRequest, standing: BudgetStatus) -> tuple[str, str]:
    """Return a budget's state in words and its tone; one of a model or provider that is not configured any more bounds nobody."""
    budget = standing.budget
    if view.gateway.rules().names.budget_problem(budget):
        return IDLE
    if standing.state == "spent" and budget.kind == "soft":
        # It stops nobody.
        return "over, warns only" if budget.on_exhausted == "refuse" else "over, cheaper model", "warn"
    return STATES[standing.state]


def status_of(error: Exception) -> int:
    """Return the status of a form that comes again with this error."""
    return 403 if isinstance(error, NotAllowed) else 400


def required(limit_nanousd: int | None, field: str) -> int:
    """Return an amount that has to be given. Raises FormError."""
    if limit_nanousd is None:
        raise FormError(field, "This is needed: an amount of dollars such as 500 or 0.25.")
    return limit_nanousd


def webhook_choices(view: PageRequest) -> list[tuple[str, str]]:
    """Return the destinations of warnings to choose from."""
    return [("", "Nobody"), *((name, name) for name in sorted(view.gateway.webhooks))]


def _dollars(nanousd: int) -> str:
    """Return an amount for a form field: exact, without separators or trailing zeros."""
    whole, rest = divmod(nanousd, 10**9)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".") if rest else str(whole)
