"""/dashboard/operations/classifier: the classifier's model, tunings and learned abilities, and drift of prompts."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from api.live.drift import BINS, DAYS, FEWEST, LARGE, SLIGHT, Drift
from api.operations.snapshot import classifier_snapshot
from api.web.patience import patience
from api.web.reading import reading
from classifier.learning.store import TuningRecord
from classifier.onnx_classifier import OnnxClassifier
from dashboards.operations.overview_page import HOME
from dashboards.ui.charts import Chart, Series
from dashboards.ui.tables import Column, Table
from dashboards.ui.words import evidence_badge
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest
from proxy.plan.evidence import UNMEASURED, evidence_notes
from proxy.plan.route_plan import evidence_for_auto

router: Final = APIRouter(include_in_schema=False)
_PATIENCE_S: Final = 3.0
_DRIFT_S: Final = 2.0
VERDICTS: Final = {
    "unknown": ("Too few to say", "quiet"),
    "steady": ("Steady", "good"),
    "shifted": ("Shifted", "warn"),
    "drifted": ("Drifted", "bad"),
}
ABILITIES: Final = (
    Column("target", "Model", "link"),
    Column("ability", "Row", note="Of the classifier's table"),
    Column(
        "capability",
        "Declared capability",
        "number",
        "The highest complexity that its operator trusts it with, where it has no row",
    ),
    Column("state", "How good it is", "badge", "How that is known"),
)
TUNINGS: Final = (
    Column("version", "Version", "number"),
    Column("made", "Made", "time"),
    Column("state", "State", "badge"),
    Column("artifact", "For the model", "code"),
    Column("note", "Note"),
)


@router.get(f"{HOME}/classifier")
async def show_classifier(view: Annotated[PageRequest, Depends(allowed("operations.read"))]) -> Response:
    """Show the model, its tunings and abilities. Drift is computed in the background and loaded as a part of the page."""
    gateway = view.gateway
    if view.is_part:
        return view.part("operations/_drift.html", **await _drift(view))
    tunings = Table.of(
        TUNINGS,
        [_tuning(each, gateway.classifier) for each in await _tunings(view)],
        view.query,
        name="tunings",
        caption="Tunings",
        sort="-version",
        page_rows=20,
        empty="Nothing was learned from own traffic yet: “weighbridge classifier recalibrate” proposes a tuning once there are verdicts.",
    )
    abilities = Table.of(
        ABILITIES, _abilities(view), view.query, name="abilities", caption="Abilities", search=("target", "ability")
    )
    file = view.csv_asked("classifier", tunings, abilities)
    if file is not None:
        return file
    manifest = gateway.classifier.manifest if isinstance(gateway.classifier, OnnxClassifier) else None
    rules = gateway.rules()
    known = evidence_for_auto(rules.policy, rules.catalog)
    return view.page(
        "operations/classifier.html",
        title="Classifier",
        classifier_facts=await classifier_snapshot(gateway, await gateway.views.workers.now()),
        manifest=manifest,
        tunings=tunings,
        abilities=abilities,
        unmeasured=[target_id for target_id, each in known.items() if each in UNMEASURED],
        evidence_notes=list(evidence_notes(known, trained=manifest is not None)),
        may_change=view.may("operations.change"),
        **_drift_context(gateway.views.operations.drift.known),
    )


async def _drift(view: PageRequest) -> dict[str, Any]:
    async with reading(view.gateway, on=True):
        return _drift_context(await view.gateway.views.operations.drift.within(_DRIFT_S))


def _drift_context(drift: Drift | None) -> dict[str, Any]:
    if drift is None:
        return {"drift": None}
    middles = [(each + 0.5) / BINS for each in range(BINS)]
    nothing = [None] * BINS
    chart = Chart(
        shape="line",
        title="Complexity of prompts",
        caption=f"The share of prompts in each tenth of complexity: the last day, the {DAYS} days before it, and the training.",
        x=middles,
        x_label="Complexity (middle of each tenth)",
        is_time=False,
        unit="share",
        series=(
            Series("Last day", drift.day or nothing, "accent"),
            Series(f"{DAYS} days before", drift.before or nothing),
            Series("Training", [1 / BINS] * BINS, "quiet"),
        ),
    )
    return {
        "drift": drift,
        "verdict": VERDICTS[drift.verdict],
        "chart": chart if drift.day or drift.before else None,
        "fewest": FEWEST,
        "days": DAYS,
        "slight": SLIGHT,
        "large": LARGE,
    }


async def _tunings(view: PageRequest) -> list[TuningRecord]:
    try:
        async with patience(_PATIENCE_S):
            return await view.gateway.learning.tunings()
    except (SQLAlchemyError, OSError, TimeoutError):
        return []


def _tuning(record: TuningRecord, classifier: object) -> dict[str, Any]:
    fits = isinstance(classifier, OnnxClassifier) and classifier.artifact == record.artifact
    state = (
        ("In use", "good")
        if record.active and fits
        else ("For another model", "quiet")
        if not fits
        else ("Kept", "quiet")
    )
    return {
        "version": record.version,
        "made": record.at_us,
        "state": state,
        "artifact": record.artifact,
        "note": record.note or None,
    }


def _abilities(view: PageRequest) -> list[dict[str, Any]]:
    rules = view.gateway.rules()
    return [
        {
            "target": target.target_id,
            "target_href": f"{HOME}/targets/{target.target_id}",
            "ability": target.ability,
            "capability": target.capability,
            "state": evidence_badge(rules.policy.evidence.get(target.target_id, "none")),
        }
        for target in rules.catalog.targets.values()
    ]
