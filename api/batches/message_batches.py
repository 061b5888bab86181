"""/v1/messages/batches: batches of messages, in Anthropic's shapes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api.batches.message_types import (
    CreateMessageBatch,
    MessageBatch,
    MessageBatchDeleted,
    MessageBatches,
    message_batch,
    our_id,
    result_line,
    shown_id,
)
from api.batches.routes import sound
from api.batches.submitting import Submission, submitted
from api.batches.tier import KeyOwner, Tier, asking
from api.web.admin_access import parsed
from api.web.gateway import ActingCaller, gateway_of
from api.web.openapi import described
from api.web.parameters import Parameter, Parameters, text, whole
from api.web.reading import Export, json_reply
from api.web.request_body import MANY_REQUESTS, read_body
from proxy.batch.batch import MESSAGES_ENDPOINT, Batch
from proxy.batch.batch_errors import BatchEnded, BatchNotFound
from proxy.batch.batch_parts import BatchTier
from proxy.batch.files import Owner

router = APIRouter(tags=["batch"])

_PLACE: Final = "/v1/messages/batches"
_MOST_LISTED: Final = 1_000
_USUALLY_LISTED: Final = 20
_JSONL: Final = "application/x-jsonl"
_MOST_LINE_BYTES: Final = 64 * 1024 * 1024
_LISTING: Final[Mapping[str, Parameter]] = {
    "limit": whole("Batches in the page.", least=1, most=_MOST_LISTED, otherwise=_USUALLY_LISTED),
    "after_id": text("The id of the last batch of the page before."),
    "before_id": text("The id of the first batch of the page after."),
}


async def _found(ask: Callable[[Owner, str], Awaitable[Batch]], owner: Owner, batch_id: str) -> Batch:
    """Ask the store of a batch by the name that its caller knows. Raises BatchNotFound."""
    shown = sound(batch_id)
    try:
        return await ask(owner, our_id(shown))
    except BatchNotFound:
        raise BatchNotFound(
            f"There is no batch `{shown[:80]}`; GET {_PLACE} lists your team's.", param="batch_id"
        ) from None


@router.post(_PLACE, **described("Make a batch of messages", takes=CreateMessageBatch, gives={200: MessageBatch}))
async def create_message_batch(request: Request, caller: ActingCaller, tier: Tier) -> Response:
    """Take requests in one body, as Anthropic's clients send them. A fault in one refuses all of them."""
    rules = gateway_of(request).rules()
    body = await read_body(
        request, timeout_s=rules.body_timeout_s, most_bytes=rules.max_body_bytes, requests=MANY_REQUESTS
    )
    asked = await asyncio.to_thread(parsed, body, CreateMessageBatch)
    lines = b"".join(
        msgspec.json.encode(
            {"custom_id": each.custom_id, "method": "POST", "url": MESSAGES_ENDPOINT, "body": each.params}
        )
        + b"\n"
        for each in asked.requests
    )
    submission = Submission(endpoint=MESSAGES_ENDPOINT)
    made, _ = await submitted(tier, caller, submission, lines, max_line_bytes=rules.max_body_bytes)
    return _reply(request, msgspec.structs.replace(made, total=len(asked.requests)))


@router.get(_PLACE, **described("List batches of messages", gives={200: MessageBatches}, query=_LISTING))
async def list_message_batches(request: Request, owner: KeyOwner, tier: Tier) -> Response:
    """Return the team's batches of messages, the newest first."""
    asked = Parameters(request.query_params, _LISTING)
    after, before = asked.text("after_id"), asked.text("before_id")
    async with asking():
        page = await tier.batches.page(
            owner,
            after=None if after is None else our_id(after),
            before=None if before is None else our_id(before),
            limit=asked.whole("limit", _USUALLY_LISTED, least=1, most=_MOST_LISTED),
            endpoint=MESSAGES_ENDPOINT,
        )
    data = [message_batch(each, _origin(request)) for each in page.batches]
    return json_reply(
        MessageBatches(
            data=data,
            has_more=page.has_more,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
        )
    )


@router.get(f"{_PLACE}/{{batch_id}}", **described("Look at a batch of messages", gives={200: MessageBatch}))
async def get_message_batch(request: Request, batch_id: str, owner: KeyOwner, tier: Tier) -> Response:
    """Return one batch of the team, and how far it is."""
    async with asking():
        return _reply(request, await _found(tier.batches.find, owner, batch_id))


@router.post(f"{_PLACE}/{{batch_id}}/cancel", **described("Cancel a batch of messages", gives={200: MessageBatch}))
async def cancel_message_batch(request: Request, batch_id: str, owner: KeyOwner, tier: Tier) -> Response:
    """Cancel a batch: no more of its requests begin; those that run come to their end."""
    async with asking():
        return _reply(request, await _found(tier.batches.cancel, owner, batch_id))


@router.delete(f"{_PLACE}/{{batch_id}}", **described("Delete a batch of messages", gives={200: MessageBatchDeleted}))
async def delete_message_batch(batch_id: str, owner: KeyOwner, tier: Tier) -> Response:
    """Delete a batch that has ended, with its results."""
    async with asking(60):
        batch = await _found(tier.batches.remove, owner, batch_id)
        for file_id in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
            if file_id is not None:
                await tier.files.remove(owner, file_id)
    return json_reply(MessageBatchDeleted(id=shown_id(batch.batch_id)))


@router.get(
    f"{_PLACE}/{{batch_id}}/results",
    **described("Download the results of a batch of messages", gives={200: "One result a line."}, files=[_JSONL]),
)
async def message_batch_results(batch_id: str, owner: KeyOwner, tier: Tier) -> Response:
    """Return one line for each request, once the batch has ended."""
    async with asking():
        batch = await _found(tier.batches.find, owner, batch_id)
        if not batch.has_ended:
            raise BatchEnded("This batch has not ended; its results are there when `processing_status` is `ended`.")
        files = [
            (await tier.files.find(owner, file_id)).file_id
            for file_id in (batch.output_file_id, batch.error_file_id)
            if file_id is not None
        ]
    return Export(_result_lines(tier, files), media_type=_JSONL, headers={"cache-control": "private, no-store"})


async def _result_lines(tier: BatchTier, files: list[str]) -> AsyncIterator[bytes]:
    """Yield the lines of the files, each in Anthropic's shape; at most one line and one piece are in memory."""
    for file_id in files:
        held = b""
        async for piece in tier.files.blobs.reading(file_id):
            lines = (held + piece).split(b"\n")
            held = lines.pop()
            if len(held) > _MOST_LINE_BYTES:
                return
            if lines:
                yield b"".join(result_line(line) for line in lines)


def _reply(request: Request, batch: Batch) -> Response:
    return json_reply(message_batch(batch, _origin(request)))


def _origin(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}"
