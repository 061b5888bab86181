"""Relay stage: turns a committed stream into the caller's reply, in the dialect of its wire.

There is no fallback from here: a failure ends the stream with an error event, unless its team wants it continued
(`RelayedAnswer`).
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from cost.errors import BudgetExceeded, BudgetsUnavailable, LedgerUnavailable, UnpricedUnderBudget
from cost.usage import Usage
from providers.errors import AnswerLost, MalformedReply, StreamCut, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from providers.sse import EventTooLarge
from providers.upstream import Impatient, UpstreamStream
from providers.wire import EVENTS_TYPE, Event
from proxy.admit.guarding import header_of
from proxy.context import RequestContext
from proxy.dispatch.attempt import Attempt, Settled
from proxy.dispatch.dispatcher import Committed, Dispatcher, close_quietly
from proxy.dispatch.outcome import CALLER_GONE
from proxy.dispatch.stream_resumption import Seam, endings
from proxy.errors import DeadlineExceeded, GuardUnavailable, Refused, error_reply
from proxy.http.reply_head import field_lines
from proxy.parse.wires.completions_of_chat import completion_of
from proxy.parse.wires.own_fields import dollars
from proxy.parse.wires.wire import Dialect, EventWriter, Served, Tally
from proxy.plan.route_plan import longest_answer
from proxy.plan.routed_request import Before, RoutedRequest
from proxy.relay.guarded_answer import GuardedAnswer
from proxy.relay.guarded_pieces import GuardedPieces
from proxy.relay.held_answer import HeldAnswer
from proxy.relay.reply_headers import decision_lines, money_lines
from selfhosted.balance.prompt_rendering import instructions
from selfhosted.engines.continuation import can_be_continued, completes_whole_text, continued, goes_on, stops_of
from selfhosted.prefixes.tracker import PrefixTracker

_SECOND_US = 1_000_000
_FOREVER = contextlib.nullcontext()
_LONG_BYTES = 512 * 1024
_LOST: Final = (StreamCut, UpstreamTimeout, UpstreamUnavailable, AnswerLost)
"""The errors that end the stream of a replica that died, or hangs."""
_FAILED: Final = frozenset({"error", "timeout", "cut"})
_MOST_LOST: Final = 2
"""The most replicas that one request may lose: the request may be the cause."""
_MOST_SAID_CHARS: Final = 400_000
_IN_BLOCKS: Final = frozenset({"messages", "responses"})
"""The wires whose streams have one text open at a time."""
_DOWN_SILENCE_S: Final = 1.0
"""The longest silence of a stream whose replica is down."""
_NOT_BEGUN: Final = (
    UpstreamError, Refused, BudgetExceeded, BudgetsUnavailable, LedgerUnavailable, UnpricedUnderBudget,
)  # fmt: skip
"""The errors that keep another replica from continuing: the caller is told of the first failure then."""


class _Said:
    """The text that the caller was sent so far, while the answer is nothing but text."""

    def __init__(self) -> None:
        self.first = b""
        """The payload of the first event with a choice."""
        self.only_text = True
        self._parts: list[str] = []
        self._chars = 0

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def hear(self, events: list[Event]) -> None:
        for event in events:
            if event.words:
                self._parts.append(event.words)
                self._chars += len(event.words)
            elif event.token or event.finished:
                self.only_text = False
            if not self.first and event.choices:
                self.first = event.payload
        if self._chars > _MOST_SAID_CHARS:
            self.only_text, self._parts = False, []


class EndedStream:
    """A stream that has ended, in place of one whose further events are no part of the answer."""

    ended = True

    async def read(self) -> list[Event] | None:
        return None

    def unread(self) -> list[Event]:
        return []

    async def aclose(self) -> None: ...


class RelayedAnswer:
    """The answer of one request: of one attempt or, for a stream, also of the attempt that continues it."""

    def __init__(self, context: RequestContext, committed: Committed, dispatcher: Dispatcher | None) -> None:
        self.attempt: Attempt = committed.attempt
        """The attempt that answers now."""
        self.events = committed.events
        """The events that were read before it was committed."""
        self.stream: UpstreamStream = committed.stream
        """The stream that is read from; `heard` and `continued` may put another one in its place."""
        self._context = context
        self._opened = committed.stream
        self._dispatcher = dispatcher
        self._seam: Seam | None = None
        self._said: _Said | None = None
        self._kept = context.answer
        """What is kept of it, as its model said it."""
        if self._kept is not None:
            self._kept.add(committed.events)
        self.guard = GuardedAnswer.of(
            context.guarded, committed.attempt.routed.request, self._used, in_blocks=context.wire.name in _IN_BLOCKS
        )
        """The guard of the answer; None for most."""
        self.held = _held(context, self.guard)
        """What waits for the verdict of those who are asked; None where nobody is."""
        if dispatcher is not None and not committed.whole and _is_wanted(committed.attempt):
            self._said = _Said()
            self._said.hear(committed.events)
            if committed.attempt.load_tracker is not None:
                committed.attempt.load_tracker.watch(self._hurry)

    @property
    def ended(self) -> bool:
        """True once all of it was read. False as long as that is not known."""
        return self._seam is None and self.guard is None and self.stream.ended

    def heard(self, batch: list[Event] | None) -> list[Event] | None:
        """Return the events to write for those that were read, which may be none yet; None at the answer's end."""
        seam, guard = self._seam, self.guard
        if batch is None:
            rest = [] if seam is None else seam.rest()
            if guard is not None:
                rest = self.shown(rest) + guard.rest()
            return rest or None
        self.attempt.observe(batch)
        if self._kept is not None:
            self._kept.add(batch)
        batch = self.within_limit(batch)
        if seam is not None:
            batch = seam.sewn(batch)
            if seam.ended:
                self.stream = EndedStream()
        if self._said is not None:
            self._said.hear(batch)
        return batch if guard is None else self.shown(batch)

    def shown(self, batch: list[Event]) -> list[Event]:
        """Return the events as the guard lets their caller have them. After those of an answer that it ended no more is read."""
        guard = self.guard
        if guard is None:
            return batch
        batch = guard.events(batch)
        if guard.blocked:
            self.stream = EndedStream()
        return batch

    async def let_out(self, batch: list[Event] | None) -> list[Event] | None:
        """Return those events that may go out now, of those to write and those that wait; None at the answer's end. After an answer that
        is ended no more is read. Raises GuardUnavailable.
        """
        if self.held is None or self.guard is None:
            return batch
        told = await self.held.let_out(batch or [], final=batch is None)
        if self.guard.blocked:
            self.stream = EndedStream()
        return told or None if batch is None else told

    def tell_guarded(self) -> None:
        """Note what the guard found in the answer. Of one that said what it must not, nothing is learned, and nobody else sees it."""
        guarded, guard = self._context.guarded, self.guard
        if guarded is None or guard is None or not guard.findings:
            return
        findings = (*guarded.verdict.findings, *guard.findings)
        verdict = msgspec.structs.replace(guarded.verdict, findings=findings)
        self._context.guarded = msgspec.structs.replace(guarded, verdict=verdict)
        for attempt in self._context.attempts:
            attempt.retained = None

    def _used(self) -> Usage:
        return self.attempt.preview()[0]

    def within_limit(self, batch: list[Event]) -> list[Event]:
        """Return the events as they are, or, where the stream is longer than what a hard budget holds for it, with an end, after which
        no more is read: its upstream ignores the answer's limit, of which the caller has all. What has ended by itself is not cut.

        Raises MalformedReply for one that passes in the dialect of its provider, whose ending is not ours to write.
        """
        if not self.attempt.outgrew or self.attempt.finished:
            return batch
        if self.events[0].native:
            raise MalformedReply(
                "The model went on writing after the answer's limit, which a hard budget holds.",
                deployment_id=self.attempt.deployment.deployment_id,
            )
        self.stream = EndedStream()
        return [*batch, *endings(self.events[0].payload, self.attempt.routed.request.n, "length")]

    def observe_unread(self) -> None:
        """Count the events that arrived and are not read any more: they were made, and cost."""
        unread = self.stream.unread()
        self.attempt.observe(unread)
        if self._kept is not None:
            self._kept.add(unread)

    def forget(self) -> None:
        """Let nobody else have the answer: nobody said that it may go out."""
        if self._kept is not None:
            self._kept.give_up()
        for attempt in self._context.attempts:
            attempt.retained = None

    def keep(self, settled: Settled) -> None:
        """Keep the whole answer, to be given again."""
        if self._kept is None:
            return
        is_weak = self._context.weakness is not None and self._context.escalated_from is None
        if is_weak or (self.guard is not None and self.guard.blocked):
            # What must not be said is stored nowhere.
            self._kept.give_up()
        else:
            self._kept.ended(self.attempt, settled)

    def aclose(self) -> Awaitable[None]:
        """Give the connection back, or cut it. Never raises."""
        return close_quietly(self._opened)

    async def continued(self, error: UpstreamError) -> list[Event]:
        """Return the first events of the rest, from another replica. Raises the error where no other continues."""
        if self._kept is not None:
            self._kept.give_up()
        said, broken = self._said, self.attempt
        if self._dispatcher is None or said is None or not self._may_go_on(said, error):
            raise error
        rest = _asking_for_the_rest(broken, said.text, self._context.reply.now)
        if rest is None:
            raise error
        # Settled first: its place is free then, and its replica is known to have failed.
        settled = broken.close("failed", error, status=200)
        await close_quietly(self._opened)
        before = _before(broken, settled)
        routed, told = msgspec.structs.replace(rest[0], before=before), rest[1]
        try:
            committed = await self._dispatcher.dispatch(routed, self._context.attempts, self._context.waits)
        except _NOT_BEGUN:
            raise error from None
        if _thinks_anew(committed.events):
            committed.attempt.close("ok", status=200, unused="discarded")
            await close_quietly(committed.stream)
            raise error
        overlap = said.text[len(told) :]
        stops = stops_of(broken.routed.request)
        self._seam = Seam(said.first, said.text, overlap=overlap, stops=stops, before=before.usage)
        self.attempt = self._context.answering = committed.attempt
        self.stream = self._opened = committed.stream
        events = self._seam.sewn(self.within_limit(committed.events))
        if self._seam.ended:
            self.stream = EndedStream()
        said.hear(events)
        return self.shown(events)

    def _hurry(self) -> None:
        """Shorten the wait for a stream whose replica is down by its probes. A machine that is gone closes no
        connection, so its stream is not waited for as long as another silent one; a stream that still flows goes on.
        """
        if isinstance(self.stream, Impatient):
            self.stream.limit_silence(_DOWN_SILENCE_S)

    def _may_go_on(self, said: _Said, error: UpstreamError) -> bool:
        attempt, now = self.attempt, self._context.reply.now
        routed = attempt.routed
        return (
            isinstance(error, _LOST)
            and said.only_text
            and 1 + sum(map(_lost_a_replica, self._context.attempts)) < _MOST_LOST
            and not (routed.deadline.own and routed.deadline.passed(now))
            # The limit of a whole answer does not begin anew.
            and now - attempt.started_at < (attempt.deployment.timeouts.total_s or routed.timeouts.total_s)
        )


