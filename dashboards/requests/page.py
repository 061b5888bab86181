"""/dashboard/teams/{team_id}/requests: a team's latest requests with their routing decisions.

Prompts are never shown, except to the team's own members where the team's learning keeps prompts.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.web.reading import reading
from classifier.prediction import Prompt
from cost.amounts import ungrouped
from cost.dimensions import REQUEST_FILTERS
from cost.ledger.archived import archived_note, month_text, told_months
from cost.ledger.entries import Entry
from cost.meters import METER_COLUMNS, METER_NAMES, METERS, TOKEN_COLUMNS, split_row
from cost.reports.focus import unit_label
from cost.reports.recent import (
    MAX_PAGE,
    MAX_ROWS,
    ORDERS,
    OUTCOMES,
    SEARCHED,
    Order,
    Outcome,
    Place,
    RecentPage,
    RecentQuery,
    RecentReader,
    RecentRequest,
)
from cost.reports.request_search import FIELDS, span_of
from cost.reports.scope import ReadScope
from cost.times import iso, wall_us
from dashboards.requests.considered import considered_of, considered_table, deciding
from dashboards.requests.refused import (
    REFUSED,
    Found,
    advice,
    merged,
    read_refused,
    reason_words,
    refused_query,
    refused_row,
)
from dashboards.requests.saved import MOST, SavedViews
from dashboards.requests.searching import read_search
from dashboards.requests.tables import NAME_CHARS, QUERY_CHARS
from dashboards.requests.time_line import TIME_LINE, step_rows
from dashboards.ui.guard_words import told as told_findings
from dashboards.ui.tables import Column, Row, Table
from dashboards.ui.words import MARGIN_WORDS, WAY_LABELS, decision, ended, flag_words, going_on, outcome, reason_label
from dashboards.web.access import allowed
from dashboards.web.forms import FormError
from dashboards.web.view import PageRequest
from proxy.errors import RequestNotFound
from proxy.plan.decision_record import Considered
from proxy.plan.evidence import EVIDENCE_WORDS, UNMEASURED, measuring_hint
from proxy.settle.refusals.counting import SHOWN, RefusedRequest

router: Final = APIRouter(include_in_schema=False)

_ROWS: Final = 50
_CSV_PAGES: Final = 10
_FILTERS: Final = tuple(REQUEST_FILTERS)
_KEPT: Final = frozenset({*_FILTERS, "q", "outcome", "status", "from", "to", "slower", "dearer", "sort", "columns"})
_STATUS_WORDS: Final[Mapping[str, str]] = {
    "2xx": "Succeeded (2xx)",
    "4xx": "Refused (4xx)",
    "429": "No room (429)",
    "499": "Caller hung up (499)",
    "5xx": "Failed (5xx)",
}
_STATUSES: Final = tuple(_STATUS_WORDS)
_STATUS: Final = re.compile(r"[1-5](xx|[0-9]{2})", re.ASCII)
_WHOLE: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?", re.ASCII)
_MOST_PARAMETERS: Final = 40
_MOST_GIVEN: Final = 20_000
_MAX_DIGITS: Final = 18
_MAX_CHARS: Final = 200
_SAFE: Final = ""

OUTCOME_WORDS: Final[Mapping[Outcome, str]] = {
    "": "Any",
    "answered": "Answered",
    "given-again": "Given again from the cache",
    "failed": "An attempt failed",
    "retried": "Retried",
    "fell-back": "Fell back",
    "escalated": "Escalated",
    "estimated": "Tokens estimated",
    "unpriced": "Without a price",
}
_COLUMNS: Final = (
    Column("request_id", "Request", "id", sortable=False),
    Column("at", "When", "second", sortable=False),
    Column("outcome", "Outcome", "badge", sortable=False),
    Column("target", "Model", "code", sortable=False),
    Column("why", "Why", sortable=False),
    Column("key", "Key", sortable=False),
    Column("end_user", "End user", "code", sortable=False),
    Column("duration", "Latency", "seconds", note="From its arrival to the end of its last attempt"),
    Column("cost", "Cost", "money", note="Of all attempts"),
    Column("status", "Status", "number", sortable=False, usual=False),
    Column("tokens", "Tokens", "number", note="Of prompt and answer, of all attempts", usual=False),
    Column(
        "complexity",
        "Complexity",
        "number",
        note="From 0, easy, to 1, hard; unknown where the caller named the model",
        sortable=False,
        usual=False,
    ),
    Column(
        "saved",
        "Saved",
        "money",
        note="What the baseline model would have cost, less the cost; of an answer that was given again, what it had cost",
        sortable=False,
        usual=False,
    ),
    Column("input_tokens", "Prompt tokens", "number", sortable=False, usual=False),
    Column("output_tokens", "Answer tokens", "number", sortable=False, usual=False),
    Column("alias", "Asked for", sortable=False, usual=False),
    Column("tier", "Tier", sortable=False, usual=False),
    Column("tag", "Tag", sortable=False, usual=False),
    Column("attempts", "Attempts", "number", sortable=False, usual=False),
    Column("guard", "Guard", note="What was found and done", sortable=False, usual=False),
    Column("ttft", "First token", "seconds", note="The caller's, of streamed answers", sortable=False, usual=False),
)


@router.get("/dashboard/teams/{team_id}/requests")
async def recent(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show the latest requests that match the search and the filters, or the one that the search names."""
    return await _list(view)


