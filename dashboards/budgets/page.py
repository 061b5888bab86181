"""/dashboard/teams/{team_id}/budgets: budgets and rate limits of a team, its keys, end users, models and providers.

Those who may change the team set budgets and limits of its keys; the team's own are for the organisation's
administrators.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, cast

from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.store import MAX_KEYS_OF_TEAM, KeyRecord, TeamRecord, utc_now
from api.limits.change import put_limit, remove_limit
from api.web.changing import looking, may_change_key
from cost.budgets.budget import Budget, BudgetStatus, Kind, OnExhausted
from cost.budgets.periods import Period
from cost.budgets.store import BudgetStore, new_budget_id
from cost.scopes import ANY, LONGEST_ID, ROWS, SCOPES, Scope
from dashboards.budgets import one_budget
from dashboards.budgets.one_budget import (
    LASTS_NOTE,
    MENDABLE,
    Subject,
    budget_row,
    put,
    required,
    status_of,
    webhook_choices,
)
from dashboards.limits.limit_fields import (
    ENDS,
    FIELDS,
    HEADINGS,
    KIND_NOTE,
    KINDS,
    PERIOD_CHOICES,
    dollars_in,
    limits_as_form,
    limits_in,
    rule_in_words,
)
from dashboards.ui.options import MOST_LISTED
from dashboards.ui.tables import Column, LazyRow, Row, Table
from dashboards.web.access import allowed
from dashboards.web.forms import Form, FormError
from dashboards.web.view import PageRequest
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.limit import Scope as LimitScope
from proxy.admit.limits.limit_tables import MODEL_CHARS
from proxy.admit.limits.rules import OWN_SCOPES, Place, Rule, says_nothing
from proxy.admit.limits.store import LimitStore
from proxy.errors import BudgetNotFound, LimitNotFound, NotAllowed

router: Final = APIRouter(include_in_schema=False)

_PLACE: Final = "/dashboard/teams/{team_id}/budgets"
_TEAM: Final = "team"
_KEY: Final = "key:"
_PARTS: Final = tuple(row for row in SCOPES if row.owner == "team")
"""Scopes of a part of the team's spending. A form has them as `scope:value`, and as `scope:` with the value in a field beside it."""
_BUDGETS: Final = (
    Column("of", "Of"),
    Column("period", "Period"),
    Column("kind", "Kind", note=KIND_NOTE),
    Column("limit", "Limit", "money"),
    Column("spent", "Counted", "money", "Booked in the running period, our own GPUs at their planned rate."),
    Column("share", "Share spent", "share"),
    Column("held", "Reserved", "money", "Kept for requests that run now, or on its way into the books."),
    Column("state", "State", "badge"),
    Column("lasts", "Runs out", "badge", LASTS_NOTE),
    Column("expected", "Forecast", "money", "Expected to be counted by the reset.", usual=False),
    Column("resets", "Resets", "time"),
)
_LIMITS: Final = (
    Column("of", "Of"),
    Column("model", "On model"),
    *(Column(name, HEADINGS[name], note=f"{label}. {hint}") for name, label, hint in FIELDS),
)


class _Found(NamedTuple):
    """Budgets, limits and keys of the page's team."""

    keys: Sequence[KeyRecord]
    """Those that a budget or limit is of, and those that the address or the form names."""
    budgets: Sequence[BudgetStatus]
    limits: Sequence[Rule]


