"""Budgets and limits, as they are set by administrators and by who may only divide a team's share among its keys."""

import pytest

from accounts.audit.log import Scope
from accounts.caller import Role
from api.budgets.change import put_budget, read_budget, read_budgets, remove_budget
from api.keys.change import create_key
from api.limits.change import put_limit, read_limit, read_limits, remove_limit
from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from cost.scopes import Scope as BudgetScope
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.rules import ANY_ID, Place, Rule
from proxy.admit.limits.store import LimitStore
from proxy.errors import BadRequest, BudgetNotFound, BudgetTaken, LimitNotFound, NotAllowed, Refused
from proxy.plan.known_names import KnownNames
from tests.api.changes.bench import ANN, PEPPER, Bench

NO_WEBHOOKS: frozenset[str] = frozenset()
NO_NAMES = KnownNames.empty()
DOLLAR = 10**9


def budget(scope: BudgetScope, scope_id: str, dollars: int = 5, budget_id: str = "b1", webhook: str = "") -> Budget:
    return Budget(
        budget_id=budget_id,
        organisation_id="acme",
        scope=scope,
        scope_id=scope_id,
        period="month",
        kind="hard",
        limit_nanousd=dollars * DOLLAR,
        webhook=webhook,
    )


async def test_a_budget_is_set_changed_and_removed(bench: Bench) -> None:
    """The log has exact dollars; the same twice is one entry; a team's stands in the team's log."""
    for dollars in (5, 5, 6):
        standing, created = await put_budget(
            bench.log, ANN, budget("team", "red", dollars), webhooks=NO_WEBHOOKS, names=NO_NAMES
        )
    assert (standing.budget.limit_nanousd, created) == (6 * DOLLAR, False)
    store = BudgetStore(bench.engine)
    assert [each.budget.budget_id for each in await read_budgets(store, "acme")] == ["b1"]
    await remove_budget(bench.log, ANN, "acme", "b1")
    with pytest.raises(BudgetNotFound):
        await read_budget(store, "acme", "b1")
    with pytest.raises(BudgetNotFound):
        await remove_budget(bench.log, ANN, "acme", "b1")
    entries = reversed(await bench.log.page(Scope(organisation_id="acme", team_id="red")))
    assert [(each.action, '"limit_usd"' in each.before) for each in entries] == [
        ("budget.set", False),
        ("budget.set", True),
        ("budget.removed", True),
    ]


@pytest.mark.parametrize(("scope", "scope_id"), [("team", "blue"), ("team", "nothing"), ("key", "key_nothing")])
async def test_a_budget_is_for_ones_own(bench: Bench, scope: BudgetScope, scope_id: str) -> None:
    """Another organisation's team looks like none."""
    with pytest.raises(BadRequest, match="There is no"):
        await put_budget(bench.log, ANN, budget(scope, scope_id), webhooks=NO_WEBHOOKS, names=NO_NAMES)
    assert await bench.entries() == []


async def test_a_budget_of_another_organisation_is_unknown(bench: Bench) -> None:
    """By its id it can be neither removed nor taken over."""
    await put_budget(bench.log, ANN, budget("team", "red"), webhooks=NO_WEBHOOKS, names=NO_NAMES)
    with pytest.raises(BudgetNotFound):
        await remove_budget(bench.log, ANN, "globex", "b1")
    theirs = Budget(
        budget_id="b1",
        organisation_id="globex",
        scope="team",
        scope_id="blue",
        period="month",
        kind="hard",
        limit_nanousd=1,
    )
    with pytest.raises(BudgetTaken):
        await put_budget(bench.log, ANN, theirs, webhooks=NO_WEBHOOKS, names=NO_NAMES)


async def test_a_budgets_webhook_is_configured(bench: Bench) -> None:
    """Nobody would ever be warned by another one."""
    with pytest.raises(BadRequest) as refused:
        await put_budget(bench.log, ANN, budget("team", "red", webhook="finance"), webhooks=NO_WEBHOOKS, names=NO_NAMES)
    assert refused.value.param == "webhook"
    await put_budget(
        bench.log, ANN, budget("team", "red", webhook="finance"), webhooks=frozenset({"finance"}), names=NO_NAMES
    )


