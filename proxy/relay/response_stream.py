"""The answer that is relayed, as one stream: when its replica dies, another one goes on with it.

Only for teams that want it, and only while the answer is nothing but text that the caller has. The attempt that broke off is
booked as what it used, and the one that goes on is booked as one of its own; together they are the one answer.
"""

import math
from collections.abc import Awaitable
from typing import Final

import msgspec

from cost.errors import BudgetExceeded, BudgetsUnavailable, LedgerUnavailable, UnpricedUnderBudget
from providers.errors import AnswerLost, StreamCut, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from providers.upstream import Impatient, UpstreamStream
from providers.wire import Event
from proxy.context import RequestContext
from proxy.dispatch.attempt import Attempt, Settled
from proxy.dispatch.dispatcher import Committed, Dispatcher, close_quietly
from proxy.dispatch.stream_resumption import Seam
from proxy.errors import Refused
from proxy.parse.wires.completions_of_chat import completion_of
from proxy.plan.route_plan import longest_answer
from proxy.plan.routed_request import Before, RoutedRequest
from selfhosted.engines.continuation import can_be_continued, completes_whole_text, continued, goes_on, stops_of

_LOST: Final = (StreamCut, UpstreamTimeout, UpstreamUnavailable, AnswerLost)
"""What ends the stream of a replica that died, or hangs."""
_FAILED: Final = frozenset({"error", "timeout", "cut"})
_MOST_LOST: Final = 2
"""Replicas that one request may lose: it may be what kills them."""
_MOST_SAID_CHARS: Final = 400_000
_DOWN_SILENCE_S: Final = 1.0
"""The longest silence of a stream whose replica is down."""
_NOT_BEGUN: Final = (
    UpstreamError, Refused, BudgetExceeded, BudgetsUnavailable, LedgerUnavailable, UnpricedUnderBudget,
)  # fmt: skip
"""What keeps another replica from going on: the caller is told of the first failure then."""


class _Said:
    """What the caller was sent so far, while it is nothing but text."""

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


class _Over:
    """A stream that has ended, in place of one whose further events are no part of the answer."""

    ended = True

    async def read(self) -> list[Event] | None:
        return None

    def unread(self) -> list[Event]:
        return []

    async def aclose(self) -> None: ...


class RelayedAnswer:
    """The answer of one request: over one attempt, or, of a stream, over the one that goes on with it as well."""

    def __init__(self, context: RequestContext, committed: Committed, dispatcher: Dispatcher | None) -> None:
        self.attempt: Attempt = committed.attempt
        """The attempt that answers now."""
        self.events = committed.events
        """What was read before it was committed."""
        self.stream: UpstreamStream = committed.stream
        """What is read from; `heard` and `continued` may put another one in its place."""
        self._context = context
        self._opened = committed.stream
        self._dispatcher = dispatcher
        self._seam: Seam | None = None
        self._said: _Said | None = None
        if dispatcher is not None and not committed.whole and _is_wanted(committed.attempt):
            self._said = _Said()
            self._said.hear(committed.events)
            if committed.attempt.load_tracker is not None:
                committed.attempt.load_tracker.watch(self._hurry)

    @property
    def ended(self) -> bool:
        """Whether all of it was read. False as long as that is not known."""
        return self._seam is None and self.stream.ended

    def heard(self, batch: list[Event] | None) -> list[Event] | None:
        """The events to write for those that were read, which may be none yet; None at the answer's end."""
        seam = self._seam
        if batch is None:
            return None if seam is None else seam.rest() or None
        self.attempt.observe(batch)
        if seam is not None:
            batch = seam.sewn(batch)
            if seam.ended:
                self.stream = _Over()
        if self._said is not None:
            self._said.hear(batch)
        return batch

    def observe_unread(self) -> None:
        """Counts what arrived and is not read any more: it was made, and costs."""
        self.attempt.observe(self.stream.unread())

    def aclose(self) -> Awaitable[None]:
        """Gives the connection back, or cuts it. Never raises."""
        return close_quietly(self._opened)

    async def continued(self, error: UpstreamError) -> list[Event]:
        """The first events of the rest, from another replica. Raises the error where nobody goes on."""
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
            committed = await self._dispatcher.dispatch(routed, self._context.attempts)
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
        events = self._seam.sewn(committed.events)
        if self._seam.ended:
            self.stream = _Over()
        said.hear(events)
        return events

    def _hurry(self) -> None:
        """The replica is down by its probes. A machine that is gone closes no connection, so its stream is not waited for as
        long as another one that is silent; one that still speaks goes on.
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
            and now - attempt.started_at < routed.timeouts.total_s
        )


def _is_wanted(attempt: Attempt) -> bool:
    """True where the team wants its streams continued, and this one could be."""
    routed, request = attempt.routed, attempt.routed.request
    return (
        routed.caller.settings.continue_streams
        and routed.origin == "caller"
        and request.stream
        and goes_on(attempt.deployment.kind, request)
        and can_be_continued(request)
    )


def _lost_a_replica(attempt: Attempt) -> bool:
    """True for an attempt that an engine saw and did not survive, or did not answer."""
    return attempt.reached and attempt.settled is not None and attempt.settled.outcome.result in _FAILED


def _asking_for_the_rest(broken: Attempt, said: str, now: float) -> tuple[RoutedRequest, str] | None:
    """The request for what is missing of an answer, and what its engine is told was said; None when nothing is missing.

    Templates trim a message, so the blanks at its end are not told: most engines would begin with them again. The rest has
    the time of a first token to begin, as no caller waits longer for one.
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
        first_token_at=broken.first_token_at,
        version="" if broken.load_tracker is None else broken.load_tracker.version,
        kept=tuple(broken.kept),
    )


def _thinks_anew(events: list[Event]) -> bool:
    """True for an engine that reasons before it goes on: its caller would get thoughts in the middle of the answer."""
    for event in events:
        if event.token and not event.words:
            choice = completion_of(event.payload).first
            return choice is not None and choice.delta is not None and bool(choice.delta.thought)
    return False