@router.post("/dashboard/teams/{team_id}/requests/views")
async def keep_view(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Keep the page's search under a name, for this person."""
    form = await view.form()
    try:
        query = _kept_query(form.text("query", most=_MOST_GIVEN))
        name = form.text("name", required=True)[:NAME_CHARS]
        if not await _saved(view).keep(name, query, view.now_us):
            raise FormError("name", f"You keep {MOST} searches of this team already; remove one first.")  # noqa: TRY301
    except FormError as error:
        return await _list(view, name_error=error.message)
    return view.redirect(
        f"/dashboard/teams/{view.the_team.team_id}/requests?{query}", f"The search is kept as “{name}”."
    )


@router.post("/dashboard/teams/{team_id}/requests/views/remove")
async def remove_view(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Remove one of this person's kept searches."""
    await _saved(view).remove((await view.form()).text("name")[:NAME_CHARS])
    return view.redirect(f"/dashboard/teams/{view.the_team.team_id}/requests", "The search is no longer kept.")


def _saved(view: PageRequest) -> SavedViews:
    return SavedViews(view.gateway.database, view.principal.principal_id, view.the_team.team_id)


def _kept_query(given: str) -> str:
    """Return parameters of an address with those of a search alone. Raises FormError for what would not be kept whole."""
    try:
        pairs = parse_qsl(given, max_num_fields=_MOST_PARAMETERS)
    except ValueError as error:
        raise FormError("query", f"A search has at most {_MOST_PARAMETERS} parameters.") from error
    query = urlencode([(name, value) for name, value in pairs if name in _KEPT and value.isprintable()])
    if len(query) > QUERY_CHARS:
        raise FormError(
            "query", f"This search is too long to keep: {QUERY_CHARS:,} characters of its address are the most."
        )
    return query


async def _list(view: PageRequest, *, name_error: str = "") -> Response:
    team = view.the_team
    reader = RecentReader(view.gateway.database)
    async with reading(view.gateway, on=True):
        names = await key_names(view)
        asked = await read_search(view, reader, names, _query(view))
        if asked.request_id and (
            await reader.one(_scope(view), asked.request_id) or await _refused(view, asked.request_id)
        ):
            return view.redirect(_href(team.team_id, asked.request_id))
    query = asked.query
    if view.query.get("format") == "csv" and not asked.refusal:
        text, lacks = await _csv(view, reader, query, asked.outcome)
        return view.csv(f"{team.team_id}-requests{lacks}.csv", text)
    page = RecentPage(requests=())
    found: Sequence[Found] = ()
    guarded: Mapping[str, str] = {}
    async with reading(view.gateway, on=True):
        if not asked.refusal:
            page, found = await _merged_page(view, reader, query, asked.outcome)
            guarded = await _guarded(view, found)
        views = await _saved(view).read()
    kept = {key: value for key, value in view.query.items() if key in _KEPT and value}
    previous, following = _pages(kept, query, page)
    table = Table.paged(
        _COLUMNS,
        rows_of(found, team.team_id, names, guarded),
        caption="Requests",
        previous_href=previous,
        next_href=following,
        csv_href=f"?{urlencode({**kept, **_before(query.before), 'format': 'csv'})}",
        empty="No request was refused in this time." if asked.outcome == REFUSED else _told_empty(query, page),
        query=kept,
    )
    catalog = view.gateway.rules().catalog
    return view.page(
        "requests/requests.html",
        title="Requests",
        status=422 if asked.refusal or name_error else 200,
        team=team,
        table=table,
        csv_rows=_CSV_PAGES * MAX_ROWS,
        page=page,
        archived=told_months(page.archived) if page.archived else "",
        query=query,
        line=asked.line,
        problems=asked.problems,
        refusal=asked.refusal,
        views=[(name, f"?{kept_query}", kept_query == urlencode(list(kept.items()))) for name, kept_query in views],
        here=urlencode(list(kept.items())),
        name_error=name_error,
        fields=FIELDS,
        outcomes=[*((each, OUTCOME_WORDS[each]) for each in OUTCOMES), (REFUSED, "Refused before a model")],
        outcome=asked.outcome,
        shown_a_minute=SHOWN,
        targets=_choices(sorted(catalog.targets), query.target),
        keys=_key_choices(names, query.key),
        tiers=[("", "Any"), ("interactive", "Interactive"), ("batch", "Batch")],
        statuses=_choices(_STATUSES, query.status, words=_STATUS_WORDS),
        asked={name: _plain(view.query.get(name, "")) for name in ("slower", "dearer")},
        times={name: _moment_field(view.query.get(name, ""), is_last=name == "to") for name in ("from", "to")},
        is_filtered=bool(asked.line)
        or query.filtered
        or asked.outcome == REFUSED
        or query.since_us is not None
        or query.until_us is not None,
        has_filters=bool(kept.keys() - {"q", "sort", "columns"}),
        columns=kept.get("columns", ""),
        searched=SEARCHED,
    )


@router.get("/dashboard/teams/{team_id}/requests/{request_id:path}")
async def request(view: Annotated[PageRequest, Depends(allowed("team.read"))], request_id: str) -> Response:
    """Show one request: its decision, its attempts, its cost, and the cost of the alternatives; or what refused it.
    Raises RequestNotFound.
    """
    team, gateway = view.the_team, view.gateway
    async with reading(gateway, on=True):
        found = await RecentReader(gateway.database).one(_scope(view), request_id)
        if found is None:
            return await _refused_page(view, request_id)
        prompt = await _prompt(view, request_id)
        names = await key_names(view)
    told = found.told
    attempts = _attempts_table(found, view.query)
    considered = considered_of(found)
    compared = None if considered is None else considered_table(considered)
    file = view.csv_asked(f"request-{request_id[:60]}", attempts, *([] if compared is None else [compared]))
    if file is not None:
        return file
    return view.page(
        "requests/request.html",
        title="A request",
        team=team,
        request=found,
        final=told,
        outcome=outcome(found),
        story=[*decision(found), *_evidence(considered)],
        time_line=Table.of(TIME_LINE, step_rows(found), view.query, name="steps", caption="Time line"),
        attempts=attempts,
        compared=compared,
        left_out=0 if considered is None else considered.left_out,
        deciding="" if considered is None else deciding(considered, found.attempts[0].complexity),
        meters=_meters(found.attempts),
        elsewhere=_counterfactuals(found),
        key=names.get(told.key_id, told.key_id),
        flags=[flag_words(flag) for flag in dict.fromkeys(flag for each in found.attempts for flag in each.flags)],
        prompt=prompt,
        guarded=await _guarded_one(view, request_id),
        is_member=team.team_id in view.principal.teams,
    )


async def _refused(view: PageRequest, request_id: str) -> RefusedRequest | None:
    team = view.the_team
    return await view.gateway.views.refusals.requests.one(team.organisation_id, team.team_id, request_id)


async def _refused_page(view: PageRequest, request_id: str) -> Response:
    """Show why a request that reached no model was refused, and what to do. Raises RequestNotFound."""
    refused = await _refused(view, request_id)
    if refused is None:
        archived = await archived_note(view.gateway.database, 0, wall_us())
        raise RequestNotFound(
            f"There is no request `{request_id[:80]}` of this team: neither in the ledger nor among the latest refused ones."
            + (f" It may be an old one: {archived}." if archived else "")
        )
    names = await key_names(view)
    return view.page(
        "requests/refused.html",
        title="A refused request",
        team=view.the_team,
        refused=refused,
        reason=reason_words(refused.reason),
        advice=advice(refused),
        guarded=await _guarded_one(view, refused.request_id),
        key=names.get(refused.key_id, refused.key_id),
    )


async def _merged_page(
    view: PageRequest, reader: RecentReader, query: RecentQuery, wanted: str
) -> tuple[RecentPage, Sequence[Found]]:
    """Return a page of the ledger's requests and the refused ones between them; its next place is that of both."""
    page = RecentPage(requests=()) if wanted == REFUSED else await reader.page(query)
    if query.order:
        return page, page.requests
    refused = await read_refused(view.gateway.views.refusals.requests, refused_query(query, wanted))
    found = merged(page, refused, query.rows)
    reached_us = page.reached_us if found.next_place == page.next_place else None
    return msgspec.structs.replace(page, next_place=found.next_place, reached_us=reached_us), found.requests


def _evidence(considered: Considered | None) -> list[str]:
    """Return a sentence where the chosen target, or the baseline model, is not measured by outcomes of its answers."""
    chosen = None if considered is None else considered.chosen
    if chosen is None or chosen.evidence == "measured" or not chosen.evidence:
        return []
    if chosen.evidence in UNMEASURED:
        return [
            f"How good {chosen.target_id} is beside the baseline model was not measured; {measuring_hint(chosen.target_id)}."
        ]
    return [
        f"How good {chosen.target_id} is beside the baseline model is known {EVIDENCE_WORDS[chosen.evidence]}, not measured."
    ]


async def key_names(view: PageRequest) -> dict[str, str]:
    """Return the names of the team's keys by id, revoked ones included."""
    team = view.the_team
    return await view.gateway.identity.accounts.key_names(team.organisation_id, team.team_id)


def rows_of(
    requests: Sequence[Found], team_id: str, names: Mapping[str, str], guarded: Mapping[str, str] = {}
) -> list[dict[str, Any]]:
    """Return table and CSV rows, one for each request. `guarded` says what the guard found, by request."""
    return [
        {
            **(
                refused_row(each, _href(team_id, each.request_id), names)
                if isinstance(each, RefusedRequest)
                else _row(each, team_id, names)
            ),
            "guard": guarded.get(each.request_id),
        }
        for each in requests
    ]


async def _guarded(view: PageRequest, found: Sequence[Found]) -> dict[str, str]:
    """Return what the guard found in these requests, in words, where that is shown."""
    if view.query.get("format") != "csv" and "guard" not in view.query.get("columns", "").split(","):
        return {}
    kept = await view.gateway.views.findings.of_requests(
        view.the_team.organisation_id, view.the_team.team_id, [each.request_id for each in found]
    )
    return {request_id: told_findings(findings) for request_id, findings in kept.items()}


async def _guarded_one(view: PageRequest, request_id: str) -> str:
    """Return what the guard found in one request, in words; '' where that was nothing, or not kept."""
    team = view.the_team
    async with reading(view.gateway, on=True):
        kept = await view.gateway.views.findings.of_requests(team.organisation_id, team.team_id, [request_id])
    return told_findings(kept.get(request_id, ()))


def _row(found: RecentRequest, team_id: str, names: Mapping[str, str]) -> dict[str, Any]:
    told = found.told
    read, written = (sum(getattr(each, name) for each in found.attempts) for name in ("input_tokens", "output_tokens"))
    return {
        "request_id": found.request_id,
        "href": _href(team_id, found.request_id),
        "request_id_href": _href(team_id, found.request_id),
        "at": found.at_us,
        "outcome": outcome(found),
        "target": told.target_id,
        "why": reason_label(told.reason),
        "complexity": None if told.complexity is None else round(told.complexity, 2),
        "tokens": read + written,
        "input_tokens": read,
        "output_tokens": written,
        "ttft": _seconds(found.first_token_us),
        "cost": found.cost_nanousd,
        "saved": told.cache_saved_nanousd if found.was_given_again else found.saving_nanousd,
        "alias": told.alias,
        "tier": told.tier,
        "key": names.get(told.key_id, told.key_id),
        "tag": told.tag or None,
        "end_user": told.end_user or None,
        "attempts": len(found.attempts),
        "status": found.status,
        "duration": _seconds(found.took_us),
    }


def _href(team_id: str, request_id: str) -> str:
    return f"/dashboard/teams/{team_id}/requests/{quote(request_id, safe=_SAFE)}"


def _seconds(duration_us: int | None) -> float | None:
    return None if duration_us is None else duration_us / 1_000_000


def _scope(view: PageRequest) -> ReadScope:
    team = view.the_team
    return ReadScope(organisation_id=team.organisation_id, team_id=team.team_id)


def _query(view: PageRequest) -> RecentQuery:
    """Return the address's filters; invalid ones are ignored, as in every table."""
    asked = view.query
    fields: dict[str, Any] = {name: _plain(asked.get(name, "")) for name in _FILTERS}
    wanted, order = asked.get("outcome", ""), asked.get("sort", "")
    chosen: Outcome = next((each for each in OUTCOMES if each == wanted), "")
    # Refused ones have no other order than that of time.
    ordered: Order = next((each for each in ORDERS if each == order and wanted != REFUSED), "")
    first, last = span_of(asked.get("from", "")), span_of(asked.get("to", ""))
    status = asked.get("status", "")
    page = asked.get("page", "")
    return RecentQuery(
        scope=_scope(view),
        before=None if ordered else _parse_place(asked.get("before", "")),
        rows=_ROWS,
        outcome=chosen,
        order=ordered,
        page=min(max(int(page), 1), MAX_PAGE) if _WHOLE.fullmatch(page) else 1,
        since_us=None if first is None else first[0],
        until_us=None if last is None else last[1],
        status=status if _STATUS.fullmatch(status) else "",
        slower_us=_amount(asked.get("slower", ""), 1_000_000),
        dearer_nanousd=_amount(asked.get("dearer", ""), 1_000_000_000),
        **fields,
    )


def _moment_field(text: str, *, is_last: bool) -> str:
    """Return a time of the address as a field of the form has it, to the second; empty for none."""
    span = span_of(text)
    return "" if span is None else iso(span[1] - 1 if is_last else span[0]).removesuffix("Z")


def _amount(text: str, unit: int) -> int | None:
    """Return a number, also with a dollar sign or thousands separators, in whole parts of a unit; None for anything else."""
    plain = ungrouped(text)
    return int(Decimal(plain) * unit) if _NUMBER.fullmatch(plain) else None


def _plain(text: str) -> str:
    return text.strip()[:_MAX_CHARS] if text.isprintable() else ""


def _parse_place(text: str) -> Place | None:
    moment, _, request_id = text.partition(".")
    sound = moment.isascii() and moment.isdigit() and len(moment) <= _MAX_DIGITS and request_id.isprintable()
    return (int(moment), request_id) if sound and 0 < len(request_id) <= _MAX_CHARS else None


def _before(place: Place | None) -> dict[str, str]:
    return {} if place is None else {"before": f"{place[0]}.{place[1]}"}


def _pages(kept: Mapping[str, str], query: RecentQuery, page: RecentPage) -> tuple[str | None, str | None]:
    """Return links to the page before and the one after; by time, the one before is the newest."""
    if query.order:
        before = f"?{urlencode({**kept, 'page': query.page - 1})}" if query.page > 1 else None
        return before, f"?{urlencode({**kept, 'page': query.page + 1})}" if page.has_more else None
    newest = f"?{urlencode(kept)}" if query.before is not None else None
    return newest, None if page.next_place is None else f"?{urlencode({**kept, **_before(page.next_place)})}"


_SEARCHED: Final = (
    "Every word has to be in its id, end user, key or model; status, time, cost and latency have fields (“How to search”). What "
    "requests said is not searched."
)


def _told_empty(query: RecentQuery, page: RecentPage) -> str:
    """Return why there is no row; where words were looked for, also in what."""
    return f"{_empty(query, page)} {_SEARCHED}" if query.words else _empty(query, page)


def _empty(query: RecentQuery, page: RecentPage) -> str:
    if page.reached_us is not None and query.order:
        return "None among the newest requests, which were looked through; choose days to look further back."
    if page.reached_us is not None:
        return "None among the requests that were looked through; “Next” looks further back."
    if query.filtered:
        return "No request fits this."
    return "No request has ended yet. The first one shows here a moment after its answer."


async def _csv(view: PageRequest, reader: RecentReader, query: RecentQuery, wanted: str) -> tuple[str, str]:
    """Return up to 2,000 requests from the page's beginning as CSV, and how its name says what it lacks; empty for nothing."""
    rows: list[Row] = []
    archived: dict[int, None] = {}
    async with reading(view.gateway, on=True):
        names = await key_names(view)
    # A file has its rows by time: it goes on where the rows of one page end.
    query = msgspec.structs.replace(query, rows=MAX_ROWS, order="", page=1)
    for _ in range(_CSV_PAGES):
        async with reading(view.gateway, on=True):
            page, found = await _merged_page(view, reader, query, wanted)
            guarded = await _guarded(view, found)
        rows += rows_of(found, view.the_team.team_id, names, guarded)
        archived |= dict.fromkeys(page.archived)
        if page.next_place is None:
            break
        query = msgspec.structs.replace(query, before=page.next_place)
    lacks = "" if page.next_place is None else "-newest"
    if months := sorted(archived):
        lacks += f"-without-{month_text(months[0])}{'-and-others' if len(months) > 1 else ''}"
    return await asyncio.to_thread(Table.paged(_COLUMNS, rows).csv), lacks


def _choices(values: Sequence[str], chosen: str, words: Mapping[str, str] = {}) -> list[tuple[str, str]]:
    """Return options of a filter. The chosen one stays in the list, also where it is gone from the configuration."""
    known = [*values, *([chosen] if chosen and chosen not in values else [])]
    return [("", "Any"), *((each, words.get(each, each)) for each in known)]


def _key_choices(names: Mapping[str, str], chosen: str) -> list[tuple[str, str]]:
    known = {**names, **({chosen: chosen} if chosen and chosen not in names else {})}
    return [("", "Any"), *sorted(known.items(), key=lambda each: each[1])]


async def _prompt(view: PageRequest, request_id: str) -> Prompt | None:
    """Return the stored prompt, for members of a team whose learning keeps prompts; otherwise None."""
    team = view.the_team
    if team.settings.learning != "prompts" or team.team_id not in view.principal.teams:
        return None
    kept = await view.gateway.learning.find_weighing(team.team_id, request_id)
    if kept is None or kept.prompt is None:
        return None
    try:
        return msgspec.json.decode(kept.prompt, type=Prompt)
    except msgspec.MsgspecError:
        # Of an older version; what it says matters more than its form.
        return Prompt(text=kept.prompt)


def _attempts_table(found: RecentRequest, query: Mapping[str, str]) -> Table:
    columns = (
        Column("attempt", "Attempt", "number", sortable=False),
        Column("target", "Model", "code", sortable=False),
        Column("deployment", "Deployment", "code", sortable=False, usual=False),
        Column("why", "Why", sortable=False),
        Column("ended", "How it ended", sortable=False),
        Column("ttft", "Its own first token", "seconds", "From the attempt's beginning", sortable=False),
        Column("duration", "Duration", "seconds", sortable=False),
        Column("margin", "Margin", "money", "What one more request was expected to cost", sortable=False, usual=False),
        Column("because", "Margin from", sortable=False, usual=False),
        Column("cost", "Cost", "money", sortable=False),
    )
    rows = [
        {
            "attempt": each.attempt,
            "target": each.target_id,
            "deployment": each.deployment_id,
            "why": WAY_LABELS.get(way) or reason_label(each.reason),
            "ended": ended(each, goes_on=goes_on),
            "ttft": _seconds(each.ttft_us),
            "duration": _seconds(each.duration_us),
            "margin": each.margin_nanousd,
            "because": MARGIN_WORDS.get(each.margin_why, each.margin_why),
            "cost": each.cost_nanousd,
        }
        for each, way, goes_on in zip(found.attempts, found.ways, going_on(found), strict=True)
    ]
    return Table.of(columns, rows, query, name="attempts", caption="Attempts")


_METER_WORDS: Final = {each.name: each.request_label for each in METERS}


def _meters(attempts: Sequence[Entry]) -> list[tuple[str, int | Decimal | None, int]]:
    """Return the tokens, or units, and cost by meter over all attempts, without unused meters. Tokens do not overlap."""
    sums = {name: sum(getattr(each, name) for each in attempts) for name in (*TOKEN_COLUMNS, *METER_COLUMNS)}
    # Requests are not counted here: attempts are.
    used: tuple[int | None, ...] = (*split_row(sums, 0)[:-1], None)
    rows = zip(METER_NAMES, used, METER_COLUMNS, strict=True)
    found: list[tuple[str, int | Decimal | None, int]] = [
        (_METER_WORDS[name], tokens, sums[column]) for name, tokens, column in rows if tokens or sums[column]
    ]
    units = {each.unit for each in attempts if each.unit}
    if len(units) == 1 and found and found[-1][0] == _METER_WORDS["request"]:
        # What is billed by another unit stands under the request: told as exactly as the books and the usage API tell it.
        quantity = Decimal(sum(each.quantity_milli for each in attempts)) / 1_000
        found[-1] = (unit_label(units.pop()), quantity, found[-1][2])
    return found


def _counterfactuals(found: RecentRequest) -> list[tuple[str, str, int | None, int | None]]:
    """Return the counterfactual costs of the same tokens as (target, price, cost, difference to the actual cost).
    Nano-dollars.
    """
    told, cost = found.told, found.cost_nanousd
    compared = (
        ("The baseline model", told.baseline_price, told.baseline_nanousd),
        ("The cheapest bought one that is good enough", told.cheapest_price, told.cheapest_nanousd),
        ("A host of the same weights", told.hosted_price, told.hosted_nanousd),
    )
    return [
        (who, price, amount, None if cost is None or amount is None else amount - cost)
        for who, price, amount in compared
        if amount is not None
    ]
