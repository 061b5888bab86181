"""Batches in OpenAI's shape."""

from typing import Any, Literal

import msgspec

from proxy.batch.batch import Batch, Endpoint


class ExpiresAfter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The expiry of the files of answers: so many seconds after they were made."""

    seconds: int
    anchor: Literal["created_at"] = "created_at"


class CreateBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body that creates a batch. `completion_window` is `24h`, or, beyond OpenAI's, `1h` or `background` (no promise)."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h", "1h", "background"]
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None
    priority: Literal["low", "normal", "high"] = "normal"
    """The order among the batches of one team; beyond OpenAI's."""
    callback_url: str | None = None
    """The address that is told the end, as a Standard Webhook; beyond OpenAI's."""


class ProblemOut(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of the input file. `line` counts from 1; null is for the file as a whole."""

    code: str
    message: str
    param: str | None
    line: int | None


class ProblemsOut(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is wrong with the input file."""

    data: list[ProblemOut]
    object: Literal["list"] = "list"


class CountsOut(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a batch by outcome."""

    total: int
    completed: int
    failed: int


class CachedOut(msgspec.Struct, frozen=True, kw_only=True):
    """Input tokens that a cache had."""

    cached_tokens: int


class ReasoningOut(msgspec.Struct, frozen=True, kw_only=True):
    """Output tokens that were not shown."""

    reasoning_tokens: int


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all answers."""

    input_tokens: int
    input_tokens_details: CachedOut
    output_tokens: int
    output_tokens_details: ReasoningOut
    total_tokens: int


class BatchOut(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. Times are seconds since 1970."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: ProblemsOut | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: CountsOut
    usage: BatchUsage
    metadata: dict[str, Any] | None


class BatchesOut(msgspec.Struct, frozen=True, kw_only=True):
    """A page of batches, the newest first."""

    object: Literal["list"] = "list"
    data: list[BatchOut]
    first_id: str | None
    last_id: str | None
    has_more: bool


def batch_out(batch: Batch) -> BatchOut:
    """Return a stored batch in OpenAI's shape."""
    return BatchOut(
        id=batch.batch_id,
        endpoint=batch.endpoint,
        model=batch.model,
        errors=None if batch.errors is None else ProblemsOut(data=problems_of(batch)),
        input_file_id=batch.input_file_id,
        completion_window=batch.completion_window,
        status=batch.status,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=batch.created_us // 1_000_000,
        in_progress_at=_seconds(batch.in_progress_us),
        expires_at=_seconds(batch.expires_us),
        finalizing_at=_seconds(batch.finalizing_us),
        completed_at=_seconds(batch.completed_us),
        failed_at=_seconds(batch.failed_us),
        expired_at=_seconds(batch.expired_us),
        cancelling_at=_seconds(batch.cancelling_us),
        cancelled_at=_seconds(batch.cancelled_us),
        request_counts=CountsOut(total=batch.total, completed=batch.completed, failed=batch.failed),
        usage=BatchUsage(
            input_tokens=batch.input_tokens,
            input_tokens_details=CachedOut(cached_tokens=batch.cached_tokens),
            output_tokens=batch.output_tokens,
            output_tokens_details=ReasoningOut(reasoning_tokens=batch.reasoning_tokens),
            total_tokens=batch.input_tokens + batch.output_tokens,
        ),
        metadata=None if batch.labels is None else msgspec.json.decode(batch.labels),
    )


def problems_of(batch: Batch) -> list[ProblemOut]:
    """Return the problems that validation found; empty for none."""
    return [] if batch.errors is None else msgspec.json.decode(batch.errors, type=list[ProblemOut])


def _seconds(at_us: int | None) -> int | None:
    return None if at_us is None else at_us // 1_000_000
