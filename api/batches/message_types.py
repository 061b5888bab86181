"""Message batches in Anthropic's shape."""

from typing import Any, Literal

import msgspec

from api.batches.own_types import rfc3339
from proxy.batch.batch import Batch

PREFIX = "msgbatch_"
_OURS = "batch_"


class MessageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request; `params` is a body of POST /v1/messages."""

    custom_id: str
    params: dict[str, Any]


class CreateMessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The body that creates a message batch."""

    requests: list[MessageRequest]


class MessageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests by outcome; all but `processing` are 0 until the end."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A message batch. Moments are RFC 3339, in UTC."""

    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: str | None = None
    results_url: str | None


class MessageBatches(msgspec.Struct, frozen=True, kw_only=True):
    """A page of message batches, the newest first."""

    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class MessageBatchDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to the deletion of a batch."""

    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    body: msgspec.Raw


class _LineError(msgspec.Struct, frozen=True):
    code: str


class _OutputLine(msgspec.Struct, frozen=True):
    custom_id: str
    response: _Response | None
    error: _LineError | None


class _Told(msgspec.Struct, frozen=True):
    message: str = "The request failed."


class _ErrorBody(msgspec.Struct, frozen=True):
    type: str = ""
    error: _Told = _Told()


_decode = msgspec.json.Decoder(_OutputLine).decode
_OK = 200


def shown_id(batch_id: str) -> str:
    """Return a batch's id as Anthropic's clients see it."""
    return PREFIX + batch_id.removeprefix(_OURS)


def our_id(shown: str) -> str:
    """Return a batch's own id."""
    return _OURS + shown.removeprefix(PREFIX)


def message_batch(batch: Batch, base_url: str) -> MessageBatch:
    """Return a stored batch in this shape. `base_url` is the origin that results are fetched from."""
    ended_us = batch.completed_us or batch.failed_us or batch.expired_us or batch.cancelled_us
    left = batch.left if batch.has_ended else 0
    shown = shown_id(batch.batch_id)
    return MessageBatch(
        id=shown,
        processing_status="ended"
        if batch.has_ended
        else "canceling"
        if batch.cancelling_us is not None
        else "in_progress",
        request_counts=MessageCounts(
            processing=0 if batch.has_ended else batch.total,
            succeeded=batch.completed if batch.has_ended else 0,
            errored=batch.failed if batch.has_ended else 0,
            canceled=left if batch.status == "cancelled" else 0,
            expired=left if batch.status == "expired" else 0,
        ),
        created_at=rfc3339(batch.created_us) or "",
        expires_at=rfc3339(batch.expires_us) or "",
        ended_at=rfc3339(ended_us),
        cancel_initiated_at=rfc3339(batch.cancelling_us),
        results_url=f"{base_url}/v1/messages/batches/{shown}/results" if batch.has_ended else None,
    )


def result_line(line: bytes) -> bytes:
    """Return a line of an output or error file as one of Anthropic's results."""
    given = _decode(line)
    result: dict[str, Any]
    if given.response is None:
        expired = given.error is not None and given.error.code == "batch_expired"
        result = {"type": "expired" if expired else "canceled"}
    elif given.response.status_code == _OK:
        result = {"type": "succeeded", "message": given.response.body}
    else:
        result = {"type": "errored", "error": _error_of(given.response.body)}
    return msgspec.json.encode({"custom_id": given.custom_id, "result": result}) + b"\n"


def _error_of(body: msgspec.Raw) -> Any:
    """Return the error in Anthropic's shape; what never reached the wire has the gateway's own."""
    told = msgspec.json.decode(body, type=_ErrorBody)
    if told.type == "error":
        return body
    return {"type": "error", "error": {"type": "api_error", "message": told.error.message}}
