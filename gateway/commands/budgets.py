"""`weighbridge budgets`: what organisations, teams, keys, end users, models and others may spend, and how much of it is left."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost.budgets.budget import OnExhausted
from cost.budgets.periods import Period
from cost.scopes import Scope
from cost.shown import fine_money, percent
from gateway.commands.shared import fail, open_engine, print_json, read_config
from gateway.table import print_table

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from cost.budgets.budget import Budget, BudgetStatus

budgets_app = typer.Typer(
    help="Spending limits per hour, day, week, month, year or in total.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, with exact amounts as text.")]
ScopeArgument = Annotated[Scope, typer.Argument(help="What the budget is for.")]
IdArgument = Annotated[str, typer.Argument(metavar="BUDGET_ID", help="From `budgets list`.")]
_WIDE = 6


@budgets_app.command("list")
async def list_budgets(
    organisation: Annotated[str | None, typer.Option(help="Only this organisation's.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List budgets with what is spent of each."""
    from cost.budgets.store import BudgetStore

    async with open_engine() as engine:
        store = BudgetStore(engine)
        found = await (store.all() if organisation is None else store.of_organisation(organisation))
    if as_json:
        print_json([_plain(each) for each in found])
    elif found:
        _print(found)
    else:
        typer.echo("no budgets yet", err=True)


@budgets_app.command("show")
async def show_budget(budget_id: IdArgument, as_json: JsonOption = False) -> None:
    """Show one budget."""
    from cost.budgets.store import BudgetStore

    async with open_engine() as engine:
        status = await BudgetStore(engine).get(budget_id)
    found = _plain(status)
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        typer.echo(f"{name.replace('_', ' '):<{_WIDE * 2}}  {'-' if value is None else value}")


@budgets_app.command("end-user")
async def show_end_user(
    name: Annotated[str, typer.Argument(metavar="TEAM/NAME", help="The end user, as callers name it.")],
    as_json: JsonOption = False,
) -> None:
    """Show what an end user spent this month, and what is left of the budgets that hold: own ones, or the defaults for all."""
    from msgspec.structs import asdict

    from accounts.store import AccountStore
    from api.end_users.standing import spending_as_json
    from api.limits.change import audit_record
    from cost.budgets.store import BudgetStore
    from cost.end_users import booked
    from cost.scopes import ANY
    from proxy.admit.limits.rules import Place, check_place
    from proxy.admit.limits.store import LimitStore

    team_id, _, given = name.partition("/")
    if given in {"", ANY}:
        fail("name one end user: TEAM/NAME", 2)
    async with open_engine() as engine:
        team = await AccountStore(engine).get_team(team_id)
        places = [Place("end_user", f"{team_id}/{each}") for each in (booked(given), ANY)]
        check_place(places[0])
        found = await BudgetStore(engine).of_end_user(team.organisation_id, team_id, booked(given))
        rules = [rule for each in places if (rule := await LimitStore(engine).at(each)) is not None]
    if as_json:
        told = spending_as_json(found)
        told["budgets"] = [_plain(each) | {"own": "/" not in each.budget.budget_id} for each in found.budgets]
        limits = [{"of": rule.place.scope_id, **asdict(rule.limits)} for rule in rules]
        print_json({"team_id": team_id, **told, "spent_usd": f"{told['spent_usd']:f}", "limits": limits})
        return
    typer.echo(f"{team_id}/{found.end_user}: {fine_money(found.spent_nanousd)} in this UTC month")
    _print(found.budgets) if found.budgets else typer.echo("no budget holds", err=True)
    for rule in rules:
        typer.echo(f"limits of {rule.place.scope_id}: {', '.join(f'{k} {v}' for k, v in audit_record(rule).items())}")


