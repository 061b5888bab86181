"""Time-outs of attempts, and the error that assigns the fault when one expires. Pure, the time is passed in; but for `expire_now`."""

import asyncio
import math
from typing import Final

import msgspec

from providers.errors import FirstTokenTimeout, ReplicaSilent, UpstreamError
from proxy.attempt import Attempt
from proxy.errors import Refused
from proxy.routed_request import Hold, RoutedRequest

_LEAST_S: Final = 0.001
_USUAL: Final = 3.0
"""A first token that takes so many times the usual time is late."""


def patience_s(routed: RoutedRequest, now: float, usual_s: float, *, others: bool) -> float | None:
    """Returns the time-out in seconds until an attempt must have answered; None for no limit.

    A stream is waited for until its first token as long as nobody else could answer. Where somebody could (`others`), no
    longer than its tier's first token may take, and at most half of what the deadline leaves; but `usual_s`, the
    target's usual time to a first token, three times over is always allowed. A whole answer has nothing to show before
    its end, so it is waited for.
    """
    left_s = routed.deadline.remaining_s(now)
    if others and routed.request.stream:
        usually_s = _USUAL * usual_s
        longest_s = max(routed.timeouts.first_token_s(routed.facts.tier), usually_s)
        left_s = min(longest_s, max(left_s / 2, min(left_s, usually_s)))
    return None if math.isinf(left_s) else max(_LEAST_S, left_s)


def hold_within(routed: RoutedRequest, hold: Hold, now: float) -> Hold:
    """Returns the hold, shortened to half of the time left, so that the answer is released before the deadline cuts it."""
    left_s = routed.deadline.remaining_s(now)
    return msgspec.structs.replace(hold, max_s=max(_LEAST_S, min(hold.max_s, left_s / 2)))


def impatience(attempt: Attempt, now: float) -> UpstreamError | Refused:
    """Returns the error of a timed-out attempt: ReplicaSilent for a replica found dead, the deadline's error, or
    FirstTokenTimeout.

    A caller's own deadline is never the upstream's fault, as a whole answer may just be long. A stream without a first
    token at its tier's deadline is, unless earlier attempts had used up that time.
    """
    deployment_id = attempt.deployment.deployment_id
    if attempt.lease is not None and attempt.lease.lost:
        return ReplicaSilent("The upstream stopped answering.", deployment_id=deployment_id)
    routed, patient = attempt.routed, attempt.was_patient
    if routed.deadline.passed(now) and (routed.deadline.own or not (routed.request.stream and patient)):
        return routed.deadline.exceeded()
    late = FirstTokenTimeout(_late_in_words(attempt, now), deployment_id=deployment_id)
    # What was not sent yet waited for us: for its adapter.
    late.gateway_failure = patient and attempt.sent
    return late


def _late_in_words(attempt: Attempt, now: float) -> str:
    routed = attempt.routed
    if routed.deadline.passed(now):
        return routed.deadline.exceeded().message
    tier = routed.facts.tier
    return (
        f"No first token within {now - attempt.started_at:.1f} s (`providers.timeouts.first_token_{tier}_s` is "
        f"{routed.timeouts.first_token_s(tier):g} s), and the gateway's budget for other attempts is used up "
        "(`providers.retry`). Send it again shortly."
    )


def expire_now(patience: asyncio.Timeout) -> None:
    """Expires the time-out now, because the replica is dead. No effect when it expired already."""
    if not patience.expired():
        patience.reschedule(asyncio.get_running_loop().time())
