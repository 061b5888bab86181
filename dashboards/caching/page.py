"""/dashboard/teams/{team_id}/caching: what providers' prompt caches and the gateway's own answer cache saved, and what was lost.

What was read and written is from the books. What was lost is an estimate (`proxy.settle.prompt_caches`).
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.teams.change import flush_cache
from api.web.gateway import Gateway
from api.web.reading import reading
from cost.meters import METERS
from cost.reports.daily import meters_of
from cost.reports.scope import ReadScope
from cost.reports.usage import MAX_ROWS, UsageQuery, UsageSums
from cost.times import DAY_US
from dashboards.caching.causes import CAUSES
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.period import kept_fields, period_of, presets
from dashboards.web.view import PageRequest
from proxy.plan.route_plan import is_own
from proxy.settle.prompt_caches.store import CacheLossStore, CacheLossSum
from proxy.settle.prompt_caches.watch import LOOKED, SKIPPED
from selfhosted.prefixes.store import KEPT_DAYS

router: Final = APIRouter(include_in_schema=False)

_PAGE: Final = "/dashboard/teams/{team_id}/caching"
_MODELS_NAMED: Final = 3
_WRITES: Final = {each.name for each in METERS if "cache_write" in (each.name, each.within)}
_READ_COLUMNS: Final = (
    Column("model", "Model", "code"),
    Column("whose", "Run by"),
    Column("tokens", "Prompt tokens", "number"),
    Column("cached", "Read from a cache", "number", "Tokens"),
    Column("share", "Share", "share", "Of the prompt tokens"),
    Column(
        "saved",
        "Saved",
        "money",
        "What they would have cost in full, less what they did; nothing is bought of our own GPUs",
    ),
    Column("written", "Written to a cache", "number", "Tokens"),
    Column("extra", "Paid for writing", "money", "What they cost beyond the price of the prompt"),
)
_LOST_COLUMNS: Final = (
    Column("cause", "Why", sortable=False),
    Column("requests", "Requests", "number"),
    Column("tokens", "Tokens", "number", "That might have been read from a cache"),
    Column("lost", "Would have saved", "money", "An estimate"),
    Column("models", "Models", "code", sortable=False),
    Column("advice", "What to change", sortable=False),
)


class _Lost(NamedTuple):
    """What was lost for one cause at all models."""

    requests: int
    tokens: int
    nanousd: int
    unpriced: int
    models: Sequence[str]


class _Kept(NamedTuple):
    """What providers' caches saved at all models, less what writing to them cost."""

    nanousd: int | None
    are_all_known: bool
    has_paid: bool
    """Writing cost something."""


