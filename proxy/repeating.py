"""A request with an Idempotency-Key: it is answered as before, or claims its key and is recorded."""

from starlette.types import Scope

from accounts.caller import Caller
from proxy.context import RequestContext
from proxy.idempotency.claims import Idempotency, Replay, fingerprint_of
from proxy.idempotency.recording import Recording, is_worth_keeping, replay


async def is_answered_again(
    once: Idempotency, context: RequestContext, caller: Caller, key: str, body: bytes, scope: Scope
) -> bool:
    """Whether the same request was answered before, and was so again. Otherwise it is this one that is served.

    Raises KeyReused, KeyInFlight, TooManyKeys or IdempotencyUnavailable.
    """
    fingerprint = fingerprint_of(scope["path"], scope["headers"], body)
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