async def relay_answer(
    context: RequestContext, committed: Committed, habits: PrefixTracker | None, dispatcher: Dispatcher | None = None
) -> None:
    """Write the whole reply, and close the attempt with its ending. `dispatcher` finds the replica that continues an
    answer which breaks off; without one none does. Raises UpstreamError or DeadlineExceeded when it failed before the
    reply began. A later failure is reported to the caller in an error event in place of `[DONE]`.
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
            waits=context.waits,
        )
        if committed.events[0].media_type:
            await _relay_pieces(context, answer, lines)
        elif attempt.routed.request.stream and attempt.routed.request.operation == "chat":
            await _relay_stream(context, answer, lines)
        else:
            await _relay_whole(context, answer, lines)
    except (UpstreamError, DeadlineExceeded, GuardUnavailable) as error:
        told = error_reply(error)
        if isinstance(error, GuardUnavailable):
            # Its model did what it was asked, and is paid.
            answer.attempt.close("ok", status=reply.status or told.status)
            answer.forget()
        else:
            answer.attempt.close("failed", error, status=reply.status or told.status)
        if not reply.started:
            # Nothing is written yet, so it is told like any other failure.
            raise
        context.end("failed")
        context.error_code = told.code
    except asyncio.CancelledError:
        answer.observe_unread()
        settled = answer.attempt.close(context.ending, status=CALLER_GONE)
        if answer.guard is None and answer.attempt.finished and answer.stream.ended:
            # All of it came, and was paid for: it is as good as if its caller had stayed.
            answer.keep(settled)
        raise
    except Exception as error:
        answer.attempt.close("failed", error, status=500)
        raise
    finally:
        answer.tell_guarded()
        # A reply that went well was settled before its last bytes left; this only gives the connection back.
        await answer.aclose()


def _held(context: RequestContext, guard: GuardedAnswer | None) -> HeldAnswer | None:
    if guard is None or guard.gathered is None or context.guarded is None or context.guarded.asks is None:
        return None
    return HeldAnswer(guard, guard.gathered, context.guarded.asks)


def _note_habit(habits: PrefixTracker, attempt: Attempt) -> None:
    """Record the team's prompt prefix for the report on cache use."""
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
        if context.answer is not None:
            context.answer.add(batch)
        events += batch
    settled = await _book(answer, judged=answer.guard is None)
    tally = _tally(settled.usage, settled.cost_nanousd, settled.baseline_nanousd)
    served = _served(answer, lambda: tally)
    last = events[-1]
    if (guard := answer.guard) is not None:
        is_long = len(last.native or last.payload) > _LONG_BYTES
        last = await asyncio.to_thread(guard.whole, last) if is_long else guard.whole(last)
        if answer.held is not None:
            last = await answer.held.whole(last)
        lines += field_lines(header_of(guard.findings))
        answer.keep(settled)
    dialect = _dialect_of(context)
    if dialect.keeps or context.memory is not None:
        await _keep(context, dialect, last.payload, served)
    payload = last.native or last.payload
    is_long = len(payload) > _LONG_BYTES
    body = await asyncio.to_thread(dialect.whole, payload, served) if is_long else dialect.whole(payload, served)
    await context.reply.whole(200, body, lines=lines + money_lines(tally))
    await context.reply.taken()


