"""Limits, budgets and fields of a key or a team, as LiteLLM's routes set and show them: by the changes that the admin API makes."""

from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from api.budgets.change import put_budget, remove_budget
from api.limits.change import put_limit, remove_limit
from api.litellm.fields import FieldStore, Kind
from api.litellm.sent import Sent
from api.web.admin_access import AdminRequest
from api.web.changing import looking
from cost.budgets.budget import Budget, BudgetStatus, limit_from_usd
from cost.budgets.periods import PERIODS, Period
from cost.budgets.store import BudgetStore
from cost.prices import usd
from cost.reports.ever_spent import ever_spent
from cost.times import iso
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.rules import Place, Rule
from proxy.admit.limits.store import LimitStore
from proxy.errors import BadRequest
from settings.key_ids import first_id

Scope = Literal["team", "key"]
BOUNDS: Final = frozenset(
    {
        "max_budget",
        "soft_budget",
        "budget_duration",
        "tpm_limit",
        "rpm_limit",
        "max_parallel_requests",
        "model_rpm_limit",
        "model_tpm_limit",
    }
)
"""Fields of limits and budgets."""
_RATES: Final = {
    "rpm_limit": "requests_per_minute",
    "tpm_limit": "tokens_per_minute",
    "max_parallel_requests": "concurrency",
}
_DURATIONS: Final[Mapping[Period, str | None]] = {
    "hour": "1h",
    "day": "1d",
    "week": "7d",
    "month": "30d",
    "year": "365d",
    "lifetime": None,
    "prepaid": None,
}


async def set_bounds(desk: AdminRequest, scope: Scope, scope_id: str, sent: Sent) -> None:
    """Set the limits and budgets that were sent; others stay."""
    await _set_limits(desk, scope, scope_id, sent)
    for field, kind in (("max_budget", "hard"), ("soft_budget", "soft")):
        if field in sent or (field == "max_budget" and "budget_duration" in sent):
            chosen: Any = kind
            await _set_budget(desk, scope, scope_id, sent, field, chosen)


async def _set_limits(desk: AdminRequest, scope: Scope, scope_id: str, sent: Sent) -> None:
    store = LimitStore(desk.gateway.database)
    if any(name in sent for name in _RATES):
        async with looking():
            before = await store.at(Place(scope, scope_id))
        given = {ours: sent.whole(theirs) or None for theirs, ours in _RATES.items() if theirs in sent}
        limits = msgspec.structs.replace(Limits() if before is None else before.limits, **given)
        await _put_limit(desk, Rule(place=Place(scope, scope_id), limits=limits), is_there=before is not None)
    if "model_rpm_limit" in sent or "model_tpm_limit" in sent:
        requests, tokens = sent.mapping("model_rpm_limit") or {}, sent.mapping("model_tpm_limit") or {}
        for model in sorted({*requests, *tokens}):
            limits = Limits(requests_per_minute=_rate(requests, model), tokens_per_minute=_rate(tokens, model))
            place = Place(scope, scope_id, model)
            async with looking():
                is_there = await store.at(place) is not None
            await _put_limit(desk, Rule(place=place, limits=limits), is_there=is_there)


def _rate(rates: Mapping[str, Any], model: str) -> int | None:
    found = rates.get(model)
    if found is not None and (isinstance(found, bool) or not isinstance(found, int)):
        raise BadRequest("A model's limit is a whole number.", param="model_rpm_limit")
    return found or None


async def _put_limit(desk: AdminRequest, rule: Rule, *, is_there: bool) -> None:
    log, owner = desk.gateway.identity.audit, desk.organisation_id
    if rule.limits != Limits():
        await put_limit(log, desk.actor, owner, rule, names=desk.gateway.rules().names)
    elif is_there:
        await remove_limit(log, desk.actor, owner, rule.place)


