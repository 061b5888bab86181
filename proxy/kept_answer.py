"""Answers that are held on to, for what is done with them once their callers have them: how much, and the judging."""

from typing import Final

from accounts.caller import Caller
from classifier.prediction import Prediction
from proxy.answers.weak_answer import judge
from proxy.attempt import Attempt
from proxy.context import RequestContext
from proxy.learning.shadow import MAX_PAYLOAD_BYTES

_KEPT_BYTES: Final = 256 * 1024
"""Of payloads that a request holds on to, to be judged when the caller has its answer."""
_KEPT_IN_ALL_BYTES: Final = 256 * 1024 * 1024
"""Of answers that a process holds back or holds on to: thousands of streams at once must not take all its memory."""
_LATE_SCHEMA_STEPS: Final = 500
"""That judging happens on the event loop, so it may take a few milliseconds at most."""


def portion_bytes(most: int, in_flight: int) -> int:
    """The part that one of so many requests may keep of its answer: `most`, or its equal part of what all may keep."""
    return min(most, _KEPT_IN_ALL_BYTES // max(1, in_flight))


def kept_bytes(caller: Caller, prediction: Prediction | None, in_flight: int, *, compared: bool) -> int:
    """The bytes of payloads to keep of an answer; 0 where nothing is learnt of it. `compared`: by a shadow request."""
    if prediction is None or not learns(caller):
        return 0
    return portion_bytes(MAX_PAYLOAD_BYTES if compared else _KEPT_BYTES, in_flight)


def learns(caller: Caller) -> bool:
    """Whether the team lets us learn from its requests."""
    return caller.settings.learning != "off"


def went_well(attempt: Attempt) -> bool:
    """Whether its caller has the whole answer: what was cut off on its way says nothing of the target."""
    return attempt.settled is not None and attempt.settled.outcome.result == "ok"


def judge_late(context: RequestContext) -> None:
    """Notes what was wrong with an answer that its caller already has, where one was kept."""
    attempt = context.answering
    if context.judged or attempt is None or not attempt.kept or sum(map(len, attempt.kept)) > _KEPT_BYTES:
        return
    if went_well(attempt):
        context.judged = True
        context.weakness = judge(
            attempt.routed.request,
            attempt.kept,
            min_mean_logprob=context.config.escalation.min_mean_logprob,
            max_schema_steps=_LATE_SCHEMA_STEPS,
        )