async def _relay_stream(context: RequestContext, answer: RelayedAnswer, lines: bytes) -> None:
    reply, deadline = context.reply, answer.attempt.routed.deadline
    served = _served(answer, lambda: _tally(*answer.attempt.preview()))
    dialect = _dialect_of(context)
    writer = context.writer = dialect.events(served)
    # All that was sent may have come at once.
    shown = await answer.let_out(answer.shown(answer.within_limit(answer.events)))
    first = writer.render(shown or [])
    reply.begin_events(lines=lines, waits=bool(first))
    try:
        async with asyncio.timeout(deadline.remaining_s(reply.now)) if deadline.cuts_streams else _FOREVER:
            last = await _relay_events(context, answer, writer, first)
    except (UpstreamError, GuardUnavailable) as error:
        await reply.end(writer.failed(error_reply(error)))
        raise
    except TimeoutError:
        exceeded = deadline.exceeded()
        # Settled first: its caller may read no more, and the end of its stream has to wait for it.
        answer.attempt.close("failed", exceeded, status=200)
        await reply.end(writer.failed(error_reply(exceeded)))
        raise exceeded from None
    await _book(answer)
    if dialect.keeps or context.memory is not None:
        await _keep(context, dialect, None, served)
    await reply.end(last + writer.last_words())


