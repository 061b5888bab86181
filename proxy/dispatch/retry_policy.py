"""Retries on one target, built from tenacity's parts and bounded by the target's retry budget."""

from collections.abc import Awaitable, Callable
from typing import Final

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from providers.errors import (
    ConnectFailed,
    FirstTokenTimeout,
    MalformedReply,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
)
from providers.retry_budget import RetryBudget
from selfhosted.lora.adapters import AdapterUnavailable

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
_MOST_REFUSING: Final = 8
"""The most deployments of a target that one request tries where each does no work for it; when a whole machine is
gone, or an account is refused, other targets wait.
"""
_UNWORKED: Final = (ConnectFailed, AdapterUnavailable, UpstreamRateLimited, UpstreamRefusedUs)
"""Errors of an upstream that did no work: it never saw the request, or refused it unread."""

Untried = Callable[[], bool]
"""The test that is True when the target has a deployment that this request has not tried yet."""


def retrying(
    budget: RetryBudget,
    untried: Untried,
    *,
    healthy: Untried,
    attempts: int,
    sleep: Callable[[float], Awaitable[None]],
) -> AsyncRetrying:
    """Build the retry loop of up to `attempts` tries. `healthy` is True when an untried deployment is not known to
    fail.
    """
    return AsyncRetrying(
        retry=retry_if_exception(lambda error: worth_another(error, untried)),
        stop=_NoRetryLeft(budget, untried, healthy=healthy, attempts=attempts),
        wait=_Backoff(untried),
        sleep=sleep,
        reraise=True,
    )


def worth_another(error: BaseException, untried: Untried) -> bool:
    """Return True when the same target may answer another try: this deployment, or one with limits or a key of its
    own.
    """
    if isinstance(error, UpstreamRateLimited | UpstreamRefusedUs | StreamCut | FirstTokenTimeout | MalformedReply):
        # A stream cut, or late, before its first token has shown nothing, nor has a page of a proxy's in place of an answer;
        # but the same deployment may do it again.
        return error.retry_same or untried()
    return isinstance(error, UpstreamError) and error.retry_same


class _NoRetryLeft(stop_base):
    """The end of retries: after the given tries, or when the retry budget has none left; otherwise one is taken from
    it. Going on to a deployment that is not known to fail is free: it multiplies no load on failing ones, and a dead
    replica, or one at its limit, among healthy ones is never noticed. The budget bounds repeated requests to failing
    deployments.
    """

    def __init__(self, budget: RetryBudget, untried: Untried, *, healthy: Untried, attempts: int) -> None:
        self._healthy = healthy
        self._budget = budget
        self._untried = untried
        self._attempts = attempts

    def __call__(self, retry_state: RetryCallState) -> bool:
        unworked = isinstance(_failure(retry_state), _UNWORKED)
        most = max(self._attempts, _MOST_REFUSING) if unworked and self._untried() else self._attempts
        if retry_state.attempt_number >= most:
            return True
        return not (self._healthy() or self._budget.try_spend())


class _Backoff(wait_base):
    """An exponential back-off with jitter before an upstream is asked again; none before another one is asked."""

    _patient = wait_random_exponential(multiplier=_BACKOFF_FIRST_S, max=_BACKOFF_MAX_S)

    def __init__(self, untried: Untried) -> None:
        self._untried = untried

    def __call__(self, retry_state: RetryCallState) -> float:
        return 0.0 if self._untried() else self._patient(retry_state)


def _failure(retry_state: RetryCallState) -> BaseException | None:
    return None if retry_state.outcome is None else retry_state.outcome.exception()
