"""/dashboard/operations/measurements: weighing a target by questions that a program can check, and putting it in use."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.web.changing import looking
from api.web.gateway import Gateway
from classifier.measuring.drawing import ranked
from classifier.measuring.result import Result
from classifier.measuring.store import Measurement, MeasurementError, MeasurementStore, Order
from classifier.onnx_classifier import OnnxClassifier
from cost.prices import nanousd
from cost.times import wall_us
from dashboards.operations.measurement_change import (
    MOST_QUESTIONS,
    accept_measurement,
    order_measurement,
    read_result,
    roll_back_tuning,
    stop_measurement,
)
from dashboards.operations.overview_page import HOME, address_of
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.forms import FormError
from dashboards.web.view import PageRequest
from proxy.errors import BadRequest, MeasurementNotFound, Refused
from proxy.learning.tunings import AS_TRAINED

router: Final = APIRouter(include_in_schema=False)
PLACE: Final = f"{HOME}/measurements"
_DEFAULTS: Final[Mapping[str, str]] = {"target": "", "questions": "200", "budget": "1.00"}
_MOST_USD: Final = Decimal(100_000)
STATES: Final = {"running": ("Running", "info"), "stopped": ("Stopped", "warn"), "finished": ("Finished", "good")}

MEASUREMENTS: Final = (
    Column("target", "Model", "link"),
    Column("state", "State", "badge"),
    Column("ordered", "Ordered", "time"),
    Column("by", "By"),
    Column("questions", "Questions", "number"),
    Column("mean", "Mean chance", "number", "Of a right answer, on the mix of prompts that the classifier was made of"),
    Column("low", "From", "number", "The 95 % interval"),
    Column("high", "To", "number", "The 95 % interval"),
    Column("spent", "Spent", "money"),
    Column("tuning", "Tuning", "number", "The version that it was accepted as"),
)
SOURCES: Final = (
    Column("source", "Source"),
    Column("asked", "Asked", "number"),
    Column("right", "Right", "share"),
    Column("low", "From", "share", "The 95 % interval"),
    Column("high", "To", "share", "The 95 % interval"),
    Column("known", "Known models", "share", "The median of what known models had right of the same questions"),
    Column("best", "Best known", "share"),
)
ODD: Final = (Column("question", "Question", "code"), Column("expected", "Right is"), Column("said", "It said"))


@router.get(PLACE)
async def show_measurements(view: Annotated[PageRequest, Depends(allowed("operations.read"))]) -> Response:
    """Show all measurements, and the form that orders one."""
    asked = view.query.get("target", "")
    return await _list(view, {**_DEFAULTS, "target": asked[:200]}, {})


@router.post(PLACE)
async def order(view: Annotated[PageRequest, Depends(allowed("operations.change"))]) -> Response:
    """Order a measurement, or go on with the target's one that stopped."""
    form = await view.form()
    try:
        target = form.one_of("target", tuple(_askable(view.gateway)))
        questions = form.whole("questions", least=1, most=MOST_QUESTIONS) or int(_DEFAULTS["questions"])
        budget = form.decimal("budget", least=Decimal("0.000001"), most=_MOST_USD) or Decimal(_DEFAULTS["budget"])
        wanted = Order(target_id=target, questions=questions, budget_nanousd=nanousd(budget))
        found, goes_on = await order_measurement(view.gateway.identity.audit, view.actor, view.gateway.operator, wanted)
    except FormError as error:
        return await _list(view, {**_DEFAULTS, **form.plain}, {error.field: error.message}, status=422)
    except BadRequest as error:
        return await _list(view, {**_DEFAULTS, **form.plain}, {"target": error.message}, status=422)
    told = "It goes on where it stopped." if goes_on else "Ordered; a gateway process begins within seconds."
    return view.redirect(f"{PLACE}/{found.measurement_id}", told=told)


