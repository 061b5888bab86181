"""/dashboard/operations: incidents first, then the state of every component, refreshed every few seconds."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.operations.snapshot import operations_snapshot
from dashboards.requests.refusals_table import refusals_table
from dashboards.ui.incident_words import KINDS, hit_words, sentence
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest

router: Final = APIRouter(include_in_schema=False)
HOME: Final = "/dashboard/operations"

STATES: Final[Mapping[str, tuple[str, str]]] = {
    "ok": ("All well", "good"),
    "recovering": ("Recovering", "warn"),
    "degraded": ("Degraded", "warn"),
    "unpriced": ("No price", "warn"),
    "slow": ("Slow", "warn"),
    "saturated": ("Saturated", "warn"),
    "partly_failing": ("Partly failing", "warn"),
    "failing": ("Failing", "bad"),
    "down": ("Down", "bad"),
    "empty": ("No replicas", "bad"),
    "starting": ("Starting", "info"),
    "draining": ("Draining", "info"),
    "scaled_to_zero": ("Scaled to zero", "quiet"),
    "asleep": ("Asleep", "quiet"),
    "ready": ("Ready", "good"),
    "suspect": ("Suspect", "warn"),
}
"""States of targets, pools and replicas: words and tone."""
_INCIDENT_STATES: Final[Mapping[str, tuple[str, str]]] = {"recovering": ("Recovering", "info")}
BREAKERS: Final[Mapping[str, tuple[str, str]]] = {
    "closed": ("Closed", "good"),
    "paced": ("Rate-limited", "warn"),
    "half-open": ("Half-open", "warn"),
    "open": ("Open", "bad"),
}

TARGETS: Final = (
    Column("target", "Model", "link"),
    Column("state", "State", "badge", "The worst of callable, failing, slow and saturated"),
    Column("since", "Since", "time"),
    Column("where", "Where"),
    Column("attempts", "Attempts", "number", "Of all processes, in the last ten minutes"),
    Column("failed_share", "Failed", "share", "Errors, broken answers and lost attempts"),
    Column("turned_away", "No room", "number", "Turned away by a rate limit or a full queue"),
    Column("ttft_p50", "First token", "seconds", "The caller's, of streams: the median"),
    Column("ttft_p95", "p95", "seconds", "Of the first token: 95 % of streams started sooner"),
    Column("own", "Model's own", "seconds", "The median without queues, retries and holds", usual=False),
    Column("usual", "Yesterday", "seconds", "The model's own median at this time yesterday", usual=False),
    Column("speed", "Tokens per second", "number", "The median of a stream, after its first token", usual=False),
)
QUEUES: Final = (
    Column("name", "Queue"),
    Column("targets", "Before"),
    Column("waiting", "Waiting", "number"),
    Column("batch", "Of which batch", "number"),
    Column("in_flight", "In flight", "number"),
    Column("used", "Used", "share", "Tokens in flight, of those that fit"),
    Column("wait", "Wait now", "seconds", "Predicted for an interactive request that comes now"),
    Column("speed", "Tokens per second", "number", "Of the requests that finish"),
    Column("capacity", "Tokens that fit", "number", "This process's part", usual=False),
    Column("whole", "Of all processes", "number", usual=False),
)
PROCESSES: Final = (
    Column("process", "Process", "code"),
    Column("host", "Host"),
    Column("state", "State", "badge"),
    Column("started", "Started", "time"),
    Column("seen", "Last seen", "time"),
)
_SILENT_S: Final = 90.0
"""Three times a process's heartbeat interval, in seconds."""


