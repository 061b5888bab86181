"""/dashboard/operations/decisions: the live view of routing decisions: the newest ones, then each new one as it ends."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, Depends
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from accounts.access import may
from api.live.newest import EndedAttempt, newest
from api.live.tail import MOST_VIEWERS, PAGE, DecisionTail, TooManyViewers, event_id
from api.web.reading import Export, reading
from cost.reports.latency import first_token_us
from dashboards.operations.overview_page import HOME
from dashboards.ui.rendering import render
from dashboards.ui.tables import Column, Table
from dashboards.ui.words import reason_label
from dashboards.web.access import allowed, remembered_operator
from dashboards.web.cookie import COOKIE
from dashboards.web.headers import SAFE
from dashboards.web.view import PageRequest

router: Final = APIRouter(include_in_schema=False)

SHOWN: Final = 50
_TURN_S: Final = 1.0
"""Seconds within which a stream notices that the process stops."""
BEAT_S: Final = 15.0
"""Seconds between keep-alives of a stream, each with a check that its reader still may read it."""
_RETRY_MS: Final = 2_000
_MAX_FILTER: Final = 200
_CALLER_GONE: Final = 499
_FIRST_ERROR: Final = 400
_ENDED: Final = "You are signed out, or may not see this any more: load the page again."
_CROWDED: Final = f"This page already has its limit of {MOST_VIEWERS} viewers. Try again later."
_MORE: Final = f"The newest {PAGE} of each second are shown."

COLUMNS: Final = (
    Column("at", "At", "time"),
    Column("team", "Team"),
    Column("alias", "Asked for"),
    Column("target", "Went to", "link"),
    Column("why", "Why"),
    Column("state", "Outcome", "badge"),
    Column("ttft", "First token", "seconds", "The caller's, of streamed answers"),
    Column("duration", "Lasted", "seconds", usual=False),
    Column("cost", "Cost", "money"),
    Column("input", "Tokens in", "number", usual=False),
    Column("output", "Tokens out", "number", usual=False),
    Column("complexity", "Complexity", "number", "How hard the prompt was classified to be, of 1", usual=False),
    Column("tier", "Tier", usual=False),
    Column("organisation", "Organisation", usual=False),
    Column("request", "Request", "code"),
)
_SHOWN: Final = tuple(column for column in COLUMNS if column.usual)
"""Columns of the page; the CSV has all."""


class Filter(msgspec.Struct, frozen=True):
    """Criteria that decisions must match."""

    team: str = ""
    target: str = ""
    only: str = ""
    """`failed`: attempts that did not answer their caller; `auto`: requests that the gateway routed."""

    def lets(self, decision: EndedAttempt) -> bool:
        """Return True if the decision matches all criteria."""
        if self.only == "failed" and (decision.served or decision.status < _FIRST_ERROR):
            return False
        if self.only == "auto" and decision.complexity is None:
            return False
        return self.team in {"", decision.team_id} and self.target in {"", decision.target_id}


@router.get(f"{HOME}/decisions")
async def show_decisions(view: Annotated[PageRequest, Depends(allowed("operations.read"))]) -> Response:
    """Show the newest decisions; the page's script then streams those that follow."""
    wanted = _filter(view)
    async with reading(view.gateway, on=True):
        found = await newest(view.gateway.database, PAGE)
    decisions = [each for each in found if wanted.lets(each)]
    table = Table.paged(
        COLUMNS, _rows(decisions), name="decisions", caption="Live requests", csv_href=_csv_href(wanted)
    )
    file = view.csv_asked("decisions", table)
    if file is not None:
        return file
    after = event_id(found[0]) if found else "0-none"
    return view.page(
        "operations/decisions.html",
        title="Live requests",
        columns=_SHOWN,
        rows=_rows(decisions[:SHOWN]),
        stream=f"{HOME}/decisions/stream?{urlencode({**msgspec.structs.asdict(wanted), 'after': after})}",
        csv_href=_csv_href(wanted),
        wanted=wanted,
        team_options=_options("All teams", {wanted.team, *(each.team_id for each in found)}),
        target_options=_options("All models", {wanted.target, *view.gateway.rules().catalog.targets}),
        read=len(found),
    )


