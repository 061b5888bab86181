"""/dashboard/operations/rollouts: versions of our own models, and how one on trial compares with the stable one."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.fleet.rollouts import (
    add_version,
    check_registrable,
    gets,
    promote,
    ready_versions,
    roll_back,
    start_canary,
    verdict_of,
)
from api.web.changing import checked_reason, looking
from cost.times import wall_us
from dashboards.operations.overview_page import HOME, address_of
from dashboards.ui import formats
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.forms import Form, FormError
from dashboards.web.view import PageRequest
from proxy.errors import BadRequest, NameTaken, PoolNotFound, RolloutRefused, VersionNotFound
from selfhosted.config import PoolConfig
from selfhosted.health.fleet_view import WatchedPool
from selfhosted.health.hardware import usage_of
from selfhosted.replica import Replica
from selfhosted.rollouts.comparison import Compared, Estimate, compared
from selfhosted.rollouts.reading import Samples, VersionReader
from selfhosted.rollouts.store import RolloutStore
from selfhosted.rollouts.versions import (
    ARGUMENT_CHARS,
    MOST_ARGUMENTS,
    NOTE_CHARS,
    PPM,
    REFERENCE_CHARS,
    VERSION_CHARS,
    WORD_CHARS,
    ModelVersion,
    Rollout,
    Rule,
    missing,
    share_of,
)

router: Final = APIRouter(include_in_schema=False)
PLACE: Final = f"{HOME}/rollouts"
STATES: Final = {
    "settled": ("No trial", "quiet"),
    "canary": ("On trial", "info"),
    "rolled_back": ("Rolled back", "warn"),
}
_TONES: Final = {"worse": "bad", "better": "good", "unknown": "quiet", "no difference shown": "info"}
_DEFAULTS: Final[Mapping[str, str]] = {
    "version": "",
    "percent": "5",
    "errors": "on",
    "quality": "on",
    "ttft": "50",
    "tpot": "50",
    "promote_after": "",
    "reason": "",
}
_NEW: Final[Mapping[str, str]] = dict.fromkeys(
    ("model", "name", "weights", "digest", "precision", "layout", "tokenizer", "arguments", "adapters", "note"), ""
)
_LIST_CHARS: Final = MOST_ARGUMENTS * (ARGUMENT_CHARS + 1)
_LEAST_TO_PROMOTE: Final = 100
_MOST_ATTEMPTS: Final = 10_000_000

MODELS: Final = (
    Column("model", "Model", "link"),
    Column("pool", "Pool"),
    Column("state", "State", "badge"),
    Column("stable", "Stable version"),
    Column("candidate", "New version"),
    Column("share", "Its share", "share", "Of conversations"),
    Column("since", "Since", "time"),
    Column("by", "By"),
)
VERSIONS: Final = (
    Column("version", "Version"),
    Column("gets", "Gets"),
    Column("ready", "Ready", "number", "Replicas that say they run it, and take requests"),
    Column("there", "There", "number", "Replicas that say they run it"),
    Column("running", "Running", "number", "Requests in their engines"),
    Column("waiting", "Waiting", "number", "Requests in their engines' own queues", usual=False),
    Column("speed", "Tokens/s", "number", "Prompt and completion tokens of all of them, a mean of the last minute"),
    Column("each", "Tokens/s a GPU", "number", "Known with cost.pools"),
    Column("cost", "Cost per million tokens", "money", "At this throughput, the version's idle replicas included"),
    Column("weights", "Weights", "code"),
    Column("digest", "Digest", "code", usual=False),
    Column("precision", "Precision"),
    Column("layout", "Layout"),
    Column("arguments", "Arguments", "code", usual=False),
    Column("adapters", "Adapters", usual=False),
    Column("added", "Added", "time"),
    Column("by", "By", usual=False),
    Column("note", "Note", usual=False),
)
FIGURES: Final = (
    Column("figure", "Figure"),
    Column("stable", "Stable"),
    Column("candidate", "On trial"),
    Column("difference", "Difference", note="Of the version on trial from the stable one: its 95 % interval"),
    Column("verdict", "So far", "badge"),
)
_NAMES: Final = {
    "failures": "Attempts that failed",
    "ttft_p95_s": "Model's own first token, p95",
    "tpot_p95_s": "Time a token, p95",
    "escalations": "Weak answers, escalated",
    "verdicts_feedback": "Callers' ratings",
    "verdicts_implicit": "Implicit signals",
    "verdicts_shadow": "Blind judge's verdicts",
}


@router.get(PLACE)
async def show_rollouts(view: Annotated[PageRequest, Depends(allowed("operations.read"))]) -> Response:
    """Show the model of each pool, with the versions that it runs."""
    async with looking():
        found = {each.model: each for each in await RolloutStore(view.gateway.database).rollouts()}
    table = Table.of(
        MODELS,
        [
            _model_row(view, found.get(pool.targets[0], Rollout(model=pool.targets[0], pool=pool.name)))
            for pool in _pools(view)
        ],
        view.query,
        name="rollouts",
        caption="Models",
        empty="There are no pools: engines of your own are set up under selfhosted.pools in the configuration.",
    )
    return view.csv_asked("rollouts", table) or view.page(
        "operations/rollouts.html", title="Rollouts", models=table, at_us=wall_us()
    )


@router.get(f"{PLACE}/{{pool}}")
async def show_rollout(view: Annotated[PageRequest, Depends(allowed("operations.read"))], pool: str) -> Response:
    """Show a model's versions, and the comparison of the one on trial."""
    return await _show(view, pool, {}, {})