@router.get(HOME)
async def show_overview(view: Annotated[PageRequest, Depends(allowed("operations.read"))]) -> Response:
    """Show the overview; or its refreshed part, or a table as CSV."""
    told = await operations_snapshot(view.gateway)
    targets = Table.of(TARGETS, target_rows(told["targets"]), view.query, name="targets", caption="Models")
    processes = Table.of(
        PROCESSES,
        process_rows(told["stores"]["processes"]),
        view.query,
        name="processes",
        caption="Processes",
        sort="-seen",
        page_rows=20,
        empty="Processes are listed while the database answers.",
    )
    refused = refusals_table(told["refusals"]["data"] or (), view.query)
    file = view.csv_asked("operations", targets, processes, refused)
    if file is not None:
        return file
    context: dict[str, Any] = {
        "now": told,
        "here": address_of(view),
        "incidents": [incident_row(each) for each in told["incidents"]],
        "targets": targets,
        "refused": refused,
        "pools": [{**each, "badge": STATES[each["state"]]} for each in told["pools"]["data"]],
        "processes": processes,
    }
    if view.is_part:
        return view.part("operations/_overview.html", **context)
    return view.page("operations/overview.html", title="Operations", **context)


def incident_row(incident: Mapping[str, Any]) -> dict[str, Any]:
    """Return an incident as pages show it."""
    return {
        **incident,
        "word": KINDS[incident["kind"]],
        "badge": _INCIDENT_STATES.get(incident["state"]) or (KINDS[incident["kind"]], incident["severity"]),
        "text": sentence(incident["text"]),
        "hit": hit_words(incident),
    }


def problem_lines(place: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a sentence for each problem of a judged target or pool, the gravest first, with its tone."""
    lines = [(sentence(each.text), each.severity) for each in place["problems_found"]]
    return sorted(dict.fromkeys(lines), key=lambda line: line[1] != "bad")


def address_of(view: PageRequest) -> str:
    """Return the page's address with its query, for refreshing."""
    query = view.request.url.query
    return f"{view.request.scope['path']}?{query}" if query else view.request.scope["path"]


def target_rows(targets: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return table rows of targets."""
    return [
        {
            "target": each["target_id"],
            "target_href": f"{HOME}/targets/{each['target_id']}",
            "state": STATES[each["state"]],
            "since": each["since_us"],
            "where": f"pool {each['pool']}" if each["pool"] else each["provider"],
            **figure_cells(each["recent"]),
        }
        for each in targets
    ]


def figure_cells(recent: Mapping[str, Any]) -> dict[str, Any]:
    """Return cells of the last minutes' figures."""
    return {
        "attempts": recent["attempts"],
        "failed_share": recent["failed_share"],
        "turned_away": recent["turned_away"],
        "ttft_p50": recent["ttft_p50_s"],
        "ttft_p95": recent["ttft_p95_s"],
        "own": recent["model_ttft_p50_s"],
        "usual": recent["usual_model_ttft_p50_s"],
        "speed": None if recent["tokens_per_s"] is None else round(recent["tokens_per_s"], 1),
    }


def queue_rows(queues: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return table rows of queues."""
    return [
        {
            "name": each["name"],
            "waiting": each["waiting"],
            "batch": each["waiting_by_tier"]["batch"],
            "in_flight": each["in_flight"],
            "used": each["in_flight_tokens"] / each["capacity_tokens"] if each["capacity_tokens"] else None,
            "wait": each["predicted_wait_s"],
            "speed": each["drain_tokens_per_s"],
            "capacity": each["capacity_tokens"],
            "whole": each["whole_capacity_tokens"],
            "targets": ", ".join(each["targets"]),
        }
        for each in queues
    ]


def process_rows(processes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return table rows of the processes on this database; those without a recent heartbeat are marked."""
    return [
        {
            "process": each["boot_id"],
            "host": each["host"],
            "state": _process_state(each),
            "started": each["started_us"],
            "seen": each["seen_us"],
        }
        for each in processes
    ]


def _process_state(process: Mapping[str, Any]) -> tuple[str, str]:
    if process["is_this"]:
        return ("Serves this page", "good")
    return ("Silent", "warn") if process["silent_s"] > _SILENT_S else ("Serves", "good")
