"""/v1/batches: batches in OpenAI's shapes."""

from collections.abc import Mapping
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api.batches.batch_types import BatchesOut, BatchOut, CreateBatch, batch_out
from api.batches.tier import KeyOwner, Tier, asking, owner_of
from api.batches.upload import LEAST_EXPIRY_S, MOST_EXPIRY_S
from api.web.admin_access import parsed
from api.web.gateway import ActingCaller, gateway_of
from api.web.openapi import described
from api.web.parameters import Parameter, Parameters, text, whole
from api.web.reading import json_reply
from api.web.request_body import read_body
from api.webhooks.addresses import BadCallbackUrl
from providers.wire import Priority
from proxy.batch.batch import NewBatch
from proxy.errors import BadRequest

router = APIRouter(tags=["batch"])

MAX_BODY_BYTES: Final = 64 * 1024
_MOST_LISTED: Final = 100
_USUALLY_LISTED: Final = 20
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512
PRIORITIES: Final[Mapping[str, Priority]] = {"low": -1, "normal": 0, "high": 1}
_LISTING: Final[Mapping[str, Parameter]] = {
    "limit": whole("Batches in the page.", least=1, most=_MOST_LISTED, otherwise=_USUALLY_LISTED),
    "after": text("The id of the last batch of the page before."),
}


@router.post(
    "/v1/batches",
    **described(
        "Make a batch of a file",
        takes=CreateBatch,
        gives={200: BatchOut},
        example={
            "input_file_id": "file-0199a7c0f2b44c1f9d3e5a6b7c8d9e0f",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
    ),
)
async def create_batch(request: Request, caller: ActingCaller, tier: Tier) -> Response:
    """Create a batch. Its file is validated in the background: until then it is `validating`, and `errors` tells afterwards what
    was wrong on which line.
    """
    timeout_s = gateway_of(request).rules().body_timeout_s
    asked = parsed(await read_body(request, timeout_s=timeout_s, most_bytes=MAX_BODY_BYTES), CreateBatch)
    labels = checked_labels(asked.metadata)
    expires = asked.output_expires_after
    if expires is not None and not LEAST_EXPIRY_S <= expires.seconds <= MOST_EXPIRY_S:
        raise BadRequest(
            f"`output_expires_after.seconds` must be from {LEAST_EXPIRY_S} to {MOST_EXPIRY_S}.",
            param="output_expires_after",
        )
    check_callback(request, asked.callback_url)
    async with asking():
        file = await tier.files.find(owner_of(caller), asked.input_file_id.replace("\x00", ""), "input_file_id")
        if file.purpose != "batch":
            raise BadRequest("`input_file_id` must be a file of the purpose `batch`.", param="input_file_id")
        made = await tier.batches.create(
            NewBatch(
                organisation_id=caller.organisation_id,
                team_id=caller.team_id,
                key_id=caller.key_id,
                endpoint=asked.endpoint,
                input_file_id=file.file_id,
                completion_window=asked.completion_window,
                priority=PRIORITIES[asked.priority],
                labels=labels,
                output_expires_s=None if expires is None else expires.seconds,
                callback_url=asked.callback_url,
            )
        )
    return json_reply(batch_out(made))


@router.get("/v1/batches", **described("List batches", gives={200: BatchesOut}, query=_LISTING))
async def list_batches(request: Request, owner: KeyOwner, tier: Tier) -> Response:
    """Return the team's batches, the newest first."""
    asked = Parameters(request.query_params, _LISTING)
    async with asking():
        page = await tier.batches.page(
            owner,
            after=asked.text("after"),
            limit=asked.whole("limit", _USUALLY_LISTED, least=1, most=_MOST_LISTED),
        )
    data = [batch_out(each) for each in page.batches]
    return json_reply(
        BatchesOut(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=page.has_more,
        )
    )


@router.get("/v1/batches/{batch_id}", **described("Look at a batch", gives={200: BatchOut}))
async def get_batch(batch_id: str, owner: KeyOwner, tier: Tier) -> Response:
    """Return one batch of the team, and how far it is."""
    async with asking():
        return json_reply(batch_out(await tier.batches.find(owner, sound(batch_id))))


@router.post("/v1/batches/{batch_id}/cancel", **described("Cancel a batch", gives={200: BatchOut}))
async def cancel_batch(batch_id: str, owner: KeyOwner, tier: Tier) -> Response:
    """Cancel a batch: no more of its requests begin. Those that run come to their end and are in the output file; the
    rest costs nothing.
    """
    async with asking():
        return json_reply(batch_out(await tier.batches.cancel(owner, sound(batch_id))))


def check_callback(request: Request, url: str | None) -> None:
    """Raise BadRequest for an address that would never be called."""
    desk = gateway_of(request).jobs.callbacks
    if url is None or desk is None:
        return
    try:
        desk.addresses.check_url(url)
    except BadCallbackUrl as error:
        raise BadRequest(f"`callback_url` {error}.", param="callback_url") from error


def checked_labels(metadata: Mapping[str, str] | None) -> str | None:
    """Return a batch's `metadata` as JSON. Raises BadRequest."""
    if metadata is None:
        return None
    if len(metadata) > _MAX_PAIRS or any(len(k) > _MAX_KEY or len(v) > _MAX_VALUE for k, v in metadata.items()):
        raise BadRequest(
            f"`metadata` has at most {_MAX_PAIRS} pairs, of at most {_MAX_KEY} characters and {_MAX_VALUE} characters.",
            param="metadata",
        )
    return msgspec.json.encode(metadata).decode()


def sound(identifier: str) -> str:
    """Return the id without characters that no id has: PostgreSQL would fail on them."""
    return identifier.replace("\x00", "")