@router.get(_PAGE)
async def caching(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show what caches gave a team, what was lost of them and why, and what can be changed."""
    gateway, team = view.gateway, view.the_team
    scope = ReadScope(organisation_id=team.organisation_id, team_id=team.team_id)
    async with reading(gateway, on=True):
        period = period_of(view.query, view.now_us, await view.calendar())
        asked = UsageQuery(
            scope=scope,
            start_us=max(0, period.start_us),
            end_us=period.end_us,
            group_by=("model",),
            limit=MAX_ROWS,
        )
        used = await gateway.finance.usage.page(asked)
        first_us = period.start_us - period.start_us % DAY_US
        lost = await CacheLossStore(gateway.database).read(scope, first_us, period.end_us)
    counts = Counter({each.cause: 0 for each in lost})
    for each in lost:
        counts[each.cause] += each.requests
    by_model = {str(row.group[0]): row.sums for row in used.rows if row.sums.input_tokens > 0}
    own = _own(gateway, by_model)
    read, losses = _read_table(by_model, own, view.query), _lost_table(lost, view.query, looked=counts[LOOKED])
    file = view.csv_asked(f"{team.team_id}-caching-{period.first}-{period.last}", read, losses, problem=period.problem)
    if file is not None:
        return file
    bought = [sums for model, sums in by_model.items() if model not in own]
    config = gateway.config()
    return view.page(
        "caching/caching.html",
        title="Caching",
        team=team,
        period=period,
        presets=presets(view.query, view.now_us, period),
        kept=kept_fields(view.query),
        kept_days=KEPT_DAYS,
        totals=used.totals or UsageSums(),
        share=sum(each.cached_input_tokens for each in bought) / sum(each.input_tokens for each in bought)
        if bought
        else None,
        kept_by_caches=_together(bought),
        lost=sum(each.nanousd for each in lost),
        unpriced=sum(each.unpriced for each in lost),
        looked=counts[LOOKED],
        skipped=counts[SKIPPED],
        is_watched=config.telemetry.prompt_caches,
        read=read,
        losses=losses,
        answers=config.cache,
        use=team.settings.cache,
        fresh_s=config.accounts.fresh_s,
        may_change=view.may("team.change"),
    )


@router.post(f"{_PAGE}/flush")
async def flush(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Have none of the team's kept answers given again."""
    team = view.the_team
    await view.form()
    await flush_cache(view.gateway.identity.audit, view.actor, team.organisation_id, team.team_id)
    fresh_s = view.gateway.config().accounts.fresh_s
    return view.redirect(
        f"{_PAGE.format(team_id=team.team_id)}#answers",
        f"What was kept is given to nobody any more, in every process within {fresh_s:g} seconds.",
    )


def _own(gateway: Gateway, models: Iterable[str]) -> frozenset[str]:
    """Return those of the models that are on our own GPUs."""
    rules = gateway.rules()
    found = ((model, rules.catalog.targets.get(model)) for model in models)
    return frozenset(model for model, target in found if target is not None and is_own(target, rules.policy.pooled))


def _read_table(by_model: Mapping[str, UsageSums], own: Container[str], query: Mapping[str, str]) -> Table:
    rows = [
        {
            "model": model,
            "whose": "Our own GPUs" if model in own else "A provider",
            "tokens": sums.input_tokens,
            "cached": sums.cached_input_tokens,
            "share": sums.cached_input_tokens / sums.input_tokens,
            "saved": None if model in own else _saved_nanousd(sums),
            "written": sums.cache_write_tokens,
            "extra": None if model in own else _extra_nanousd(sums),
        }
        for model, sums in by_model.items()
    ]
    return Table.of(
        _READ_COLUMNS,
        rows,
        query,
        name="read",
        caption="Prompt tokens from caches",
        sort="-tokens",
        page_rows=25,
        empty="Nothing was asked in this time.",
    )


def _lost_table(lost: Iterable[CacheLossSum], query: Mapping[str, str], *, looked: int) -> Table:
    by_cause: dict[str, list[CacheLossSum]] = {}
    for each in lost:
        by_cause.setdefault(each.cause, []).append(each)
    rows = [
        {
            "cause": words.title,
            "requests": found.requests,
            "tokens": found.tokens,
            "lost": None if cause == "short" or found.unpriced == found.requests else found.nanousd,
            "models": ", ".join(found.models),
            "advice": words.advice,
        }
        for cause, words in CAUSES.items()
        if cause in by_cause
        for found in [_added(by_cause[cause])]
    ]
    return Table.of(
        _LOST_COLUMNS,
        rows,
        query,
        name="lost",
        caption="What was lost, and why",
        sort="-lost",
        page_rows=len(CAUSES),
        empty="Nothing noteworthy was lost by the prompts looked at."
        if looked
        else "No prompt was looked at in this time, so what was lost is not known.",
    )


def _added(parts: Sequence[CacheLossSum]) -> _Lost:
    largest = sorted(parts, key=lambda each: (-each.nanousd, -each.tokens, each.target_id))
    named = [each.target_id for each in largest[:_MODELS_NAMED]]
    more = len(largest) - len(named)
    return _Lost(
        sum(each.requests for each in parts),
        sum(each.tokens for each in parts),
        sum(each.nanousd for each in parts),
        sum(each.unpriced for each in parts),
        [*named, f"and {more} more"] if more else named,
    )


def _rate(sums: UsageSums) -> Fraction | None:
    """Return what a prompt token cost that no cache had a part in, in nano-dollars; None where there was none, or no price."""
    fresh = next(each for each in meters_of(sums) if each.name == "input")
    return Fraction(fresh.cost_nanousd, fresh.used) if fresh.used > 0 and fresh.cost_nanousd > 0 else None


def _saved_nanousd(sums: UsageSums) -> int | None:
    """Return what tokens from caches would have cost beside what they did; None where that is not known."""
    if not sums.cached_input_tokens:
        return 0
    rate = _rate(sums)
    found = next(each for each in meters_of(sums) if each.name == "cached_input")
    return None if rate is None else round(found.used * rate) - found.cost_nanousd


def _extra_nanousd(sums: UsageSums) -> int | None:
    """Return what writing to caches cost beyond the price of the prompt; None where that is not known."""
    if not sums.cache_write_tokens:
        return 0
    rate = _rate(sums)
    found = [each for each in meters_of(sums) if each.name in _WRITES]
    if rate is None:
        return None
    return sum(each.cost_nanousd for each in found) - round(sum(each.used for each in found) * rate)


def _together(models: Iterable[UsageSums]) -> _Kept:
    """Return what caches saved at all models, less what writing to them cost."""
    parts = [(_saved_nanousd(sums), _extra_nanousd(sums)) for sums in models]
    known = [(saved, extra) for saved, extra in parts if saved is not None and extra is not None]
    nanousd = sum(saved - extra for saved, extra in known) if known or not parts else None
    return _Kept(nanousd, are_all_known=len(known) == len(parts), has_paid=any(extra for _, extra in known))
