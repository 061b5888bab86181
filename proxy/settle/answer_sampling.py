"""Kept answers: how many bytes of an answer are retained for judging after the reply, and that judging."""

from typing import Final

from proxy.context import RequestContext
from proxy.dispatch.attempt import Attempt
from proxy.judge.weak_answer import judge
from proxy.plan.answer_retention import KEPT_BYTES

_LATE_SCHEMA_STEPS: Final = 500
"""The schema steps of judging after the reply, which runs on the event loop: a few milliseconds at most."""


def went_well(attempt: Attempt) -> bool:
    """Returns True when the attempt's whole answer reached its caller; a cut one says nothing about the target."""
    return attempt.settled is not None and attempt.settled.outcome.result == "ok"


def judge_late(context: RequestContext) -> None:
    """Judges a retained answer after its reply and records its weakness in the context."""
    attempt = context.answering
    if context.judged or attempt is None:
        return
    kept = attempt.kept
    if kept and sum(map(len, kept)) <= KEPT_BYTES and went_well(attempt):
        context.judged = True
        context.weakness = judge(
            attempt.routed.request,
            kept,
            min_mean_logprob=context.config.escalation.min_mean_logprob,
            max_schema_steps=_LATE_SCHEMA_STEPS,
        )
