"""/dashboard/teams/{team_id}/keys: creating, rotating and revoking a team's keys. A key is shown once, to its creator."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Final, cast, get_args

from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.caller import Role
from accounts.keys import MintedKey
from accounts.store import KeyRecord, utc_now
from api.budgets.change import put_budget
from api.keys.admin_types import last_day_us
from api.keys.change import (
    MAX_OVERLAP_S,
    block_key,
    create_key,
    read_key,
    read_keys,
    revoke_key,
    rotate_key,
    set_key_expiry,
    set_key_models,
)
from api.limits.change import put_limit, remove_limit
from api.teams.change import block_team
from api.web.address import base_url
from api.web.changing import looking
from api.web.reading import reading
from cost.budgets.budget import Budget, BudgetStatus, Kind
from cost.budgets.periods import PERIODS, Period
from cost.budgets.store import BudgetStore, new_budget_id
from cost.reports.keys import KeyUse, read_key_use
from dashboards.limits.limit_fields import (
    FIELDS,
    KINDS,
    PERIOD_CHOICES,
    dollars_in,
    limits_as_form,
    limits_in,
    rule_in_words,
)
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.forms import Form, FormError
from dashboards.web.view import PageRequest
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.rules import Place, Rule, says_nothing
from proxy.admit.limits.store import LimitStore
from proxy.errors import BadRequest, BudgetTaken, LimitNotFound, NameTaken, Refused

router: Final = APIRouter(include_in_schema=False)

_PLACE: Final = "/dashboard/teams/{team_id}/keys"
_DAY: Final = timedelta(days=1)
_ROLES: Final = (
    ("member", "Member: calls models and reads the team's figures"),
    ("finance", "Finance: can read the organisation's figures, cannot call models"),
    ("admin", "Administrator: can change everything in the organisation"),
)
_OVERLAPS: Final = (
    ("3600", "1 hour"),
    ("86400", "1 day"),
    ("604800", "7 days"),
    (str(MAX_OVERLAP_S), "30 days"),
    ("0", "Not at all: the old key is revoked now"),
)
_MENDABLE: Final = (BadRequest, NameTaken, BudgetTaken)
"""Refusals that the form shows beside a field, for the viewer to correct."""
_COLUMNS: Final = (
    Column("name", "Name", "link"),
    Column("state", "State", "badge"),
    Column(
        "used",
        "Last used",
        "day",
        "The UTC day of its last request, also of one that only read; — for none within 90 days.",
    ),
    Column("requests", "Requests, 30 days", "number"),
    Column(
        "cost",
        "Booked, 30 days",
        "money",
        "Our own GPUs at their planned rate: adjustments stand on the team's overview. What has no price is not in it.",
    ),
    Column("expires", "Expires", "time", "When it stops working; — has no end."),
    Column("ends_in", "Ends in", "code", "The last four characters of the key."),
    Column("role", "Role", usual=False),
    Column("created", "Created", "time", usual=False),
)


@router.get(_PLACE)
async def list_keys(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show the team's keys with their recent use."""
    team = view.the_team
    keys = await read_keys(view.gateway.identity.accounts, team)
    async with reading(view.gateway, on=True):
        use = await read_key_use(view.gateway.database, team.organisation_id, team.team_id, view.now_us)
    now = utc_now()
    table = Table.of(
        _COLUMNS,
        [_row(view, key, use.get(key.key_id), now) for key in keys],
        view.query,
        caption="Keys",
        sort="-created",
        search=("name", "ends_in"),
        empty="No keys yet. Make one: programs of this team send it with each request.",
    )
    return view.csv_asked(f"keys-{team.team_id}", table) or view.page(
        "keys/keys.html",
        title="Keys",
        table=table,
        base=_base(view),
        may_change=view.may("team.change"),
        team=team,
        may_block=view.may("organisation.change"),
    )


