"""The gateway's own shape of a batch: requests in one body, an address to call, and when it will be done."""

from decimal import Decimal
from typing import Any, Literal

import msgspec

from api.batches.batch_types import CountsOut, ProblemOut, problems_of
from api.web.reading import known_usd
from cost.times import moment
from proxy.batch.batch import Batch, Endpoint
from proxy.batch.estimate import Estimate


class SubmitBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each of `requests` is a body of the endpoint, or `{"custom_id", "body"}`; without a `custom_id` they are called
    `request-1` and so on.
    """

    requests: list[dict[str, Any]]
    callback_url: str | None = None
    priority: Literal["low", "normal", "high"] = "normal"
    endpoint: Endpoint = "/v1/chat/completions"
    completion_window: Literal["24h", "1h", "background"] = "24h"


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was taken. `estimate_from` tells what the estimate stands on: a measured speed, or only the deadline."""

    batch_id: str
    estimated_completion: str | None
    estimate_from: str


class BatchState(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a batch. Moments are RFC 3339, in UTC."""

    batch_id: str
    status: str
    priority: str
    created: str
    deadline: str | None
    estimated_completion: str | None
    estimate_from: str
    requests: CountsOut
    cost_usd: Decimal | None
    """The cost of the answers so far; null where that of one is not known."""
    output_file_id: str | None
    error_file_id: str | None
    errors: list[ProblemOut]
    callback_url: str | None


class CallbackSecretOut(msgspec.Struct, frozen=True, kw_only=True):
    """The secret that signs callbacks to the team. `previous_until` tells until when the secret before signs, too."""

    secret: str
    version: int
    rotated: str | None
    previous_until: str | None


_PRIORITIES = {-1: "low", 0: "normal", 1: "high"}


def state_of(batch: Batch, expected: Estimate) -> BatchState:
    """Return a stored batch in this shape."""
    return BatchState(
        batch_id=batch.batch_id,
        status=batch.status,
        priority=_PRIORITIES[batch.priority],
        created=rfc3339(batch.created_us) or "",
        deadline=rfc3339(batch.expires_us),
        estimated_completion=rfc3339(expected.at_us),
        estimate_from=expected.basis,
        requests=CountsOut(total=batch.total, completed=batch.completed, failed=batch.failed),
        cost_usd=None if batch.unpriced else known_usd(batch.cost_nanousd),
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        errors=problems_of(batch),
        callback_url=batch.callback_url,
    )


def rfc3339(at_us: int | None) -> str | None:
    """Return a moment such as 2026-04-05T14:00:00Z; None stays None."""
    return None if at_us is None else f"{moment(at_us):%Y-%m-%dT%H:%M:%SZ}"
