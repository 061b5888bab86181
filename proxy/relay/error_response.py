"""Error delivery: reports a failure to the caller as far as the state of its reply still allows."""

import asyncio
import logging
from http import HTTPStatus
from typing import Final

from cost.errors import BudgetExceeded, BudgetsUnavailable, UnpricedUnderBudget
from proxy.context import RequestContext
from proxy.errors import ErrorReply, Refused, error_reply
from proxy.relay.reply_headers import queue_line

_log: Final = logging.getLogger("weighbridge.line")


async def tell_failure(context: RequestContext, error: Exception) -> None:
    """Send an error reply before the first byte, an error event when this process cuts a stream off, and otherwise
    abort the connection. Raises only a cancellation from elsewhere.
    """
    told = error_reply(error)
    context.end("failed")
    context.error_code = told.code
    if isinstance(error, Refused):
        context.out_of_use = error.targets
    if isinstance(error, Refused | BudgetExceeded | UnpricedUnderBudget | BudgetsUnavailable):
        # Our own words; what an upstream wrote is with its attempt.
        context.error_message = str(error)
    if told.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        # The traceback names code, never the request's content; the message could hold content.
        _log.error("request %s failed unexpectedly: %s", context.request_id, type(error).__name__, exc_info=error)
    try:
        if not context.reply.started or context.reply.waits:
            if context.waits:
                context.reply.lines += queue_line(context.waits)
            event = context.wire.error_event(told, context.request_id)
            await context.reply.error(context.wire.error(told, context.request_id), event)
        elif context.ended_by == "cut_off" and not context.reply.done:
            await context.reply.end(_last_event(context, told))
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


def _last_event(context: RequestContext, told: ErrorReply) -> bytes:
    """Return the event that ends the stream: its writer's, or empty for a kept answer, which has none."""
    if context.writer is not None:
        return context.writer.failed(told)
    return context.wire.error_event(told, context.request_id)