@router.post(f"{PLACE}/{{pool}}/versions")
async def add_a_version(view: Annotated[PageRequest, Depends(allowed("operations.change"))], pool: str) -> Response:
    """Register a version of the pool's model, or of one of its adapters."""
    form = await view.form()
    config = _watched(view, pool).config
    try:
        made = _version_of(form, config)
        async with looking():
            check_registrable(_pools(view), made)
            made = await add_version(view.gateway.identity.audit, view.actor, made)
    except (FormError, BadRequest, NameTaken, RolloutRefused, VersionNotFound) as error:
        field = error.field if isinstance(error, FormError) else error.param or "version"
        told = error.message.replace("`", "")
        return await _show(view, pool, {}, {}, status=422, new=({**_NEW, **form.plain}, {field: told}))
    return view.redirect(_address(pool), told=f"{made.version} is registered. Its replicas are started by you.")


def _version_of(form: Form, config: PoolConfig) -> ModelVersion:
    """Return the version that the form describes. Raises FormError."""
    model = form.one_of("model", (config.targets[0], *(adapter.target for adapter in config.adapters)))
    base = "" if model == config.targets[0] else config.targets[0]
    return ModelVersion(
        model=model,
        version=form.text("name", most=VERSION_CHARS, required=True),
        kind="adapter" if base else "weights",
        weights=form.text("weights", most=REFERENCE_CHARS, required=True),
        digest=form.text("digest"),
        precision=form.text("precision", most=WORD_CHARS),
        layout=form.text("layout", most=WORD_CHARS),
        tokenizer=form.text("tokenizer", most=REFERENCE_CHARS),
        arguments=_lines(form.text("arguments", most=_LIST_CHARS)),
        adapters=_lines(form.text("adapters", most=_LIST_CHARS)),
        base=base,
        note=form.text("note", most=NOTE_CHARS),
    )


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


@router.post(f"{PLACE}/{{pool}}/canary")
async def canary(view: Annotated[PageRequest, Depends(allowed("operations.change"))], pool: str) -> Response:
    """Give a version a share of conversations."""
    form = await view.form()
    model = _watched(view, pool).config.targets[0]
    try:
        percent = form.decimal("percent", least=Decimal("0.0001"), most=Decimal("99.9999")) or Decimal(0)
        ttft, tpot = (form.decimal(name, most=Decimal(10_000)) for name in ("ttft", "tpot"))
        rule = Rule(
            errors=form.flag("errors"),
            ttft_worse=float(ttft) / 100 if ttft else None,
            promote_after=form.whole("promote_after", least=_LEAST_TO_PROMOTE, most=_MOST_ATTEMPTS),
            tpot_worse=float(tpot) / 100 if tpot else None,
            quality=form.flag("quality"),
        )
        async with looking():
            after = await start_canary(
                view.gateway.identity.audit,
                view.actor,
                model,
                pool,
                form.text("version", required=True),
                share_ppm=share_of(float(percent)),
                rule=rule,
                reason=checked_reason(form.text("reason", most=500)),
            )
    except (FormError, RolloutRefused, VersionNotFound) as error:
        field = error.field if isinstance(error, FormError) else "version"
        return await _show(
            view, pool, {**_DEFAULTS, "errors": "", "quality": "", **form.plain}, {field: error.message}, status=422
        )
    told = f"{percent.normalize():f} % of conversations go there"
    if missing := _missing(view, after):
        return view.redirect(_address(pool), told=f"{told} once a replica that runs {missing} is ready; none is now.")
    return view.redirect(_address(pool), told=f"{told} within seconds.")


