"""Time-outs of attempts, and the error that assigns the fault when one expires. Pure: the time is passed in."""

import math
from typing import Final

import msgspec

from providers.errors import FirstTokenTimeout, ReplicaSilent, UpstreamError
from proxy.attempt import Attempt
from proxy.errors import Refused
from proxy.policy import Candidate
from proxy.routed_request import Hold, RoutedRequest

_LEAST_S: Final = 0.001


def patience_s(routed: RoutedRequest, candidate: Candidate, now: float) -> float | None:
    """Returns the time-out in seconds until an attempt must have answered; None for no limit.

    For a stream it is the time to the first token, and while another candidate is left, at most half of what the tier's
    deadline leaves. For a whole answer it is what the deadline leaves.
    """
    deadline = routed.deadline
    if routed.request.stream:
        longest_s = routed.timeouts.first_token_s(routed.facts.tier)
        last = routed.plan.candidates[-1].target.target_id
        if candidate.target.target_id != last and not deadline.own:
            longest_s = min(longest_s, max(_LEAST_S, deadline.remaining_s(now) / 2))
        return deadline.first_token_timeout_s(now, longest_s)
    left_s = deadline.remaining_s(now)
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
    late = FirstTokenTimeout("No first token in time.", deployment_id=deployment_id)
    # What was not sent yet waited for us: for its adapter.
    late.gateway_failure = patient and attempt.sent
    return late
