"""Relay stage: turns a committed stream into the caller's reply, in the dialect of its wire.

Nothing falls back from here: what fails now ends the stream with an error event, unless its team wants it continued
(`relayed_answer.py`).
"""

import asyncio
import contextlib
from collections.abc import Callable

from cost.usage import Usage
from providers.errors import UpstreamError
from providers.wire import EVENTS_TYPE, Event
from proxy.context import RequestContext
from proxy.dispatch.attempt import Attempt, Settled
from proxy.dispatch.attempt_result import CALLER_GONE
from proxy.dispatch.dispatcher import Committed, Dispatcher
from proxy.errors import DeadlineExceeded, error_reply
from proxy.parse.wires.own_fields import dollars
from proxy.parse.wires.wire import Dialect, EventWriter, Served, Tally
from proxy.relay.reply_headers import decision_lines, money_lines
from proxy.relay.response_stream import RelayedAnswer
from selfhosted.balance.prompt_rendering import instructions
from selfhosted.prefixes.tracker import PrefixTracker

_SECOND_US = 1_000_000
_FOREVER = contextlib.nullcontext()
_LONG_BYTES = 512 * 1024


async def relay_answer(
    context: RequestContext, committed: Committed, habits: PrefixTracker | None, dispatcher: Dispatcher | None = None
) -> None:
    """Writes the whole reply, and closes the attempt with its ending. `dispatcher` finds who goes on with an answer that
    breaks off; without one nobody does.

    Raises UpstreamError or DeadlineExceeded when it failed before the reply began. A later failure is reported to the
    caller in an error event in place of `[DONE]`.
    """
    answer, reply = RelayedAnswer(context, committed, dispatcher), context.reply
    attempt = committed.attempt
    try:
        if habits is not None:
            _note_habit(habits, attempt)
        lines = decision_lines(
            context.attempts,
            attempt,
            weakness=context.weakness,
            escalated_from=context.escalated_from,
            agreement=context.agreement,
        )
        if committed.events[0].media_type:
            await _relay_pieces(context, answer, lines)
        elif attempt.routed.request.stream and attempt.routed.request.operation == "chat":
            await _relay_stream(context, answer, lines)
        else:
            await _relay_whole(context, answer, lines)
    except (UpstreamError, DeadlineExceeded) as error:
        told = error_reply(error)
        answer.attempt.close("failed", error, status=reply.status or told.status)
        if not reply.started:
            # Nothing is written yet, so it is told like any other failure.
            raise
        context.end("failed")
        context.error_code = told.code
    except asyncio.CancelledError:
        answer.observe_unread()
        answer.attempt.close(context.ending, status=CALLER_GONE)
        raise
    except Exception as error:
        answer.attempt.close("failed", error, status=500)
        raise
    finally:
        # A reply that went well was settled before its last bytes left; this only gives the connection back.
        await answer.aclose()


def _note_habit(habits: PrefixTracker, attempt: Attempt) -> None:
    """Records the team's prompt prefix for the report on cache use."""
    routed, caller = attempt.routed, attempt.routed.caller
    if prefix := instructions(routed.request):
        target_id, tokens = attempt.deployment.target_id, routed.facts.input_tokens
        habits.observe(caller.organisation_id, caller.team_id, target_id, prefix, tokens)


def _dialect_of(context: RequestContext) -> Dialect:
    assert context.dialect is not None  # noqa: S101  # Whatever is dispatched was parsed.
    return context.dialect


def _tally(usage: Usage, cost_nanousd: int | None, baseline_nanousd: int | None) -> Tally:
    return Tally(usage, dollars(cost_nanousd), dollars(baseline_nanousd))


def _served(answer: RelayedAnswer, tally: Callable[[], Tally]) -> Served:
    attempt = answer.attempt
    return Served(
        request_id=attempt.routed.request_id,
        target_id=attempt.deployment.target_id,
        input_tokens=attempt.routed.facts.input_tokens,
        created_at=attempt.began_us // _SECOND_US,
        now_s=lambda: attempt.now_us // _SECOND_US,
        tally=tally,
        native=bool(answer.events[0].native),
    )


