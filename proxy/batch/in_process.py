"""Requests that come from this gateway itself: a known caller, a whole body, and a reply that is kept."""

from typing import Final

from proxy.batch.line_protocol import LineReply, LineRequest
from proxy.context import RequestContext
from proxy.errors import Overloaded, code_of
from proxy.http.in_memory import InMemoryExchange

_PRIORITIES: Final = {-1: b"low", 0: b"normal", 1: b"high"}
_RETRY_AFTER: Final = b"retry-after-ms"
OVERLOADED: Final = LineReply(status=Overloaded.fault.status, body=b"{}", code=code_of(Overloaded), retry_after_s=1.0)
"""The reply to a request that is not begun, because outside callers need this process more."""


def exchange_of(asked: LineRequest) -> InMemoryExchange:
    """Return a request whose caller never hangs up."""
    headers = [(b"x-tier", asked.tier.encode()), (b"x-priority", _PRIORITIES[asked.priority])]
    return InMemoryExchange(asked.body, headers)


def answered(context: RequestContext, exchange: InMemoryExchange) -> LineReply:
    """Return the reply, with the usage and the cost of its attempts."""
    answering = context.answering
    usage = None if answering is None or answering.settled is None else answering.settled.usage
    costs = [each.settled.cost_nanousd for each in context.attempts if each.settled is not None]
    told = dict(exchange.reply_headers).get(_RETRY_AFTER, b"")
    return LineReply(
        status=exchange.status,
        body=b"".join(exchange.reply_pieces),
        code=context.error_code or "",
        retry_after_s=int(told) / 1000 if told.isdigit() else None,
        input_tokens=0 if usage is None else usage.input_tokens,
        cached_tokens=0 if usage is None else usage.cached_input_tokens,
        output_tokens=0 if usage is None else usage.output_tokens,
        reasoning_tokens=0 if usage is None else usage.reasoning_tokens or 0,
        saved_nanousd=sum(each.settled.batch_saved_nanousd for each in context.attempts if each.settled is not None),
        cost_nanousd=None if None in costs else sum(cost or 0 for cost in costs),
    )
