"""Kept answers: how many bytes of an answer are retained for judging after the reply, and that judging."""

from typing import Final

from accounts.caller import Caller
from classifier.prediction import Prediction
from proxy.context import RequestContext
from proxy.dispatch.attempt import Attempt
from proxy.judge.weak_answer import judge
from proxy.learning.shadow import MAX_PAYLOAD_BYTES

_KEPT_BYTES: Final = 256 * 1024
"""The most payload bytes that a request retains to be judged after its reply."""
_KEPT_IN_ALL_BYTES: Final = 256 * 1024 * 1024
"""The most bytes of held or retained answers in a process, so that thousands of streams do not exhaust its memory."""
_LATE_SCHEMA_STEPS: Final = 500
"""The schema steps of judging after the reply, which runs on the event loop: a few milliseconds at most."""


def portion_bytes(most: int, in_flight: int) -> int:
    """Returns one request's memory bound: `most`, or its equal share of the process's total for `in_flight` requests."""
    return most if most * in_flight <= _KEPT_IN_ALL_BYTES else _KEPT_IN_ALL_BYTES // in_flight


def kept_bytes(caller: Caller, prediction: Prediction | None, in_flight: int, *, compared: bool) -> int:
    """Returns the payload bytes to retain of an answer; 0 where nothing is learned from it. `compared` marks an answer
    that a shadow request may be compared with.
    """
    if prediction is None or not learns(caller):
        return 0
    return portion_bytes(MAX_PAYLOAD_BYTES if compared else _KEPT_BYTES, in_flight)


def learns(caller: Caller) -> bool:
    """Returns True when the team allows learning from its requests."""
    return caller.settings.learning != "off"


def went_well(attempt: Attempt) -> bool:
    """Returns True when the attempt's whole answer reached its caller; a cut one says nothing about the target."""
    return attempt.settled is not None and attempt.settled.outcome.result == "ok"


def judge_late(context: RequestContext) -> None:
    """Judges a retained answer after its reply and records its weakness in the context."""
    attempt = context.answering
    if context.judged or attempt is None:
        return
    kept = attempt.kept
    if kept and sum(map(len, kept)) <= _KEPT_BYTES and went_well(attempt):
        context.judged = True
        context.weakness = judge(
            attempt.routed.request,
            kept,
            min_mean_logprob=context.config.escalation.min_mean_logprob,
            max_schema_steps=_LATE_SCHEMA_STEPS,
        )
