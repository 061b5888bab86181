"""Watchers that cut requests: callers that hang up or read too slowly, and a stopping process.

Each cut says why, and cancels the request's task; the pipeline ends and settles it from there. Uploads that take too long
fail by themselves.
"""

from collections.abc import Iterable

from proxy.context import RequestContext
from proxy.http.exchange import CallerGone, Exchange


def watch_caller(context: RequestContext, exchange: Exchange) -> None:
    """From now on the request is cut when its caller is gone, which in turn cancels the upstream call.

    Raises CallerGone when it is by now.
    """
    if exchange.gone is not None:
        raise CallerGone
    exchange.on_gone = lambda: _cut_gone(context, exchange)


def _cut_gone(context: RequestContext, exchange: Exchange) -> None:
    # With an Idempotency-Key it is answered to its end, for whoever asks for it again.
    if not context.reply.done and context.recording is None:
        context.cut("slow_reader" if exchange.gone == "slow_reader" else "caller_gone")


def cut_off(contexts: Iterable[RequestContext]) -> None:
    """Cuts every running request because the process must stop; each is told and settled."""
    for context in tuple(contexts):
        if not context.reply.done:
            context.cut("cut_off")
