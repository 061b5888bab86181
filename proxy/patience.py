"""How long an upstream is waited for, and whose fault it is when that time is up. Pure: the time is given."""

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
    """A stream owes its first token; a whole answer owes its end, which the upstream's own timer watches, too.

    What is left of its tier's time is not all for one target: while another could answer, half of it is.
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
    """The hold shortened by the deadline: an answer is released in time to be read, rather than ended."""
    left_s = routed.deadline.remaining_s(now)
    return msgspec.structs.replace(hold, max_s=max(_LEAST_S, min(hold.max_s, left_s / 2)))


def impatience(attempt: Attempt, now: float) -> UpstreamError | Refused:
    """The error of an attempt that nothing came of in time, by whose fault that is: a replica's that was found dead, the
    deadline's, or the upstream's.

    A caller's own time says nothing of the upstream; a whole answer may just be long. But a stream without a first
    token when its tier's time is up comes from an upstream that hangs, if others had not used up that time before.
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
