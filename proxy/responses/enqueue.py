"""Putting-off stage: a request that its caller does not wait for is kept, and answered by somebody else later."""

from accounts.caller import Caller
from cost.times import wall_us
from proxy.context import RequestContext
from proxy.http.exchange import Exchange
from proxy.parse.parsed_request import ParsedRequest
from proxy.responses.background.background_responses import BackgroundResponses

_SECOND_US = 1_000_000


async def put_off(
    background: BackgroundResponses, context: RequestContext, caller: Caller, parsed: ParsedRequest, exchange: Exchange
) -> None:
    """Answers with what is queued, or with its events, as long as the caller reads them.

    Raises BackgroundFull, BadRequest, Overloaded or ResponsesUnavailable.
    """
    later = parsed.later
    assert later is not None  # noqa: S101  # The one caller looked.
    kept = later.queued(context.request_id, wall_us() // _SECOND_US)
    await background.put_off(caller, kept, exchange.headers, parsed.body, streams=later.streams)
    if not later.streams:
        await context.reply.whole(200, kept.told)
        return
    # One that may not be followed now is made all the same.
    following = background.follow(caller.team_id, kept.response_id)
    context.reply.begin_events()
    async for data in following:
        await context.reply.events(data)
    await context.reply.end()
