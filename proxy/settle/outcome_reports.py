"""Reports of finished requests: each one's outcome goes to those that observe, some at a time and soon after its end.

Nobody waits for a report, and what is done for many in a row finds its code in the processor's caches: for one at a time,
among all that a request needs, it takes nearly twice as long.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Sized
from typing import Final

from proxy.context import RequestContext
from proxy.dispatch.outcome import Observer, RequestOutcome, ShadowSampler
from proxy.settle.answer_sampling import judge_late, went_well
from proxy.settle.outcome_builder import outcome_of

_WAIT_S: Final = 0.02
"""How long a finished request waits for others at most."""
_SLACK_S: Final = 0.001
"""By so much the event loop's timers may be early."""
_AT_A_STRETCH_S: Final = 0.001
"""After so long the event loop has its turn: judging an answer by a schema takes longer than all else."""
_LARGE_TOKENS: Final = 250_000
"""What may have so many tokens, as many as its body has bytes, is not kept in memory for longer than it takes."""


class Reports:
    """Tells observers of finished requests, in their order."""

    def __init__(
        self, observers: tuple[Observer, ...], at_once: tuple[int, int] = (1, 1), under_way: Sized = ()
    ) -> None:
        """As many requests are told of together as are `under_way`, within the bounds `at_once`: a caller that asks again
        at once waits for them, which is nothing to one of many. By default each is told of when it ends.
        """
        self._observers = observers
        self._at_least, self._at_most = at_once
        self._under_way = under_way
        self._waiting: deque[tuple[RequestContext, float, ShadowSampler | None]] = deque()
        self._is_timed = False

    def add(self, context: RequestContext, now: float, shadow: ShadowSampler | None) -> None:
        """Takes a finished request, which nothing changes any more. `shadow` is offered what was answered."""
        self._waiting.append((context, now, shadow))
        wanted = max(self._at_least, min(len(self._under_way), self._at_most))
        if len(self._waiting) >= wanted or not _may_wait(context):
            self._tell_some(_AT_A_STRETCH_S)
        elif not self._is_timed:
            self._tell_later(_WAIT_S)

    def tell(self) -> None:
        """Tells of all that have finished."""
        self._tell_some(math.inf)

    def _tell_some(self, most_s: float) -> None:
        """Each step is done for all before the next, for the caches' sake."""
        until = time.monotonic() + most_s
        told = []
        while self._waiting:
            context, now, shadow = self._waiting.popleft()
            judge_late(context)
            told.append((context, outcome_of(context, now), shadow))
            if time.monotonic() > until:
                break
        for observer in self._observers:
            for _, outcome, _ in told:
                observer.finished(outcome)
        for context, outcome, shadow in told:
            _hand_on(context, outcome, shadow)
        if self._waiting and not self._is_timed:
            self._tell_later(_WAIT_S)

    def _tell_later(self, wait_s: float) -> None:
        self._is_timed = True
        asyncio.get_running_loop().call_later(wait_s, self._on_time)

    def _on_time(self) -> None:
        self._is_timed = False
        if not self._waiting:
            return
        context, ended_at, _ = self._waiting[0]
        left_s = ended_at + _WAIT_S - context.reply.now
        if left_s > _SLACK_S:
            # Those that it was for have been told of by then.
            self._tell_later(left_s)
        else:
            self._tell_some(_AT_A_STRETCH_S)


def _hand_on(context: RequestContext, outcome: RequestOutcome, shadow: ShadowSampler | None) -> None:
    caller, answering = context.caller, context.answering
    if shadow is not None and caller is not None and answering is not None and went_well(answering):
        shadow.offer(answering.routed.request, caller, outcome, answering.kept)
    if context.trace is not None:
        context.trace.finish(outcome, outcome.alias, outcome.stream)


def _may_wait(context: RequestContext) -> bool:
    """False for what holds much memory, or might, and for what is traced until now."""
    if context.routed is None or (context.trace is not None and context.trace.is_recorded):
        return False
    return context.routed.facts.most_input_tokens < _LARGE_TOKENS
