"""/dashboard/teams/{team_id}/models: the models that a team may call, with prices, context, ability and how to call them."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.web.address import base_url
from dashboards.ui.tables import Column, Table
from dashboards.ui.words import evidence_badge
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest
from providers.target import NOT_CHAT, Target
from providers.wire import PATHS, Operation
from proxy.errors import ModelNotFound
from proxy.parse.chat_request import AUTO
from proxy.plan.route_plan import may_use

router: Final = APIRouter(include_in_schema=False)

_PLACE: Final = "/dashboard/teams/{team_id}/models"
_COLUMNS: Final = (
    Column("name", "Name", "link"),
    Column("what", "What it is"),
    Column("can", "Can", note="Beside answering text"),
    Column("context", "Context", "number", "Tokens of prompt and answer"),
    Column("input", "Input $/M", "money", "For a million tokens of prompt"),
    Column("output", "Output $/M", "money", "For a million tokens of answer"),
    Column(
        "ability", "Ability", "share", "Mean chance of a good answer over the classifier's sample; models with a row"
    ),
    Column("evidence", "Known", "badge", "How it is known how good it is"),
    Column("state", "State", "badge"),
    Column("longest", "Longest answer", "number", "Tokens", usual=False),
    Column("cached", "Cached input $/M", "money", "For a million tokens that come from a cache", usual=False),
    Column("tiers", "Tiers", usual=False),
    Column("provider", "Provider", usual=False),
)


@router.get(_PLACE)
async def list_models(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """List every name that the team may send as `model`."""
    table = Table.of(
        _COLUMNS,
        await _rows(view),
        view.query,
        name="models",
        caption="Models",
        search=("name", "what", "can", "provider"),
        empty="No model is configured, or none is for this team.",
    )
    return view.csv_asked(f"models-{view.the_team.team_id}", table) or view.page(
        "model_list/models.html", title="Models", table=table
    )


@router.get(f"{_PLACE}/{{name:path}}")
async def show_model(view: Annotated[PageRequest, Depends(allowed("team.read"))], name: str) -> Response:
    """Show one name, and how to call it. Raises ModelNotFound."""
    row = next((row for row in await _rows(view) if row["name"] == name), None)
    if row is None:
        raise ModelNotFound(f"There is no model `{name[:80]}` that this team may use.", param="model")
    api = f"{base_url(view.request, view.gateway.config().sign_in.public_url)}/v1"
    return view.page("model_list/model.html", title=name, row=row, curl=_curl(api, row), python=_python(api, row))


async def _rows(view: PageRequest) -> list[dict[str, Any]]:
    rules, may = view.gateway.rules(), view.the_team.allowed_models
    tolerances = rules.tolerances
    means = {} if tolerances is None else await asyncio.to_thread(tolerances.mean_adequacies)
    catalog = rules.catalog
    named = (catalog.named(name) for entry in catalog.wildcards.entries for name in entry.names)
    targets = {
        target.target_id: target
        for target in (*catalog.targets.values(), *named)
        if target is not None and may_use(may, target)
    }
    rows = [_alias(view, AUTO, "The gateway chooses the cheapest capable model")]
    rows += [_alias(view, name, "As auto, with rules of its own") for name in sorted(rules.policy.autos)]
    for name, behind in sorted(rules.policy.aliases.items()):
        usable = [each for each in behind if (found := catalog.named(each)) is not None and may_use(may, found)]
        if usable:
            rows.append(_alias(view, name, f"Stands for {', '.join(usable)}"))
    return [*rows, *(_target(view, target, means.get(name)) for name, target in sorted(targets.items()))]


def _alias(view: PageRequest, name: str, what: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(column.key for column in _COLUMNS)
    return {**row, "name": name, "name_href": _href(view, name), "what": what, "serves": ""}


def _target(view: PageRequest, target: Target, ability: float | None) -> dict[str, Any]:
    price = target.price
    known = target.known("capabilities")
    return {
        "name": target.target_id,
        "name_href": _href(view, target.target_id),
        "what": "On our own GPUs" if target.own else "Bought by use",
        "can": "unknown: everything is allowed" if known is None else ", ".join(sorted(target.capabilities)) or "text",
        "context": target.known("max_context_tokens"),
        "longest": target.known("max_output_tokens"),
        "input": None if price is None else price.input_nanousd,
        "cached": None if price is None else price.cached_input_nanousd,
        "output": None if price is None else price.output_nanousd,
        "ability": ability,
        "evidence": evidence_badge(view.gateway.rules().policy.evidence.get(target.target_id, "none")),
        "state": ("Ready", "good") if view.gateway.ready(target) else ("Not ready", "bad"),
        "tiers": ", ".join(sorted(target.tiers)),
        "provider": target.provider,
        "serves": min(target.capabilities & NOT_CHAT, default=""),
    }


def _href(view: PageRequest, name: str) -> str:
    return f"/dashboard/teams/{view.the_team.team_id}/models/{quote(name, safe='')}"


def _curl(api: str, row: dict[str, Any]) -> str:
    operation, fields = _EXAMPLES[row["serves"]]
    path = PATHS[operation]
    key = '-H "Authorization: Bearer $WEIGHBRIDGE_KEY"'
    if row["serves"] == "transcription":
        return f"curl {api}/{path} \\\n  {key} \\\n  -F model={row['name']} \\\n  -F file=@talk.mp3"
    body = msgspec.json.encode({"model": row["name"], **fields}).decode().replace("'", "'\\''")
    return f"curl {api}/{path} \\\n  {key} \\\n  -H \"Content-Type: application/json\" \\\n  -d '{body}'"


def _python(api: str, row: dict[str, Any]) -> str:
    client = f"client = OpenAI(base_url={api!r}, api_key=os.environ['WEIGHBRIDGE_KEY'])\n"
    call = _CALLS[row["serves"]].replace("MODEL", repr(row["name"]))
    return f"import os\n\nfrom openai import OpenAI\n\n{client}{call}"


_HELLO: Final = "Say hello."
_EXAMPLES: Final[Mapping[str, tuple[Operation, Mapping[str, Any]]]] = {
    "": ("chat", {"messages": [{"role": "user", "content": _HELLO}]}),
    "embeddings": ("embeddings", {"input": _HELLO}),
    "rerank": ("rerank", {"query": "a bridge", "documents": ["a bridge of stone", "a gate"]}),
    "moderation": ("moderations", {"input": _HELLO}),
    "images": ("images", {"prompt": "a bridge of stone"}),
    "speech": ("speech", {"input": _HELLO, "voice": "alloy"}),
    "transcription": ("transcriptions", {}),
}
"""The operation and a body's fields beside `model`, by what a model does instead of chatting."""
_CALLS: Final[Mapping[str, str]] = {
    "": "answer = client.chat.completions.create(model=MODEL, messages=[{'role': 'user', 'content': 'Say hello.'}])\n"
    "print(answer.choices[0].message.content)",
    "embeddings": "found = client.embeddings.create(model=MODEL, input='Say hello.')\nprint(len(found.data[0].embedding))",
    "rerank": "body = {'model': MODEL, 'query': 'a bridge', 'documents': ['a bridge of stone', 'a gate']}\n"
    "print(client.post('/rerank', body=body, cast_to=object))",
    "moderation": "found = client.moderations.create(model=MODEL, input='Say hello.')\nprint(found.results[0].flagged)",
    "images": "drawn = client.images.generate(model=MODEL, prompt='a bridge of stone')\nprint(len(drawn.data))",
    "speech": "with client.audio.speech.with_streaming_response.create(model=MODEL, voice='alloy', input='Say hello.') as said:\n"
    "    said.stream_to_file('hello.mp3')",
    "transcription": "with open('talk.mp3', 'rb') as talk:\n"
    "    print(client.audio.transcriptions.create(model=MODEL, file=talk).text)",
}