async def _relay_pieces(context: RequestContext, answer: RelayedAnswer, lines: bytes) -> None:
    """Pass on an answer other than JSON, as it comes. One that breaks off is cut off: half a recording must not be
    taken for whole; only a stream of events can carry an error.
    """
    reply = context.reply
    attempt, media_type = answer.attempt, answer.events[0].media_type
    tally = _tally(*attempt.preview())
    # A cost by counted units is known before the answer.
    money = money_lines(tally) if tally.usage.source == "counted" else b""
    reply.begin_pieces(media_type, lines + money)
    batch: list[Event] | None = answer.events
    pieces = None if answer.guard is None else answer.guard.pieces(media_type)
    try:
        while batch is not None:
            data = b"".join([event.payload for event in batch])
            if pieces is not None:
                data = await _guarded_piece(answer, pieces, data)
            if data or pieces is None:
                await reply.events(data)
            batch = None if pieces is not None and pieces.blocked else await answer.stream.read()
            if batch is not None:
                attempt.observe(batch)
        if pieces is not None and (data := await _guarded_piece(answer, pieces, None)):
            await reply.events(data)
    except (UpstreamError, GuardUnavailable) as error:
        if media_type.startswith(EVENTS_TYPE):
            await reply.end(context.wire.error_event(error_reply(error), attempt.routed.request_id))
        else:
            reply.abort()
        raise
    await _book(answer)
    await reply.end()


async def _guarded_piece(answer: RelayedAnswer, pieces: GuardedPieces, data: bytes | None) -> bytes:
    """Return what may go out with the next bytes of an answer, None at its end. Raises GuardUnavailable and MalformedReply."""
    try:
        told = pieces.finish() if data is None else pieces.feed(data)
    except EventTooLarge:
        raise MalformedReply(
            "The upstream sent an event that is too large.", deployment_id=answer.attempt.deployment.deployment_id
        ) from None
    if answer.held is None:
        return told
    return await answer.held.bytes_of(pieces, told, final=data is None or pieces.blocked)