@router.post(f"{PLACE}/{{pool}}/promote")
async def promote_version(view: Annotated[PageRequest, Depends(allowed("operations.change"))], pool: str) -> Response:
    """Give the version on trial everything."""
    form = await view.form()
    model = _watched(view, pool).config.targets[0]
    async with looking():
        reason = checked_reason(form.text("reason", most=500))
        after = await promote(view.gateway.identity.audit, view.actor, model, pool, reason=reason)
    if missing := _missing(view, after):
        told = f"All conversations go to {missing} once a replica that runs it is ready; none is now."
        return view.redirect(_address(pool), told=told)
    return view.redirect(_address(pool), told=f"All conversations go to {after.stable} within seconds.")


@router.post(f"{PLACE}/{{pool}}/rollback")
async def rollback(view: Annotated[PageRequest, Depends(allowed("operations.change"))], pool: str) -> Response:
    """Take everything from the version on trial."""
    form = await view.form()
    model = _watched(view, pool).config.targets[0]
    async with looking():
        reason = checked_reason(form.text("reason", most=500))
        after = await roll_back(view.gateway.identity.audit, view.actor, model, reason=reason)
    return view.redirect(_address(pool), told=f"No conversation goes to {after.candidate} within seconds.")


async def _show(
    view: PageRequest,
    pool: str,
    values: Mapping[str, str],
    errors: Mapping[str, str],
    *,
    status: int = 200,
    new: tuple[Mapping[str, str], Mapping[str, str]] = (_NEW, {}),
) -> Response:
    """Show the page. `values` and `errors` are those of the share's form, `new` are those of a version's."""
    watched = _watched(view, pool)
    model = watched.config.targets[0]
    engine = view.gateway.database
    async with looking():
        store = RolloutStore(engine)
        rollout, versions = await store.rollout(model, pool), await store.versions(model)
        samples = None
        if rollout.state == "canary":
            samples = await VersionReader(engine).samples(rollout, watched.config.served, wall_us())
    figures = Table.of(FIGURES, _figure_rows(samples), view.query, name="figures", caption="Compared")
    table = Table.of(
        VERSIONS,
        [_version_row(each, rollout, watched) for each in versions],
        view.query,
        name="versions",
        caption=f"Versions of {model}",
        search=("version", "weights", "note"),
        empty="No version is registered yet.",
    )
    file = view.csv_asked(f"rollout-{pool}", figures, table)
    if file is not None:
        return file
    context: dict[str, Any] = {
        "here": address_of(view),
        "place": _address(pool),
        "model": model,
        "rollout": rollout,
        "state": _state(rollout, _missing(view, rollout)),
        "missing": _missing(view, rollout),
        "share": rollout.share_ppm / PPM,
        "samples": samples,
        "figures": figures,
        "unversioned": sum(not each.address.version for each in watched.snapshot().replicas),
        "at_us": wall_us(),
    }
    if view.is_part:
        return view.part("operations/_rollout.html", **context)
    return view.page(
        "operations/rollout.html",
        title=f"Rollout of {model}",
        status=status,
        versions=table,
        options=[(each.version, each.version) for each in versions if each.version != rollout.stable],
        values=values or _values(rollout),
        errors=errors,
        new=new[0],
        wrong=new[1],
        models=_models_of(watched.config),
        most={
            "version": VERSION_CHARS,
            "reference": REFERENCE_CHARS,
            "word": WORD_CHARS,
            "note": NOTE_CHARS,
            "list": _LIST_CHARS,
        },
        least_to_promote=_LEAST_TO_PROMOTE,
        may_change=view.may("operations.change"),
        **context,
    )


def _missing(view: PageRequest, rollout: Rollout) -> str:
    """Return the version that is to get conversations and that no replica runs; empty where there is none."""
    ready = ready_versions(view.gateway, rollout.pool)
    return "" if ready is None else missing(rollout, ready)


def _state(rollout: Rollout, missing_version: str) -> tuple[str, str]:
    return ("Waits for a replica", "warn") if missing_version else STATES[rollout.state]


