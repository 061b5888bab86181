"""The request context: everything known of one request, from its first byte to its settlement."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from accounts.caller import Caller
from cost.dimensions import Dimension
from cost.errors import BudgetExceeded
from providers.wire import Operation
from proxy.admit.guarding import Guarded
from proxy.admit.limits.limit import Admission
from proxy.cache.answer_cache import CacheResult, Lookup
from proxy.dispatch.attempt import Attempt
from proxy.dispatch.outcome import Agreement, Ending, QueueWaited, RequestTrace, Weakness
from proxy.http.exchange import CallerGone, Exchange
from proxy.http.reply import Reply
from proxy.http.request_id import REQUEST_ID_HEADER
from proxy.parse.chat_request import AUTO
from proxy.parse.parsed_request import ParsedRequest
from proxy.parse.wires.wire import Dialect, EventWriter, Kept, Memory, Understood, Wire
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.routed_request import RoutedRequest

Cut = Literal["caller_gone", "slow_reader", "cut_off"]
"""The reason that a request is cut from outside: the caller hung up or reads too slowly, or the process must stop.
"""
EndedBy = Literal["answered", "failed", "cancelled"] | Cut
"""The way a request ended. `answered`: a whole reply, replays included. `failed`: an error reply or error event.
`cancelled`: the server cancelled the task itself.
"""

_CUT_SHORT: Final = frozenset({"caller_gone", "slow_reader", "cut_off"})
"""The endings after which no reply is awaited."""
_ENDINGS: Final[dict[EndedBy | None, Ending]] = {"slow_reader": "slow_reader", "caller_gone": "caller_gone"}


class RequestContext(msgspec.Struct, eq=False, kw_only=True):
    """Mutable state of one request, filled in by the stages; the outcome is made from it at the end."""

    request_id: str
    wire: Wire
    reply: Reply
    started_at: float
    config: PipelineConfig
    """The configuration when the request came; a reload does not change it. The targets of matched wildcards are
    added.
    """
    task: asyncio.Task[Any]
    asks_itself: bool = False
    """True for a request of the gateway's own, such as a line of a batch, and for one that was queued before."""
    trace: RequestTrace | None = None
    caller: Caller | None = None
    dialect: Dialect | None = None
    """The writer of the answer's dialect; known once the body is parsed."""
    writer: EventWriter | None = None
    """The writer of the answer's stream, from its beginning on."""
    keeper: Callable[[Kept], Awaitable[bool]] | None = None
    """The function that keeps the answer for its caller; False when it could not."""
    memory: Memory | None = None
    """The answers that its connection remembers, and is to remember."""
    parsed: ParsedRequest | None = None
    """The request as its caller made it. A file that came with it is closed with the request."""
    admission: Admission | None = None
    guarded: Guarded | None = None
    """The guard's verdict on it, and the rules by which its answer is judged; None where no rule holds for its caller."""
    bounded: bool = False
    """True when a hard budget holds money for it."""
    spent_targets: Mapping[tuple[Dimension, str], BudgetExceeded] = {}
    """Models and providers that have no budget left for it."""
    classify_s: float | None = None
    routed: RoutedRequest | None = None
    attempts: list[Attempt] = []
    answer: Lookup | None = None
    """What is kept of its answer, where it may be given again."""
    cached: CacheResult | None = None
    """What the cache had for it; None without a cache."""
    waits: list[QueueWaited] = []
    """Its waits in queues before targets, also those that ended in a spill-over or a refusal."""
    answering: Attempt | None = None
    """The attempt whose answer the caller is given."""
    judged: bool = False
    weakness: Weakness | None = None
    escalated_from: str | None = None
    """The target whose weak answer was replaced by a better target's."""
    agreement: Agreement | None = None
    """The outcome of two cheap answers; None where two were not asked."""
    ended_by: EndedBy | None = None
    """The ending; None while the request runs."""
    asked_model: str = ""
    """The model that the caller named, where the configuration knows it; empty before the body is parsed."""
    error_code: str | None = None
    error_message: str | None = None
    """The message that its caller was sent, where the refusal was the gateway's own."""
    out_of_use: tuple[str, ...] = ()
    """The targets that could not be called or had no room, where it was refused for that."""

    def understood(self, found: Understood) -> None:
        """Note how an error has to be written and which model was named, before the rest of the request is checked."""
        self.dialect = found.dialect
        model = found.request.model
        if model == AUTO or self.config.has_model(model):
            self.asked_model = model

    def end(self, by: EndedBy) -> None:
        """Record the ending. Only the first call counts: later steps concern only its report."""
        if self.ended_by is None:
            self.ended_by = by

    def cut(self, why: Cut) -> None:
        """Cancel the request's task for `why`. Overrides an earlier ending unless that was a cut as well."""
        if not self.was_cut_short:
            self.ended_by = why
        self.task.cancel()

    def watch_caller(self, exchange: Exchange) -> None:
        """Cut the request, and with it its upstream call, when its caller hangs up or reads too slowly. Raises CallerGone when
        that has happened already.
        """
        if exchange.gone is not None:
            raise CallerGone
        exchange.on_gone = lambda: self._caller_gone(exchange)

    def _caller_gone(self, exchange: Exchange) -> None:
        # With an Idempotency-Key it is answered to its end, for whoever asks for it again.
        if not self.reply.done and self.reply.recording is None:
            self.cut("slow_reader" if exchange.gone == "slow_reader" else "caller_gone")

    @property
    def operation(self) -> Operation:
        return self.wire.operation

    @property
    def was_cut_short(self) -> bool:
        return self.ended_by in _CUT_SHORT

    @property
    def ending(self) -> Ending:
        """The ending, in ledger terms, of an attempt that is cancelled now."""
        return _ENDINGS.get(self.ended_by, "shutdown")


def new_context(
    request_id: str, wire: Wire, exchange: Exchange, clock: Callable[[], float], config: PipelineConfig
) -> RequestContext:
    """Create the context of a request that runs in the current task; its reply carries `x-request-id`."""
    # Asking the loop for it costs a system call.
    task = exchange.task or asyncio.current_task()
    assert task is not None  # noqa: S101  # A server runs each request in a task.
    reply = Reply(exchange, clock, wire.probe)
    reply.lines = b"%b: %b\r\n" % (REQUEST_ID_HEADER, request_id.encode())
    if wire.request_id_header is not None:
        reply.lines += b"%b: %b\r\n" % (wire.request_id_header, request_id.encode())
    return RequestContext(
        request_id=request_id,
        wire=wire,
        reply=reply,
        started_at=clock(),
        config=config,
        task=task,
    )
