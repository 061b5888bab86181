"""/dashboard/operations/queues: waiting times by tier, and the queues of self-hosted targets."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.operations.refusals import refusals_snapshot
from api.operations.snapshot import process_snapshot, queues, read_recent, tier_snapshots
from cost.times import wall_us
from dashboards.operations.overview_page import HOME, QUEUES, address_of, figure_cells, queue_rows
from dashboards.requests.refusals_table import refusals_table
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest

router: Final = APIRouter(include_in_schema=False)

TIERS: Final = (
    Column("tier", "Tier"),
    Column("attempts", "Attempts", "number", "Of all processes, in the last ten minutes"),
    Column("failed_share", "Failed", "share"),
    Column("turned_away", "No room", "number", "Turned away by a rate limit or a full queue"),
    Column("ttft_p50", "First token", "seconds", "The caller's, of streams: the median"),
    Column("ttft_p95", "First token, p95", "seconds", "The caller's: 95 % of streams started sooner"),
    Column(
        "queue", "Queue bound", "seconds", "The longest that a queue may make it wait for its first token", usual=False
    ),
    Column(
        "first", "First token bound", "seconds", "An upstream that sends none by then counts as failed", usual=False
    ),
    Column("answer", "Answer bound", "seconds", "Time limit of a whole answer, unless the caller sets one"),
)


@router.get(f"{HOME}/queues")
async def show_queues(view: Annotated[PageRequest, Depends(allowed("operations.read"))]) -> Response:
    """Show the tiers with their waiting times, and all queues."""
    gateway = view.gateway
    recent, workers = await read_recent(gateway, wall_us()), await gateway.views.workers.now()
    tiers = Table.of(
        TIERS,
        [_tier(each) for each in tier_snapshots(gateway.config(), recent)],
        view.query,
        name="tiers",
        caption="Tiers",
    )
    lines = Table.of(
        QUEUES,
        queue_rows(queues(workers)),
        view.query,
        name="queues",
        caption="Queues",
        empty="There are no queues: a model of your own gets a line before it under queues in the configuration.",
    )
    told = await refusals_snapshot(gateway, wall_us())
    refused = refusals_table(told["data"] or (), view.query)
    file = view.csv_asked("queues", tiers, lines, refused)
    if file is not None:
        return file
    context: dict[str, Any] = {
        "here": address_of(view),
        "tiers": tiers,
        "queues": lines,
        "refused": refused,
        "process": process_snapshot(gateway, workers),
        "at_us": wall_us(),
    }
    if view.is_part:
        return view.part("operations/_queues.html", **context)
    return view.page("operations/queues.html", title="Tiers and queues", **context)


def _tier(tier: dict[str, Any]) -> dict[str, Any]:
    bounds = {"queue": tier["queue_s"], "first": tier["first_token_s"], "answer": tier["answer_s"]}
    return {"tier": tier["tier"], **figure_cells(tier), **bounds}
