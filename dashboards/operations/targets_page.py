"""/dashboard/operations/targets: every target with its deployments, their breakers and their last errors."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.operations.snapshot import recent_snapshot, standing
from cost.times import wall_us
from dashboards.operations.measurements_page import measured_targets
from dashboards.operations.overview_page import (
    BREAKERS,
    HOME,
    STATES,
    TARGETS,
    address_of,
    figure_cells,
    problem_lines,
    target_rows,
)
from dashboards.ui.incident_words import sentence
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest
from proxy.errors import TargetNotFound
from proxy.plan.evidence import EVIDENCE_WORDS

router: Final = APIRouter(include_in_schema=False)

DEPLOYMENTS: Final = (
    Column("deployment", "Deployment", "link"),
    Column("breaker", "Circuit", "badge"),
    Column("again", "Tried again in", "seconds", "An open circuit lets one trial request through then"),
    Column("why", "Why"),
    Column(
        "only_for",
        "Kept from",
        "number",
        "Teams and keys whose own requests failed there; others are served",
        usual=False,
    ),
    Column("failures", "Failures in a row", "number", usual=False),
    Column(
        "ejections",
        "Ejections",
        "number",
        usual=False,
        note="Each one makes the next last longer; they expire while it works well",
    ),
    Column("last_error", "Last error"),
    Column("last_at", "At", "time"),
    Column("attempts", "Attempts", "number", "Of all processes, in the last ten minutes"),
    Column("failed_share", "Failed", "share"),
    Column("own", "First token", "seconds", "The model's own: the median, without queues, retries and holds"),
)
ERRORS: Final = (
    Column("at", "At", "time"),
    Column("deployment", "Deployment", "code"),
    Column("text", "What went wrong"),
    Column("status", "Its status", "number", "The upstream's HTTP status, where it gave one"),
    Column("said", "Its words"),
    Column("counted", "Circuit", "badge", "Whether it counts against the deployment"),
)


@router.get(f"{HOME}/targets")
async def show_targets(view: Annotated[PageRequest, Depends(allowed("operations.read"))]) -> Response:
    """Show all targets, and below them all deployments, those in trouble first."""
    told, recent = await _targets_and_figures(view)
    deployments = [each for target in told for each in target["deployments"]]
    tables = (
        Table.of(
            TARGETS,
            target_rows(told),
            view.query,
            name="targets",
            caption="Models",
            search=("target", "where"),
        ),
        Table.of(
            DEPLOYMENTS,
            _rows(deployments),
            view.query,
            name="deployments",
            caption="Deployments",
            search=("deployment",),
        ),
    )
    file = view.csv_asked("targets", *tables)
    if file is not None:
        return file
    context: dict[str, Any] = {
        "here": address_of(view),
        "recent": recent,
        "targets": tables[0],
        "deployments": tables[1],
        "at_us": wall_us(),
    }
    if view.is_part:
        return view.part("operations/_targets.html", **context)
    return view.page("operations/targets.html", title="Models", **context)


@router.get(f"{HOME}/targets/{{target_id:path}}")
async def show_target(view: Annotated[PageRequest, Depends(allowed("operations.read"))], target_id: str) -> Response:
    """Show one target: its facts, its deployments, and their last errors. Raises TargetNotFound."""
    told, recent = await _targets_and_figures(view)
    found = next((each for each in told if each["target_id"] == target_id), None)
    target = next((each for each in view.gateway.rules().catalog if each.target_id == target_id), None)
    if found is None or target is None:
        raise TargetNotFound(f"There is no model `{target_id[:80]}` in the configuration in force.", param="target_id")
    deployments = Table.of(
        DEPLOYMENTS, _rows(found["deployments"]), view.query, name="deployments", caption="Deployments"
    )
    errors = Table.of(
        ERRORS,
        _errors(found["deployments"]),
        view.query,
        name="errors",
        caption="Last errors",
        sort="-at",
        empty="Nothing went wrong here since this process started.",
    )
    file = view.csv_asked("target", deployments, errors)
    if file is not None:
        return file
    context: dict[str, Any] = {
        "here": address_of(view),
        "facts": found,
        "state": STATES[found["state"]],
        "problems": problem_lines(found),
        "recent": recent,
        "target": target,
        "evidence": EVIDENCE_WORDS[view.gateway.rules().policy.evidence.get(target_id, "none")],
        "is_measured": target.target_id in measured_targets(view.gateway),
        "deployments": deployments,
        "errors": errors,
        "at_us": wall_us(),
    }
    if view.is_part:
        return view.part("operations/_target.html", **context)
    return view.page("operations/target.html", title=target_id, **context)


async def _targets_and_figures(view: PageRequest) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    now = await standing(view.gateway, wall_us())
    return now.targets, recent_snapshot(now.recent)


def _rows(deployments: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for each in deployments:
        breaker, last = each["breaker"], next(iter(each["errors"]), None)
        rows.append(
            {
                "deployment": each["deployment_id"],
                "deployment_href": f"{HOME}/targets/{each['deployment_id'].rpartition('/')[0]}",
                "breaker": BREAKERS[breaker["state"]],
                "again": breaker["opens_again_s"],
                "why": breaker["why"],
                "only_for": breaker["only_for"],
                "failures": breaker["failures_in_row"],
                "ejections": breaker["ejections"],
                "last_error": None if last is None else _words(last),
                "last_at": None if last is None else last["at_us"],
                **figure_cells(each["recent"]),
            }
        )
    # Those in trouble first, where nobody sorts them.
    return sorted(rows, key=lambda row: (row["breaker"][0] == "Closed", -(row["failures"] or 0)))


def _errors(deployments: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "at": error["at_us"],
            "deployment": each["deployment_id"],
            "text": sentence(error["text"]),
            "status": error["status"],
            "said": error["said"],
            "counted": ("Counts", "warn") if error["counted"] else ("Does not count", "quiet"),
        }
        for each in deployments
        for error in each["errors"]
    ]


def _words(error: Mapping[str, Any]) -> str:
    status = f" ({error['status']})" if error["status"] else ""
    said = f": {error['said']}" if error["said"] else ""
    return f"{sentence(error['text'])[:-1]}{status}{said}"
