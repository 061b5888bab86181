"""/dashboard/teams/{team_id}/playground: try a prompt. Shows what each quality would choose, or asks two models.

The prompt is in the form's body alone: in no address, log or table. What is asked is booked to the team by one of its keys,
with that key's limits and budgets, like any other call.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.caller import Caller
from accounts.store import KeyRecord, utc_now
from api.web.changing import looking
from dashboards.playground.decisions import Decision, weighed
from dashboards.requests.considered import lost_against_baseline
from dashboards.ui.formats import share
from dashboards.ui.tables import Column, Row, Table
from dashboards.web.access import allowed
from dashboards.web.forms import Form, FormError
from dashboards.web.view import PageRequest
from proxy.batch.line_protocol import LineReply, LineRequest
from proxy.errors import BadRequest
from proxy.http.request_id import new_request_id
from proxy.parse.chat_request import AUTO
from proxy.plan.decision_record import ConsideredTarget
from proxy.plan.evidence import UNMEASURED
from proxy.plan.route_plan import may_use
from settings.decoding import DECODE_ERRORS

router: Final = APIRouter(include_in_schema=False)

_PLACE: Final = "/dashboard/teams/{team_id}/playground"
_PROMPT_CHARS: Final = 20_000
_TOOLS_CHARS: Final = 20_000
_MOST_TOKENS: Final = 4_096
_USUAL_TOKENS: Final = 512
_PATIENCE_S: Final = 90.0
"""Seconds that both answers are waited for; the page is handed over for 120."""
_NONE: Final = ""
_COLUMNS: Final = (
    Column("floor", "Minimum quality", note="Of the baseline model's, on average over prompts", sortable=False),
    Column("bound", "One prompt may lose", note="Against the baseline model's chance, at most", sortable=False),
    Column("target", "Model", "code", sortable=False),
    Column("adequate", "Chance", "share", "Predicted chance that its answer is good enough", sortable=False),
    Column(
        "lost",
        "Chance lost",
        "exact_share",
        "The baseline model's chance less this one's; below 0 it is the better one",
        sortable=False,
    ),
    Column("expected", "Price", "money", "What the request is expected to cost there", sortable=False),
    Column("margin", "Margin", "money", "What one more request is reckoned at", sortable=False),
    Column("why", "What decides", sortable=False),
)
_TWO: Final = Column(
    "two",
    "Two first",
    note="Cheap models that are asked first where the team wants that, as a program can compare such answers",
    sortable=False,
)


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one model."""

    asked_for: str
    request_id: str
    model: str
    text: str
    status: int
    took_s: float
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nanousd: int | None = None
    problem: str = ""