@router.get(f"{_PLACE}/new")
async def new_key(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Show the form for a new key."""
    return _new(view, {}, {})


@router.post(_PLACE)
async def make_key(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Create a key and show it, this once."""
    form = await view.form()
    try:
        name = form.text("name", required=True)
        role = cast(Role, form.one_of("role", get_args(Role))) if "role" in form else "member"
        expires_at = _expiry_in(form)
        limits, budget = limits_in(form), _budget_in(view, form)
        key, minted = await create_key(
            view.gateway.identity.audit,
            view.actor,
            view.the_team,
            name,
            view.gateway.identity.peppers[0],
            may_all=view.may("organisation.change"),
            role=role,
            expires_at=expires_at,
            models=_models_in(form),
            known=view.gateway.rules().catalog,
        )
    except FormError as error:
        return _new(view, form.plain, {error.field: error.message})
    except _MENDABLE as error:
        return _new(view, form.plain, {error.param or "name": error.message})
    return _new_key_page(view, key, minted, await _set_bounds(view, key, limits, budget))


@router.get(f"{_PLACE}/{{key_id}}")
async def show_key(view: Annotated[PageRequest, Depends(allowed("team.read"))], key_id: str) -> Response:
    """Show one key, its limits and budgets, and the forms to change it."""
    return await _show(view, key_id, {}, {})


@router.post(f"{_PLACE}/{{key_id}}/models")
async def set_models(view: Annotated[PageRequest, Depends(allowed("team.change"))], key_id: str) -> Response:
    """Change which of its team's models a key may use."""
    form = await view.form()
    try:
        await set_key_models(
            view.gateway.identity.audit,
            view.actor,
            view.the_team,
            key_id,
            _models_in(form),
            may_all=view.may("organisation.change"),
            known=view.gateway.rules().catalog,
        )
    except FormError as error:
        return await _show(view, key_id, form.plain, {error.field: error.message})
    except BadRequest as error:
        return await _show(view, key_id, form.plain, {error.param or "models": error.message})
    return view.redirect(f"{_base(view)}/{key_id}", "The key's models are saved; every server follows within seconds.")


@router.post(f"{_PLACE}/{{key_id}}/rotate")
async def replace_key(view: Annotated[PageRequest, Depends(allowed("team.change"))], key_id: str) -> Response:
    """Rotate a key: show the new one once, while the old one works for the overlap."""
    form = await view.form()
    try:
        overlap_s = int(form.one_of("overlap_s", tuple(value for value, _ in _OVERLAPS)))
        key, minted = await rotate_key(
            view.gateway.identity.audit,
            view.actor,
            view.the_team,
            key_id,
            view.gateway.identity.peppers[0],
            overlap_s=overlap_s,
            may_all=view.may("organisation.change"),
        )
    except FormError as error:
        return await _show(view, key_id, form.plain, {error.field: error.message})
    except NameTaken as error:
        return await _show(view, key_id, form.plain, {"overlap_s": error.message})
    old = await read_key(view.gateway.identity.accounts, view.the_team, key_id)
    return _new_key_page(view, key, minted, "", replaced=old)


@router.post(f"{_PLACE}/{{key_id}}/expiry")
async def change_expiry(view: Annotated[PageRequest, Depends(allowed("team.change"))], key_id: str) -> Response:
    """Set or remove the last day on which the key works."""
    form = await view.form()
    try:
        expires_at = _expiry_in(form)
        await set_key_expiry(
            view.gateway.identity.audit,
            view.actor,
            view.the_team,
            key_id,
            expires_at,
            may_all=view.may("organisation.change"),
        )
    except FormError as error:
        return await _show(view, key_id, form.plain, {error.field: error.message})
    except _MENDABLE as error:
        return await _show(view, key_id, form.plain, {"expires_on": error.message})
    return view.redirect(
        f"{_base(view)}/{key_id}", "The expiry is changed." if expires_at else "The key has no end now."
    )


@router.post(f"{_PLACE}/{{key_id}}/limits")
async def change_limits(view: Annotated[PageRequest, Depends(allowed("team.change"))], key_id: str) -> Response:
    """Set the key's rate limits; empty fields remove them."""
    form = await view.form()
    # Another team's key is as unknown as none.
    await read_key(view.gateway.identity.accounts, view.the_team, key_id)
    place = Place("key", key_id)
    try:
        limits = limits_in(form)
        if says_nothing(limits):
            await _lift(view, place)
        else:
            await _limit(view, place, limits)
    except FormError as error:
        return await _show(view, key_id, form.plain, {error.field: error.message})
    except _MENDABLE as error:
        return await _show(view, key_id, form.plain, {error.param or FIELDS[0][0]: error.message})
    return view.redirect(f"{_base(view)}/{key_id}", "The limits are changed; every server follows within seconds.")


@router.post(f"{_PLACE}/{{key_id}}/block")
async def block(view: Annotated[PageRequest, Depends(allowed("team.change"))], key_id: str) -> Response:
    """Block the key."""
    return await _block(view, key_id, blocked=True)


@router.post(f"{_PLACE}/{{key_id}}/unblock")
async def unblock(view: Annotated[PageRequest, Depends(allowed("team.change"))], key_id: str) -> Response:
    """Unblock the key."""
    return await _block(view, key_id, blocked=False)


async def _block(view: PageRequest, key_id: str, *, blocked: bool) -> Response:
    key = await block_key(
        view.gateway.identity.audit,
        view.actor,
        view.the_team,
        key_id,
        blocked=blocked,
        may_all=view.may("organisation.change"),
    )
    told = "is blocked; every server refuses it" if blocked else "works again, on every server"
    return view.redirect(f"{_base(view)}/{key_id}", f"The key {key.name} {told} within seconds.")


@router.post("/dashboard/teams/{team_id}/block")
async def block_all(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Block the whole team."""
    return await _block_all(view, blocked=True)


@router.post("/dashboard/teams/{team_id}/unblock")
async def unblock_all(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Unblock the team."""
    return await _block_all(view, blocked=False)


async def _block_all(view: PageRequest, *, blocked: bool) -> Response:
    team = view.the_team
    await block_team(view.gateway.identity.audit, view.actor, team.organisation_id, team.team_id, blocked=blocked)
    told = "is blocked; every server refuses its keys" if blocked else "may call models again, on every server"
    return view.redirect(_base(view), f"The team {told} within seconds.")


@router.post(f"{_PLACE}/{{key_id}}/revoke")
async def end_key(view: Annotated[PageRequest, Depends(allowed("team.change"))], key_id: str) -> Response:
    """Revoke the key."""
    key = await revoke_key(
        view.gateway.identity.audit, view.actor, view.the_team, key_id, may_all=view.may("organisation.change")
    )
    return view.redirect(_base(view), f"The key {key.name} is revoked; every server refuses it within seconds.")


def _base(view: PageRequest) -> str:
    return f"/dashboard/teams/{view.the_team.team_id}/keys"


def _row(view: PageRequest, key: KeyRecord, use: KeyUse | None, now: datetime) -> dict[str, Any]:
    return {
        "name": key.name,
        "name_href": f"{_base(view)}/{key.key_id}",
        "state": _state(key, now),
        "role": key.role,
        "ends_in": key.last4,
        "created": _us(key.created_at),
        "expires": None if key.expires_at is None else _us(key.expires_at),
        "used": last_day_us(key, use),
        "requests": 0 if use is None else use.requests,
        "cost": 0 if use is None else use.cost_nanousd,
    }


def _state(key: KeyRecord, now: datetime) -> tuple[str, str]:
    """Return the key's state in a word or two, and its tone."""
    if key.revoked_at is not None:
        return "revoked", "quiet"
    if not key.works_at(now):
        return "expired", "quiet"
    if key.blocked_at is not None:
        return "blocked", "bad"
    if key.expires_at is not None and key.expires_at - now < 7 * _DAY:
        return "expires soon", "warn"
    return "working", "good"


def _us(moment: datetime) -> int:
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))