@budgets_app.command("set")
async def set_budget(
    scope: ScopeArgument,
    scope_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Its id; of a tag, model or provider its name, and within a team TEAM/NAME. TEAM/* is each end user of a team, and * each of every team.",
        ),
    ],
    *,
    period: Annotated[
        Period,
        typer.Option(help="Starts with the organisation's calendar; lifetime never renews, prepaid is topped up."),
    ],
    limit: Annotated[
        str,
        typer.Option(
            metavar="USD", help="Dollars per period, such as 500 or 0.25; for a prepaid budget the first payment."
        ),
    ],
    hard: Annotated[
        bool,
        typer.Option("--hard/--soft", help="Refuse requests that would exceed it, or only warn and refuse nothing."),
    ] = False,
    on_exhausted: Annotated[
        OnExhausted,
        typer.Option(
            help="downgrade: when a soft budget is used up, requests go to the cheapest capable model; a hard one tries that before it refuses."
        ),
    ] = "refuse",
    webhook: Annotated[
        str, typer.Option(metavar="NAME", help="A configured destination that is notified at 50, 80 and 100 %.")
    ] = "",
    organisation: Annotated[
        str, typer.Option(help="The organisation of a tag, model or provider; not needed for a team or key.")
    ] = "default",
    as_json: JsonOption = False,
) -> None:
    """Set a budget, in place of the one for the same scope, period and kind. Every server follows within seconds."""
    from api.budgets.change import audit_record as state
    from cost.budgets.budget import Budget, checked, limit_from_usd
    from cost.budgets.store import BudgetStore, new_budget_id
    from cost.scopes import ROWS
    from gateway.commands.audit import audited

    _check_webhook(webhook)

    async with open_engine() as engine:
        owner, team_id = await _owner_of(engine, scope, scope_id, organisation)
        wanted = Budget(
            budget_id=new_budget_id(),
            organisation_id=owner,
            scope=scope,
            scope_id=ROWS[scope].stored(scope_id, owner),
            period=period,
            kind="hard" if hard else "soft",
            limit_nanousd=limit_from_usd(limit),
            on_exhausted=on_exhausted,
            webhook=webhook,
        )
        checked(wanted)
        async with audited(engine, "budget.set", owner, team_id=team_id) as change:
            store = BudgetStore(change.within)
            before = {each.budget.budget_id: each.budget for each in await store.of_organisation(owner)}
            if not any((each.scope, each.scope_id) == (scope, wanted.scope_id) for each in before.values()):
                _check_name(wanted)
            kept = await store.set(wanted)
            was = before.get(kept.budget_id)
            change.tell("budget", kept.budget_id, None if was is None else state(was), state(kept))
        made = await BudgetStore(engine).get(kept.budget_id)
    if as_json:
        print_json(_plain(made))
    else:
        typer.echo(f"{made.budget.budget_id}: {_described(made.budget)}")


@budgets_app.command("raise")
async def raise_budget(
    budget_id: IdArgument,
    limit: Annotated[str | None, typer.Option("--to", metavar="USD", help="The limit until then.")] = None,
    until: Annotated[datetime | None, typer.Option(help="When the old limit applies again, UTC.")] = None,
    end: Annotated[bool, typer.Option("--end", help="End the raise now.")] = False,
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")] = "",
) -> None:
    """Raise a budget's limit for a while. Every server follows within seconds, and nobody need lower it again."""
    from datetime import UTC

    from api.budgets.change import audit_record as state
    from cost.budgets.budget import limit_from_usd
    from cost.budgets.store import BudgetStore
    from cost.times import in_us
    from gateway.commands.audit import audited

    if end == (limit is not None or until is not None) or (limit is None) != (until is None):
        fail("give --to and --until, or --end", 2)
    until_us = 0 if until is None else in_us(until.replace(tzinfo=UTC))
    async with open_engine() as engine, audited(engine, "budget.raised", reason=reason) as change:
        store = BudgetStore(change.within)
        before = (await store.get(budget_id)).budget
        after = await store.raise_limit(budget_id, limit_from_usd(limit or "0"), until_us)
        team_id = before.scope_id if before.scope == "team" else ""
        owner = before.organisation_id
        change.tell("budget", budget_id, state(before), state(after), team_id=team_id, organisation_id=owner)
    told = (
        "the raise has ended"
        if until is None
        else f"{fine_money(after.raised_nanousd)} until {until:%Y-%m-%dT%H:%M:%SZ}"
    )
    typer.echo(f"{budget_id}: {told}; {_described(after)}")


@budgets_app.command("topup")
async def top_up(
    budget_id: IdArgument,
    amount: Annotated[str, typer.Argument(metavar="USD", help="Dollars paid in; after `--`, -20 takes back.")],
    topup_id: Annotated[
        str | None, typer.Option("--id", help="A unique id, such as an invoice number, so that it is booked once.")
    ] = None,
    note: Annotated[str, typer.Option(help="A note for the list and the audit log.")] = "",
) -> None:
    """Pay into a prepaid budget. Every server follows within seconds."""
    from api.budgets.change import audit_record as state
    from cost.budgets.store import BudgetStore
    from cost.budgets.topups import Topup, amount_from_usd, new_topup_id
    from gateway.commands.audit import audited

    topup = Topup(topup_id or new_topup_id(), amount_from_usd(amount), note)
    async with open_engine() as engine:
        async with audited(engine, "budget.topped_up", reason=note) as change:
            store = BudgetStore(change.within)
            before = (await store.get(budget_id)).budget
            after, new = await store.top_up(budget_id, topup)
            team_id = before.scope_id if before.scope == "team" else ""
            now = state(after) | ({"topup": topup.topup_id} if new else {})
            change.tell(
                "budget", budget_id, state(before), now, team_id=team_id, organisation_id=before.organisation_id
            )
        found = await BudgetStore(engine).get(budget_id)
    left = fine_money(found.limit_nanousd - found.spent_nanousd)
    typer.echo(f"{budget_id}: {'paid in' if new else 'was paid in before'} as {topup.topup_id}; {left} left")


@budgets_app.command("topups")
async def list_topups(budget_id: IdArgument, as_json: JsonOption = False) -> None:
    """List what was paid into a prepaid budget."""
    from api.budgets.listing import topup_as_json
    from cost.budgets.store import BudgetStore
    from cost.times import iso

    async with open_engine() as engine:
        store = BudgetStore(engine)
        await store.get(budget_id)
        found = await store.topups(budget_id)
    if as_json:
        print_json([{name: str(value) for name, value in topup_as_json(each).items()} for each in found])
        return
    rows = [[each.topup_id, iso(each.at_us), fine_money(each.amount_nanousd), each.note or "-"] for each in found]
    print_table(["top-up", "at", "amount", "note"], rows, right=(2,))


@budgets_app.command("remove")
async def remove_budget(budget_id: IdArgument) -> None:
    """Take a budget away. What was spent stays in the books."""
    from api.budgets.change import audit_record as state
    from cost.budgets.store import BudgetStore
    from cost.scopes import ROWS
    from gateway.commands.audit import audited

    async with open_engine() as engine, audited(engine, "budget.removed") as change:
        removed = await BudgetStore(change.within).remove(budget_id)
        team_id = ROWS[removed.scope].team_in(removed.scope_id)
        owner = removed.organisation_id
        change.tell("budget", budget_id, state(removed), None, team_id=team_id, organisation_id=owner)
        budget = removed
    typer.echo(f"removed {budget_id}: {_described(budget)}")


def _check_webhook(name: str) -> None:
    """Check a webhook's name against the configuration, where one is at hand: a misspelt one would never receive
    anything.
    """
    from gateway.configuration.environment import read_environment

    if not name or read_environment().config is None:
        return
    names = read_config(None).webhooks.names()
    if name not in names:
        fail(f"there is no webhook {name[:64]!r}; the configuration has: {', '.join(names) or 'none'}", 2)


def _check_name(budget: "Budget") -> None:
    """Check a model's or provider's name against the configuration, where one is at hand: a misspelt one would bound nobody."""
    from cost.scopes import ROWS
    from gateway.configuration.environment import read_environment
    from gateway.wiring.policy import names_of

    if not ROWS[budget.scope].of_target:
        return
    if read_environment().config is None:
        typer.echo(f"whether there is a {budget.in_words} is not known here: WEIGHBRIDGE_CONFIG is not set", err=True)
    elif problem := names_of(read_config(None)).budget_problem(budget):
        fail(problem, 2)


async def _owner_of(engine: "AsyncEngine", scope: "Scope", scope_id: str, organisation: str) -> tuple[str, str]:
    """Return the organisation, and the team if any, that a budget belongs to. Raises an AccountsError for an unknown
    scope, so that no budget is kept for a misspelt name.
    """
    from accounts.errors import UnknownKeyId
    from accounts.store import AccountStore
    from cost.scopes import ROWS

    accounts = AccountStore(engine)
    team_id = ROWS[scope].team_in(scope_id)
    if scope == "key":
        found = next((key.team_id for key in await accounts.list_keys() if key.key_id == scope_id), None)
        if found is None:
            raise UnknownKeyId(f"there is no key {scope_id!r}")
        team_id = found
    if not team_id:
        owner = scope_id if scope == "organisation" else organisation
        await accounts.check_organisation(owner)
        return owner, ""
    return (await accounts.get_team(team_id)).organisation_id, team_id


def _plain(standing: "BudgetStatus") -> dict[str, Any]:
    from decimal import Decimal

    from api.budgets.listing import budget_as_json

    return {
        name: f"{value:f}" if isinstance(value, Decimal) else value for name, value in budget_as_json(standing).items()
    }


def _described(budget: "Budget") -> str:
    from cost.budgets.periods import PERIODS

    ends = ", then the cheapest capable model" if budget.on_exhausted == "downgrade" else ""
    kind = "soft (refuses nothing)" if budget.kind == "soft" and not ends else budget.kind
    return f"{kind}, {fine_money(budget.limit_nanousd)} {PERIODS[budget.period].amount_per} for {budget.in_words}{ends}"


def _print(found: "Sequence[BudgetStatus]") -> None:
    from cost.times import iso

    rows = [
        [
            each.budget.budget_id,
            each.budget.scope,
            each.budget.shown_id,
            each.budget.period,
            each.budget.kind,
            fine_money(each.limit_nanousd),
            "-" if each.budget.for_each else fine_money(each.spent_nanousd),
            "-" if each.share is None or each.budget.for_each else percent(each.share),
            fine_money(each.held_nanousd),
            "never" if each.renews_us is None else iso(each.renews_us),
            each.state,
            "-" if each.expected_nanousd is None else fine_money(each.expected_nanousd),
            _runs_out(each),
            "warn" if each.budget.kind == "soft" and each.budget.on_exhausted == "refuse" else each.budget.on_exhausted,
        ]
        for each in found
    ]
    headings = ["budget", "scope", "of", "period", "kind", "limit", "spent", "share", "reserved", "resets at", "state"]
    print_table([*headings, "forecast", "runs out", "then"], rows, right=(5, 6, 7, 8, 11))


def _runs_out(standing: "BudgetStatus") -> str:
    """Return when a budget is expected to be used up."""
    from cost.times import day_of

    if standing.runs_out_us is not None:
        return day_of(standing.runs_out_us).isoformat()
    return {None: "not known", True: "lasts", False: "has run out"}[standing.lasts]
