"""/dashboard/batches: batches of the viewer's teams, how far they are, and what became of them."""

from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.batches.batch_types import problems_of
from api.batches.change import cancel_batch, resend_callback
from api.batches.tier import asking, tier_of
from api.files.routes import JSONL
from api.web.reading import Export
from api.webhooks.outbox import Delivery
from cost.ledger.archived import archived_note
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest
from proxy.batch.batch import ENDED, Batch
from proxy.batch.batch_errors import FileNotFound
from proxy.batch.estimate import Estimate, estimated
from proxy.batch.files import Owner
from proxy.batch.runner import EVENTS, event_id
from proxy.batch.served import latest_served
from proxy.errors import Refused

router: Final = APIRouter(include_in_schema=False)

PLACE: Final = "/dashboard/batches"
_LISTED: Final = 500
_FAILED_LINES: Final = 200
STATES: Final[Mapping[str, tuple[str, str]]] = {
    "validating": ("Validating", "info"),
    "in_progress": ("In progress", "info"),
    "finalizing": ("Finalizing", "info"),
    "cancelling": ("Cancelling", "warn"),
    "completed": ("Completed", "good"),
    "cancelled": ("Cancelled", "quiet"),
    "expired": ("Expired", "bad"),
    "failed": ("Failed", "bad"),
}
_PRIORITIES: Final = {-1: "low", 0: "normal", 1: "high"}

_BATCHES: Final = (
    Column("batch", "Batch", "link"),
    Column("team", "Team"),
    Column("state", "State", "badge"),
    Column("made", "Made", "time"),
    Column("deadline", "Deadline", "time", "None without a promise"),
    Column("total", "Requests", "number"),
    Column("done", "Answered", "share"),
    Column("failed", "Failed", "number"),
    Column("cost", "Cost", "money", "Of the answers so far"),
    Column("saved", "Saved", "money", "Against the usual prices of the same models"),
)
_PROBLEMS: Final = (
    Column("line", "Line", "number"),
    Column("code", "Code", "code"),
    Column("message", "What is wrong"),
)
_SERVED: Final = (
    Column("target", "Model"),
    Column("pool", "Pool", "text", "Own engines; empty where it is bought"),
    Column("lines", "Requests", "number"),
    Column("tokens", "Tokens", "number"),
    Column("cost", "Cost", "money"),
)
_LINES: Final = (
    Column("line", "Line", "number"),
    Column("custom_id", "custom_id", "code"),
    Column("status", "Status", "number"),
    Column("code", "Code", "code"),
    Column("request", "Request", "code", "As it stands in the ledger"),
)


@router.get(PLACE)
async def show_batches(view: Annotated[PageRequest, Depends(allowed("signed-in"))]) -> Response:
    """Show the newest batches of the teams that the viewer may read."""
    gateway = view.gateway
    everybody = view.may("organisation.read")
    found: list[Batch] = []
    if gateway.jobs.batch is not None and (everybody or view.principal.teams):
        teams = None if everybody else list(view.principal.teams)
        async with asking():
            found = await gateway.jobs.batch.batches.newest(view.principal.organisation_id, teams, _LISTED)
    table = Table.of(
        _BATCHES,
        [_row(each) for each in found],
        view.query,
        name="batches",
        caption="Batches",
        sort="-made",
        search=("batch", "team"),
        empty="No batches yet. `weighbridge batch submit FILE`, or OpenAI's client, makes one.",
    )
    file = view.csv_asked("batches", table)
    if file is not None:
        return file
    return view.page("batch/batches.html", title="Batches", batches=table, is_on=gateway.jobs.batch is not None)


@router.get("/dashboard/teams/{team_id}/batches/{batch_id}")
async def show_batch(view: Annotated[PageRequest, Depends(allowed("team.read"))], batch_id: str) -> Response:
    """Show one batch: how far it is, when it will be done, what it cost, and which requests failed."""
    tier, owner = tier_of(view.request), _owner(view)
    async with asking():
        batch = await tier.batches.find(owner, _sound(batch_id))
        failed = await tier.batches.failed_lines(owner, batch.batch_id, _FAILED_LINES)
        expected = await estimated(tier.batches, batch)
        delivery = await _delivery(view, batch)
        answering = await latest_served(tier.batches.engine, batch.team_id, batch.batch_id)
        archived = await archived_note(tier.batches.engine, batch.created_us, batch.over_us or view.now_us)
    problems = Table.of(
        _PROBLEMS,
        [{"line": each.line, "code": each.code, "message": each.message} for each in problems_of(batch)],
        view.query,
        name="problems",
        caption="What is wrong with the file",
    )
    served = Table.of(
        _SERVED,
        [
            {
                "target": each.target_id,
                "pool": each.pool,
                "lines": each.lines,
                "tokens": each.tokens,
                "cost": each.cost_nanousd,
            }
            for each in answering
        ],
        view.query,
        name="served",
        caption="Where the requests run",
        sort="-lines",
        empty="None of them is in the ledger any more." if archived else "None was answered yet.",
    )
    lines = Table.of(
        _LINES,
        [
            {
                "line": each.number,
                "custom_id": each.custom_id,
                "status": each.status,
                "code": (each.body or b"").decode(),
                "request": each.request_id,
            }
            for each in failed
        ],
        view.query,
        name="failed",
        caption="Requests that failed",
        empty="None so far.",
    )
    file = view.csv_asked("batch", problems, served, lines)
    if file is not None:
        return file
    context = {
        **_figures(batch, expected, view.now_us),
        "batch": batch,
        "state": STATES[batch.status],
        "priority": _PRIORITIES[batch.priority],
        "problems": problems,
        "served": served,
        "archived": archived,
        "lines": lines,
        "delivery": delivery,
        "here": _address(batch),
        "may_change": view.may("team.change"),
        "has_ended": batch.status in ENDED,
        "may_cancel": batch.status in {"validating", "in_progress"},
        "at_us": view.now_us,
    }
    if view.is_part:
        return view.part("batch/_batch.html", **context)
    return view.page("batch/batch.html", title=batch.batch_id, **context)


