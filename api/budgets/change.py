"""Changes of budgets, by people and by administrators' keys, each with its audit entry."""

from decimal import Decimal
from typing import Any

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.errors import UnknownKeyId, UnknownTeam
from accounts.store import AccountStore, TeamRecord
from api.web.changing import changing, check_may_change, looking, no_such_place, refusals, sentence
from cost.budgets.alerts import dollars
from cost.budgets.budget import Budget, BudgetStatus, checked
from cost.budgets.budget_errors import UnknownBudget
from cost.budgets.store import BudgetStore
from cost.budgets.topups import Topup
from cost.scopes import ROWS
from cost.times import iso
from proxy.errors import BadRequest, NotAllowed
from proxy.plan.known_names import KnownNames


async def put_budget(
    log: AuditLog,
    actor: Actor,
    budget: Budget,
    *,
    webhooks: frozenset[str],
    names: KnownNames,
    only_keys_of: TeamRecord | None = None,
    reason: str = "",
) -> tuple[BudgetStatus, bool]:
    """Set a budget, or change its limit and what happens when it is exhausted; the second value is True for a new one.
    Servers follow within seconds.

    `only_keys_of` restricts the actor to budgets of that team's keys. A new one is of a model or provider that there is (`names`).
    Raises BadRequest and NotAllowed.
    """
    with refusals():
        checked(budget)
    if budget.webhook and budget.webhook not in webhooks:
        # A budget with an unknown webhook would never warn anybody.
        known = ", ".join(sorted(webhooks)) or "none"
        raise BadRequest(
            f"There is no webhook `{budget.webhook[:80]}`; the configuration has under `webhooks`: {known}.",
            param="webhook",
        )
    owner = budget.organisation_id
    team_id = ROWS[budget.scope].team_in(budget.scope_id) or ("" if only_keys_of is None else only_keys_of.team_id)
    async with changing(log, actor, "budget.set", owner, team_id=team_id, reason=reason) as change:
        store = BudgetStore(change.within)
        team_id = await _team_of(AccountStore(change.within), budget, only_keys_of)
        before = await _budget_or_none(store, budget.budget_id, owner)
        if before is None and (problem := names.budget_problem(budget)):
            raise BadRequest(sentence(problem), param="scope_id")
        if before != budget:
            await store.put(budget)
        standing = await store.get(budget.budget_id, owner)
        change.tell(
            "budget",
            budget.budget_id,
            None if before is None else audit_record(before),
            audit_record(standing.budget),
            team_id=team_id,
        )
    return standing, before is None


async def raise_budget(
    log: AuditLog,
    actor: Actor,
    organisation_id: str,
    budget_id: str,
    limit_nanousd: int,
    until_us: int,
    *,
    only_keys_of: TeamRecord | None = None,
    reason: str = "",
) -> BudgetStatus:
    """Put another limit in force until a moment, after which the old one holds again by itself; `until_us` 0 ends a raise now."""
    async with changing(log, actor, "budget.raised", organisation_id, reason=reason) as change:
        store = BudgetStore(change.within)
        before = (await store.get(budget_id, organisation_id)).budget
        team_id = await _team_of(AccountStore(change.within), before, only_keys_of)
        await store.raise_limit(budget_id, limit_nanousd, until_us)
        standing = await store.get(budget_id, organisation_id)
        change.tell("budget", budget_id, audit_record(before), audit_record(standing.budget), team_id=team_id)
    return standing


async def top_up(
    log: AuditLog,
    actor: Actor,
    organisation_id: str,
    budget_id: str,
    topup: Topup,
    *,
    only_keys_of: TeamRecord | None = None,
) -> tuple[BudgetStatus, bool]:
    """Pay into a prepaid budget, once for each top-up's id; the second value is True for a new one."""
    async with changing(log, actor, "budget.topped_up", organisation_id, reason=topup.note) as change:
        store = BudgetStore(change.within)
        before = (await store.get(budget_id, organisation_id)).budget
        team_id = await _team_of(AccountStore(change.within), before, only_keys_of)
        _, new = await store.top_up(budget_id, topup)
        standing = await store.get(budget_id, organisation_id)
        after = audit_record(standing.budget) | ({"topup": topup.topup_id} if new else {})
        change.tell("budget", budget_id, audit_record(before), after, team_id=team_id)
    return standing, new


async def remove_budget(
    log: AuditLog,
    actor: Actor,
    organisation_id: str,
    budget_id: str,
    *,
    only_keys_of: TeamRecord | None = None,
    reason: str = "",
) -> Budget:
    """Remove a budget and return it: it no longer blocks or warns. Its spend stays in the books."""
    async with changing(log, actor, "budget.removed", organisation_id, reason=reason) as change:
        store = BudgetStore(change.within)
        found = (await store.get(budget_id, organisation_id)).budget
        if only_keys_of is not None:
            await _team_of(AccountStore(change.within), found, only_keys_of)
        await store.remove(budget_id, organisation_id)
        team_id = ROWS[found.scope].team_in(found.scope_id) or ("" if only_keys_of is None else only_keys_of.team_id)
        change.tell("budget", budget_id, audit_record(found), None, team_id=team_id)
    return found


async def read_budgets(store: BudgetStore, organisation_id: str) -> list[BudgetStatus]:
    """Return all budgets of an organisation, with their spend."""
    async with looking():
        return await store.of_organisation(organisation_id)


async def read_budget(store: BudgetStore, organisation_id: str, budget_id: str) -> BudgetStatus:
    """Return one of an organisation's budgets, with its spend. Raises BudgetNotFound."""
    async with looking():
        return await store.get(budget_id, organisation_id)


def audit_record(budget: Budget) -> dict[str, Any]:
    """Return a budget as its audit entry stores it."""
    return {
        "scope": budget.scope,
        "of": budget.shown_id,
        "period": budget.period,
        "kind": budget.kind,
        "limit_usd": Decimal(dollars(budget.limit_nanousd)),
        "on_exhausted": budget.on_exhausted,
        "webhook": budget.webhook,
        **raise_record(budget),
    }


def raise_record(budget: Budget) -> dict[str, Any]:
    """Return a budget's raise, where it has one that need not have ended yet."""
    if not budget.raised_until_us:
        return {}
    raised = Decimal(dollars(budget.raised_nanousd))
    return {"raised_limit_usd": raised, "raised_until": iso(budget.raised_until_us)}


async def _team_of(accounts: AccountStore, budget: Budget, only_keys_of: TeamRecord | None) -> str:
    """Return the team whose audit log the change also belongs to, or ''. A team or key of another organisation is not found."""
    owner = budget.organisation_id
    if only_keys_of is not None and budget.scope != "key":
        raise NotAllowed("Only the organisation's administrators set other budgets than those of a team's keys.")
    try:
        if team_id := ROWS[budget.scope].team_in(budget.scope_id):
            return (await accounts.team_of(owner, team_id)).team_id
        if budget.scope == "key":
            within = None if only_keys_of is None else only_keys_of.team_id
            key = await accounts.key_of(owner, within, budget.scope_id)
            check_may_change(key, may_all=only_keys_of is None)
            return key.team_id
    except (UnknownTeam, UnknownKeyId) as error:
        unknown = (
            ("key", budget.scope_id) if budget.scope == "key" else ("team", ROWS[budget.scope].team_in(budget.scope_id))
        )
        raise no_such_place(*unknown) from error
    return ""


async def _budget_or_none(store: BudgetStore, budget_id: str, organisation_id: str) -> Budget | None:
    try:
        return (await store.get(budget_id, organisation_id)).budget
    except UnknownBudget:
        return None
