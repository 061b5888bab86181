"""Escalation: an answer that was held back is judged, and a weak one asked again of a better target.

Nothing is committed yet, so a better target that fails, or whose answer is the worse one, costs its price and no more.
"""

import asyncio
import logging
from typing import Final

from proxy.answers.weak_answer import Weakness, graver, judge
from proxy.context import RequestContext
from proxy.dispatch import Committed, Dispatcher, close_quietly
from proxy.ending import CALLER_GONE, Unused
from proxy.escalation import EscalationAllowance, EscalationRules, escalation_candidate

_log: Final = logging.getLogger("weighbridge.line")


class BetterAnswers:
    """Every escalation of this process; one allowance bounds them all."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._allowance = EscalationAllowance()

    async def choose(self, context: RequestContext, first: Committed) -> Committed:
        """The answer to give: the one that was held, or a better target's where that one is weak.

        Whatever ends this early settles everything that is open.
        """
        held = [first]
        self._allowance.request(context.config.escalation)
        try:
            return await self._chosen(context, held)
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

    async def _chosen(self, context: RequestContext, held: list[Committed]) -> Committed:
        """`held` begins with the first answer, and is given the second one as soon as that is open."""
        (first,) = held
        rules = context.config.escalation
        context.judged = first.whole
        context.weakness = weakness = await _judged(first, rules)
        if weakness is None:
            return first
        second = await self._second(context, first)
        if second is None:
            return first
        held.append(second)
        again = await _judged(second, rules)
        if again is not None and graver(again, weakness):
            # The better target's answer is the worse one: its caller is given what was there already.
            await _put_aside(second, "discarded")
            return first
        context.escalated_from = first.attempt.deployment.target_id
        await _put_aside(first, "escalated")
        return second

    async def _second(self, context: RequestContext, first: Committed) -> Committed | None:
        """A better target's answer; None where there is no such target, no allowance left, or no answer of it."""
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


async def _judged(held: Committed, rules: EscalationRules) -> Weakness | None:
    """The weakness of an answer that was held to its end; None where there is none, or its end is not there yet."""
    if not held.whole:
        return None
    request = held.attempt.routed.request
    payloads = [event.payload for event in held.events]
    if request.json_mode or request.tools:
        # A schema may take a while, which other requests should not wait for.
        return await asyncio.to_thread(judge, request, payloads, min_mean_logprob=rules.min_mean_logprob)
    return judge(request, payloads, min_mean_logprob=rules.min_mean_logprob)


async def _put_aside(held: Committed, why: Unused) -> None:
    """Books a whole answer that nobody will see."""
    held.attempt.close("ok", status=200, unused=why)
    await close_quietly(held.stream)
