"""/dashboard/guard and /dashboard/teams/{team_id}/guard: which rules hold, what they found, and a dry run.

A text that is tried is in the form's body alone: in no address, log or table.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, cast
from urllib.parse import quote

from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.tables import WHOLE_ORGANISATION
from api.guard.change import add_rule, remove_rule
from api.web.reading import reading
from cost.times import DAY_US, HOUR_US, start_of
from dashboards.guard.trying import MOST_CHARS, MOST_PROMPTS, Tried, TriedPrompts, try_prompts, try_text
from dashboards.ui.charts import Chart, Series, Tone
from dashboards.ui.guard_words import (
    ADDED_KINDS,
    DONE,
    INPUTS,
    OUTPUTS,
    RULE_KINDS,
    SIDES,
    done_words,
    found_words,
    kind_titles,
    looks_for,
    told,
)
from dashboards.ui.tables import Column, Row, Table
from dashboards.web.access import allowed
from dashboards.web.forms import Form, FormError
from dashboards.web.period import Period, kept_fields, period_of, presets, team_names
from dashboards.web.view import PageRequest
from guard.bounds import MOST_PATTERN_CHARS
from guard.guard_config import MOST_RULES, GuardRule, RuleKind, kinds_of
from guard.inspector import read_rules
from guard.ruleset import Action, Ruleset
from proxy.errors import BadRequest
from proxy.settle.findings.counting import GuardedRequest
from proxy.settle.findings.store import HOURS_FOR_US, KEPT_US, MOST_ROWS, FindingSum

router: Final = APIRouter(include_in_schema=False)

_ALL: Final = "/dashboard/guard"
_TEAM: Final = "/dashboard/teams/{team_id}/guard"
_NEWEST: Final = 20
_WORDS_CHARS: Final = 30_000
_TONES: Final[Mapping[Action, Tone]] = {
    "block": "bad",
    "own": "accent",
    "mask": "good",
    "flag": "",
    "open": "warn",
    "unseen": "quiet",
}
_RULE_COLUMNS: Final = (
    Column("name", "Rule", "code", sortable=False),
    Column("whose", "Set by", sortable=False),
    Column("looks", "Looks for", sortable=False),
    Column("input", "In requests", sortable=False),
    Column("output", "In answers", sortable=False),
    Column("roles", "Only in", note="Whose texts alone are looked at", sortable=False),
)
_OF_TEAM: Final = Column("team", "Team", "link")
_FOUND_COLUMNS: Final = (
    Column("what", "Found"),
    Column("rule", "Name", "code", note="As headers, logs and metrics have it"),
    Column("action", "Then", "badge"),
    Column("side", "In"),
    Column("requests", "Requests", "number", "In which it was found"),
    Column("findings", "Found", "number", "How often"),
)
_NEWEST_COLUMNS: Final = (
    Column("request_id", "Request", "id", sortable=False),
    Column("at", "When", "time", sortable=False),
    Column("found", "Found", sortable=False),
)


class _Layer(NamedTuple):
    """Rules that somebody set."""

    whose: str
    rules: tuple[GuardRule, ...]
    is_own: bool = False
    """True for those that this page changes."""


class _Shown(NamedTuple):
    """What a form left on the page."""

    values: Mapping[str, str] = {}
    chosen: Sequence[str] = ()
    errors: Mapping[str, str] = {}
    text: str = ""
    tried: Tried | None = None
    prompts: TriedPrompts | None = None


_AS_IT_IS: Final = _Shown()
_GROUPS: Final[tuple[RuleKind, ...]] = ("pii", "secret")


@router.get(_ALL)
async def show_all(view: Annotated[PageRequest, Depends(allowed("organisation.read"))]) -> Response:
    """Show the organisation's rules, and what was found in all teams' requests."""
    return await _show(view)


@router.get(_TEAM)
async def show_team(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show the rules that hold for a team, and what was found in its requests."""
    return await _show(view)