async def _relay_whole(context: RequestContext, answer: RelayedAnswer, lines: bytes) -> None:
    events, attempt = answer.events, answer.attempt
    while (batch := await answer.stream.read()) is not None:
        attempt.observe(batch)
        events += batch
    settled = await _book(attempt)
    tally = _tally(settled.usage, settled.cost_nanousd, settled.baseline_nanousd)
    served = _served(answer, lambda: tally)
    last = events[-1]
    dialect = _dialect_of(context)
    if dialect.keeps or context.memory is not None:
        await _keep(context, dialect, last.payload, served)
    body = dialect.whole(last.native or last.payload, served)
    await context.reply.whole(200, body, lines=lines + money_lines(tally))
    await context.reply.taken()


async def _relay_stream(context: RequestContext, answer: RelayedAnswer, lines: bytes) -> None:
    reply, deadline = context.reply, answer.attempt.routed.deadline
    served = _served(answer, lambda: _tally(*answer.attempt.preview()))
    dialect = _dialect_of(context)
    writer = context.writer = dialect.events(served)
    first = writer.render(answer.events)
    reply.begin_events(lines=lines, waits=bool(first))
    try:
        async with asyncio.timeout(deadline.remaining_s(reply.now)) if deadline.cuts_streams else _FOREVER:
            last = await _relay_events(context, answer, writer, first)
    except UpstreamError as error:
        await reply.end(writer.failed(error_reply(error)))
        raise
    except TimeoutError:
        exceeded = deadline.exceeded()
        # Settled first: its caller may read no more, and the end of its stream has to wait for it.
        answer.attempt.close("failed", exceeded, status=200)
        await reply.end(writer.failed(error_reply(exceeded)))
        raise exceeded from None
    await _book(answer.attempt)
    if dialect.keeps or context.memory is not None:
        await _keep(context, dialect, None, served)
    await reply.end(last + writer.last_words())


async def _relay_pieces(context: RequestContext, answer: RelayedAnswer, lines: bytes) -> None:
    """Passes on what is no JSON, as it comes. One that breaks off is cut off: half a recording must not be taken for
    whole; only a stream of events has words for it.
    """
    reply = context.reply
    attempt, media_type = answer.attempt, answer.events[0].media_type
    tally = _tally(*attempt.preview())
    # What is counted from the start is known from the start.
    money = money_lines(tally) if tally.usage.source == "counted" else b""
    reply.begin_pieces(media_type, lines + money)
    batch: list[Event] | None = answer.events
    try:
        while batch is not None:
            await reply.events(b"".join([event.payload for event in batch]))
            batch = await answer.stream.read()
            if batch is not None:
                attempt.observe(batch)
    except UpstreamError as error:
        if media_type.startswith(EVENTS_TYPE):
            await reply.end(context.wire.error_event(error_reply(error), attempt.routed.request_id))
        else:
            reply.abort()
        raise
    await _book(attempt)
    await reply.end()


async def _relay_events(context: RequestContext, answer: RelayedAnswer, writer: EventWriter, first: bytes) -> bytes:
    """Sends the events as they come, the first of which are rendered already. Returns the last of them, to be sent with the
    last words, where these wait for nothing but the booking.
    """
    keeps, reply, data = _dialect_of(context).keeps, context.reply, first
    while keeps or not answer.ended:
        if data:
            await reply.events(data)
        try:
            batch = await answer.stream.read()
        except UpstreamError as error:
            batch = await answer.continued(error)
        else:
            batch = answer.heard(batch)
        if batch is None:
            return b""
        data = writer.render(batch)
    return data


async def _keep(context: RequestContext, dialect: Dialect, payload: bytes | None, served: Served) -> None:
    """Keeps and remembers the answer, as its caller wants it, before it learns that the answer is whole."""
    asked = context.routed.request.fields.get("messages", b"") if context.routed is not None else b""
    # It holds the whole input, written anew.
    is_long = len(memoryview(asked)) > _LONG_BYTES
    kept = await asyncio.to_thread(dialect.to_keep, payload, served) if is_long else dialect.to_keep(payload, served)
    if kept is not None and context.memory is not None:
        context.memory.remember(kept)
    if dialect.keeps:
        dialect.keeps = kept is not None and context.keeper is not None and await context.keeper(kept)


async def _book(attempt: Attempt) -> Settled:
    """Settles before the last bytes are sent, so that a caller with a whole answer finds it in the ledger even after a
    crash.
    """
    settled = attempt.close("ok", status=200)
    # The journal is written once a turn of the event loop; by the next turn the kernel has the entry.
    await asyncio.sleep(0)
    return settled