@router.get(f"{PLACE}/{{measurement_id}}")
async def show_measurement(
    view: Annotated[PageRequest, Depends(allowed("operations.read"))], measurement_id: str
) -> Response:
    """Show one measurement: how far it is, and what it found."""
    found = await _found(view, measurement_id)
    async with looking():
        tally = await MeasurementStore(view.gateway.database).tally(found.measurement_id)
    result = read_result(found)
    sources = Table.of(SOURCES, _sources(result), view.query, name="sources", caption="By source")
    odd = Table.of(
        ODD,
        []
        if result is None
        else [{"question": x.question_id, "expected": x.expected, "said": x.said} for x in result.shown],
        view.query,
        name="odd",
        caption="Answers in the wrong format",
        empty="Every answer had the requested format.",
    )
    file = view.csv_asked("measurement", sources, odd)
    if file is not None:
        return file
    context: dict[str, Any] = {
        "here": address_of(view),
        "measurement": found,
        "state": STATES[found.state],
        "tally": tally,
        "left_s": _left_s(found, tally.scored, tally.first_us, tally.last_us),
        "result": result,
        "sources": sources,
        "odd": odd,
        "bars": [(f"→ {name}" if mine else name, mean, f"{mean:.3f}") for name, mean, mine in _ranked(result)],
        "is_outdated": result is not None and result.artifact != _artifact(view.gateway),
        "may_change": view.may("operations.change"),
        "place": PLACE,
        "at_us": wall_us(),
    }
    if view.is_part:
        return view.part("operations/_measurement.html", **context)
    return view.page("operations/measurement.html", title=f"Measurement of {found.target_id}", **context)


@router.post(f"{PLACE}/{{measurement_id}}/stop")
async def stop(view: Annotated[PageRequest, Depends(allowed("operations.change"))], measurement_id: str) -> Response:
    """Stop a measurement; it may go on later."""
    found = await _found(view, measurement_id)
    stopped = await stop_measurement(
        view.gateway.identity.audit, view.actor, view.gateway.operator, found.measurement_id
    )
    return view.redirect(_address(found), told="Stopped; it may go on." if stopped else "It had ended already.")


@router.post(f"{PLACE}/{{measurement_id}}/go-on")
async def go_on(view: Annotated[PageRequest, Depends(allowed("operations.change"))], measurement_id: str) -> Response:
    """Go on where it stopped, with another budget where one is given."""
    found = await _found(view, measurement_id)
    form = await view.form()
    try:
        budget = form.decimal("budget", least=Decimal("0.000001"), most=_MOST_USD)
        again = Order(
            target_id=found.target_id,
            questions=found.questions,
            budget_nanousd=found.budget_nanousd if budget is None else nanousd(budget),
            at_once=found.at_once,
            max_tokens=found.max_tokens,
        )
        await order_measurement(view.gateway.identity.audit, view.actor, view.gateway.operator, again)
    except FormError as error:
        return view.redirect(_address(found), told=error.message, tone="bad")
    except BadRequest as error:
        return view.redirect(_address(found), told=error.message, tone="bad")
    return view.redirect(_address(found), told="It goes on where it stopped.")


@router.post(f"{PLACE}/{{measurement_id}}/accept")
async def accept(view: Annotated[PageRequest, Depends(allowed("operations.change"))], measurement_id: str) -> Response:
    """Put the measured row in use, as a new tuning."""
    found = await _found(view, measurement_id)
    result = read_result(found)
    try:
        if result is not None and result.artifact != _artifact(view.gateway):
            raise BadRequest("It was measured with another trained model; measure the model again.")
        version = await accept_measurement(
            view.gateway.identity.audit, view.actor, view.gateway.operator, found.measurement_id
        )
    except Refused as error:
        return view.redirect(_address(found), told=error.message, tone="bad")
    return view.redirect(_address(found), told=f"Tuning {version} is in use; every process follows within seconds.")


@router.post(f"{HOME}/classifier/rollback")
async def go_back(view: Annotated[PageRequest, Depends(allowed("operations.change"))]) -> Response:
    """Go back to the tuning before the one in use, or to the version that is named."""
    form = await view.form()
    try:
        version = form.whole("version", least=AS_TRAINED, most=10**9)
        now = await roll_back_tuning(view.gateway.identity.audit, view.actor, view.gateway.operator, version)
    except (FormError, Refused) as error:
        return view.redirect(f"{HOME}/classifier", told=error.message, tone="bad")
    told = "No tuning is in use now, as trained." if now == AS_TRAINED else f"Tuning {now} is in use now."
    return view.redirect(f"{HOME}/classifier", told=f"{told} Every process follows within seconds.")


