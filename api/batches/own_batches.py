"""POST /v1/batch: requests in one body, an address to call, and an estimate of when they are answered."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api.batches.change import rotate_secret
from api.batches.own_types import BatchState, CallbackSecretOut, SubmitBatch, Submitted, rfc3339, state_of
from api.batches.routes import PRIORITIES, check_callback, sound
from api.batches.submitting import Submission, submitted
from api.batches.tier import KeyOwner, Tier, asking, owner_of
from api.web.actor import actor_of
from api.web.admin_access import parsed
from api.web.gateway import ActingCaller, TeamChanger, gateway_of
from api.web.openapi import described
from api.web.reading import json_reply
from api.web.request_body import MANY_REQUESTS, read_body
from api.webhooks.callbacks import CallbackDesk, SecretState
from cost.times import DAY_US
from proxy.batch.batch_errors import BatchOff
from proxy.batch.estimate import estimated

router = APIRouter(tags=["batch"])


@router.post(
    "/v1/batch",
    **described(
        "Submit requests at once",
        takes=SubmitBatch,
        gives={200: Submitted},
        example={
            "requests": [{"model": "auto", "messages": [{"role": "user", "content": "What is a weighbridge?"}]}],
            "callback_url": "https://example.com/hooks",
            "priority": "normal",
        },
    ),
)
async def submit_batch(request: Request, caller: ActingCaller, tier: Tier) -> Response:
    """Make an input file and a batch of the requests. Its end is told to `callback_url` as a Standard Webhook, and its
    answers are in its files, as of every batch. A fault in a request refuses all of them.
    """
    rules = gateway_of(request).rules()
    body = await read_body(
        request, timeout_s=rules.body_timeout_s, most_bytes=rules.max_body_bytes, requests=MANY_REQUESTS
    )
    asked = await asyncio.to_thread(parsed, body, SubmitBatch)
    check_callback(request, asked.callback_url)
    lines = b"".join(_line(asked, number, each) for number, each in enumerate(asked.requests, start=1))
    submission = Submission(
        endpoint=asked.endpoint,
        completion_window=asked.completion_window,
        priority=PRIORITIES[asked.priority],
        callback_url=asked.callback_url,
    )
    batch, tokens = await submitted(tier, caller, submission, lines, max_line_bytes=rules.max_body_bytes)
    async with asking():
        expected = await estimated(tier.batches, batch, tokens)
    return json_reply(
        Submitted(
            batch_id=batch.batch_id,
            estimated_completion=rfc3339(expected.at_us),
            estimate_from=expected.basis,
        )
    )


@router.get("/v1/batch/{batch_id}", **described("Look at how far a batch is", gives={200: BatchState}))
async def batch_state(batch_id: str, owner: KeyOwner, tier: Tier) -> Response:
    """Return one batch of the team, however it was made, and when it will be done."""
    async with asking():
        batch = await tier.batches.find(owner, sound(batch_id))
        return json_reply(state_of(batch, await estimated(tier.batches, batch)))


@router.get("/v1/batch-callbacks/secret", **described("Read the signing secret", gives={200: CallbackSecretOut}))
async def callback_secret(request: Request, owner: KeyOwner) -> Response:
    """Return the secret that callbacks to the key's team are signed with, for whoever verifies them."""
    desk = _desk(request)
    async with asking():
        return _shown(desk, owner.team_id, await desk.secrets.state(owner.team_id))


@router.post(
    "/v1/batch-callbacks/secret/rotate", **described("Replace the signing secret", gives={200: CallbackSecretOut})
)
async def rotate_callback_secret(request: Request, caller: TeamChanger) -> Response:
    """Make a new secret. For a day callbacks are signed with the one before, too, so that receivers can follow."""
    desk, owner = _desk(request), owner_of(caller)
    state = await rotate_secret(gateway_of(request).identity.audit, actor_of(request, caller), desk, owner)
    return _shown(desk, owner.team_id, state)


def _line(asked: SubmitBatch, number: int, given: dict[str, Any]) -> bytes:
    """Return one request as a line of an input file."""
    wrapped = "body" in given and given.keys() <= {"custom_id", "body"}
    line = {
        "custom_id": given.get("custom_id", f"request-{number}") if wrapped else f"request-{number}",
        "method": "POST",
        "url": asked.endpoint,
        "body": given["body"] if wrapped else given,
    }
    return msgspec.json.encode(line) + b"\n"


def _desk(request: Request) -> CallbackDesk:
    desk = gateway_of(request).jobs.callbacks
    if desk is None:
        raise BatchOff("Files and batches are turned off on this gateway (`batch.enabled`).")
    return desk


def _shown(desk: CallbackDesk, team_id: str, state: SecretState) -> Response:
    rotated = state.rotated_us or None
    told = CallbackSecretOut(
        secret=desk.secrets.shown(team_id, state),
        version=state.version,
        rotated=rfc3339(rotated),
        previous_until=None if rotated is None else rfc3339(rotated + DAY_US),
    )
    reply = json_reply(told)
    reply.headers["cache-control"] = "no-store"
    return reply
