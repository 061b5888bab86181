"""Escalation: a held-back answer is judged, and when it is weak, a better target is asked once.

Nothing is committed yet, so a better target that fails, or whose answer is the worse one, costs its price and no more.
"""

import asyncio
import logging
from typing import Final

from proxy.context import RequestContext
from proxy.dispatch.dispatcher import Committed, Dispatcher, close_quietly
from proxy.dispatch.outcome import CALLER_GONE, Unused, Weakness
from proxy.judge.weak_answer import graver, judge
from proxy.plan.escalation_rules import escalation_candidate
from proxy.plan.pipeline_config import EscalationRules

_log: Final = logging.getLogger("weighbridge.line")
_BURST: Final = 20.0
"""The most escalations that an idle period accumulates."""


class EscalationAllowance:
    """A token bucket of escalations for this process: at most `max_share` of eligible requests, after a burst."""

    def __init__(self) -> None:
        self._saved = _BURST
        self.running = 0

    def request(self, rules: EscalationRules) -> None:
        """Credits one request that may escalate."""
        self._saved = min(self._saved + rules.max_share, _BURST)

    def try_begin(self, rules: EscalationRules) -> bool:
        """Take one escalation and return True, or return False when none is left. `end` must follow."""
        # The small slack makes ten tenths a whole in floating point.
        if rules.max_share <= 0 or self.running >= rules.max_running or self._saved < 1 - 1e-9:
            return False
        self._saved -= 1
        self.running += 1
        return True

    def end(self) -> None:
        self.running -= 1


class BetterAnswers:
    """The escalations of this process, bounded by one shared allowance."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._allowance = EscalationAllowance()

    async def choose(self, context: RequestContext, first: Committed) -> Committed:
        """Return the answer to give: the held one, or a better target's when the held one is weak.

        When this fails or is cancelled, every open attempt is settled first.
        """
        held = [first]
        self._allowance.request(context.config.escalation)
        try:
            return await self._judge_and_escalate(context, held)
        except BaseException as error:
            for each in held:
                if isinstance(error, asyncio.CancelledError):
                    each.attempt.close(context.ending, status=CALLER_GONE)
                else:
                    each.attempt.close("failed", error, status=500)
            # Only when all are settled: this may wait, and be cancelled once more.
            for each in held:
                await close_quietly(each.stream)
            raise

    async def _judge_and_escalate(self, context: RequestContext, held: list[Committed]) -> Committed:
        """Judge and escalate. `held` starts with the first answer; the second is appended as soon as it is open."""
        (first,) = held
        rules = context.config.escalation
        context.judged = first.whole
        context.weakness = weakness = await _weakness_of(first, rules)
        if weakness is None:
            return first
        second = await self._ask_better_target(context, first)
        if second is None:
            return first
        held.append(second)
        again = await _weakness_of(second, rules)
        if again is not None and graver(again, weakness):
            # The better target's answer is the worse one: its caller is given what was there already.
            await _settle_unused(second, "discarded")
            return first
        context.escalated_from = first.attempt.deployment.target_id
        await _settle_unused(first, "escalated")
        return second

    async def _ask_better_target(self, context: RequestContext, first: Committed) -> Committed | None:
        """Ask a better target. Return None when there is none, the allowance is spent, or it gave no answer."""
        rules, routed, answered = context.config.escalation, first.attempt.routed, first.attempt.candidate
        tried = {each.deployment.target_id for each in context.attempts}
        candidate = escalation_candidate(routed.plan, answered, tried)
        if candidate is None or not self._allowance.try_begin(rules):
            return None
        try:
            return await self._dispatcher.escalate(routed, candidate, context.attempts)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, there is an answer to give
            _log.info("request %s: no better answer than the weak one: %s", context.request_id, type(error).__name__)
            return None
        finally:
            self._allowance.end()


async def _weakness_of(held: Committed, rules: EscalationRules) -> Weakness | None:
    """Return the weakness of a held answer; None when it is not weak, or was not held to its end."""
    if not held.whole:
        return None
    request = held.attempt.routed.request
    payloads = [event.payload for event in held.events]
    if request.json_mode or request.tools:
        # A schema may take a while, which other requests should not wait for.
        return await asyncio.to_thread(judge, request, payloads, min_mean_logprob=rules.min_mean_logprob)
    return judge(request, payloads, min_mean_logprob=rules.min_mean_logprob)


async def _settle_unused(held: Committed, why: Unused) -> None:
    """Settle a whole answer that is not given to the caller."""
    held.attempt.close("ok", status=200, unused=why)
    await close_quietly(held.stream)