@router.get(_PLACE)
async def show(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show the form."""
    return await _page(view, {}, {})


@router.post(_PLACE)
async def decide(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show each quality's choice for the prompt. Calls nobody."""
    form = await view.form()
    try:
        body = _body(form, AUTO)
        found = await weighed(view.gateway, _caller(view), body)
    except FormError as error:
        return await _page(view, form.plain, {error.field: error.message})
    except BadRequest as error:
        return await _page(view, form.plain, {"prompt": error.message})
    rows = [_row(alike) for alike in _alike(found.decisions)]
    columns = (*_COLUMNS, _TWO) if any(each.two_first for each in found.decisions) else _COLUMNS
    table = Table.of(columns, rows, {}, name="decisions", caption="What would be chosen", csv=False)
    return await _page(view, form.plain, {}, weighed=found, decisions=table)


def _alike(decisions: Sequence[Decision]) -> list[list[Decision]]:
    """Return the decisions, those beside each other that are the same but for the minimum together."""
    found: list[list[Decision]] = []
    for each in decisions:
        if found and _choice(found[-1][0]) == _choice(each):
            found[-1].append(each)
        else:
            found.append([each])
    return found


def _choice(decision: Decision) -> tuple[object, ...]:
    chosen = None if decision.considered is None else decision.considered.chosen
    return chosen, decision.deciding, decision.refusal, decision.two_first


def _row(alike: Sequence[Decision]) -> Row:
    first, last = alike[0], alike[-1]
    considered = first.considered
    chosen = None if considered is None else considered.chosen
    own = next((f"The team's minimum is {share(each.floor)}. " for each in alike if each.is_own), "")
    return {
        "floor": share(first.floor) if first is last else f"{share(first.floor)} to {share(last.floor)}",
        "bound": _points(first) if first is last else f"{_points(first)} to {_points(last)}",
        "target": None if chosen is None else chosen.target_id,
        "adequate": None if chosen is None else chosen.adequate,
        "lost": None if chosen is None or considered is None else lost_against_baseline(considered, chosen),
        "expected": None if chosen is None else chosen.expected_nanousd,
        "margin": None if chosen is None else chosen.margin_nanousd,
        "two": first.two_first or None,
        "why": f"{own}{_unmeasured(chosen)}{first.deciding or first.refusal}",
    }


def _points(decision: Decision) -> str:
    return "nothing" if decision.most_lost <= 0 else f"{100 * decision.most_lost:.1f} points"


def _unmeasured(chosen: ConsideredTarget | None) -> str:
    """Return a sentence for a model whose quality was not measured: no minimum can be told of it."""
    if chosen is None or chosen.evidence not in UNMEASURED:
        return ""
    return f"{chosen.target_id} was not measured, so what is kept is not known. "


@router.post(f"{_PLACE}/call")
async def call(view: Annotated[PageRequest, Depends(allowed("team.change"))]) -> Response:
    """Ask one or two models, at once, and show their answers side by side."""
    form = await view.form()
    try:
        keys = {key.key_id for key in await _keys(view)}
        key_id = form.one_of("key", tuple(sorted(keys)))
        names = dict(_models(view))
        chosen = [form.one_of("model", tuple(names)), form.one_of("other", (_NONE, *names))]
        bodies = {name: _body(form, name) for name in chosen if name}
        caller = await view.gateway.identity.accounts.caller_of(key_id)
        if caller is None or caller.team_id != view.the_team.team_id or caller.reads_only:
            raise FormError("key", "This key cannot call models.")  # noqa: TRY301
    except FormError as error:
        return await _page(view, form.plain, {error.field: error.message})
    answers = await asyncio.gather(*(_ask(view, caller, name, body) for name, body in bodies.items()))
    return await _page(view, form.plain, {}, answers=answers)


async def _ask(view: PageRequest, caller: Caller, name: str, body: bytes) -> _Answer:
    asked = LineRequest(
        request_id=new_request_id(),
        caller=caller,
        endpoint="/v1/chat/completions",
        body=body,
        priority=0,
        tier="interactive",
    )
    started = time.monotonic()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            answered = await view.gateway.jobs.answering.answer(asked)
    except TimeoutError:
        problem = f"No whole answer within {_PATIENCE_S:.0f} s. What was used is booked."
        return _Answer(
            asked_for=name,
            request_id=asked.request_id,
            model="",
            text="",
            status=504,
            took_s=_PATIENCE_S,
            problem=problem,
        )
    return _read(name, asked.request_id, answered, time.monotonic() - started)


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class _ToolCall(msgspec.Struct):
    function: _Function = msgspec.field(default_factory=_Function)


class _Message(msgspec.Struct):
    content: Any = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    message: _Message = msgspec.field(default_factory=_Message)


class _Error(msgspec.Struct):
    message: str = ""


class _Reply(msgspec.Struct):
    model: str = ""
    model_used: str = ""
    choices: list[_Choice] = []
    error: _Error | None = None


def _read(name: str, request_id: str, answered: LineReply, took_s: float) -> _Answer:
    try:
        reply = msgspec.json.decode(answered.body, type=_Reply)
    except msgspec.MsgspecError:
        reply = _Reply(error=_Error("The reply is in a shape that this page does not know."))
    problem = reply.error.message if reply.error is not None else ""
    return _Answer(
        asked_for=name,
        request_id=request_id,
        model=reply.model_used or reply.model,
        text="\n".join(_texts(reply)),
        status=answered.status,
        took_s=took_s,
        input_tokens=answered.input_tokens,
        output_tokens=answered.output_tokens,
        cost_nanousd=answered.cost_nanousd,
        problem=problem,
    )


def _texts(reply: _Reply) -> list[str]:
    texts: list[str] = []
    for choice in reply.choices:
        if isinstance(choice.message.content, str):
            texts.append(choice.message.content)
        texts += [f"{each.function.name}({each.function.arguments})" for each in choice.message.tool_calls or ()]
    return texts


def _body(form: Form, model: str) -> bytes:
    """Return the chat request of a form. Raises FormError."""
    messages = [{"role": "user", "content": form.text("prompt", most=_PROMPT_CHARS, required=True)}]
    system = form.text("system", most=_PROMPT_CHARS)
    if system:
        messages.insert(0, {"role": "system", "content": system})
    most = form.whole("max_tokens", least=1, most=_MOST_TOKENS) or _USUAL_TOKENS
    whole: dict[str, Any] = {"model": model, "messages": messages, "max_completion_tokens": most}
    tools = form.text("tools", most=_TOOLS_CHARS)
    if tools:
        whole["tools"] = _tools(tools)
    return msgspec.json.encode(whole)


def _tools(text: str) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(text, type=list[dict[str, Any]])
    except DECODE_ERRORS as error:
        raise FormError("tools", f"A JSON list of tools, as in a request: {error}.") from error


def _caller(view: PageRequest) -> Caller:
    """Return the team as a caller without a key, for previews that call no model."""
    team = view.the_team
    return Caller(
        key_id="",
        key_name="",
        team_id=team.team_id,
        organisation_id=team.organisation_id,
        allowed_models=team.allowed_models,
        settings=team.settings,
    )


def _models(view: PageRequest) -> list[tuple[str, str]]:
    """Return the names that the team may send, as options, without models that only make embeddings."""
    rules, may = view.gateway.rules(), view.the_team.allowed_models
    targets = [target.target_id for target in rules.catalog.targets.values() if may_use(may, target) and target.chats]
    return [(AUTO, "auto: the gateway chooses"), *((name, name) for name in sorted(targets))]


async def _keys(view: PageRequest) -> list[KeyRecord]:
    """Return the team's keys that may call a model now."""
    team, now = view.the_team, utc_now()
    async with looking():
        keys = await view.gateway.identity.accounts.keys_of(team.organisation_id, team.team_id)
    return [key for key in keys if key.works_at(now) and key.role != "finance"]


async def _page(view: PageRequest, values: Mapping[str, str], errors: Mapping[str, str], **found: Any) -> Response:
    may_call = view.may("team.change")
    context = {
        "base": f"/dashboard/teams/{view.the_team.team_id}/playground",
        "requests": f"/dashboard/teams/{view.the_team.team_id}/requests",
        "models": _models(view),
        "keys": [(key.key_id, key.name) for key in await _keys(view)] if may_call else [],
        "may_call": may_call,
        "most_tokens": _MOST_TOKENS,
        "usual_tokens": _USUAL_TOKENS,
        "values": values,
        "errors": errors,
        "weighed": None,
        "decisions": None,
        "answers": (),
        **found,
    }
    if view.is_part:
        # A status of an error would leave what is shown as it is.
        return view.part("playground/tried.html", **context)
    return view.page("playground/playground.html", title="Playground", status=400 if errors else 200, **context)
