"""Retries on one target, built from tenacity's parts and bounded by the retry budget."""

from collections.abc import Awaitable, Callable
from typing import Final

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from providers.errors import (
    AnswerLost,
    ConnectFailed,
    FirstTokenTimeout,
    ReplicaSilent,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
)
from providers.retry_budget import RetryBudget
from selfhosted.adapters import AdapterUnavailable

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
_MOST_UNREACHED: Final = 8
"""The most unreachable replicas that one request tries on a target; when a whole machine is gone, other targets wait.
"""
_UNSENT: Final = (ConnectFailed, AdapterUnavailable)
"""Errors before the upstream saw the request."""
_LOST: Final = (*_UNSENT, AnswerLost, ReplicaSilent, StreamCut)
"""Errors that lost the request with its replica, or before the upstream saw it."""

Untried = Callable[[], bool]
"""Returns True when the target has a deployment that this request has not tried yet."""


def retrying(
    budget: RetryBudget,
    untried: Untried,
    *,
    answering: Untried,
    attempts: int,
    own: bool,
    sleep: Callable[[float], Awaitable[None]],
) -> AsyncRetrying:
    """Builds the retry loop of up to `attempts` tries. `own` marks targets whose deployments are replicas of our pools;
    `answering` tells whether an untried deployment has answered others since this request began.
    """
    free = _LOST if own else _UNSENT
    return AsyncRetrying(
        retry=retry_if_exception(lambda error: worth_another(error, untried)),
        stop=_NoRetryLeft(budget, untried, answering=answering, attempts=attempts, free=free),
        wait=_Backoff(free),
        sleep=sleep,
        reraise=True,
    )


def worth_another(error: BaseException, untried: Untried) -> bool:
    """Returns True when the same target may answer another try: this deployment, or one with limits or a key of its
    own.
    """
    if isinstance(error, UpstreamRateLimited | UpstreamRefusedUs | StreamCut | FirstTokenTimeout):
        # A stream that was cut, or late, before its first token has shown nothing, but who did so may do it again.
        return error.retry_same or untried()
    return isinstance(error, UpstreamError) and error.retry_same


class _NoRetryLeft(stop_base):
    """Stops after the given tries, or when the retry budget has none left; otherwise takes one from it.

    Going on to another deployment after a failed connection is free, or where an adapter is missing: no upstream saw
    the request, so nothing is multiplied, and a dead replica among healthy ones is never noticed. So is going on after
    a replica of ours was lost with all that it was working on: the more that was, the less could a budget for outages
    hide it. And so is going on from a late first token to a deployment that answers others meanwhile.
    """

    def __init__(
        self,
        budget: RetryBudget,
        untried: Untried,
        *,
        answering: Untried,
        attempts: int,
        free: tuple[type[Exception], ...],
    ) -> None:
        self._answering = answering
        self._budget = budget
        self._untried = untried
        self._attempts = attempts
        self._free = free

    def __call__(self, retry_state: RetryCallState) -> bool:
        failure = _failure(retry_state)
        if isinstance(failure, _UNSENT) and self._untried():
            return retry_state.attempt_number >= max(self._attempts, _MOST_UNREACHED if AnswerLost in self._free else 0)
        if retry_state.attempt_number >= self._attempts:
            return True
        if isinstance(failure, self._free) and self._untried():
            return False
        if isinstance(failure, FirstTokenTimeout) and self._answering():
            return False
        return not self._budget.try_spend()


class _Backoff(wait_base):
    """Exponential back-off with jitter before a failing upstream is tried again; none for failures that say nothing
    about it.
    """

    _patient = wait_random_exponential(multiplier=_BACKOFF_FIRST_S, max=_BACKOFF_MAX_S)

    def __init__(self, free: tuple[type[Exception], ...]) -> None:
        self._free = free

    def __call__(self, retry_state: RetryCallState) -> float:
        return 0.0 if isinstance(_failure(retry_state), self._free) else self._patient(retry_state)


def _failure(retry_state: RetryCallState) -> BaseException | None:
    return None if retry_state.outcome is None else retry_state.outcome.exception()
