"""/dashboard/ask: a question in words, and its answer with the look-ups behind it, which are shown as they are done.

A question is in a form's body and the page that answers it, and in no address, log or table.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.ask.asking import begun, setting_of
from api.ask.change import MOST_QUESTIONS, USUAL_BUDGET_USD, USUAL_QUESTIONS, switch_off, switch_on, usual_team
from api.ask.conversation import MOST_QUESTION_CHARS, Answered, Conversation, Doing, Event, Step
from api.ask.found import Found, kind_of
from api.web.reading import Export
from dashboards.ui.tables import Column, Kind, Row, Table
from dashboards.web.access import allowed
from dashboards.web.forms import FormError
from dashboards.web.view import PageRequest
from proxy.errors import Refused

router: Final = APIRouter(include_in_schema=False)

_PLACE: Final = "/dashboard/ask"
_HERE: Final = "<!--what-is-done-stands-here-->"
"""Place of the page, as its template has it, where look-ups and answer are sent, as they come. What people write is escaped and cannot contain it."""
_SIGN_S: Final = 2.0
_NANO: Final = 1_000_000_000
_HUNDRED: Final = 100
_IN_TITLE: Final = frozenset({"by", "period", "first_day", "last_day", "rows", "line"})
"""Arguments of look-ups that their title and days tell."""
_EXAMPLES: Final = (
    "What was spent this month, by model?",
    "Why did spend rise in the last 7 days?",
    "Which key was dearest yesterday?",
    "Which requests were slowest today?",
    "Which budget is used most?",
)
_KINDS: Final[Mapping[str, Kind]] = {"usd": "money", "percent": "exact_share", "s": "seconds", "": "number"}


@router.get(_PLACE)
async def show(view: Annotated[PageRequest, Depends(allowed("signed-in"))]) -> Response:
    """Show the field, with examples; for administrators also the switch."""
    return await _page(view)


@router.post(_PLACE)
async def ask(view: Annotated[PageRequest, Depends(allowed("signed-in"))]) -> Response:
    """Answer a question. The page is sent as it comes about: first the form, then each look-up, then the answer."""
    question = ""
    try:
        form = await view.form()
        question = form.text("question", most=MOST_QUESTION_CHARS, required=True)
        conversation = await begun(view.gateway, view.principal, question)
    except FormError as error:
        return await _page(view, values={"question": question}, errors={error.field: error.message})
    except Refused as error:
        return await _page(
            view, values={"question": question}, errors={"question": error.message}, status=error.fault.status
        )
    page = await _page(view, values={"question": question}, is_asked=True)
    before, after = bytes(page.body).split(_HERE.encode())
    # The length is not known; all else stays as on any page.
    headers = {name: value for name, value in page.headers.items() if name not in {"content-length", "content-type"}}
    return Export(_sent(view, conversation, before, after), media_type="text/html; charset=utf-8", headers=headers)


@router.post(f"{_PLACE}/on")
async def turn_on(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Switch Ask on, with its team, key and budget."""
    form = await view.form()
    try:
        team_id = form.text("team_id", most=64, required=True)
        questions = form.whole("questions", least=1, most=MOST_QUESTIONS) or USUAL_QUESTIONS
        budget = form.decimal("budget", most=Decimal(10) ** 8)
        await switch_on(
            view.gateway.database,
            view.gateway.identity.audit,
            view.actor,
            view.gateway.identity.peppers[0],
            view.principal.organisation_id,
            team_id=team_id,
            questions_an_hour=questions,
            budget_usd=budget,
        )
    except FormError as error:
        return await _page(view, values=form.plain, errors={error.field: error.message})
    except Refused as error:
        return await _page(view, values=form.plain, errors={"team_id": error.message})
    return view.redirect(_PLACE, "Ask is on for everybody who can sign in.")


