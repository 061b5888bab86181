"""Idempotency stage: replays the answer of a repeated request, or claims its key and records the reply."""

from accounts.caller import Caller
from proxy.admit.idempotency.claims import Idempotency, Replay, fingerprint_of
from proxy.admit.idempotency.recording import Recording, is_worth_keeping, replay
from proxy.context import RequestContext
from proxy.http.exchange import Exchange


async def is_answered_again(
    once: Idempotency, context: RequestContext, caller: Caller, key: str, body: bytes, exchange: Exchange
) -> bool:
    """Replays the kept answer and returns True if there is one; otherwise starts recording and returns False.

    Raises BadRequest, KeyReused, KeyInFlight, AnswerNotKept, TooManyKeys or IdempotencyUnavailable.
    """
    fingerprint = fingerprint_of(exchange.path, exchange.headers, body)
    found = await once.claim(caller.team_id, key, fingerprint, context.request_id)
    if isinstance(found, Replay):
        await replay(context.reply, found)
        return True
    context.recording = context.reply.recording = Recording(
        found,
        # A stream that this process cut off has the status of a good one.
        lambda status: context.ended_by != "cut_off" and is_worth_keeping(status, context.attempts),
    )
    return False
