"""GET and DELETE /v1/responses/{id}: responses that a team let the gateway keep, in OpenAI's shapes."""

from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from dashboards.web.api_types import Deleted
from dashboards.web.gateway import ActingCaller, gateway_of
from dashboards.web.openapi import described
from dashboards.web.reading import json_reply
from proxy.errors import BadRequest

router = APIRouter(tags=["responses"])

_DEFAULT_ITEMS: Final = 20
_MAX_ITEMS: Final = 100
_PATH: Final = "/v1/responses/{response_id}"


class KeptResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response as it was given; all further fields are OpenAI's."""

    id: str
    object: Literal["response"]
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]


class InputItems(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the input that a response was made of, with all earlier turns."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


@router.get(_PATH, **described("Read a response", gives={200: KeptResponse}))
async def read_kept_response(response_id: str, request: Request, caller: ActingCaller) -> Response:
    """A response of this key's team that was kept."""
    record = await gateway_of(request).responses.find(caller.team_id, response_id)
    return json_reply(msgspec.json.decode(record)["response"])


@router.delete(_PATH, **described("Delete a response", gives={200: Deleted}))
async def delete_kept_response(response_id: str, request: Request, caller: ActingCaller) -> Response:
    """What was kept of it is gone; conversations that went on from it have their own copy."""
    await gateway_of(request).responses.remove(caller.team_id, response_id)
    return json_reply(Deleted(id=response_id, object="response"))


@router.get(f"{_PATH}/input_items", **described("List a response's input", gives={200: InputItems}))
async def list_input_items(
    response_id: str,
    request: Request,
    caller: ActingCaller,
    limit: Annotated[int, Query(ge=1, le=_MAX_ITEMS)] = _DEFAULT_ITEMS,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str, Query(description="The id of the item that the page follows.")] = "",
) -> Response:
    """The items that a response was made of, newest first."""
    record = await gateway_of(request).responses.find(caller.team_id, response_id)
    items: list[dict[str, Any]] = [_listed(item) for item in msgspec.json.decode(record)["items"]]
    if order == "desc":
        items.reverse()
    if after:
        items = items[_index_of(after, items) + 1 :]
    page = items[:limit]
    return json_reply(
        InputItems(
            object="list",
            data=page,
            first_id=page[0]["id"] if page else None,
            last_id=page[-1]["id"] if page else None,
            has_more=len(items) > limit,
        )
    )


@router.post(f"{_PATH}/cancel", **described("Cancel a response", gives={200: KeptResponse}))
async def cancel_kept_response(response_id: str, request: Request, caller: ActingCaller) -> Response:
    """Refused: only what is answered in the background could be cancelled, and here nothing is."""
    await gateway_of(request).responses.find(caller.team_id, response_id)
    raise BadRequest("Only a response that is made in the background can be cancelled, and this one is whole.")


def _index_of(after: str, items: list[dict[str, Any]]) -> int:
    for index, item in enumerate(items):
        if item["id"] == after:
            return index
    raise BadRequest("`after` names no item of this response.", param="after")


def _listed(item: dict[str, Any]) -> dict[str, Any]:
    """An item in its full form: callers may send messages in a shorter one."""
    if item.get("type", "message") != "message":
        return item
    content = item.get("content")
    if isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        content = [{"type": kind, "text": content, **({"annotations": []} if kind == "output_text" else {})}]
    return {"type": "message", "status": "completed", **item, "content": content}
