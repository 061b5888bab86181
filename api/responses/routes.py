"""GET and DELETE /v1/responses/{id}: responses that a team let the gateway keep, in OpenAI's shapes."""

from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.responses.listing import DEFAULT_ITEMS, After, ItemList, Limit, Order, page_of
from api.web.api_types import Deleted
from api.web.gateway import ActingCaller, gateway_of
from api.web.openapi import described
from api.web.reading import Export, json_reply
from proxy.errors import ResponseNotFound
from proxy.parse.wires.responses.items import in_full

router = APIRouter(tags=["responses"])

_PATH: Final = "/v1/responses/{response_id}"
_RESPONSE: Final = "resp_"


class KeptResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response as it was given; all further fields are OpenAI's."""

    id: str
    object: Literal["response"]
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]


@router.get(_PATH, **described("Read a response", gives={200: KeptResponse}))
async def read_kept_response(
    response_id: str,
    request: Request,
    caller: ActingCaller,
    stream: Annotated[bool, Query(description="Follow one that was begun with `background` and `stream`.")] = False,
    starting_after: Annotated[int, Query(ge=-1, description="The number of the last event that is known.")] = -1,
) -> Response:
    """Return a response of this key's team that was kept, or is being made in the background."""
    background = gateway_of(request).jobs.background
    named = _checked(response_id)
    if not stream:
        return json_reply(await background.response(caller.team_id, named))
    await background.check_followed(caller.team_id, named)
    return Export(
        background.follow(caller.team_id, named, starting_after),
        media_type="text/event-stream",
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


@router.delete(_PATH, **described("Delete a response", gives={200: Deleted}))
async def delete_kept_response(response_id: str, request: Request, caller: ActingCaller) -> Response:
    """Delete it; conversations that went on from it have their own copy. One that is being made ends."""
    gateway, named = gateway_of(request), _checked(response_id)
    await gateway.jobs.responses.remove(caller.team_id, named)
    await gateway.jobs.background.forget(caller.team_id, named)
    return json_reply(Deleted(id=response_id, object="response"))


@router.get(f"{_PATH}/input_items", **described("List a response's input", gives={200: ItemList}))
async def list_input_items(
    response_id: str,
    request: Request,
    caller: ActingCaller,
    limit: Limit = DEFAULT_ITEMS,
    order: Order = "desc",
    after: After = "",
) -> Response:
    """Return the items that a response was made of, newest first."""
    record = await gateway_of(request).jobs.responses.find(caller.team_id, _checked(response_id))
    items = [in_full(item) for item in msgspec.json.decode(record)["items"]]
    return json_reply(page_of(items, limit, order, after))


@router.post(f"{_PATH}/cancel", **described("Cancel a response", gives={200: KeptResponse}))
async def cancel_kept_response(response_id: str, request: Request, caller: ActingCaller) -> Response:
    """End a response that is made in the background. One that has ended stays as it is."""
    return json_reply(await gateway_of(request).jobs.background.cancel(caller.team_id, _checked(response_id)))


def _checked(response_id: str) -> str:
    """Check that an id may be a response's, and return it. Raises ResponseNotFound."""
    if not response_id.startswith(_RESPONSE) or not response_id.isprintable():
        raise ResponseNotFound(f"A response's id begins with `{_RESPONSE}`.")
    return response_id
