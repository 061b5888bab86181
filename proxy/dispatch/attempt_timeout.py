"""Time-outs of attempts, and the error that assigns the fault when one expires. Pure, the time is passed in; but for `Patience`."""

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from providers.errors import AnswerLate, FirstTokenTimeout, ReplicaSilent, UpstreamError
from proxy.dispatch.attempt import Attempt
from proxy.errors import Refused
from proxy.plan.routed_request import Hold, RoutedRequest

_LEAST_S: Final = 0.001
_USUAL: Final = 3.0
"""What takes so many times its usual time is late."""
_KEPT: Final = 2.0
"""Times a candidate's usual time that are kept for it: the usual time is a median."""
_NOBODY: Final = "None of these answered. Send it again shortly."


def needed_s(usual_s: float | None, guess_s: float, left_s: float) -> float:
    """Returns the seconds of the time left that are kept for a candidate: twice its usual time, `guess_s` where that is not
    known, and at most half of what is left. One that is usually quick has a quarter of the time, or the guess if that is less: what
    is asked at the last moment is answered too late by the slightest delay.
    """
    wanted_s = guess_s if usual_s is None else max(_KEPT * usual_s, min(guess_s, left_s / 4))
    return min(wanted_s, left_s / 2)


def window_s(left_s: float, usual_s: float | None, kept_s: float | None, *, stream: bool) -> float:
    """Returns the seconds that all tries at one target may take together, of the `left_s` that are left when the first begins.

    `kept_s` is what is kept for who may answer instead; None where nobody may, and all the time is the target's. A whole
    answer has three times its usual time in any case: it has nothing to show before its end, and one that is merely long
    would be paid for twice.
    """
    if kept_s is None:
        return left_s
    window = left_s - kept_s
    return window if stream or usual_s is None else min(left_s, max(window, _USUAL * usual_s))


def patience_s(
    window: float,
    spent_s: float,
    usual_s: float | None,
    first_token_s: float,
    *,
    stream: bool,
    others: bool,
    again: bool,
) -> float | None:
    """Returns the time-out in seconds of one try, until its first token or the end of a whole answer; None for no limit.

    It is what is left of the target's `window` after `spent_s`. Where another deployment of the target may be tried after it
    (`again`), a stream leaves half of that; and where anybody may answer instead (`again` or `others`), it is waited for no
    longer than its tier's `first_token_s`. Three times the usual time it has all the same.
    """
    limit = rest = window - spent_s
    usually = _USUAL * (usual_s or 0.0)
    if stream and again:
        limit = max(rest / 2, min(rest, usually))
    if stream and (again or others):
        limit = min(limit, max(first_token_s, usually))
    return None if math.isinf(limit) else max(_LEAST_S, limit)


def hold_within(routed: RoutedRequest, hold: Hold, now: float) -> Hold:
    """Returns the hold, shortened to half of the time left, so that the answer is released before the deadline cuts it."""
    left_s = routed.deadline.remaining_s(now)
    return msgspec.structs.replace(hold, max_s=max(_LEAST_S, min(hold.max_s, left_s / 2)))


def impatience(attempt: Attempt, now: float) -> UpstreamError | Refused:
    """Returns the error of a timed-out attempt: ReplicaSilent for a replica found dead, the deadline's error, or
    FirstTokenTimeout and AnswerLate of one that was left while there was time.

    A caller's own deadline is never the upstream's fault, as a whole answer may just be long. A stream without a first
    token at its tier's deadline is, unless earlier attempts had used up that time.
    """
    deployment_id = attempt.deployment.deployment_id
    if attempt.lease is not None and attempt.lease.lost:
        return ReplicaSilent("The upstream stopped answering.", deployment_id=deployment_id)
    routed, patient = attempt.routed, attempt.was_patient
    target_id, tries = attempt.candidate.target.target_id, attempt.number
    if routed.deadline.passed(now) and (routed.deadline.own or not (routed.request.stream and patient)):
        return routed.deadline.exceeded(f"`{target_id}` was the last of {tries} attempts" if tries > 1 else "")
    waited_s = now - attempt.started_at
    if routed.deadline.passed(now):
        words = routed.deadline.exceeded().message
    else:
        what = "first token" if routed.request.stream else "complete answer"
        words = f"`{target_id}` gave no {what} within {waited_s:.1f} s, and was left for others that might be in time. {_NOBODY}"
    if not routed.request.stream:
        return AnswerLate(words, deployment_id=deployment_id)
    late = FirstTokenTimeout(words, deployment_id=deployment_id)
    # What was not sent yet waited for us: for its adapter.
    late.gateway_failure = patient and attempt.sent
    return late


def no_time_left(target_id: str) -> UpstreamError:
    """The error for a target that is not tried again, as the time that is left is kept for others."""
    late = FirstTokenTimeout(
        f"`{target_id}` failed, and what was left of the time was kept for others. {_NOBODY}", deployment_id=target_id
    )
    late.gateway_failure = False
    return late


LongerS = Callable[[], float | None]


class Patience:
    """Limits how long the task that makes it waits within a `with`, whose end raises TimeoutError then. It is an
    `asyncio.timeout` that costs no timer of its own: see `PatienceTimer`.
    """

    __slots__ = ("_among", "_cancelling", "_longer_s", "_loop", "_over", "_task", "due_at", "expired")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        due_at: float = math.inf,
        among: set["Patience"] | None = None,
        longer_s: LongerS | None = None,
    ) -> None:
        """Without a limit only `expire` ends it. `among` is what it is taken from at its end."""
        task: asyncio.Task[Any] | None = asyncio.current_task(loop)
        assert task is not None  # noqa: S101  Whoever waits is a task.
        self._loop = loop
        self._among = among
        self._longer_s = longer_s
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

    def end_or_extend(self, now: float) -> None:
        """Ends it when it is due, unless it is to be waited for longer."""
        longer_s = 0.0 if self._longer_s is None else self._longer_s()
        if longer_s is not None and longer_s < _LEAST_S:
            self.expire_now()
        else:
            self.due_at = math.inf if longer_s is None else now + longer_s

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

    def within(self, limit_s: float | None, longer_s: LongerS | None = None) -> Patience:
        """Returns the patience of the present task, from now on; None is without limit. When it is due, `longer_s` is asked how
        many seconds more it has: none below a millisecond, and None for no limit.
        """
        # Asked for once: until Python 3.12 each answer takes a system call.
        loop = self._loop = self._loop or asyncio.get_running_loop()
        if limit_s is None:
            return Patience(loop)
        due_at = loop.time() + limit_s
        if due_at < self._looks_at:
            self._look_at(loop, due_at)
        return Patience(loop, due_at, self._waiting, longer_s)

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
                each.end_or_extend(now)
            if now < each.due_at < again:
                again = each.due_at
        if again < math.inf:
            self._look_at(loop, again)