def _new(view: PageRequest, values: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    return view.page(
        "keys/key_new.html",
        title="New key",
        status=400 if errors else 200,
        base=_base(view),
        roles=_ROLES if view.may("organisation.change") else (),
        fields=FIELDS,
        periods=PERIOD_CHOICES,
        kinds=KINDS,
        tomorrow=(utc_now() + _DAY).date().isoformat(),
        values=values,
        errors=errors,
    )


async def _show(view: PageRequest, key_id: str, values: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    team, gateway = view.the_team, view.gateway
    key = await read_key(gateway.identity.accounts, team, key_id)
    async with looking():
        rules = [
            rule
            for rule in await LimitStore(gateway.database).of_team(team.organisation_id, team.team_id)
            if rule.place == Place("key", key_id, rule.place.model)
        ]
        budgets = [
            standing
            for standing in await BudgetStore(gateway.database).of_team(team.organisation_id, team.team_id, [key_id])
            if standing.budget.scope == "key"
        ]
    own = next((rule.limits for rule in rules if not rule.place.model), Limits())
    now = utc_now()
    may_change = view.may("team.change") and (key.role == "member" or view.may("organisation.change"))
    last_day = "" if key.expires_at is None else (key.expires_at - timedelta(microseconds=1)).date().isoformat()
    return view.page(
        "keys/key.html",
        title=key.name,
        status=400 if errors else 200,
        base=_base(view),
        key=key,
        state=_state(key, now),
        works=key.works_at(now),
        created_us=_us(key.created_at),
        expires_us=None if key.expires_at is None else _us(key.expires_at),
        revoked_us=None if key.revoked_at is None else _us(key.revoked_at),
        may_change=may_change and key.works_at(now),
        tomorrow=(now + _DAY).date().isoformat(),
        overlaps=_OVERLAPS,
        fields=FIELDS,
        values={"expires_on": last_day, "overlap_s": "86400", **limits_as_form(own), **values},
        others=[(rule.place.model, rule_in_words(rule)) for rule in rules if rule.place.model],
        said_of=rule_in_words(Rule(place=Place("key", key_id), limits=own)),
        budgets=[_budget_row(each) for each in budgets],
        budgets_href=f"/dashboard/teams/{team.team_id}/budgets",
        errors=errors,
    )


def _budget_row(standing: BudgetStatus) -> dict[str, Any]:
    budget = standing.budget
    return {
        "id": budget.budget_id,
        "words": f"{budget.kind.capitalize()}, {PERIODS[budget.period].every}",
        "limit": standing.limit_nanousd,
        "spent": standing.spent_nanousd,
        "share": standing.share,
        "tone": {"open": "good", "warning": "warn", "spent": "bad"}[standing.state],
    }


def _new_key_page(
    view: PageRequest, key: KeyRecord, minted: MintedKey, warning: str, *, replaced: KeyRecord | None = None
) -> Response:
    """Show the page with the new key in plain text; no other page ever has it."""
    public = base_url(view.request, view.gateway.config().sign_in.public_url)
    return view.page(
        "keys/key_once.html",
        title="The new key",
        status=201,
        base=_base(view),
        key=key,
        plaintext=minted.plaintext,
        api=f"{public}/v1",
        warning=warning,
        replaced=replaced,
        replaced_ends_us=None
        if replaced is None or replaced.revoked_at is not None or replaced.expires_at is None
        else _us(replaced.expires_at),
    )


def _models_in(form: Form) -> list[str] | None:
    """Return the models that the form names, with commas; None where it names none, for all of the team's."""
    text = form.text("models", most=8_000)
    return [name for each in text.split(",") if (name := each.strip())] or None


def _expiry_in(form: Form) -> datetime | None:
    """End (UTC) of the last day on which the key works; None where it does not expire. Raises FormError."""
    text = form.text("expires_on", most=10)
    if not text:
        return None
    try:
        day = date.fromisoformat(text)
        return datetime(day.year, day.month, day.day, tzinfo=UTC) + _DAY
    except (ValueError, OverflowError) as error:
        raise FormError("expires_on", "A day such as 2027-01-31, or nothing.") from error


def _budget_in(view: PageRequest, form: Form) -> Budget | None:
    """Return the budget of a key that is not created yet, with an empty `scope_id`; None where the form has no amount."""
    limit = dollars_in(form, "budget_usd")
    if limit is None:
        return None
    return Budget(
        budget_id=new_budget_id(),
        organisation_id=view.the_team.organisation_id,
        scope="key",
        scope_id="",
        period=cast(Period, form.one_of("budget_period", tuple(name for name, _ in PERIOD_CHOICES))),
        kind=cast(Kind, form.one_of("budget_kind", tuple(name for name, _ in KINDS))),
        limit_nanousd=limit,
    )


async def _set_bounds(view: PageRequest, key: KeyRecord, limits: Limits, budget: Budget | None) -> str:
    """Set a new key's limits and budget, and return a warning when that is refused: the key exists by then and must
    be shown.
    """
    try:
        if not says_nothing(limits):
            await _limit(view, Place("key", key.key_id), limits)
        if budget is not None:
            await put_budget(
                view.gateway.identity.audit,
                view.actor,
                _for_key(budget, key),
                webhooks=view.gateway.webhooks,
                names=view.gateway.rules().names,
                only_keys_of=view.the_team,
            )
    except Refused as error:
        return f"The key works, but not all of its limits and budgets are set: {error.message}"
    return ""


def _for_key(budget: Budget, key: KeyRecord) -> Budget:
    return Budget(
        budget_id=budget.budget_id,
        organisation_id=budget.organisation_id,
        scope="key",
        scope_id=key.key_id,
        period=budget.period,
        kind=budget.kind,
        limit_nanousd=budget.limit_nanousd,
    )


async def _limit(view: PageRequest, place: Place, limits: Limits) -> None:
    await put_limit(
        view.gateway.identity.audit,
        view.actor,
        view.the_team.organisation_id,
        Rule(place=place, limits=limits),
        names=view.gateway.rules().names,
        only_keys_of=view.the_team,
    )


async def _lift(view: PageRequest, place: Place) -> None:
    try:
        await remove_limit(
            view.gateway.identity.audit, view.actor, view.the_team.organisation_id, place, only_keys_of=view.the_team
        )
    except LimitNotFound:
        # Nothing to remove.
        return
