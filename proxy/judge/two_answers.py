"""Two answers: asks a pair of cheap targets beside each other, gives the answer they agree on, and goes on with the
plan where they differ.

Nothing is committed before the answer to give is there. Each attempt is reserved and booked as any other; an answer
that is not given is settled with a reason of its own. The second of the two is never waited for longer than a bound,
and where the plan cannot answer either, an answer that the pair left is given.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from classifier.answer_forms import NOTHING
from proxy.context import RequestContext
from proxy.dispatch.attempt import Attempt
from proxy.dispatch.dispatcher import Committed, Dispatcher, close_quietly, end_race
from proxy.dispatch.outcome import CALLER_GONE
from proxy.judge.comparable import agree, said_by
from proxy.plan.agreement import AgreementRates, Pair
from proxy.plan.routed_request import Hold, RoutedRequest

_LEAST_WAIT_S: Final = 1.0
"""The least seconds that the later of two answers has after the first; beyond that as long again as the first took."""


class TwoAnswers:
    """The pairs of this process, a bounded number at once."""

    def __init__(self, dispatcher: Dispatcher, rates: AgreementRates) -> None:
        self._dispatcher = dispatcher
        self._rates = rates
        self._running = 0

    async def dispatch(self, context: RequestContext, routed: RoutedRequest) -> Committed:
        """Return the answer that both targets of the pair agree on, else the plan's. Raises the errors of
        `Dispatcher.dispatch` where the pair left nothing to give.
        """
        pair = routed.agreement
        if pair is None or self._running >= context.config.escalation.max_running:
            return await self._dispatcher.dispatch(routed, context.attempts, context.waits)
        open_: list[Committed] = []
        try:
            self._running += 1
            try:
                given = await self._agreed(context, routed, pair, open_)
            finally:
                self._running -= 1
            return given or await self._as_planned(context, routed, pair, open_)
        except BaseException as error:
            for each in open_:
                if isinstance(error, asyncio.CancelledError):
                    each.attempt.close(context.ending, status=CALLER_GONE)
                else:
                    each.attempt.close("ok", status=200, unused="disputed")
            # Only when all are settled: this may wait, and be cancelled once more.
            for each in open_:
                await close_quietly(each.stream)
            raise

    async def _agreed(
        self, context: RequestContext, routed: RoutedRequest, pair: Pair, open_: list[Committed]
    ) -> Committed | None:
        """Ask both, and return the answer to give; None where they do not agree. `open_` then has the answer that is
        left open, at most one with content.
        """
        told = await self._ask(context, routed, pair, open_)
        by_target = {each.attempt.deployment.target_id: (each, said) for each, said in told}
        first, second = (by_target.get(each.target.target_id) for each in (pair.first, pair.second))
        agreed = first is not None and second is not None and agree(pair.asked, first[1], second[1])
        # An answer without content in the asked form agrees with no other one.
        if len(told) > 1 or any(said is NOTHING for _, said in told):
            self._rates.note(routed.caller.team_id, pair.asked.kind, pair.agrees, agreed=agreed)
        if told or pair.then is None:
            context.agreement = "agreed" if agreed else "unconfirmed" if _is_alone(pair, told) else "disagreed"
        # Of two that differ the likelier one is kept until the planned target has answered.
        kept = next((each[0] for each in (first, second) if each is not None and each[1] is not NOTHING), None)
        for each, _ in told:
            if each is not kept:
                each.attempt.close("ok", status=200, unused="confirmed" if agreed else "disputed")
                open_.remove(each)
                await close_quietly(each.stream)
        if agreed and kept is not None:
            open_.remove(kept)
            return kept
        return None

    async def _ask(
        self, context: RequestContext, routed: RoutedRequest, pair: Pair, open_: list[Committed]
    ) -> list[tuple[Committed, Any]]:
        """Return the pair's answers with their content, those that come in time: each as soon as it is there, so that
        an answer without content ends the wait for the other one.
        """
        rules = context.config.escalation
        hold = routed.hold or Hold(max_bytes=rules.hold_max_bytes, max_s=pair.wait_s)
        asked = msgspec.structs.replace(routed, hold=hold)
        begun_at, earlier = asyncio.get_running_loop().time(), len(context.attempts)
        racing = [
            asyncio.ensure_future(self._dispatcher.escalate(asked, each, context.attempts))
            for each in (pair.first, pair.second)
        ]
        # The plan's own choice is waited for as long as both are: there is nothing better yet.
        own = next(
            (at for at, each in enumerate((pair.first, pair.second)) if each.target.target_id == pair.alone), None
        )
        told: list[tuple[Committed, Any]] = []
        running, left_s = set(racing), pair.wait_s
        try:
            while running and left_s > 0:
                done, running = await asyncio.wait(running, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                answers = [each.result() for each in racing if each in done and each.exception() is None]
                open_ += answers
                told += [(each, await _said(pair, each)) for each in answers]
                waits_for_choice = own is not None and racing[own] in running
                if any(said is NOTHING for _, said in told) or (
                    len(answers) < max(1, len(done)) and not waits_for_choice
                ):
                    break
                took_s = asyncio.get_running_loop().time() - begun_at
                left_s = pair.wait_s - took_s
                if not waits_for_choice:
                    left_s = min(max(took_s, _LEAST_WAIT_S), left_s)
            _mark_late(context.attempts[earlier:], told)
        finally:
            await end_race([each for each in racing if each in running], None)
        return told

    async def _as_planned(
        self, context: RequestContext, routed: RoutedRequest, pair: Pair, open_: list[Committed]
    ) -> Committed:
        """Return the better target's answer; where it has none, or where nothing contradicts the plan's own choice,
        the one that the pair left.
        """
        if context.agreement == "unconfirmed":
            return open_.pop()
        # Where neither was heard nothing speaks against the plan's own choice, its queue and its fallbacks.
        if pair.then is not None and context.agreement is not None:
            # Where there is an answer already, nobody but the better target is worth asking.
            plan = msgspec.structs.replace(pair.then, candidates=pair.then.candidates[: 1 if open_ else None])
            routed = msgspec.structs.replace(routed, plan=plan)
        try:
            committed = await self._dispatcher.dispatch(routed, context.attempts, context.waits)
        except Exception:
            if not open_:
                raise
            context.agreement = "unconfirmed"
            return open_.pop()
        spare = list(open_)
        open_.append(committed)
        for each in spare:
            each.attempt.close("ok", status=200, unused="disputed")
            await close_quietly(each.stream)
        open_.clear()
        return committed


def _is_alone(pair: Pair, told: Sequence[tuple[Committed, Any]]) -> bool:
    """Return True where only the plan's own choice answered, with content."""
    return len(told) == 1 and told[0][0].attempt.deployment.target_id == pair.alone and told[0][1] is not NOTHING


def _mark_late(attempts: Sequence[Attempt], told: Sequence[tuple[Committed, Any]]) -> None:
    """Mark the attempts that are cancelled because they would come too late."""
    answered = {id(each.attempt) for each, _ in told}
    for attempt in attempts:
        if attempt.settled is None and id(attempt) not in answered:
            attempt.unused = "disputed"


async def _said(pair: Pair, held: Committed) -> Any:
    """Return the statement of an answer in the asked form; NOTHING where it was not held to its end."""
    if not held.whole:
        return NOTHING
    payloads, request = [event.payload for event in held.events], held.attempt.routed.request
    if pair.asked.kind in {"json", "call"}:
        # A schema may take a while, which other requests should not wait for.
        return await asyncio.to_thread(said_by, pair.asked, request, payloads)
    return said_by(pair.asked, request, payloads)