async def _set_budget(
    desk: AdminRequest, scope: Scope, scope_id: str, sent: Sent, field: str, kind: Literal["hard", "soft"]
) -> None:
    log, owner = desk.gateway.identity.audit, desk.organisation_id
    async with looking():
        there = [each.budget for each in await BudgetStore(desk.gateway.database).of_scope(owner, scope, scope_id)]
    there = [each for each in there if each.kind == kind]
    # A time alone renews the budget that is there.
    amount = sent.amount(field) if field in sent else usd(there[0].limit_nanousd) if there else None
    period = sent.renewal().period if "budget_duration" in sent or not there else there[0].period
    for budget in there:
        if amount is None or budget.period != period:
            await remove_budget(log, desk.actor, owner, budget.budget_id)
    if amount is None:
        return
    same = next((each for each in there if each.period == period), None)
    budget = Budget(
        budget_id=_budget_id(scope, scope_id, period, kind) if same is None else same.budget_id,
        organisation_id=owner,
        scope=scope,
        scope_id=scope_id,
        period=period,
        kind=kind,
        limit_nanousd=limit_from_usd(amount),
    )
    await put_budget(log, desk.actor, budget, webhooks=desk.gateway.webhooks, names=desk.gateway.rules().names)


def _budget_id(*parts: str) -> str:
    return f"litellm-{blake2b(chr(0).join(parts).encode(), digest_size=8).hexdigest()}"


class Shown(msgspec.Struct, frozen=True):
    """What LiteLLM's shapes tell of keys or teams beside what they are: by id."""

    bounds: dict[str, dict[str, Any]]
    fields: dict[str, dict[str, Any]]


async def shown(desk: AdminRequest, scope: Scope, ids: Collection[str]) -> Shown:
    """Return limits, budgets, spending and kept fields of these."""
    gateway, owner = desk.gateway, desk.organisation_id
    kind: Kind = scope
    async with looking():
        budgets = await BudgetStore(gateway.database).standings_of(owner, {scope})
        rules = await LimitStore(gateway.database).of_organisation(owner)
        spent = await ever_spent(gateway.database, scope, {first_id(each) if scope == "key" else each for each in ids})
        fields = await FieldStore(gateway.database).of(kind, owner, ids)
    of_places: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.place.scope == scope:
            of_places.setdefault(rule.place.scope_id, []).append(rule)
    of_budgets: dict[str, list[BudgetStatus]] = {}
    for each in budgets:
        of_budgets.setdefault(each.budget.scope_id, []).append(each)
    bounds = {}
    for each_id in ids:
        place = first_id(each_id) if scope == "key" else each_id
        bounds[each_id] = {
            "spend": usd(spent.get(place, 0)),
            "total_spend": usd(spent.get(place, 0)),
            **_limits_shown(of_places.get(place, ())),
            **_budgets_shown(of_budgets.get(place, ())),
        }
    return Shown(bounds, fields)


def _limits_shown(rules: Sequence[Rule]) -> dict[str, Any]:
    whole = next((each.limits for each in rules if not each.place.model), Limits())
    of_models = [each for each in rules if each.place.model]
    return {
        **{theirs: getattr(whole, ours) for theirs, ours in _RATES.items()},
        "model_rpm_limit": {
            each.place.model: each.limits.requests_per_minute for each in of_models if each.limits.requests_per_minute
        },
        "model_tpm_limit": {
            each.place.model: each.limits.tokens_per_minute for each in of_models if each.limits.tokens_per_minute
        },
    }


def _budgets_shown(budgets: Sequence[BudgetStatus]) -> dict[str, Any]:
    hard = next((each for each in budgets if each.budget.hard), None)
    soft = next((each for each in budgets if not each.budget.hard), None)
    found: dict[str, Any] = {
        "max_budget": None,
        "soft_budget": None if soft is None else usd(soft.budget.limit_nanousd),
        "budget_duration": None,
        "budget_reset_at": None,
    }
    if hard is not None:
        found |= {
            # What counts against it, as LiteLLM's own `spend` is that of the time that runs.
            "spend": usd(hard.spent_nanousd),
            "max_budget": usd(hard.budget.limit_nanousd),
            "budget_duration": _DURATIONS[hard.budget.period],
            "budget_reset_at": iso(hard.resets_us) if PERIODS[hard.budget.period].renews else None,
        }
    return found


async def keep_fields(desk: AdminRequest, kind: Kind, object_id: str, given: Mapping[str, Any]) -> None:
    """Keep what was sent of fields that nothing here has a use for; what was not sent stays."""
    said = {name: value for name, value in given.items() if value is not None}
    if not said:
        return
    store = FieldStore(desk.gateway.database)
    async with looking():
        before = (await store.of(kind, desk.organisation_id, [object_id])).get(object_id, {})
        await store.put(kind, desk.organisation_id, object_id, before | said)


def as_usd(amount: Decimal | None) -> Decimal | None:
    """Return an amount as it is written in JSON."""
    return None if amount is None else amount.normalize()
