"""Requests in one body, validated at once, so that the sender is told every fault at once."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from accounts.caller import Caller
from api.batches.tier import asking, owner_of
from cost.errors import BudgetExceeded, UnpricedUnderBudget
from providers.wire import Priority
from proxy.batch.batch import Batch, NewBatch, Window
from proxy.batch.batch_errors import BatchTooDear, TooMuchQueued
from proxy.batch.batch_parts import BatchTier
from proxy.batch.validation import Problem, Validated, Validation
from proxy.errors import BadRequest, Refused, code_of

_TOLD: Final = 5
"""Faults that a refusal tells."""
_REFUSALS: Final[Mapping[str, Callable[[str], Refused]]] = {
    code_of(BudgetExceeded): BatchTooDear,
    code_of(UnpricedUnderBudget): BatchTooDear,
    code_of(TooMuchQueued): TooMuchQueued,
}


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a batch of requests."""

    endpoint: str
    completion_window: Window = "24h"
    priority: Priority = 0
    callback_url: str | None = None


async def submitted(
    tier: BatchTier, caller: Caller, submission: Submission, lines: bytes, *, max_line_bytes: int
) -> tuple[Batch, int]:
    """Make an input file of the lines and a batch of it; also return its estimated tokens.

    Raises BadRequest with the number of the request, BatchTooDear, TooMuchQueued, or an error of storing a file.
    """
    validation = Validation(
        submission.endpoint,
        max_lines=tier.section.max_lines,
        max_line_bytes=max_line_bytes,
        bound=tier.money.bound_for(caller),
    )
    validated = await asyncio.to_thread(_whole, validation, lines)
    _refuse(validated)
    owner = owner_of(caller)
    async with asking():
        queued = await tier.batches.waiting_tokens(owner) + validated.tokens
        if queued > tier.section.max_queued_tokens:
            raise TooMuchQueued(
                f"Your team's batches would have {queued} tokens waiting; at most {tier.section.max_queued_tokens} may. Send it "
                "again when earlier batches are done, or send less at once.",
                retry_after_s=60,
            )
        problem = await tier.money.problem(caller, validated)
        if problem is not None:
            raise _REFUSALS[problem.code](problem.message)
        async with tier.files.adding(owner, len(lines)) as new:
            new.filename = "requests.jsonl"
            await new.write(lines)
        made = await tier.batches.create(
            NewBatch(
                organisation_id=owner.organisation_id,
                team_id=owner.team_id,
                key_id=caller.key_id,
                endpoint=submission.endpoint,
                input_file_id=new.file_id,
                completion_window=submission.completion_window,
                priority=submission.priority,
                callback_url=submission.callback_url,
            )
        )
    return made, validated.tokens


def _whole(validation: Validation, lines: bytes) -> Validated:
    validation.feed(lines)
    return validation.end()


def _refuse(validated: Validated) -> None:
    """Raise BadRequest for faults; the line of a file is the number of the request."""
    if not validated.problems:
        return
    told = "; ".join(map(_sentence, validated.problems[:_TOLD]))
    more = len(validated.problems) - _TOLD
    raise BadRequest(
        f"{told}{f' And {more} more.' if more > 0 else ''}", param="requests", code=validated.problems[0].code
    )


def _sentence(problem: Problem) -> str:
    return problem.message if problem.line is None else f"request {problem.line}: {problem.message}"