@router.post(f"{_ALL}/rules")
async def add_for_all(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Add a rule for all teams."""
    return await _add(view)


@router.post(f"{_TEAM}/rules")
async def add_for_team(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Add a rule for the team."""
    return await _add(view)


@router.post(f"{_ALL}/rules/remove")
async def remove_of_all(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Remove one of the organisation's own rules."""
    return await _remove(view)


@router.post(f"{_TEAM}/rules/remove")
async def remove_of_team(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Remove one of the team's own rules."""
    return await _remove(view)


@router.post(f"{_ALL}/try")
async def try_all(view: Annotated[PageRequest, Depends(allowed("organisation.read"))]) -> Response:
    """Show what the organisation's rules find in a text."""
    return await _try(view)


@router.post(f"{_TEAM}/try")
async def try_team(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show what the rules that hold for the team find in a text."""
    return await _try(view)


@router.post(f"{_TEAM}/prompts")
async def try_kept(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show what the rules find in the newest prompts that the team keeps: for those who may read them."""
    rules = await _ruleset(view) if _may_read_prompts(view) else None
    return await _show(view, _AS_IT_IS if rules is None else _Shown(prompts=await try_prompts(view, rules)))


async def _add(view: PageRequest) -> Response:
    form = await view.form()
    try:
        added = await add_rule(
            view.gateway.identity.audit, view.actor, _organisation(view), _rule(form), team_id=_team_id(view)
        )
    except FormError as error:
        return await _show(view, _form_again(form, error.field, error.message))
    except BadRequest as error:
        return await _show(view, _form_again(form, error.param or "name", error.message))
    return view.redirect(f"{_base(view)}#rules", f"“{added.name}” holds in every process within seconds.")


async def _remove(view: PageRequest) -> Response:
    name = (await view.form()).text("name")
    await remove_rule(view.gateway.identity.audit, view.actor, _organisation(view), name, team_id=_team_id(view))
    return view.redirect(f"{_base(view)}#rules", "The rule is removed; those above it still hold.")


async def _try(view: PageRequest) -> Response:
    form = await view.form()
    try:
        text = form.text("text", most=MOST_CHARS, required=True)
    except FormError as error:
        return await _show(view, _Shown(errors={error.field: error.message}, text=form.plain.get("text", "")))
    rules = await _ruleset(view)
    return await _show(view, _Shown(text=text, tried=None if rules is None else await try_text(view, rules, text)))


def _form_again(form: Form, field: str, message: str) -> _Shown:
    known = field if field in {"name", "kind", "entities", "words", "pattern", "input", "output"} else "name"
    return _Shown(values=form.plain, chosen=form.texts("entities"), errors={known: message})


def _rule(form: Form) -> dict[str, Any]:
    """Return the rule of a form. Raises FormError."""
    kind = cast(RuleKind, form.one_of("kind", ADDED_KINDS))
    words = [line.strip() for line in form.text("words", most=_WORDS_CHARS).splitlines() if line.strip()]
    said: dict[str, Any] = {
        "entities": list(form.texts("entities")),
        "words": words,
        "pattern": form.text("pattern", most=MOST_PATTERN_CHARS),
    }
    return {
        "name": form.text("name", most=40, required=True),
        "kind": kind,
        "input": form.one_of("input", tuple(INPUTS)),
        "output": form.one_of("output", tuple(OUTPUTS)),
        **{name: value for name, value in said.items() if value},
    }


def _organisation(view: PageRequest) -> str:
    return view.principal.organisation_id


def _team_id(view: PageRequest) -> str:
    return WHOLE_ORGANISATION if view.team is None else view.team.team_id


def _base(view: PageRequest) -> str:
    return _ALL if view.team is None else f"/dashboard/teams/{view.team.team_id}/guard"


def _may_read_prompts(view: PageRequest) -> bool:
    """Return True for members of a team that keeps prompts: rules of one's own could tell others what is in them."""
    team = view.team
    return team is not None and team.settings.learning == "prompts" and team.team_id in view.principal.teams


async def _stored(view: PageRequest) -> tuple[str, str]:
    """Return the rules that the organisation added, and those of the page's team."""
    accounts, organisation_id = view.gateway.identity.accounts, _organisation(view)
    async with reading(view.gateway, on=True):
        of_all = await accounts.guard_of(organisation_id)
        of_team = "" if view.team is None else await accounts.guard_of(organisation_id, view.team.team_id)
    return of_all, of_team


async def _ruleset(view: PageRequest) -> Ruleset | None:
    """Return the rules that hold, compiled; None where stored ones are none any more."""
    try:
        return await view.gateway.views.guard.rules_for(await _stored(view))
    except ValueError:
        return None


async def _layers(view: PageRequest) -> tuple[list[_Layer], bool]:
    """Return all rules that hold, the highest first, and whether all could be read."""
    layers = [_Layer("Configuration", view.gateway.views.guard.floor)]
    are_read = True
    named = ("Organisation", *([] if view.team is None else ["Team"]))
    for whose, stored in zip(named, await _stored(view), strict=False):
        try:
            layers.append(_Layer(whose, read_rules(stored), is_own=whose == named[-1]))
        except ValueError:
            are_read = False
    return layers, are_read


async def _show(view: PageRequest, shown: _Shown = _AS_IT_IS) -> Response:
    now_us, store = view.now_us, view.gateway.views.findings
    team_id = None if view.team is None else view.team.team_id
    layers, are_read = await _layers(view)
    newest: tuple[GuardedRequest, ...] = ()
    async with reading(view.gateway, on=True):
        period = period_of(view.query, now_us, await view.calendar())
        span = (_organisation(view), team_id, period.start_us, period.end_us)
        found = await store.read(*span)
        hours = await store.by_hour(*span)
        names = await team_names(view) if team_id is None else {}
        if team_id is not None:
            newest = await store.newest(_organisation(view), team_id, _NEWEST)
    holds = any(each.rules for each in layers)
    table = _found_table(found, names, view, nothing=_nothing(view, holds=holds))
    rules = _rules_table(layers, within_team=team_id is not None)
    file = view.csv_asked(f"guard-{period.first}-{period.last}", table, rules, problem=period.problem)
    if file is not None:
        return file
    done = {action: sum(each.findings for each in found if each.action == action) for action in DONE}
    return view.page(
        "guard/guard.html",
        title="Guard",
        status=400 if shown.errors else 200,
        team=view.team,
        base=_base(view),
        may_change=view.may("organisation.change" if view.team is None else "team.change"),
        period=period,
        presets=presets(view.query, now_us, period),
        kept=kept_fields(view.query),
        kept_days=KEPT_US // DAY_US,
        figures=[
            (done_words(action)[0], done[action] if holds or found else None)
            for action in DONE
            if done[action] or action in {"block", "mask"}
        ],
        chart=_chart(period, hours, now_us),
        table=table,
        is_cut=len(found) == MOST_ROWS,
        most=MOST_ROWS,
        rules=rules,
        are_read=are_read,
        most_rules=MOST_RULES,
        has_services=any(rule.kind == "http" for each in layers for rule in each.rules),
        has_rules=holds,
        newest=_newest_table(newest, team_id or ""),
        kinds=[(kind, RULE_KINDS[kind]) for kind in ADDED_KINDS],
        titles=[(RULE_KINDS[group], [(name, kind_titles()[name]) for name in kinds_of(group)]) for group in _GROUPS],
        inputs=list(INPUTS.items()),
        outputs=list(OUTPUTS.items()),
        shown=shown,
        most_chars=MOST_CHARS,
        most_prompts=MOST_PROMPTS,
        may_read_prompts=_may_read_prompts(view),
    )


def _rules_table(layers: Sequence[_Layer], *, within_team: bool) -> Table:
    rows: list[Row] = [
        {
            "name": rule.name,
            "whose": layer.whose,
            "is_own": layer.is_own,
            "looks": looks_for(rule),
            "input": INPUTS[rule.input],
            "output": OUTPUTS[rule.output],
            "roles": ", ".join(rule.roles or ()) or "All texts",
        }
        for layer in layers
        for rule in layer.rules
    ]
    return Table.of(
        _RULE_COLUMNS,
        rows,
        {},
        name="rules",
        caption="Rules that hold",
        page_rows=3 * MOST_RULES,
        empty="No rule holds, so nothing is looked at." if within_team else "No rule holds for all teams.",
        csv=False,
    )


def _nothing(view: PageRequest, *, holds: bool) -> str:
    """Return why nothing was found: with no rule that looks, nobody knows whether there was anything."""
    if holds:
        return "Nothing was found in this time."
    if view.team is None:
        return "No rule holds for all teams; those that added rules of their own found nothing in this time."
    return "No rule holds, so whether there was anything to find is not known."


def _found_table(found: Sequence[FindingSum], names: Mapping[str, str], view: PageRequest, *, nothing: str) -> Table:
    rows = [
        {
            "team": names.get(each.team_id, each.team_id),
            "team_href": f"/dashboard/teams/{each.team_id}/guard" if each.team_id in names else None,
            "what": found_words(each.name, each.action),
            "rule": each.name or None,
            "action": done_words(each.action),
            "side": SIDES.get(each.side, each.side),
            "requests": each.requests,
            "findings": each.findings,
        }
        for each in found
    ]
    return Table.of(
        _FOUND_COLUMNS if view.team is not None else (_OF_TEAM, *_FOUND_COLUMNS),
        rows,
        view.query,
        name="found",
        caption="What was found",
        sort="-findings",
        page_rows=25,
        empty=nothing,
    )


def _newest_table(newest: Sequence[GuardedRequest], team_id: str) -> Table:
    rows = [
        {
            "request_id": each.request_id,
            "request_id_href": f"/dashboard/teams/{team_id}/requests/{quote(each.request_id, safe='')}",
            "at": each.at_us,
            "found": told(each.findings),
        }
        for each in newest
    ]
    return Table.of(
        _NEWEST_COLUMNS,
        rows,
        {},
        name="newest",
        caption="Newest requests in which something was found",
        page_rows=_NEWEST,
        empty="None yet.",
        csv=False,
    )


def _chart(period: Period, found: Sequence[tuple[int, str, int]], now_us: int) -> Chart:
    """Return the findings of each day, divided by what was done; of one day that is not long over, of each hour."""
    by_hour = period.days == 1 and period.start_us >= now_us - HOURS_FOR_US
    calendar = period.span.calendar
    marks = list(range(period.start_us, period.end_us, HOUR_US) if by_hour else period.span.marks)
    sums: dict[str, list[int]] = {}
    for at_us, action, findings in found:
        place = (at_us - marks[0]) // HOUR_US if by_hour else (start_of(calendar.day(at_us)) - marks[0]) // DAY_US
        if 0 <= place < len(marks):
            sums.setdefault(action, [0] * len(marks))[place] += findings
    return Chart(
        shape="stacked",
        title="Found by hour" if by_hour else "Found by day",
        x=marks,
        series=[Series(DONE[action][0], sums[action], tone) for action, tone in _TONES.items() if action in sums],
        x_label=f"{'Hour' if by_hour else 'Day'} ({period.time_zone})",
        caption=f"How often something was found, by what was done, {period.told}.",
        by_hour=by_hour,
        time_zone=period.time_zone,
    )
