"""/dashboard/teams/{team_id}/policy: the team's minimum quality and choices, with a forecast of each minimum's cost.

A change is previewed beside the current policy, and applied with a reason.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, cast

import msgspec
from fastapi import APIRouter, Depends
from msgspec import UNSET
from starlette.responses import Response

from accounts.caller import CacheUse, Escalation, Learning
from accounts.store import TeamRecord
from api.erasure.change import erase_content_of
from api.policy.anchored import AnchoredPreview, Month, anchored
from api.policy.change import PolicyChoice, policy_of, proposed, set_policy
from api.policy.preview import bill_words, own_words, replicas_up, room_words, two_words
from api.policy.traffic import DAYS, auto_traffic
from api.web.changing import REASON_CHARS
from api.web.gateway import Gateway
from api.web.reading import reading
from classifier.heuristic import HeuristicClassifier
from classifier.learning.requests import own_requests
from cost.reports.scope import ReadScope
from dashboards.ui.formats import share
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.forms import Form, FormError
from dashboards.web.view import PageRequest
from proxy.errors import Refused
from proxy.plan.evidence import evidence_notes
from proxy.plan.quality_tolerance import FloorResult, Present, Preview, Tolerances
from proxy.plan.route_plan import choosable
from proxy.plan.routing_config import DEFAULT_FLOOR

router: Final = APIRouter(include_in_schema=False)

LOWEST: Final = 90
HIGHEST: Final = 100
_STOPS_A_POINT: Final = 2
STOPS: Final = tuple(
    each / (100 * _STOPS_A_POINT) for each in range(LOWEST * _STOPS_A_POINT, HIGHEST * _STOPS_A_POINT + 1)
)
"""Quality floors on offer, in steps of half a percentage point."""
_PERCENT: Final = 100

ESCALATION: Final[Sequence[tuple[Escalation, str]]] = (
    ("off", "Never"),
    ("whole", "For whole replies"),
    ("all", "For streams too"),
    ("agreement", "For whole replies, and two cheap models first"),
    ("agreement-all", "For streams too, and two cheap models first"),
)
LEARNING: Final[Sequence[tuple[Learning, str]]] = (
    ("off", "Nothing"),
    ("numbers", "Numbers only, no text"),
    ("prompts", "Prompts too"),
)
CACHE: Final[Sequence[tuple[CacheUse, str]]] = (
    ("default", "As the configuration says"),
    ("on", "At temperature 0, and vectors"),
    ("off", "Never"),
)
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "escalation": dict(ESCALATION),
    "learning": dict(LEARNING),
    "cache": dict(CACHE),
}
"""Choices in words."""
_LABELS: Final = {
    "quality_floor": "Minimum quality",
    "allowed_models": "Allowed models",
    "escalation": "Ask again after a weak answer",
    "learning": "Kept to learn from",
    "shadow_share": "Shadow comparisons",
    "spill_over": "Overflow to paid providers",
    "continue_streams": "Continue a broken stream",
    "cache": "Give answers again",
    "cache_ttl_s": "Seconds for which answers are given again",
}


class FloorOption(msgspec.Struct, frozen=True, kw_only=True):
    """Forecast of one floor, or of neighbours that choose the same, for a month like the last one."""

    offer: FloorResult
    """The current floor's, or that of the highest of them."""
    floors: tuple[float, ...]
    """All of them, rising."""
    month: Month | None
    """Forecast month; None where no bill is known."""
    room: tuple[str, ...] = ()
    """Sentences on the room of our own GPUs."""

    @property
    def percent(self) -> str:
        """The floors as percentages, without the last sign."""
        first, last = _percent(self.floors[0]), _percent(self.floors[-1])
        return first if first == last else f"{first} to {last}"

    @property
    def stops(self) -> str:
        """The values of the slider that it stands for, with spaces between."""
        return " ".join(map(_percent, self.floors))


