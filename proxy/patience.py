"""Time-outs of attempts, and the error that assigns the fault when one expires. Pure, the time is passed in; but for `Patience`."""

import asyncio
import math
from types import TracebackType
from typing import Any, Final, Self

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


class Patience:
    """Limits how long the task that makes it waits within a `with`, whose end raises TimeoutError then. It is an
    `asyncio.timeout` that costs no timer of its own: see `PatienceTimer`.
    """

    __slots__ = ("_among", "_cancelling", "_loop", "_over", "_task", "due_at", "expired")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, due_at: float = math.inf, among: set["Patience"] | None = None
    ) -> None:
        """Without a limit only `expire` ends it. `among` is what it is taken from at its end."""
        task: asyncio.Task[Any] | None = asyncio.current_task(loop)
        assert task is not None  # noqa: S101  Whoever waits is a task.
        self._loop = loop
        self._among = among
        self._task = task
        self._cancelling = task.cancelling()
        self.due_at = due_at
        """On the loop's clock, in seconds."""
        self.expired = False
        self._over = False
        if among is not None:
            among.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if self._among is not None:
            self._among.discard(self)
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            # Nobody else cancelled it.
            raise TimeoutError from error

    def expire(self) -> None:
        """Ends it in the loop's next turn. No effect when it is over by then."""
        self._loop.call_soon(self.expire_now)

    def expire_now(self) -> None:
        """Ends it; never called by its own task."""
        if not (self._over or self.expired):
            self.expired = True
            self._task.cancel()


class PatienceTimer:
    """One timer for all attempts of an event loop: nearly all are over long before they are due, and a new one is seldom due
    before those that wait already.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[Patience] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf

    def within(self, limit_s: float | None) -> Patience:
        """Returns the patience of the present task, from now on; None is without limit."""
        # Asked for once: until Python 3.12 each answer takes a system call.
        loop = self._loop = self._loop or asyncio.get_running_loop()
        if limit_s is None:
            return Patience(loop)
        due_at = loop.time() + limit_s
        if due_at < self._looks_at:
            self._look_at(loop, due_at)
        return Patience(loop, due_at, self._waiting)

    def _look_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        self._timer = loop.call_at(when, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._looks_at = None, math.inf
        now = loop.time()
        again = math.inf
        for each in self._waiting:
            if each.due_at <= now:
                each.expire_now()
            elif each.due_at < again:
                again = each.due_at
        if again < math.inf:
            self._look_at(loop, again)
