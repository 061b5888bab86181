"""Continuing stage: a request that goes on from kept responses gets what they hold."""

from collections.abc import Awaitable, Callable

from accounts.caller import Caller
from proxy.context import RequestContext
from proxy.errors import BadRequest, BodyTooLarge, ResponseNotFound
from proxy.responses.stored.stored_responses import StoredResponses


async def body_with_earlier(
    responses: StoredResponses,
    context: RequestContext,
    caller: Caller,
    body: bytes,
    names: tuple[str, ...],
    read: Callable[[bytes, Callable[[], bytes]], Awaitable[bytes]],
) -> bytes:
    """The body with all earlier turns in it; the names are those that it goes on from or refers to. `read` says where that is
    made of the longest of them.

    Raises BadRequest, BodyTooLarge or ResponsesUnavailable.
    """
    continuing = context.wire.continuing
    assert continuing is not None  # noqa: S101  # The one caller looked.
    try:
        records = {name: await _record(responses, context, caller, name) for name in names}
    except ResponseNotFound as error:
        raise BadRequest(
            f"{error.message} Send the whole conversation as `input`.",
            param="previous_response_id",
            code="previous_response_not_found",
        ) from error
    whole = await read(max((body, *records.values()), key=len), lambda: continuing.continued(body, records))
    most = context.config.max_body_bytes
    if len(whole) > most:
        raise BodyTooLarge(
            f"The conversation that this request goes on from has become larger than {most} bytes, the limit of this "
            "gateway: begin a new one with a shorter `input`."
        )
    return whole


async def _record(responses: StoredResponses, context: RequestContext, caller: Caller, name: str) -> bytes:
    remembered = None if context.memory is None else context.memory.find(name)
    return await responses.find(caller.team_id, name) if remembered is None else remembered