@router.get(f"{HOME}/decisions/stream")
async def stream_decisions(view: Annotated[PageRequest, Depends(allowed("operations.read"))]) -> Response:
    """Stream server-sent events: `decision` with table rows, newest first. The stream ends when the process stops."""
    last_id = view.request.headers.get("last-event-id") or view.query.get("after", "")
    events = decision_events(
        view.gateway.views.operations.tail,
        last_id[:_MAX_FILTER],
        _filter(view),
        still_may=lambda: _still_may(view),
        is_draining=view.gateway.is_draining,
    )
    headers = {**SAFE, "cache-control": "no-store", "x-accel-buffering": "no"}
    return Export(events, media_type="text/event-stream", headers=headers)


async def decision_events(
    tail: DecisionTail,
    last_id: str,
    wanted: Filter,
    *,
    still_may: Callable[[], Awaitable[bool]],
    is_draining: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    turn_s: float = _TURN_S,
    beat_s: float = BEAT_S,
) -> AsyncGenerator[str]:
    """Yield the stream's events as text. `still_may` is called at each beat, and the stream ends once it returns False."""
    yield f"retry: {_RETRY_MS}\n\n"
    try:
        async with tail.watching(last_id) as viewer:
            beat_at = clock() + beat_s
            while not is_draining():
                taken = await viewer.take(turn_s)
                if clock() >= beat_at:
                    beat_at = clock() + beat_s
                    if not await still_may():
                        yield _event("end", _ENDED)
                        return
                    yield _event(
                        "note", "" if tail.reachable else "The ledger cannot be read now; this goes on by itself."
                    )
                if taken.missed or taken.more:
                    yield _event("note", _MORE)
                shown = [each for each in reversed(taken.decisions) if wanted.lets(each)]
                if shown:
                    html = render("operations/_decisions.html", {"columns": _SHOWN, "rows": _rows(shown)})
                    yield _event("decision", html, event_id(taken.decisions[-1]))
    except TooManyViewers:
        yield _event("end", _CROWDED)


async def _still_may(view: PageRequest) -> bool:
    """Return True if the session is still valid and its person has the right. The check does not renew the session."""
    try:
        session = await view.gateway.identity.sessions.find(view.request.cookies.get(COOKIE, ""), renew=False)
    except (SQLAlchemyError, OSError):
        session = remembered_operator(view.request, view.gateway)
    return session is not None and may(session.principal(view.gateway.operator), "operations.read")


def _event(name: str, data: str, event: str = "") -> str:
    """Return one server-sent event; each line of its data is prefixed with `data:`."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    mark = f"id: {event}\n" if event and event.isprintable() else ""
    return f"event: {name}\n{mark}{lines}\n"


def _filter(view: PageRequest) -> Filter:
    asked = {name: view.query.get(name, "")[:_MAX_FILTER] for name in ("team", "target", "only")}
    return Filter(**{**asked, "only": asked["only"] if asked["only"] in {"failed", "auto"} else ""})


def _options(everything: str, names: Iterable[str]) -> list[tuple[str, str]]:
    return [("", everything), *((name, name) for name in sorted(names) if name)]


def _csv_href(wanted: Filter) -> str:
    return f"?{urlencode({**msgspec.structs.asdict(wanted), 'format': 'csv', 'table': 'decisions'})}"


def _rows(decisions: Sequence[EndedAttempt]) -> list[dict[str, Any]]:
    return [
        {
            "at": each.at_us,
            "organisation": each.organisation_id,
            "team": each.team_id,
            "tier": each.tier,
            "alias": each.alias,
            "target": each.target_id,
            "target_href": f"{HOME}/targets/{each.target_id}",
            "why": reason_label(each.reason),
            "complexity": None if each.complexity is None else round(each.complexity, 2),
            "state": _state(each),
            "ttft": None if (first_us := first_token_us(each)) is None else first_us / 1_000_000,
            "duration": None if each.duration_us is None else each.duration_us / 1_000_000,
            "input": each.input_tokens,
            "output": each.output_tokens,
            "cost": each.cost_nanousd,
            "request": each.request_id,
        }
        for each in decisions
    ]


def _state(decision: EndedAttempt) -> tuple[str, str]:
    if decision.served:
        return ("Answered", "good")
    if decision.origin != "caller":
        return (decision.origin.capitalize(), "quiet")
    if decision.entry == "expire" or decision.status == 0:
        return ("Unknown", "warn")
    if decision.status == _CALLER_GONE:
        return ("Caller hung up", "quiet")
    return (f"Failed ({decision.status})", "bad") if decision.status >= _FIRST_ERROR else ("Not given", "info")