@router.post(f"{_PLACE}/off")
async def turn_off(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Switch Ask off."""
    await switch_off(view.gateway.identity.audit, view.actor, view.principal.organisation_id)
    return view.redirect(_PLACE, "Ask is off.")


async def _page(
    view: PageRequest,
    *,
    values: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
    status: int = 400,
    is_asked: bool = False,
) -> Response:
    setting = await setting_of(view.gateway, view.principal.organisation_id)
    return view.page(
        "ask/ask.html",
        title="Ask",
        status=status if errors else 200,
        setting=setting,
        may_switch=view.may("organisation.change"),
        reads_all=view.may("team.read"),
        examples=_EXAMPLES,
        most_chars=MOST_QUESTION_CHARS,
        most_questions=MOST_QUESTIONS,
        usual={
            "team_id": usual_team(view.principal.organisation_id),
            "questions": USUAL_QUESTIONS,
            "budget": USUAL_BUDGET_USD,
        },
        values=values or {},
        errors=errors or {},
        is_asked=is_asked,
    )


async def _sent(view: PageRequest, conversation: Conversation, before: bytes, after: bytes) -> AsyncIterator[bytes]:
    """Yield the page around what is done. Who closes it ends the question with it."""
    yield before
    started = time.monotonic()
    answered = Answered(problem="The model gave no answer.")
    count = 0
    async for event in _with_signs(conversation.events()):
        match event:
            case None:
                yield b"\n"
            case Doing():
                yield _part(view, "ask/doing.html", text=event.text)
            case Step():
                count += 1
                yield _part(view, "ask/step.html", step=event, table=_table(count, event.found), about=_about(event))
            case Answered():
                answered = event
    team_id = conversation.team_id
    reads_team = view.may("team.read") or team_id in view.principal.teams
    yield _part(
        view,
        "ask/answer.html",
        answered=answered,
        took_s=time.monotonic() - started,
        steps=count,
        team_id=team_id if reads_team else "",
    )
    yield after


async def _with_signs(events: AsyncGenerator[Event]) -> AsyncIterator[Event | None]:
    """Yield events, and None while the next one takes long: a sign of life keeps proxies from giving up, and finds out who has left."""
    ahead = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait({ahead}, timeout=_SIGN_S)
            if not done:
                yield None
                continue
            try:
                event = ahead.result()
            except StopAsyncIteration:
                return
            yield event
            ahead = asyncio.ensure_future(anext(events))
    finally:
        ahead.cancel()
        with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
            await ahead
        await events.aclose()


def _part(view: PageRequest, template: str, **context: Any) -> bytes:
    return bytes(view.part(template, **context).body)


def _about(step: Step) -> str:
    """Return what a look-up was limited to, in a few words: its days, and its filters."""
    days = None if step.found is None else step.found.days
    words = [] if days is None else [days[0].isoformat() if days[0] == days[1] else f"{days[0]} to {days[1]}"]
    for name, value in step.asked.items():
        if name not in _IN_TITLE:
            told = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            words.append(name if value is True else f"{name.replace('_', ' ')} {told}")
    return "; ".join(words)


def _table(number: int, found: Found | None) -> Table | None:
    """Return the rows of a look-up; the first cell of each leads to its page."""
    if found is None:
        return None
    rows = [*found.rows, {**found.total}] if found.total else list(found.rows)
    shown = [name for name in found.columns if not (name.endswith("_id") and name.removesuffix("_id") in found.columns)]
    kinds = {name: _kind(name, rows) for name in shown}
    first = shown[0] if shown else ""
    has_names = kinds.get(first) == "text"
    columns = [
        Column(name, _label(name), "link" if has_names and name == first else kinds[name], sortable=False)
        for name in shown
    ]
    if not has_names:
        columns.insert(0, Column("what", "Rows", "link", sortable=False))
    made: list[Row] = []
    for at, row in enumerate(rows):
        is_total = at >= len(found.rows)
        name = "what" if not has_names else first
        cells = {column.key: _cell(row.get(column.key), column.kind) for column in columns if column.key != "what"}
        label = "All" if is_total else cells.get(first) or "—" if has_names else "These"
        made.append({**cells, name: label, f"{name}_href": found.href if is_total else found.link(at)})
    return Table.of(columns, made, {}, name=f"rows-{number}", caption=found.title, csv=False, empty="No rows.")


def _kind(name: str, rows: list[Mapping[str, Any]]) -> Kind:
    values = [row[name] for row in rows if row.get(name) is not None]
    return "text" if any(isinstance(value, str) for value in values) else _KINDS[kind_of(name)]


def _cell(value: Any, kind: str) -> Any:
    """Return a value in the unit of its column: nano-dollars, a share of 1, seconds."""
    if not isinstance(value, int | Decimal):
        return value
    match kind:
        case "money":
            return int(value * _NANO)
        case "exact_share":
            return Decimal(value) / _HUNDRED
        case "seconds":
            return float(value)
        case _:
            return value


def _label(name: str) -> str:
    """Return a column's heading: its name without the unit."""
    plain = (
        name.replace("_usd_per", "_per")
        .removesuffix("_usd")
        .removesuffix("_percent")
        .removesuffix("_s")
        .replace("_", " ")
    )
    return plain[:1].upper() + plain[1:]