def _values(rollout: Rollout) -> dict[str, str]:
    """Return the form's first values: those in effect, during a trial."""
    if rollout.state != "canary":
        return dict(_DEFAULTS)
    rule = rollout.rule
    return {
        "version": rollout.candidate,
        "percent": f"{rollout.share_ppm * 100 / PPM:g}",
        "errors": "on" if rule.errors else "",
        "quality": "on" if rule.quality else "",
        "ttft": "" if rule.ttft_worse is None else f"{rule.ttft_worse * 100:g}",
        "tpot": "" if rule.tpot_worse is None else f"{rule.tpot_worse * 100:g}",
        "promote_after": "" if rule.promote_after is None else str(rule.promote_after),
        "reason": "",
    }


def _models_of(config: PoolConfig) -> list[tuple[str, str]]:
    """Return the choices of a version's model: the pool's own, and its adapters."""
    adapters = [(adapter.target, f"{adapter.target} (adapter)") for adapter in config.adapters]
    return [(config.targets[0], config.targets[0]), *adapters]


def _pools(view: PageRequest) -> Sequence[PoolConfig]:
    found = view.gateway.views.fleet
    return () if found is None else [each.config for each in found.pools.values()]


def _watched(view: PageRequest, pool: str) -> WatchedPool:
    found = view.gateway.views.fleet
    watched = None if found is None else found.pools.get(pool)
    if watched is None:
        raise PoolNotFound(f"There is no pool `{pool[:64]}`.", param="pool")
    return watched


def _address(pool: str) -> str:
    return f"{PLACE}/{quote(pool, safe='')}"


def _model_row(view: PageRequest, rollout: Rollout) -> dict[str, Any]:
    return {
        "model": rollout.model,
        "model_href": _address(rollout.pool),
        "pool": rollout.pool,
        "state": _state(rollout, _missing(view, rollout)),
        "stable": rollout.stable or None,
        "candidate": rollout.candidate or None,
        "share": rollout.share_ppm / PPM if rollout.candidate else None,
        "since": rollout.since_us or None,
        "by": rollout.changed_by or None,
    }


def _version_row(version: ModelVersion, rollout: Rollout, watched: WatchedPool) -> dict[str, Any]:
    snapshot = watched.snapshot()
    there = [each for each in snapshot.replicas if each.address.version == version.version]
    known = [each.stats for each in there if each.stats is not None]
    usage = usage_of(there, watched.hardware)
    speeds = [stats.tokens_per_s for stats in known if stats.tokens_per_s is not None]
    return {
        "version": version.version,
        "gets": "nothing until a replica runs it" if _waits(rollout, version, there) else gets(rollout, version),
        "ready": sum(each.state == "ready" for each in there),
        "there": len(there),
        "running": sum(stats.running for stats in known) if known else None,
        "waiting": sum(stats.waiting for stats in known) if known else None,
        "speed": sum(speeds) if speeds else None,
        "each": usage.tokens_per_s_per_gpu,
        "cost": usage.nanousd_per_million,
        "weights": version.weights,
        "digest": version.digest or None,
        "precision": version.precision or None,
        "layout": version.layout or None,
        "arguments": " ".join(version.arguments) or None,
        "adapters": ", ".join(version.adapters) or None,
        "added": version.added_us,
        "by": version.added_by,
        "note": version.note or None,
    }


def _waits(rollout: Rollout, version: ModelVersion, there: Sequence[Replica]) -> bool:
    ready = {each.address.version for each in there if each.state == "ready"}
    return version.kind == "weights" and version.version == missing(rollout, ready)


def _figure_rows(samples: Samples | None) -> Sequence[dict[str, Any]]:
    if samples is None:
        return ()
    return [_figure_row(each) for each in compared(samples.stable, samples.candidate)]


def _figure_row(figure: Compared) -> dict[str, Any]:
    verdict = verdict_of(figure)
    show = formats.seconds if figure.name.endswith("_s") else formats.share
    difference = None if figure.low is None or figure.high is None else f"{show(figure.low)} to {show(figure.high)}"
    return {
        "figure": _NAMES.get(figure.name, figure.name),
        "stable": _estimate(figure.stable, show),
        "candidate": _estimate(figure.candidate, show),
        "difference": difference,
        "verdict": (verdict[:1].upper() + verdict[1:], _TONES[verdict]),
    }


def _estimate(estimate: Estimate | None, show: Any) -> str | None:
    """Return the value with its interval, and of how many; None where there is too little to tell."""
    if estimate is None:
        return None
    return (
        f"{show(estimate.value)} ({show(estimate.low)} to {show(estimate.high)}), of {formats.number(estimate.count)}"
    )
