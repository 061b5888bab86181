"""/v1/conversations: conversations that the gateway keeps for a team, in OpenAI's shapes. Responses add to them."""

import secrets
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from accounts.caller import Caller
from api.responses.listing import DEFAULT_ITEMS, After, ItemList, Limit, Order, page_of, whole_list
from api.web.admin_access import parsed
from api.web.gateway import ActingCaller, gateway_of
from api.web.openapi import described
from api.web.reading import json_reply
from api.web.request_body import read_body
from cost.times import wall_us
from proxy.errors import ConversationNotFound
from proxy.parse.wires.responses import conversation
from proxy.parse.wires.responses.items import Item
from proxy.parse.wires.wire import Change
from proxy.responses.stored.stored_responses import CONVERSATION

router = APIRouter(tags=["responses"])

_SECOND_US: Final = 1_000_000
_PATH: Final = "/v1/conversations"
_ONE: Final = f"{_PATH}/{{conversation_id}}"
_ITEMS: Final = f"{_ONE}/items"
_ITEM: Final = f"{_ITEMS}/{{item_id}}"


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation of a deletion."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class NewConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation to make, with up to 20 first items."""

    items: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None


class ConversationChange(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata in place of that before."""

    metadata: dict[str, str] | None


class NewItems(msgspec.Struct, frozen=True, kw_only=True):
    """Up to 20 items to add."""

    items: list[dict[str, Any]]


@router.post(
    _PATH, **described("Begin a conversation", takes=NewConversation, may_be_absent=True, gives={200: Conversation})
)
async def create_conversation(request: Request, caller: ActingCaller) -> Response:
    """Create a conversation, which responses go on from, and add to, by its id."""
    asked = parsed(await _body(request), NewConversation)
    name = f"{CONVERSATION}{secrets.token_hex(16)}"
    items = conversation.given_items(asked.items or [], secrets.token_hex(16))
    record = conversation.new_conversation(name, wall_us() // _SECOND_US, asked.metadata, items)
    await gateway_of(request).jobs.responses.add(caller.team_id, name, record)
    return json_reply(conversation.told_of(record))


@router.get(_ONE, **described("Look at a conversation", gives={200: Conversation}))
async def read_conversation(conversation_id: str, request: Request, caller: ActingCaller) -> Response:
    """Return a conversation of this key's team."""
    return json_reply(conversation.told_of(await _found(request, caller, conversation_id)))


@router.post(_ONE, **described("Change a conversation", takes=ConversationChange, gives={200: Conversation}))
async def change_conversation(conversation_id: str, request: Request, caller: ActingCaller) -> Response:
    """Replace its metadata."""
    asked = parsed(await _body(request), ConversationChange)
    changed = await _changed(
        request, caller, conversation_id, lambda record: conversation.with_metadata(record, asked.metadata)
    )
    return json_reply(conversation.told_of(changed))


@router.delete(_ONE, **described("Delete a conversation", gives={200: DeletedConversation}))
async def delete_conversation(conversation_id: str, request: Request, caller: ActingCaller) -> Response:
    """Delete it with its items. Responses that were made in it stay."""
    await gateway_of(request).jobs.responses.remove(caller.team_id, _checked(conversation_id))
    return json_reply(DeletedConversation(id=conversation_id))


@router.post(_ITEMS, **described("Add items to a conversation", takes=NewItems, gives={200: ItemList}))
async def add_items(conversation_id: str, request: Request, caller: ActingCaller) -> Response:
    """Add items at its end."""
    asked = parsed(await _body(request), NewItems)
    items = conversation.given_items(asked.items, secrets.token_hex(16))
    await _changed(request, caller, conversation_id, lambda record: conversation.with_turn(record, items))
    return json_reply(whole_list(items))


@router.get(_ITEMS, **described("List a conversation's items", gives={200: ItemList}))
async def list_items(
    conversation_id: str,
    request: Request,
    caller: ActingCaller,
    limit: Limit = DEFAULT_ITEMS,
    order: Order = "desc",
    after: After = "",
) -> Response:
    """Return its items, newest first."""
    items = conversation.items_in(await _found(request, caller, conversation_id))
    return json_reply(page_of(items, limit, order, after))


@router.get(_ITEM, **described("Look at an item", gives={200: "The item."}))
async def read_item(conversation_id: str, item_id: str, request: Request, caller: ActingCaller) -> Response:
    """Return one item of a conversation."""
    return json_reply(_one_of(conversation.items_in(await _found(request, caller, conversation_id)), item_id))


@router.delete(_ITEM, **described("Delete an item", gives={200: Conversation}))
async def delete_item(conversation_id: str, item_id: str, request: Request, caller: ActingCaller) -> Response:
    """Take an item out of a conversation. Returns the conversation."""
    changed = await _changed(
        request, caller, conversation_id, lambda record: conversation.without_item(record, item_id)
    )
    return json_reply(conversation.told_of(changed))


async def _body(request: Request) -> bytes:
    rules = gateway_of(request).rules()
    return await read_body(request, timeout_s=rules.body_timeout_s, most_bytes=rules.max_body_bytes)


async def _found(request: Request, caller: Caller, conversation_id: str) -> bytes:
    return await gateway_of(request).jobs.responses.find(caller.team_id, _checked(conversation_id))


async def _changed(request: Request, caller: Caller, conversation_id: str, edit: Callable[[bytes], bytes]) -> bytes:
    return await gateway_of(request).jobs.responses.change(caller.team_id, Change(_checked(conversation_id), edit))


def _checked(conversation_id: str) -> str:
    """Check that an id may be a conversation's, and return it. Raises ConversationNotFound."""
    if not conversation_id.startswith(CONVERSATION) or not conversation_id.isprintable():
        raise ConversationNotFound(f"A conversation's id begins with `{CONVERSATION}`.")
    return conversation_id


def _one_of(items: list[Item], item_id: str) -> Item:
    for item in items:
        if item["id"] == item_id:
            return item
    raise conversation.no_such_item()