class FloorForecast(msgspec.Struct, frozen=True, kw_only=True):
    """Forecasts of all floors, on the team's own traffic where there is enough of it."""

    preview: Preview
    requests: int | None
    """Requests for `auto` in the last 30 days; None without recent ones."""
    auto_share: float | None
    stops: tuple[FloorOption, ...]
    spent_nanousd: int | None
    """The cost of the last 30 days, which the forecasts start from."""
    bill: tuple[str, ...] = ()
    """Sentences on what the forecasts start from."""
    two: tuple[str, ...] = ()
    """Sentences on what two cheap models first would cost, keep and delay."""

    @property
    def now(self) -> FloorOption | None:
        """The option of the current floor, or None."""
        return next((stop for stop in self.stops if stop.offer.current), None)


@router.get("/dashboard/teams/{team_id}/policy")
async def show(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show the current policy, with forecasts of other floors."""
    return await _page(view, _values(view.the_team))


@router.post("/dashboard/teams/{team_id}/policy")
async def change(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Preview the differences of a change, then applies it with a reason."""
    form, team = await view.form(), view.the_team
    values = _submitted_values(form)
    try:
        choice = _choice(form, team)
        models = view.gateway.rules().catalog
        after = proposed(team, choice, models)
        if form.text("step") != "apply":
            return await _page(view, values, after=after)
        if form.text("base") != fingerprint(team):
            told = "Somebody changed the policy since you opened it. Look at the differences again."
            return await _page(view, values, after=after, notice=told)
        reason = form.text("reason", most=REASON_CHARS, required=True)
        forget = view.gateway.learning
        await set_policy(
            view.gateway.identity.audit, view.actor, team, choice, reason=reason, forget=forget, models=models
        )
    except FormError as error:
        return await _page(view, values, errors={error.field: error.message}, after=_proposed_or_none(form, team))
    except Refused as error:
        return await _page(view, values, errors={error.param or "": error.message}, after=_proposed_or_none(form, team))
    applied = "The policy is changed; every gateway follows within seconds."
    told = applied if policy_of(after) != policy_of(team) else "Nothing was different, so nothing changed."
    return view.redirect(f"/dashboard/teams/{team.team_id}/policy", told)


def fingerprint(team: TeamRecord) -> str:
    """Hash of the policy, by which a form detects that it changed in the meantime."""
    return hashlib.sha256(msgspec.json.encode(policy_of(team), order="deterministic")).hexdigest()[:16]


def differences(before: TeamRecord, after: TeamRecord, gateway_floor: float) -> list[tuple[str, str, str]]:
    """Return changed settings as (label, old, new), in words."""
    old, new = policy_of(before), policy_of(after)
    return [
        (label, _in_words(name, old[name], gateway_floor), _in_words(name, new[name], gateway_floor))
        for name, label in _LABELS.items()
        if old[name] != new[name]
    ]


def floor_options(found: AnchoredPreview, per_s: float | None = None) -> tuple[FloorOption, ...]:
    """Return the forecast of each floor; neighbours that choose the same for every prompt are one."""
    pairs = zip(found.preview.offers, found.months, strict=True)
    return tuple(
        _option(found.preview, list(same), per_s)
        for _, same in itertools.groupby(pairs, key=lambda pair: _shown(*pair))
    )


def _shown(offer: FloorResult, month: Month | None) -> object:
    """Return the key that tells one forecast from another."""
    return (offer.reached, offer.kept, offer.cost_nanousd, offer.margin_nanousd, offer.shares, month)


def _option(preview: Preview, same: Sequence[tuple[FloorResult, Month | None]], per_s: float | None) -> FloorOption:
    offer, month = next((pair for pair in same if pair[0].current), same[-1])
    return FloorOption(
        offer=offer,
        floors=tuple(each.floor for each, _ in same),
        month=month,
        room=(*room_words(preview, offer, per_s), *own_words(preview, offer)),
    )


@router.post("/dashboard/teams/{team_id}/policy/erase")
async def erase(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Erase the team's content, or tell how much of it there is."""
    form, team = await view.form(), view.the_team
    back = f"/dashboard/teams/{team.team_id}/policy#erase"
    try:
        before = form.day("before")
    except FormError as error:
        return view.redirect(back, error.message, "info")
    is_counted = form.flag("count")
    erased = await erase_content_of(view.gateway, view.actor, team, before=before, dry_run=is_counted)
    rows = sum(erased.rows.values())
    told = f"{rows:,} rows would go; nothing was erased." if is_counted else f"{rows:,} rows are erased."
    left = sum(erased.left.values())
    return view.redirect(
        back, f"{told} {left:,} are left until batches and uploads under way have ended." if left else told
    )


async def outlook(gateway: Gateway, team: TeamRecord, now_us: int, present: TeamRecord | None = None) -> FloorForecast:
    """Return the forecasts for the team, on its own latest requests where there are enough. `present` is the team as it
    is, whose bill the forecasts start from, where `team` has a proposed policy.
    """
    rules = gateway.rules()
    tolerances = rules.tolerances or Tolerances(
        catalog=rules.catalog, policy=rules.policy, classifier=HeuristicClassifier()
    )
    scope = ReadScope(organisation_id=team.organisation_id, team_id=team.team_id)
    async with reading(gateway, on=True):
        own = await own_requests(gateway.database, team.team_id, tolerances.artifact, tolerances.width)
        traffic = await auto_traffic(gateway.database, scope, now_us)
    # Some tens of milliseconds of arithmetic: off the loop that other requests are served by, and a few at a time, for
    # answers are checked in the same threads.
    async with gateway.finance.reads:
        preview = await asyncio.to_thread(
            tolerances.preview,
            STOPS,
            team.allowed_models,
            current=team.settings.quality_floor,
            own=own,
            up=replicas_up(gateway),
            present=None if present is None else Present(present.settings.quality_floor, present.allowed_models),
            moved=traffic.by_target,
            two_at_all=False,
        )
    found = anchored(preview, traffic)
    return FloorForecast(
        preview=found.preview,
        requests=traffic.requests,
        auto_share=traffic.auto_share,
        stops=floor_options(found, traffic.per_s),
        spent_nanousd=traffic.totals.known_cost_nanousd,
        bill=tuple(bill_words(preview, traffic)) if any(found.months) else (),
        two=tuple(two_words(preview, team.team_id, traffic)),
    )


async def _page(
    view: PageRequest,
    values: dict[str, Any],
    *,
    errors: dict[str, str] | None = None,
    after: TeamRecord | None = None,
    notice: str = "",
) -> Response:
    gateway, team = view.gateway, view.the_team
    found = await outlook(gateway, team, view.now_us)
    # Other models change every forecast, so compute them for the proposed policy.
    then = (
        found
        if after is None or policy_of(after) == policy_of(team)
        else await outlook(gateway, after, view.now_us, team)
    )
    table = _table(found, view.query)
    file = view.csv_asked(f"{team.team_id}-quality-floors", table)
    if file is not None:
        return file
    config = gateway.config()
    floor = config.policy.quality_floor
    return view.page(
        "policy/policy.html",
        title="Policy",
        status=422 if errors else 200,
        team=team,
        values=values,
        errors=errors or {},
        notice=notice,
        may_change=view.may("team.change"),
        outlook=found,
        evidence_notes=list(evidence_notes(found.preview.evidence, trained=found.preview.trained)),
        then=then,
        table=table,
        days=DAYS,
        lowest=LOWEST,
        highest=HIGHEST,
        step=1 / _STOPS_A_POINT,
        gateway_floor=floor,
        reference=config.cost.reference_target,
        keep_days=config.classifier.learning.keep_days,
        models=_models(view, values),
        caches=CACHE,
        escalation=ESCALATION,
        learning=LEARNING,
        facts=[(label, _in_words(name, policy_of(team)[name], floor)) for name, label in _LABELS.items()],
        diff=None if after is None else differences(team, after, floor),
        base=fingerprint(team),
        reason_chars=REASON_CHARS,
        floor_modes=_floor_modes(team, floor),
    )


def _models(view: PageRequest, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return models on offer: all of the configuration, and those that the team has allowed beside them."""
    rules = view.gateway.rules()
    auto = {target.target_id for target in choosable(rules.policy, rules.catalog, None)}
    known = dict.fromkeys([*sorted(entry.target_id for entry in rules.catalog), *sorted(values["models"])])
    return [
        {
            "name": name,
            "chosen": name in values["models"],
            "note": "" if name in auto else "by name only" if name in rules.catalog else "no longer configured",
        }
        for name in known
    ]


def _floor_modes(team: TeamRecord, gateway_floor: float) -> list[tuple[str, str]]:
    modes = [("gateway", f"The gateway's own, now {share(gateway_floor)}"), ("own", "Our own, as the slider says")]
    own = team.settings.quality_floor
    # The slider cannot represent this floor, and snapping it would change the policy unasked.
    return modes if own is None or _on_slider(own) else [*modes, ("keep", f"Currently {_percent(own)} %")]


def _values(team: TeamRecord) -> dict[str, Any]:
    """Return form values of the current policy."""
    settings = team.settings
    own = settings.quality_floor
    nearest = min(STOPS, key=lambda stop: abs(stop - (DEFAULT_FLOOR if own is None else own)))
    return {
        "floor_mode": "gateway" if own is None else "own" if _on_slider(own) else "keep",
        "floor": _percent(nearest),
        "models_mode": "all" if team.allowed_models is None else "some",
        "models": frozenset(team.allowed_models or ()),
        "spill_over": settings.spill_over,
        "continue_streams": settings.continue_streams,
        "cache": settings.cache,
        "escalation": settings.escalation,
        "learning": settings.learning,
        "shadow": _percent(settings.shadow_share),
        "reason": "",
    }


def _submitted_values(form: Form) -> dict[str, Any]:
    """Return form values as submitted, to be shown again."""
    plain = form.plain
    return {
        **{
            name: plain.get(name, "")
            for name in ("floor_mode", "models_mode", "cache", "escalation", "learning", "shadow")
        },
        "floor": plain.get("floor") or str(HIGHEST),
        "reason": plain.get("reason", "")[:REASON_CHARS],
        "models": frozenset(form.texts("models")),
        "spill_over": form.flag("spill_over"),
        "continue_streams": form.flag("continue_streams"),
    }


def _choice(form: Form, team: TeamRecord) -> PolicyChoice:
    """Return the policy chosen in the form. Raises FormError."""
    mode = form.one_of("floor_mode", ("gateway", "own", "keep"))
    floor = team.settings.quality_floor if mode == "keep" else None
    if mode == "own":
        percent = form.decimal("floor", least=Decimal(LOWEST), most=Decimal(HIGHEST))
        if percent is None:
            raise FormError("floor", f"A number from {LOWEST} to {HIGHEST}.")
        floor = float(percent / _PERCENT)
    models = None
    if form.one_of("models_mode", ("all", "some")) == "some":
        models = sorted(set(form.texts("models")))
        if not models:
            raise FormError("models", "Allow at least one model, or all of them.")
    shadow = form.decimal("shadow", most=Decimal(_PERCENT)) or Decimal(0)
    return PolicyChoice(
        quality_floor=floor,
        allowed_models=models,
        escalation=cast("Escalation", form.one_of("escalation", tuple(name for name, _ in ESCALATION))),
        learning=cast("Learning", form.one_of("learning", tuple(name for name, _ in LEARNING))),
        shadow_share=float(shadow / _PERCENT),
        spill_over=form.flag("spill_over"),
        continue_streams=form.flag("continue_streams"),
        cache=cast("CacheUse", form.one_of("cache", tuple(name for name, _ in CACHE)))
        if form.plain.get("cache")
        else UNSET,
    )


def _proposed_or_none(form: Form, team: TeamRecord) -> TeamRecord | None:
    """Return the team with the chosen policy, or None where the form is invalid: a missing reason does not hide the
    differences.
    """
    if form.text("step") != "apply":
        return None
    try:
        return proposed(team, _choice(form, team))
    except (FormError, Refused):
        return None


def _in_words(name: str, value: Any, gateway_floor: float) -> str:
    """Return a setting's value in words."""
    match name:
        case "quality_floor":
            return f"The gateway's own, {share(gateway_floor)}" if value is None else f"{_percent(value)} %"
        case "allowed_models":
            return "Every model" if value is None else ", ".join(value) or "No model"
        case "escalation" | "learning" | "cache":
            return _WORDS[name][value]
        case "cache_ttl_s":
            return "The gateway's own" if value is None else str(value)
        case "shadow_share":
            return f"{_percent(value)} % of requests" if value else "No requests"
        case _:
            return "Yes" if value else "No"


def _percent(value: float) -> str:
    """Return a share as a percentage, without floating-point residue or trailing zeros."""
    return f"{(Decimal(str(value)) * _PERCENT).normalize():f}"


def _on_slider(floor: float) -> bool:
    return floor in STOPS


def _table(found: FloorForecast, query: Mapping[str, str]) -> Table:
    is_merged = any(len(stop.floors) > 1 for stop in found.stops)
    columns = (
        Column("floor", "Minimum quality", "share", note="Of what the baseline model gets right, the share to keep"),
        Column(
            "lowest",
            "The same from",
            "share",
            note="Lower minimums that choose the same for every prompt",
            usual=is_merged,
        ),
        Column("kept", "Expected to keep", "share"),
        Column(
            "error", "Give or take", "share", note="The standard error that the number of requests leaves", usual=False
        ),
        Column("month", "A month costs", "money", note="The bill of the last days, and what would change in it"),
        Column("low", "At least", "money", note="The lower end of the 95 % interval"),
        Column("high", "At most", "money", note="The upper end of the 95 % interval"),
        Column("change", "Against now", "money", note="Negative: cheaper than the actual bill"),
        Column("saved", "Saves a month", "money", note="Against asking the baseline model for everything", usual=False),
        Column("saving", "Saves", "share", note="Against asking the baseline model for everything"),
        Column(
            "added",
            "Adds a month",
            "money",
            note="To what is paid anyway: our own GPUs while they have room",
            usual=False,
        ),
        Column("own", "Our own", "share", note="Requests that our own GPUs get while they have room", usual=False),
        Column("note", "Note", sortable=False),
    )
    rows = [_row(stop, stop.month) for stop in found.stops]
    return Table.of(columns, rows, query, name="floors", caption="Minimum qualities", page_rows=40)


def _row(stop: FloorOption, month: Month | None) -> dict[str, Any]:
    offer = stop.offer
    return {
        "floor": stop.floors[-1],
        "lowest": stop.floors[0] if len(stop.floors) > 1 else None,
        "kept": offer.kept,
        "error": offer.kept_error,
        "month": None if month is None else month.cost_nanousd,
        "low": None if month is None else month.low_nanousd,
        "high": None if month is None else month.high_nanousd,
        "change": None if month is None else month.change_nanousd,
        "saved": None if month is None else month.saved_nanousd,
        "saving": offer.saving if month is None else month.saved_share,
        "added": None if month is None else month.added_nanousd,
        "own": offer.own_share,
        "note": "Now" if offer.current else "" if offer.reached else "Cannot be reached: the highest possible",
    }