async def _relay_events(context: RequestContext, answer: RelayedAnswer, writer: EventWriter, first: bytes) -> bytes:
    """Send the events as they come, the first of which are rendered already. Return the last of them, to be sent with
    the last words, where these wait for nothing but the booking.
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
        batch = await answer.let_out(batch)
        if batch is None:
            return b""
        data = writer.render(batch)
    return data


async def _keep(context: RequestContext, dialect: Dialect, payload: bytes | None, served: Served) -> None:
    """Keep and remember the answer, as its caller asked, before the caller learns that the answer is whole."""
    asked = context.routed.request.fields.get("messages", b"") if context.routed is not None else b""
    # It holds the whole input, written anew.
    is_long = len(memoryview(asked)) > _LONG_BYTES
    kept = await asyncio.to_thread(dialect.to_keep, payload, served) if is_long else dialect.to_keep(payload, served)
    if kept is not None and context.memory is not None:
        context.memory.remember(kept)
    if dialect.keeps:
        dialect.keeps = kept is not None and context.keeper is not None and await context.keeper(kept)


async def _book(answer: RelayedAnswer, *, judged: bool = True) -> Settled:
    """Settle before the last bytes are sent, so that a caller with a whole answer finds it in the ledger even after a
    crash. One that is `judged` may be kept, to be given again.
    """
    settled = answer.attempt.close("ok", status=200)
    if judged:
        answer.keep(settled)
    # The journal is written once a turn of the event loop; by the next turn the kernel has the entry.
    await asyncio.sleep(0)
    return settled


def _is_wanted(attempt: Attempt) -> bool:
    """Return True where the team wants its streams continued, and this one could be."""
    routed, request = attempt.routed, attempt.routed.request
    return (
        routed.caller.settings.continue_streams
        and routed.origin == "caller"
        and request.stream
        and goes_on(attempt.deployment, request)
        and can_be_continued(request)
    )


def _lost_a_replica(attempt: Attempt) -> bool:
    """Return True for an attempt that an engine saw and did not survive, or did not answer."""
    return attempt.reached and attempt.settled is not None and attempt.settled.outcome.result in _FAILED


def _asking_for_the_rest(broken: Attempt, said: str, now: float) -> tuple[RoutedRequest, str] | None:
    """Return the request for the missing rest of an answer, and the text that its engine is given as said; None when
    nothing is missing. Templates trim a message, so the blanks at its end are left out: most engines would begin with
    them again. The rest has the time of a first token to begin, as no caller waits longer for one.
    """
    routed, candidate = broken.routed, broken.candidate
    facts, deadline = routed.facts, routed.deadline
    usage = broken.preview()[0]
    said_tokens = usage.output_tokens if usage.source == "upstream" else broken.token_events
    left = None
    if facts.max_output_tokens is not None:
        left = (longest_answer(candidate.target, facts) or facts.max_output_tokens) - said_tokens
        if left < 1:
            return None
    told = said if completes_whole_text(routed.request) else said.rstrip()
    rest = msgspec.structs.replace(
        routed,
        request=continued(routed.request, told, left),
        facts=msgspec.structs.replace(
            facts,
            input_tokens=facts.input_tokens + said_tokens,
            most_input_tokens=facts.most_input_tokens and facts.most_input_tokens + len(said.encode()),
            max_output_tokens=left,
        ),
        plan=msgspec.structs.replace(
            routed.plan,
            candidates=(
                msgspec.structs.replace(candidate, output_tokens=max(1, candidate.output_tokens - said_tokens)),
            ),
        ),
        hold=None,
        deadline=msgspec.structs.replace(
            deadline,
            arrived_at=now,
            first_token_at=now + routed.timeouts.first_token_s(facts.tier),
            # Of a stream that has begun the usual limit bounds nothing.
            answer_at=deadline.answer_at if deadline.own else math.inf,
        ),
        retry=routed.retry.model_copy(update={"attempts": 1}),
        keep_bytes=routed.keep_bytes if broken.retained is not None and broken.retained.is_whole else 0,
    )
    return rest, told


def _before(broken: Attempt, settled: Settled) -> Before:
    assert broken.first_token_at is not None  # noqa: S101  # It was committed by its first token.
    return Before(
        usage=settled.usage,
        cost_nanousd=settled.cost_nanousd,
        arrived_at=broken.started_at if broken.arrived_at is None else broken.arrived_at,
        first_token_at=broken.given_at or broken.first_token_at,
        version="" if broken.load_tracker is None else broken.load_tracker.version,
        kept=tuple(broken.kept),
    )


def _thinks_anew(events: list[Event]) -> bool:
    """Return True for an engine that reasons before it continues: its caller would get thoughts in the middle of the
    answer.
    """
    for event in events:
        if event.token and not event.words:
            choice = completion_of(event.payload).first
            return choice is not None and choice.delta is not None and bool(choice.delta.thought)
    return False
