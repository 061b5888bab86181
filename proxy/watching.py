"""Watchers that cut requests: callers that hang up, slow uploads and readers, and a stopping process.

Each cut says why, and cancels the request's task; the pipeline ends and settles it from there.
"""

import asyncio
from collections.abc import Iterable

from starlette.types import Receive, Scope

from proxy.context import RequestContext
from proxy.errors import UploadTimeout
from proxy.reply import read_body


async def watch_caller(context: RequestContext, receive: Receive) -> None:
    """Cuts the request when its caller hangs up, which in turn cancels the upstream call."""
    while (await receive())["type"] != "http.disconnect":
        pass
    # With an Idempotency-Key its caller will ask for the answer again.
    if not context.reply.done and context.recording is None:
        context.cut("caller_gone")


async def body_in_time(context: RequestContext, scope: Scope, receive: Receive, now: float) -> bytes:
    """Reads the request's body. Raises BodyTooLarge, UploadTimeout, or CancelledError when the caller hung up."""
    config = context.config
    context.reading_since = now
    try:
        return await read_body(scope, receive, max_bytes=config.max_body_bytes)
    except asyncio.CancelledError:
        if context.ended_by == "slow_upload":
            # The cancellation was ours, and is an answer: its caller is still there.
            context.task.uncancel()
            raise UploadTimeout(f"The request body did not arrive within {config.body_timeout_s:g} s.") from None
        context.end("caller_gone")
        raise
    finally:
        context.reading_since = None


def cut_off(contexts: Iterable[RequestContext]) -> None:
    """Cuts every running request because the process must stop; each is told and settled."""
    for context in tuple(contexts):
        if not context.reply.done:
            context.cut("cut_off")


def cut_the_slow(contexts: Iterable[RequestContext], now: float, slow_reader_s: float, body_timeout_s: float) -> None:
    """Cuts uploads that take too long, and callers whose send buffer has been full for too long."""
    for context in tuple(contexts):
        if context.reading_since is not None:
            if context.ended_by is None and now - context.reading_since > body_timeout_s:
                context.cut("slow_upload")
            continue
        since = context.reply.sending_since
        # Once is enough: what is cut off needs a moment to settle.
        if since is not None and now - since > slow_reader_s and not context.reply.aborted:
            context.reply.abort()
            # With an Idempotency-Key it is answered to its end, for whoever asks for it again.
            if context.recording is None:
                context.cut("slow_reader")