@router.post("/dashboard/teams/{team_id}/batches/{batch_id}/cancel")
async def cancel(view: Annotated[PageRequest, Depends(allowed("team.change"))], batch_id: str) -> Response:
    """Cancel the batch: no more of its requests begin."""
    tier, owner = tier_of(view.request), _owner(view)
    async with asking():
        batch = await tier.batches.find(owner, _sound(batch_id))
    try:
        await cancel_batch(view.gateway.identity.audit, view.actor, tier.batches, owner, batch.batch_id)
    except Refused as error:
        return view.redirect(_address(batch), told=error.message, tone="bad")
    return view.redirect(_address(batch), told="Cancelled. Running requests are finished.")


@router.post("/dashboard/teams/{team_id}/batches/{batch_id}/resend")
async def resend(view: Annotated[PageRequest, Depends(allowed("team.change"))], batch_id: str) -> Response:
    """Send the message of its end once more."""
    tier, owner = tier_of(view.request), _owner(view)
    async with asking():
        batch = await tier.batches.find(owner, _sound(batch_id))
    message_id = _message_id(batch)
    sent = message_id is not None and await resend_callback(
        view.gateway.identity.audit, view.actor, owner, batch.batch_id, message_id
    )
    told = "It is sent again within a moment." if sent else "There is no message to send."
    return view.redirect(_address(batch), told=told, tone="good" if sent else "bad")


@router.get("/dashboard/teams/{team_id}/batches/{batch_id}/files/{kind}")
async def download(view: Annotated[PageRequest, Depends(allowed("team.change"))], batch_id: str, kind: str) -> Response:
    """Show the output or error file, for whoever administers the team: it is full of prompts and answers."""
    tier, owner = tier_of(view.request), _owner(view)
    async with asking():
        batch = await tier.batches.find(owner, _sound(batch_id))
        file_id = {"output": batch.output_file_id, "error": batch.error_file_id}.get(kind)
        if file_id is None:
            raise FileNotFound("This batch has no such file.")
        record = await tier.files.find(owner, file_id)
        size = await tier.files.blobs.size(file_id)
    headers = {
        "content-disposition": f'attachment; filename="{batch.batch_id}_{kind}.jsonl"',
        "content-length": str(size),
        "cache-control": "private, no-store",
        "x-content-type-options": "nosniff",
    }
    return Export(tier.files.blobs.reading(record.file_id), headers=headers, media_type=JSONL)


def _row(batch: Batch) -> dict[str, Any]:
    done = batch.completed + batch.failed
    return {
        "batch": batch.batch_id,
        "batch_href": _address(batch),
        "team": batch.team_id,
        "state": STATES[batch.status],
        "made": batch.created_us,
        "deadline": batch.expires_us,
        "total": batch.total,
        "done": done / batch.total if batch.total else None,
        "failed": batch.failed,
        "cost": None if batch.unpriced else batch.cost_nanousd,
        "saved": batch.saved_nanousd,
    }


def _figures(batch: Batch, expected: Estimate, now_us: int) -> dict[str, Any]:
    """Compute a batch's figures for its page."""
    done = batch.completed + batch.failed
    until_us = batch.finalizing_us or batch.cancelling_us or now_us
    minutes = None if batch.in_progress_us is None else max(1, until_us - batch.in_progress_us) / 60_000_000
    spare_us = None
    if expected.basis == "measured speed" and batch.expires_us is not None and expected.at_us is not None:
        spare_us = batch.expires_us - expected.at_us
    return {
        "done": done,
        "share": done / batch.total if batch.total else 0.0,
        "lines_a_minute": None if minutes is None or not done else round(done / minutes, 1),
        "expected": expected,
        "spare_s": None if spare_us is None else spare_us / 1_000_000,
        "cost": None if batch.unpriced else batch.cost_nanousd,
    }


def _message_id(batch: Batch) -> str | None:
    """Return the id of the message of a batch's end; None where nobody is told, or it has not ended."""
    event = EVENTS.get(batch.status)
    return None if batch.callback_url is None or event is None else event_id(batch.batch_id, event)


async def _delivery(view: PageRequest, batch: Batch) -> Delivery | None:
    message_id, desk = _message_id(batch), view.gateway.jobs.callbacks
    return None if message_id is None or desk is None else await desk.outbox.delivery(message_id)


def _owner(view: PageRequest) -> Owner:
    return Owner(organisation_id=view.principal.organisation_id, team_id=view.the_team.team_id)


def _address(batch: Batch) -> str:
    return f"/dashboard/teams/{quote(batch.team_id, safe='')}/batches/{quote(batch.batch_id, safe='')}"


def _sound(batch_id: str) -> str:
    return batch_id[:64]