async def _list(
    view: PageRequest, values: Mapping[str, str], errors: Mapping[str, str], *, status: int = 200
) -> Response:
    async with looking():
        found = await MeasurementStore(view.gateway.database).newest()
    table = Table.of(
        MEASUREMENTS,
        [_row(each) for each in found],
        view.query,
        name="measurements",
        caption="Measurements",
        sort="-ordered",
        search=("target", "by"),
        empty="Nothing was measured yet. A model that is not measured is known by published scores, by its declared capability, or not at all.",
    )
    file = view.csv_asked("measurements", table)
    if file is not None:
        return file
    measured = measured_targets(view.gateway)
    options = [(name, name if name in measured else f"{name} (not measured)") for name in _askable(view.gateway)]
    return view.page(
        "operations/measurements.html",
        title="Measurements",
        status=status,
        measurements=table,
        options=options,
        values=values,
        errors=errors,
        place=PLACE,
        most_questions=MOST_QUESTIONS,
        is_trained=isinstance(view.gateway.classifier, OnnxClassifier),
        may_change=view.may("operations.change"),
    )


def measured_targets(gateway: Gateway) -> frozenset[str]:
    """Return the targets that are weighed by outcomes of their own answers."""
    evidence = gateway.rules().policy.evidence
    return frozenset(target_id for target_id, each in evidence.items() if each == "measured")


def _askable(gateway: Gateway) -> list[str]:
    """Return the targets that answer questions, those that are not measured first."""
    targets = gateway.rules().catalog.targets.values()
    names = [target.target_id for target in targets if target.chats]
    measured = measured_targets(gateway)
    return sorted(names, key=lambda name: name in measured)


async def _found(view: PageRequest, measurement_id: str) -> Measurement:
    try:
        async with looking():
            return await MeasurementStore(view.gateway.database).find(measurement_id[:64])
    except MeasurementError as error:
        raise MeasurementNotFound("There is no such measurement.", param="measurement_id") from error


def _address(found: Measurement) -> str:
    return f"{PLACE}/{quote(found.measurement_id, safe='')}"


def _artifact(gateway: Gateway) -> str | None:
    return gateway.classifier.artifact if isinstance(gateway.classifier, OnnxClassifier) else None


def _left_s(found: Measurement, scored: int, first_us: int | None, last_us: int | None) -> float | None:
    """Return the seconds that are left at the pace so far; None where it is not known."""
    if found.state != "running" or first_us is None or last_us is None or scored < 2:  # noqa: PLR2004 - a pace needs two
        return None
    return (found.questions - scored) * (last_us - first_us) / 1_000_000 / (scored - 1)


def _row(found: Measurement) -> dict[str, Any]:
    result = read_result(found)
    mean = None if result is None else result.mean
    return {
        "target": found.target_id,
        "target_href": _address(found),
        "state": STATES[found.state],
        "ordered": found.ordered_us,
        "by": found.ordered_by,
        "questions": found.questions if result is None else result.scored,
        "mean": None if mean is None else round(mean.value, 3),
        "low": None if mean is None else round(mean.low, 3),
        "high": None if mean is None else round(mean.high, 3),
        "spent": None if result is None else result.spent_nanousd,
        "tuning": found.tuning_version,
    }


def _sources(result: Result | None) -> list[dict[str, Any]]:
    if result is None:
        return []
    return [
        {
            "source": each.source,
            "asked": each.asked,
            "right": each.right / each.asked,
            "low": each.low,
            "high": each.high,
            "known": each.known_median,
            "best": each.known_best,
        }
        for each in result.sources
    ]


def _ranked(result: Result | None) -> list[tuple[str, float, bool]]:
    return [] if result is None else ranked(result)