@router.get(_PLACE)
async def list_budgets(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show the team's budgets and limits, and the forms to add more."""

    async def places() -> list[tuple[str, str]]:
        return await _place_choices(view)

    async def own_places() -> list[tuple[str, str]]:
        return _own(await places())

    return await view.options_asked(budget_of=places, limit_of=own_places) or await _list(view, {}, {})


@router.post(_PLACE)
async def add_budget(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Set a new budget."""
    form = await view.form()
    try:
        scope, scope_id = _whose_in(view, form, "budget_of", "budget_name")
        limit = dollars_in(form, "limit_usd")
        budget = Budget(
            budget_id=new_budget_id(),
            organisation_id=view.the_team.organisation_id,
            scope=scope,
            scope_id=scope_id,
            period=cast(Period, form.one_of("period", tuple(name for name, _ in PERIOD_CHOICES))),
            kind=cast(Kind, form.one_of("kind", tuple(name for name, _ in KINDS))),
            limit_nanousd=required(limit, "limit_usd"),
            on_exhausted=cast(OnExhausted, form.one_of("on_exhausted", tuple(name for name, _ in ENDS))),
            webhook=form.one_of("webhook", ("", *sorted(view.gateway.webhooks))),
        )
        await put(view, budget, _only_keys_of(view))
    except FormError as error:
        return await _list(view, form.plain, {error.field: error.message})
    except MENDABLE as error:
        field = _BUDGET_FIELDS.get(error.param or "", "limit_usd")
        if field == "budget_of" and form.text("budget_of").endswith(":"):
            field = "budget_name"
        if isinstance(error, NotAllowed):
            field = "budget_of"
        return await _list(view, form.plain, {field: error.message}, status_of(error))
    return view.redirect(_base(view), "The budget is set; every server follows within seconds.")


@router.post(f"{_PLACE}/limits")
async def set_limits(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Replace the limits of a team or key. Empty fields fall back to the configuration's limits."""
    form = await view.form()
    try:
        place = _place_in(view, form)
        limits = limits_in(form)
        if says_nothing(limits):
            raise FormError(FIELDS[0][0], "Say at least one limit; to have the configuration's again, remove it.")  # noqa: TRY301
        await _limit(view, place, limits)
    except FormError as error:
        return await _list(view, form.plain, {error.field: error.message})
    except MENDABLE as error:
        field = "limit_of" if isinstance(error, NotAllowed) else "model" if error.param == "model" else FIELDS[0][0]
        return await _list(view, form.plain, {field: error.message}, status_of(error))
    return view.redirect(_base(view), "The limits are set; every server follows within seconds.")


@router.post(f"{_PLACE}/limits/remove")
async def take_limits(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Remove the limits of a team or key; the configuration's limits apply again."""
    form = await view.form()
    try:
        place = _place_in(view, form)
        await remove_limit(
            view.gateway.identity.audit,
            view.actor,
            view.the_team.organisation_id,
            place,
            only_keys_of=_only_keys_of(view),
        )
    except FormError as error:
        return await _list(view, form.plain, {error.field: error.message})
    except LimitNotFound:
        return view.redirect(_base(view), "These limits were removed already.", "info")
    return view.redirect(_base(view), "The limits are removed; the configuration's hold again.")


@router.get(f"{_PLACE}/{{budget_id}}")
async def show_budget(view: Annotated[PageRequest, Depends(allowed("team.read"))], budget_id: str) -> Response:
    """Show one budget's standing, and the forms to change it."""
    return one_budget.show(view, await _subject(view, budget_id))


@router.post(f"{_PLACE}/{{budget_id}}")
async def change_budget(view: Annotated[PageRequest, Depends(allowed("team.change"))], budget_id: str) -> Response:
    """Change a budget's limit and what happens when it is exhausted."""
    return await one_budget.change(view, await _subject(view, budget_id))


@router.post(f"{_PLACE}/{{budget_id}}/raise")
async def raise_for_a_while(view: Annotated[PageRequest, Depends(allowed("team.change"))], budget_id: str) -> Response:
    """Put another limit in force to the end of a day, or end a raise."""
    return await one_budget.raise_for_a_while(view, await _subject(view, budget_id))


@router.post(f"{_PLACE}/{{budget_id}}/topups")
async def pay_in(view: Annotated[PageRequest, Depends(allowed("team.change"))], budget_id: str) -> Response:
    """Pay into a prepaid budget."""
    return await one_budget.pay_in(view, await _subject(view, budget_id))


@router.post(f"{_PLACE}/{{budget_id}}/remove")
async def take_budget(view: Annotated[PageRequest, Depends(allowed("team.change"))], budget_id: str) -> Response:
    """Remove a budget. Its spend stays in the books."""
    return await one_budget.take(view, await _subject(view, budget_id))


_BUDGET_FIELDS: Final = {"scope_id": "budget_of", "webhook": "webhook"}
"""Form field for each parameter that a refusal names."""


async def _list(view: PageRequest, values: Mapping[str, str], errors: Mapping[str, str], status: int = 400) -> Response:
    found = await _read(view, values)
    names, mine = _names(found.keys), _mine(found.keys)
    budgets = Table.of(
        _BUDGETS,
        [
            LazyRow(
                {"share": each.share if _is_told(view, each) else None}, partial(_budget_row, view, each, names, mine)
            )
            for each in found.budgets
        ],
        view.query,
        name="budgets",
        caption="Budgets",
        sort="-share",
        search=("of",),
        empty="No budgets: nothing here bounds what is spent. Set one below, or ask an administrator to.",
    )
    limits = Table.of(
        _LIMITS,
        [_limit_row(view, each, names, mine) for each in found.limits],
        view.query,
        name="limits",
        caption="Limits",
        sort="of",
        search=("of", "model"),
        empty="Nothing is set here: what the configuration says holds for the team and for each of its keys.",
    )
    places = await _place_choices(view, found.keys, most=MOST_LISTED + 1)
    return view.csv_asked(f"budgets-{view.the_team.team_id}", budgets, limits) or view.page(
        "budgets/budgets.html",
        title="Budgets and limits",
        status=status if errors else 200,
        base=_base(view),
        budgets=budgets,
        limits=limits,
        places=places,
        limit_places=_own(places),
        may_change=view.may("team.change"),
        may_all=view.may("organisation.change"),
        periods=PERIOD_CHOICES,
        kinds=KINDS,
        ends=ENDS,
        webhooks=webhook_choices(view),
        fields=FIELDS,
        values=values or _prefilled(view, found, places),
        errors=errors,
    )


async def _subject(view: PageRequest, budget_id: str) -> Subject:
    """Return one of the budgets on the team's page. Raises BudgetNotFound for any other."""
    store = BudgetStore(view.gateway.database)
    async with looking():
        keys = await _keys(view, await store.keys_with_one(view.the_team.organisation_id, budget_id))
    standing = await _one(view, budget_id, keys)
    row = _budget_row(view, standing, _names(keys), _mine(keys))
    async with looking():
        topups = await store.topups(budget_id) if standing.budget.period == "prepaid" else []
    crumb = "Budgets and limits"
    return Subject(
        _base(view), crumb, standing, row, topups, may_change=row["may_change"], only_keys_of=_only_keys_of(view)
    )


async def _keys(view: PageRequest, only: Collection[str]) -> list[KeyRecord]:
    """Return those of these keys that are the team's. It may have ten thousand."""
    team = view.the_team
    return await view.gateway.identity.accounts.keys_of(team.organisation_id, team.team_id, only)


async def _read(view: PageRequest, values: Mapping[str, str]) -> _Found:
    team, store = view.the_team, BudgetStore(view.gateway.database)
    given = (view.query.get("limit_of", ""), values.get("limit_of", ""), values.get("budget_of", ""))
    chosen = {each.removeprefix(_KEY) for each in given if each.startswith(_KEY) and each.isprintable()}
    async with looking():
        limits = await LimitStore(view.gateway.database).of_team(team.organisation_id, team.team_id)
        limited = {each.place.scope_id for each in limits if each.place.scope == "key"}
        keys = await _keys(view, {*chosen, *limited, *await store.keys_with_one(team.organisation_id)})
        budgets = await store.of_team(team.organisation_id, team.team_id, [key.key_id for key in keys])
    return _Found(keys, budgets, limits)


async def _one(view: PageRequest, budget_id: str, keys: Sequence[KeyRecord]) -> BudgetStatus:
    """Return one of the budgets on the team's page. Raises BudgetNotFound for any other."""
    team = view.the_team
    key_ids = [key.key_id for key in keys]
    async with looking():
        found = await BudgetStore(view.gateway.database).of_team(team.organisation_id, team.team_id, key_ids, budget_id)
    if not found:
        raise BudgetNotFound("This team has no such budget; it may have been removed.")
    return found[0]


async def _limit(view: PageRequest, place: Place, limits: Limits) -> None:
    await put_limit(
        view.gateway.identity.audit,
        view.actor,
        view.the_team.organisation_id,
        Rule(place=place, limits=limits),
        names=view.gateway.rules().names,
        only_keys_of=_only_keys_of(view),
    )


def _names(keys: Sequence[KeyRecord]) -> dict[str, str]:
    """Return key names with their last four characters: during a rotation two keys have the same name."""
    return {key.key_id: f"{key.name} (…{key.last4})" for key in keys}


def _mine(keys: Sequence[KeyRecord]) -> frozenset[str]:
    """Return the keys that the team's administrators may bound, as `key:ID`; revoked ones too."""
    return frozenset(f"{_KEY}{key.key_id}" for key in keys if may_change_key(key, may_all=False))


def _only_keys_of(view: PageRequest) -> TeamRecord | None:
    return None if view.may("organisation.change") else view.the_team


def _base(view: PageRequest) -> str:
    return f"/dashboard/teams/{view.the_team.team_id}/budgets"


async def _place_choices(
    view: PageRequest, known: Sequence[KeyRecord] = (), most: int = MAX_KEYS_OF_TEAM
) -> list[tuple[str, str]]:
    """Return choices for a form: the whole team and its parts, for administrators, and its newest working keys, with those of the
    `known` ones among the others.
    """
    team, now = view.the_team, utc_now()
    whole: list[tuple[str, str]] = []
    if view.may("organisation.change"):
        whole.append((_TEAM, "The whole team"))
        for row in _PARTS:
            whole += [(f"{row.name}:{ANY}", f"Each {row.label}")] if row.each else []
            whole.append((f"{row.name}:", f"One {row.label}"))
    may_all = view.may("organisation.change")
    async with looking():
        keys = await view.gateway.identity.accounts.working_keys(
            team.organisation_id, team.team_id, role=None if may_all else "member", most=most
        )
    others = [
        (key.key_id, key.name, key.last4) for key in known if key.works_at(now) and may_change_key(key, may_all=may_all)
    ]
    return whole + [
        (f"{_KEY}{key_id}", f"Key {name} (…{last4})") for key_id, name, last4 in dict.fromkeys([*keys, *others])
    ]


def _own(places: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return those of the choices that limits can be set for."""
    return [each for each in places if each[0].partition(":")[0] in OWN_SCOPES]


def _is_told(view: PageRequest, standing: BudgetStatus) -> bool:
    """Return False for a tag, whose spend includes other teams', and for one for each end user, which has none of its own."""
    budget = standing.budget
    return not budget.for_each and (budget.scope != "tag" or view.may("organisation.read"))


def _whose_in(view: PageRequest, form: Form, field: str, name_field: str) -> tuple[Scope, str]:
    """Return the scope and its id that a form names. That a key belongs to the team is checked when the change is made."""
    value, team = form.text(field, required=True), view.the_team
    if value == _TEAM:
        return "team", team.team_id
    if value.startswith(_KEY):
        return "key", value.removeprefix(_KEY)
    scope, _, name = value.partition(":")
    part = next((row for row in _PARTS if row.name == scope), None)
    if part is None:
        raise FormError(field, "Choose the team, one of its keys, or a part of what it spends.")
    name = name or form.text(name_field, required=True, most=LONGEST_ID)
    return part.name, part.stored(f"{team.team_id}/{name}", team.organisation_id)


def _place_in(view: PageRequest, form: Form) -> Place:
    scope, scope_id = _whose_in(view, form, "limit_of", "limit_name")
    if scope not in OWN_SCOPES:
        raise FormError("limit_of", "A limit is for the team, one of its keys, or end users.")
    return Place(cast(LimitScope, scope), scope_id, form.text("model", most=MODEL_CHARS))


def _prefilled(view: PageRequest, found: _Found, places: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return form values for the limits that the address names (`?limit_of=key:…&model=…`)."""
    of, model = view.query.get("limit_of", ""), view.query.get("model", "")
    if _as_choice(of, places)["limit_of"] not in dict(places):
        return {}
    for rule in found.limits:
        if (_place_value(rule.place), rule.place.model) == (of, model):
            return {**_as_choice(of, places), "model": model, **limits_as_form(rule.limits)}
    return {**_as_choice(of, places), "model": model[:MODEL_CHARS]}


def _as_choice(of: str, places: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the form's values for a place: its choice, or that of its kind with the name beside it."""
    scope, _, name = of.partition(":")
    return {"limit_of": of} if of in dict(places) else {"limit_of": f"{scope}:", "limit_name": name}


def _place_value(place: Place) -> str:
    name = place.scope_id.partition("/")[2] if place.scope == "end_user" else place.scope_id
    return _TEAM if place.scope == "team" else f"{place.scope}:{name}"


def _budget_row(view: PageRequest, standing: BudgetStatus, names: Mapping[str, str], mine: Collection[str]) -> Row:
    budget = standing.budget
    all_of_it = view.may("organisation.change")
    return {
        **budget_row(view, standing, told=_is_told(view, standing)),
        "of": _of(budget.scope, budget.shown_id, names),
        "may_change": view.may("team.change") and (all_of_it or f"{budget.scope}:{budget.scope_id}" in mine),
    }


def _limit_row(view: PageRequest, rule: Rule, names: Mapping[str, str], mine: Collection[str]) -> Row:
    place = rule.place
    return {
        "of": _of(cast(Scope, place.scope), place.scope_id, names),
        "place": _place_value(place),
        "model": (place.model or "all")
        + (" (not configured)" if view.gateway.rules().names.limit_problem(place) else ""),
        "model_name": place.model,
        **rule_in_words(rule),
        "may_change": view.may("team.change")
        and (view.may("organisation.change") or f"{place.scope}:{place.scope_id}" in mine),
    }


def _of(scope: Scope, shown_id: str, names: Mapping[str, str]) -> str:
    """Return whose a budget or limit of the team is, in a table's words."""
    row = ROWS[scope]
    if scope == "team":
        return "The whole team"
    name = shown_id.partition("/")[2] if row.owner == "team" else names.get(shown_id, shown_id)
    return f"Each {row.label}" if name == ANY else f"{row.label.capitalize()} {name}"