async def test_a_team_administrator_bounds_keys_alone(bench: Bench) -> None:
    """Its own team's keys; not the team, not a tag, not another team's key; and it removes nothing else."""
    key, _ = await create_key(bench.log, ANN, bench.team, "ci", PEPPER, may_all=False)
    await bench.accounts.create_team("green", organisation_id="acme")
    green = await bench.accounts.team_of("acme", "green")
    theirs, _ = await create_key(bench.log, ANN, green, "ci", PEPPER, may_all=False)
    await put_budget(
        bench.log, ANN, budget("key", key.key_id), webhooks=NO_WEBHOOKS, names=NO_NAMES, only_keys_of=bench.team
    )
    await put_limit(bench.log, ANN, "acme", rule(Place("key", key.key_id)), names=NO_NAMES, only_keys_of=bench.team)
    for scope, scope_id in (("team", "red"), ("organisation", "acme"), ("tag", "acme/x"), ("key", theirs.key_id)):
        refused = budget(scope, scope_id, budget_id="b2")  # type: ignore[arg-type]
        with pytest.raises((NotAllowed, BadRequest)):
            await put_budget(bench.log, ANN, refused, webhooks=NO_WEBHOOKS, names=NO_NAMES, only_keys_of=bench.team)
    for place in (Place("team", "red"), Place("organisation", "acme"), Place("key", theirs.key_id)):
        with pytest.raises((NotAllowed, BadRequest)):
            await put_limit(bench.log, ANN, "acme", rule(place), names=NO_NAMES, only_keys_of=bench.team)
        await put_limit(bench.log, ANN, "acme", rule(place), names=NO_NAMES)
        with pytest.raises((NotAllowed, BadRequest)):
            await remove_limit(bench.log, ANN, "acme", place, only_keys_of=bench.team)
    await put_budget(bench.log, ANN, budget("team", "red", budget_id="b3"), webhooks=NO_WEBHOOKS, names=NO_NAMES)
    with pytest.raises(NotAllowed):
        await remove_budget(bench.log, ANN, "acme", "b3", only_keys_of=bench.team)
    await remove_budget(bench.log, ANN, "acme", "b1", only_keys_of=bench.team)


@pytest.mark.parametrize("role", ["admin", "finance"])
async def test_a_team_administrator_does_not_choke_an_administrators_key(bench: Bench, role: Role) -> None:
    """A key of the organisation's that happens to lie in the team is no more the team's to bound than to revoke."""
    key, _ = await create_key(bench.log, ANN, bench.team, "all", PEPPER, may_all=True, role=role)
    with pytest.raises(NotAllowed):
        await put_budget(
            bench.log, ANN, budget("key", key.key_id), webhooks=NO_WEBHOOKS, names=NO_NAMES, only_keys_of=bench.team
        )
    with pytest.raises(NotAllowed):
        await put_limit(bench.log, ANN, "acme", rule(Place("key", key.key_id)), names=NO_NAMES, only_keys_of=bench.team)
    await put_budget(bench.log, ANN, budget("key", key.key_id), webhooks=NO_WEBHOOKS, names=NO_NAMES)
    with pytest.raises(NotAllowed):
        await remove_budget(bench.log, ANN, "acme", "b1", only_keys_of=bench.team)


def rule(place: Place, **values: int) -> Rule:
    return Rule(place=place, limits=Limits(**(values or {"requests_per_minute": 60})))


async def test_a_limit_is_set_replaced_and_removed(bench: Bench) -> None:
    """A PUT is the whole limit; the same twice is one entry and leaves the serving processes alone."""
    place = Place("team", "red", "auto")
    first, created = await put_limit(bench.log, ANN, "acme", rule(place), names=NO_NAMES)
    assert created
    again, created = await put_limit(bench.log, ANN, "acme", rule(place), names=NO_NAMES)
    assert (again.updated_us, created) == (first.updated_us, False)
    await put_limit(bench.log, ANN, "acme", rule(place, concurrency=0), names=NO_NAMES)
    store = LimitStore(bench.engine)
    found = await read_limit(store, bench.accounts, "acme", place)
    assert found.limits == Limits(concurrency=0)
    assert await read_limits(store, "acme") == [found]
    assert await read_limits(store, "globex") == []
    await remove_limit(bench.log, ANN, "acme", place)
    with pytest.raises(LimitNotFound):
        await remove_limit(bench.log, ANN, "acme", place)
    assert [(action, before, after) for action, _, before, after in await bench.entries()] == [
        ("limit.set", None, {"requests_per_minute": 60}),
        ("limit.set", {"requests_per_minute": 60}, {"concurrency": 0}),
        ("limit.removed", {"concurrency": 0}, None),
    ]


@pytest.mark.parametrize("place", [Place("team", "blue"), Place("organisation", "globex"), Place("key", "key_nothing")])
async def test_a_limit_is_for_ones_own(bench: Bench, place: Place) -> None:
    """Another organisation's places look like none, to be read, set and removed."""
    await put_limit(bench.log, ANN, "globex", rule(Place("team", "blue")), names=NO_NAMES)
    with pytest.raises(BadRequest, match="There is no"):
        await put_limit(bench.log, ANN, "acme", rule(place), names=NO_NAMES)
    with pytest.raises(BadRequest, match="There is no"):
        await remove_limit(bench.log, ANN, "acme", place)
    with pytest.raises(BadRequest, match="There is no"):
        await read_limit(LimitStore(bench.engine), bench.accounts, "acme", place)


@pytest.mark.parametrize(
    "bad",
    [
        Rule(place=Place("team", "red"), limits=Limits()),
        rule(Place("team", "red"), requests_per_minute=-1),
        rule(Place("team", "red", "gpt-4o"), request_burst=5),
        rule(Place("model", "x", "gpt-4o")),
        rule(Place("model", ANY_ID)),
    ],
)
async def test_what_cannot_be_kept_is_refused(bench: Bench, bad: Rule) -> None:
    """With a message for whoever asked, and without an entry."""
    with pytest.raises(Refused):
        await put_limit(bench.log, ANN, "acme", bad, names=NO_NAMES)
    assert await bench.entries() == []
