"""Telling a caller that its request failed, as far as it can still be told."""

import asyncio
import logging
from http import HTTPStatus
from typing import Final

from proxy.context import RequestContext
from proxy.errors import error_reply

_log: Final = logging.getLogger("weighbridge.line")


async def tell_failure(context: RequestContext, error: Exception) -> None:
    """An error reply before the first byte, an error event where this process cuts a stream off, and otherwise a
    connection that is cut. Raises nothing but a cancellation from elsewhere.
    """
    told = error_reply(error)
    context.end("failed")
    context.error_code = told.code
    if told.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        # The traceback names code, never the request's content; the message could hold content.
        _log.error("request %s failed unexpectedly: %s", context.request_id, type(error).__name__, exc_info=error)
    try:
        if not context.reply.started:
            await context.reply.error(told)
        elif context.ended_by == "cut_off" and not context.reply.done:
            await context.reply.end(b"data: " + told.body + b"\n\n")
        else:
            # A reply has begun that cannot be put right: its caller must not take it for whole.
            context.reply.abort()
    except OSError:
        pass
    except asyncio.CancelledError:
        if not context.was_cut_short:
            raise
        # It reads not even this, or not before the process has to stop.
        context.task.uncancel()
        context.reply.abort()
