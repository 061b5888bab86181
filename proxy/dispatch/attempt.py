"""An attempt at one deployment, from its reservation to its single settlement."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from cost.errors import BudgetExceeded
from cost.ledger.entries import Entry, EntryKind
from cost.ledger.ledger import Books
from cost.meters import METER_COLUMNS, TOKEN_COLUMNS, ZERO_METERS
from cost.savings.comparators import NO_BASELINES
from cost.usage import CONTINUED, CUT_AT_BOUND, UPSTREAM_STATUS, Usage
from providers.breaker import Permit
from providers.errors import (
    AnswerLate,
    CannotCarry,
    ConnectFailed,
    FirstTokenTimeout,
    ReplicaSilent,
    RequestRejected,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from providers.target import Deployment
from providers.upstream_faults import without_echo, without_repeated_words
from providers.wire import ChatRequest, Event, UsedUnits, WireUsage, untaken
from proxy.admit.queues.queue_item import QueuePermit
from proxy.dispatch.attempt_cost import (
    NOTHING,
    Money,
    broken_bound,
    flagged,
    money_of,
    most_written,
    outgrows_bound,
    outgrows_unread,
    usage_of,
    whole_usage,
)
from proxy.dispatch.load_balancer import LoadTracker
from proxy.dispatch.outcome import AttemptOutcome, AttemptResult, Ending, Unused
from proxy.dispatch.upstream_fields import dropped_fields
from proxy.errors import DeadlineExceeded
from proxy.parse.chat_request import AUTO, is_replaceable
from proxy.plan.decision_record import written
from proxy.plan.route_plan import Candidate, affordable_tokens, likely_most_nanousd, most_nanousd
from proxy.plan.routed_request import RoutedRequest
from proxy.shared.deadline import NO_DEADLINE

# When one of these comes before any token, the upstream did no work, so nothing can have been charged.
_NEVER_STARTED = (ConnectFailed, UpstreamUnavailable, UpstreamRateLimited, UpstreamRefusedUs, RequestRejected)

_CAUSED_BY_NOBODY: Final = (ConnectFailed, ReplicaSilent)
"""Failures that no request can have caused."""

_SILENT = (FirstTokenTimeout, UpstreamTimeout, DeadlineExceeded)

_LEAST_ANSWER: Final = 256
"""Tokens of an answer below which a request is refused rather than shortened, unless it asked for fewer."""

_FIELD_BYTES: Final = 64
"""Bytes of a body that a limit of its own takes at most."""

_SHORTENINGS: Final = 3
"""Times that an answer is bounded anew, because other requests took of the rest meanwhile."""

_LARGE_EVENT: Final = 65_536
"""Most bytes that are counted of an event without text."""

_TIMER_SLACK_S: Final = 0.001
"""Tolerance for a timer that fires slightly before its time."""


_TEXT_PAYLOAD: Final = b'{"choices":[{"index":0,"delta":{"content":%b}}]}'


class RetainedAnswer:
    """The payloads of one answer, within a bound. A stream takes some 250 bytes for a token; of payloads that hold
    nothing but text only the text is kept.
    """

    __slots__ = ("_left", "_payloads", "_text")

    def __init__(self, most_bytes: int, before: Sequence[bytes] = ()) -> None:
        """`before` are the payloads of the answer's first part, where this is the rest of it."""
        self._payloads = [*before]
        self._text = bytearray()
        """The pieces of text since the last payload, in UTF-8."""
        self._left = most_bytes - sum(map(len, before))

    @property
    def is_whole(self) -> bool:
        """False once there was more than the bound: nothing is retained then, nor ever again."""
        return self._left >= 0

    def add(self, events: Iterable[Event]) -> None:
        """Retain further events."""
        if self._left < 0:
            return
        for event in events:
            if event.words:
                piece = event.words.encode()
                self._left -= len(piece)
                self._text += piece
            else:
                self._left -= len(event.payload)
                self._end_text()
                self._payloads.append(event.payload)
        if self._left < 0:
            self._payloads, self._text = [], bytearray()

    def payloads(self) -> list[bytes]:
        """Return payloads with the same content as the answer's so far; empty where they were too many."""
        self._end_text()
        return self._payloads

    def _end_text(self) -> None:
        if self._text:
            self._payloads.append(_TEXT_PAYLOAD % msgspec.json.encode(self._text.decode()))
            self._text.clear()


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """A closed attempt: its outcome, usage and money in nano-dollars. Money is None without a price."""

    outcome: AttemptOutcome
    usage: Usage
    cost_nanousd: int | None
    baseline_nanousd: int | None
    batch_saved_nanousd: int = 0


def fields_sent(request: ChatRequest) -> dict[str, bytes]:
    """Return the request's raw fields by their names, of its own dialect too: all that an upstream may repeat."""
    written = request.as_written or (None if request.in_messages is None else request.in_messages())
    fields = request.fields if written is None else {**request.fields, **written.fields}
    return {name: bytes(value) for name, value in fields.items()}


_VOID: Final[tuple[EntryKind, Money]] = ("void", NOTHING)


class Attempt:
    """A call of one deployment, updated while its stream flows. `close` writes its ledger entry exactly once."""

    __slots__ = (
        "_books",
        "_clock",
        "_counted",
        "_now_us",
        "_permit",
        "_reserve",
        "_stale",
        "began_us",
        "cached_before",
        "candidate",
        "chars",
        "deployment",
        "dropped",
        "finished",
        "first_token_at",
        "last_token_at",
        "load_tracker",
        "number",
        "queue_permit",
        "queued_s",
        "reached",
        "released_at",
        "retained",
        "routed",
        "sent",
        "service_tier",
        "settled",
        "started_at",
        "token_events",
        "units",
        "unread_bytes",
        "unread_events",
        "unused",
        "wire_usage",
    )

    def __init__(
        self,
        routed: RoutedRequest,
        number: int,
        candidate: Candidate,
        deployment: Deployment,
        permit: Permit,
        books: Books,
        clock: Callable[[], float],
        now_us: Callable[[], int],
    ) -> None:
        self.routed = routed
        self.number = number
        self.candidate = candidate
        self.deployment = deployment
        self.dropped: list[str] = [*dropped_fields(candidate.target, routed), *untaken(routed.request, deployment)]
        """The caller's parameters that are left out for this target."""
        self.service_tier: str | None = None
        """The provider's service tier that served it, where the upstream says so."""
        self._permit = permit
        self._books = books
        self._clock = clock
        self._now_us = now_us
        self.started_at = clock()
        self.began_us = now_us()
        """The moment of its beginning, in microseconds since 1970."""
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.token_events = 0
        self.chars = 0
        self.unread_events = 0
        self.unread_bytes = 0
        """Events that said nothing which is read as text, and their bytes."""
        self.wire_usage: WireUsage | None = None
        self.cached_before: int | None = None
        """Tokens of the prompt that were cached before it was read ahead for this attempt; None where it was not."""
        self.units: UsedUnits | None = None
        """The units beside tokens that the upstream reported."""
        self._counted: Money | None = None
        self.finished = False
        self._reserve: Entry | None = None
        """The entry that is to be closed; None before it is booked."""
        self._stale = False
        self.sent = False
        """True once the call was handed to the upstream client; before that nothing can have been charged."""
        self.reached = True
        """False while the call still waits for a connection, so that the upstream cannot have seen it."""
        self.settled: Settled | None = None
        before = () if routed.before is None else routed.before.kept
        self.retained = RetainedAnswer(routed.keep_bytes, before) if routed.keep_bytes else None
        """The answer as it is judged after the reply; None when nothing is."""
        self.unused: Unused | None = None
        self.queue_permit: QueuePermit | None = None
        """The attempt's permit among the target's work in flight, released when it settles."""
        self.load_tracker: LoadTracker | None = None
        self.queued_s = 0.0
        """Seconds that the request waited in queues before it, since the attempt before."""
        self.released_at: float | None = None
        """The moment, on the monotonic clock, at which its answer was released that was held back to be judged."""

    @property
    def now_us(self) -> int:
        """Return the wall clock's time in microseconds since 1970."""
        return self._now_us()

    async def reserve(self) -> None:
        """Book the attempt's reservation, its maximum cost; durable on return. Raises LedgerUnavailable,
        BudgetExceeded, BudgetsUnavailable or UnpricedUnderBudget.
        """
        for _ in range(_SHORTENINGS):
            try:
                await self._reserve_once()
            except BudgetExceeded as exceeded:
                self._shorten(exceeded)
            else:
                return
        await self._reserve_once()

    def _shorten(self, exceeded: BudgetExceeded) -> None:
        """Bound the answer by what the rest of a hard budget pays for. Raises `exceeded`, with what would fit, where that is too little."""
        facts, target = self.routed.facts, self.candidate.target
        cheaper = exceeded.downgrade and facts.alias != AUTO and is_replaceable(self.routed.request)
        if exceeded.spent or cheaper or holds_less_later(self.candidate, self.routed) or self.routed.origin != "caller":
            # A whole answer of another target is better.
            raise exceeded
        tokens = affordable_tokens(target, facts, exceeded.left_nanousd)
        if tokens is None:
            raise exceeded
        least = min(_LEAST_ANSWER, facts.max_output_tokens or _LEAST_ANSWER, target.max_output_tokens)
        if tokens < least or facts.tier == "batch":
            # Its field makes the request longer, and what is held for the prompt goes by the body's bytes.
            longer = replace(facts, most_input_tokens=facts.most_input_tokens + _FIELD_BYTES)
            fits = affordable_tokens(target, longer, exceeded.left_nanousd) or 0
            exceeded.advice = _what_fits(fits, target.target_id)
            raise exceeded
        facts = replace(facts, affordable_tokens=tokens)
        self.routed = replace(self.routed, facts=facts)
        self.candidate = replace(self.candidate, bound_nanousd=likely_most_nanousd(target, facts))

    async def _reserve_once(self) -> None:
        # The entry has the likely maximum, which is booked when the process dies; budgets hold the upper bound.
        most = most_nanousd(self.candidate.target, self.routed.facts) if self._books.holds_money else None
        entry = self._reserve_entry()
        is_held = await self._books.reserve(entry, most)
        self._reserve = entry
        if is_held and not self.routed.facts.bounded:
            # This process did not know of the budget yet when it planned.
            self.routed = replace(self.routed, facts=replace(self.routed.facts, bounded=True))

    def observe(self, events: list[Event]) -> None:
        """Count tokens, characters and usage from a batch of events."""
        self._counted = None
        if self.retained is not None:
            self.retained.add(events)
        for event in events:
            self._count_text(event)
            if event.usage is not None:
                self.wire_usage = event.usage
                request = self.routed.request
                # Beside content it counts that event's choice alone, so it is the whole only where there is one.
                self._stale = not (request.n == 1 or event.choices == 0 or not request.stream)
            if event.units is not None:
                self.units = event.units
            if event.finished:
                self.finished = True
            if event.service_tier is not None:
                self.service_tier = event.service_tier
        if self.token_events:
            self.last_token_at = self._clock()
            if self.first_token_at is None:
                self.first_token_at = self.last_token_at

    def _count_text(self, event: Event) -> None:
        if event.token:
            self.token_events += 1 if event.run is None else event.run.tokens
            self.chars += event.text_chars
            # An earlier report no longer covers everything.
            self._stale = True
        if not event.text_chars:
            self.unread_events += 1
            # A picture that nobody asked for is one large event; an answer in disguise is many.
            self.unread_bytes += min(max(len(event.payload), len(event.native)), _LARGE_EVENT)

    @property
    def kept(self) -> list[bytes]:
        """The payloads that were retained; empty when none were wanted, or they exceeded `routed.keep_bytes`."""
        return [] if self.retained is None else self.retained.payloads()

    @property
    def outgrew(self) -> bool:
        """True once its stream is longer than what a hard budget holds for it."""
        routed = self.routed
        if not routed.facts.bounded:
            return False
        return self._outgrew_unread or outgrows_bound(self.candidate.target, routed, self.token_events, self.chars)

    @property
    def said_nothing(self) -> bool:
        """True once its stream is longer than that before its first token."""
        return not (self.token_events or self.finished) and self.outgrew

    @property
    def _outgrew_unread(self) -> bool:
        return outgrows_unread(self.candidate.target, self.routed, self.unread_events, self.unread_bytes)

    @property
    def overrun(self) -> str:
        """How a settled attempt used more than a hard budget held for it, in words; empty if it did not."""
        if self.settled is None or not self.routed.facts.bounded:
            return ""
        if self.outgrew:
            return "went on writing after the answer's limit"
        return broken_bound(self.candidate.target, self.routed.facts, self.settled.usage)

    @property
    def may_have_cost(self) -> bool:
        """True for an attempt that was sent and is still open, has no price, or cost more than 0."""
        return self.sent and (self.settled is None or self.settled.cost_nanousd != 0)

    def reaches(self, reached: bool) -> None:
        """Record whether a connection exists; called by the upstream client."""
        self.reached = reached

    def healthy(self) -> None:
        """Report the deployment healthy to its breaker at the first token. A later cut counts as a failure of its own."""
        self._permit.success()
        if self.load_tracker is not None:
            self.load_tracker.first_token()

    def close(
        self, ending: Ending, error: BaseException | None = None, *, status: int, unused: Unused | None = None
    ) -> Settled:
        """Settle the attempt and return the result. Only the first call has an effect; each returns the same.
        `unused` is set for an answer that was not given to the caller: it has a cost but no baseline, as it saved
        nothing.
        """
        if self.settled is not None:
            return self.settled
        if error is not None:
            error = self.without_echo(error)
        self.unused = unused
        failed = self._report_health(ending, error)
        kind, money = self._ended(ending, error)
        usage, lasted_s = money.usage, self._clock() - self.started_at
        if self._reserve is not None:
            served = kind == "settle" and ending == "ok" and unused is None and self.routed.origin == "caller"
            self._books.settle(self._closing_entry(self._reserve, kind, money, lasted_s, status=status, served=served))
        self._permit.used(usage.input_tokens + usage.output_tokens)
        if self.queue_permit is not None:
            self.queue_permit.release(usage.input_tokens + usage.output_tokens)
        if self.load_tracker is not None:
            # An estimate of ours says nothing of the engine's cache.
            counted = self.wire_usage is not None and usage.source == "upstream"
            self.load_tracker.end(
                failed=failed,
                silent=isinstance(error, _SILENT),
                cached_tokens=usage.cached_input_tokens if counted else None,
                output_tokens=usage.output_tokens if counted else None,
                tpot_s=self._tpot_s(usage.output_tokens),
            )
        outcome = AttemptOutcome(
            target_id=self.deployment.target_id,
            deployment_id=self.deployment.deployment_id,
            provider=self.candidate.target.provider,
            result=result_of(ending, error),
            duration_s=lasted_s,
            error=None if error is None else type(error).__name__,
            status=error.status if isinstance(error, UpstreamError) else None,
            detail="" if error is None else self._told(error),
            pool=self.candidate.target.pool or "",
            version="" if self.load_tracker is None else self.load_tracker.version,
            ttft_s=self.ttft_s if self.routed.request.stream else None,
            tpot_s=self._tpot_s(usage.output_tokens),
            disputed_nanousd=money.disputed_nanousd,
            unknown=usage.unknown,
            continues=self.routed.before is not None,
        )
        self.settled = Settled(
            outcome=outcome,
            usage=usage,
            cost_nanousd=money.cost_nanousd,
            baseline_nanousd=money.baselines.reference_nanousd,
            batch_saved_nanousd=money.batch_saved_nanousd,
        )
        return self.settled

    def without_echo(self, error: BaseException) -> BaseException:
        """Return the error; an upstream's is stripped of the request's own words."""
        if not isinstance(error, UpstreamError) or error.without_words is None:
            return error
        return without_repeated_words(error, fields_sent(self.routed.request))

    def _ended(self, ending: Ending, error: BaseException | None) -> tuple[EntryKind, Money]:
        """Return the closing entry's kind and its money, with the usage flagged by the ending."""
        if not self.sent or not self.reached or (not self.token_events and isinstance(error, _NEVER_STARTED)):
            kind, money = _VOID
        else:
            kind, money = "settle", self._money()
        flags = flags_of(ending, error) if self.unused is None else (self.unused,)
        # Where nobody received the answer, it saved nothing.
        baselines = NO_BASELINES if flags else money.baselines
        if self.routed.before is not None and self.token_events:
            flags = (*flags, CONTINUED)
        if self.outgrew and not self.finished:
            flags = (*flags, CUT_AT_BOUND)
        if not flags:
            return kind, money
        usage = flagged(money.usage, flags)
        return kind, replace(money, usage=usage, baselines=baselines)

    @property
    def ttft_s(self) -> float | None:
        """Seconds from its beginning to its first token; None without one."""
        return None if self.first_token_at is None else self.first_token_at - self.started_at

    @property
    def arrived_at(self) -> float | None:
        """The moment at which the caller's request arrived; None where no caller waits."""
        deadline, before = self.routed.deadline, self.routed.before
        if self.routed.origin != "caller" or deadline is NO_DEADLINE:
            return None
        return deadline.arrived_at if before is None else before.arrived_at

    @property
    def given_at(self) -> float | None:
        """The moment of the caller's first token: of a held answer its release, of a continued one its beginning. None before."""
        if self.released_at is not None:
            return self.released_at
        if self.routed.before is not None:
            return self.routed.before.first_token_at
        return None if self.routed.hold is not None else self.first_token_at

    def _since_arrival_us(self, at: float | None) -> int | None:
        arrived_at = self.arrived_at
        return None if at is None or arrived_at is None else _us(max(0.0, at - arrived_at))

    def _tpot_s(self, output_tokens: int) -> float | None:
        """Return the mean seconds an output token after the first; None with fewer than two tokens, and for an answer
        in one piece.
        """
        if self.first_token_at is None or self.last_token_at is None:
            return None
        took_s = self.last_token_at - self.first_token_at
        return took_s / (output_tokens - 1) if output_tokens > 1 and took_s > 0 else None

    def preview(self) -> tuple[Usage, int | None, int | None]:
        """Return usage, cost and baseline (nano-dollars) as they would settle now, for the reply's closing headers or
        event. For an answer that this attempt continues, they are those of the whole.
        """
        money, before = self._money(), self.routed.before
        cost = money.cost_nanousd
        if before is not None and cost is not None:
            cost += before.cost_nanousd or 0
        return self.of_answer(money.usage), cost, money.baselines.reference_nanousd

    def of_answer(self, usage: Usage) -> Usage:
        """Return the usage of the whole answer, where this attempt's `usage` is that of its last part."""
        before = self.routed.before
        return usage if before is None else whole_usage(before.usage, usage)

    @property
    def was_patient(self) -> bool:
        """True when the gateway waited a full first-token time-out, or a good part of the tier's time, for this
        attempt.
        """
        waited_s = self._clock() - self.started_at + _TIMER_SLACK_S
        return waited_s >= self.first_token_timeout_s or self.routed.deadline.is_good_part(waited_s)

    @property
    def first_token_timeout_s(self) -> float:
        """Return the seconds in which the first token of a stream is to come: the deployment's, else the tier's."""
        routed = self.routed
        return self.deployment.timeouts.first_token_s or routed.timeouts.first_token_s(routed.facts.tier)

    def _report_health(self, ending: Ending, error: BaseException | None) -> bool | None:
        """Report to the breaker. Return True when the deployment failed, False when it did not, None when the attempt
        tells nothing about it.
        """
        late = isinstance(error, DeadlineExceeded | AnswerLate)
        if late and self.sent and not self.token_events and self.was_patient:
            self._permit.record_fault(type(error).__name__, None, counted=True)
            self._permit.silent()
            return True
        if isinstance(error, UpstreamError) and error.owner != "request":
            return self._report_fault(error)
        if (
            ending == "hedge_lost"
            and self.sent
            and not self.token_events
            and self.candidate.reason not in {"hedge", "agreement"}
        ):
            # One late answer is no fault. A deployment that is overtaken again and again, and answers no request, hangs.
            self._permit.silent()
            return None
        if isinstance(error, CannotCarry) or (ending != "ok" and not isinstance(error, RequestRejected)):
            self._permit.abandon()
            return None
        self._permit.success()
        return False

    def _report_fault(self, error: UpstreamError) -> bool | None:
        """Report a failure that is not the request's, by its owner. Return as `_report_health` does."""
        permit = self._permit
        counted = error.gateway_failure or error.key_refused
        permit.record_fault(type(error).__name__, error.status, counted=counted, detail=self._told(error))
        if error.key_refused:
            permit.refused(error.reason)
        elif error.gateway_failure:
            permit.failure(of_everyone=isinstance(error, _CAUSED_BY_NOBODY))
        elif error.owner == "pace":
            permit.paced(error.retry_after_s, error.reason)
        else:
            permit.abandon()
        return True if counted else None

    def _told(self, error: BaseException | None) -> str:
        """Return the upstream's words on a failure, as operators may read them."""
        if not isinstance(error, UpstreamError) or not error.detail:
            return ""
        return without_echo(error.detail, map(bytes, self.routed.request.fields.values()))

    def _money(self) -> Money:
        """Return the money of the usage counted so far, cached until the next batch of events."""
        if self._counted is None:
            target = self.candidate.target
            is_cut, token_events = not self.finished and self.outgrew, self.token_events
            if is_cut and self._outgrew_unread:
                token_events = max(token_events + self.unread_events, most_written(target, self.routed))
            usage = usage_of(
                self.routed,
                target,
                self.wire_usage,
                token_events=token_events,
                chars=self.chars,
                # What was cut has no last report, whatever a running one told.
                stale=self._stale or is_cut,
                units=self.units,
            )
            if self.deployment.told_cost is not None and self.wire_usage is not None and not self._stale:
                usage = replace(usage, told_nanousd=self.deployment.told_cost.nanousd(self.wire_usage))
            if self.cached_before is not None:
                usage = replace(usage, cached_input_tokens=min(usage.cached_input_tokens, self.cached_before))
            self._counted = money_of(self.routed, target, usage, self.service_tier)
        return self._counted

    def _reserve_entry(self) -> Entry:
        """Return the entry that books the likely maximum of the attempt's cost."""
        routed, candidate, tracker = self.routed, self.candidate, self.load_tracker
        target, caller = candidate.target, routed.caller
        entry = replace(
            UNSAID,
            request_id=routed.request_id,
            organisation_id=caller.organisation_id,
            team_id=caller.team_id,
            key_id=caller.key_id,
            tier=routed.facts.tier,
            alias=routed.alias,
            input_tokens=routed.facts.input_tokens,
            stream=routed.request.stream,
            complexity=None if routed.prediction is None else routed.prediction.complexity,
            tag=routed.request.tag,
            end_user=routed.request.end_user,
            pool=routed.pools.get(target.target_id, ""),
            origin=routed.origin,
            arm=routed.arm,
        )
        entry = replace(
            entry,
            attempt=self.number,
            at_us=self.began_us,
            boot_id=self._books.boot_id,
            target_id=target.target_id,
            deployment_id=self.deployment.deployment_id,
            provider=target.provider,
            price_version="" if target.price is None else target.price.version,
            cost_nanousd=candidate.bound_nanousd,
            reason=candidate.reason,
            margin_nanousd=candidate.margin_nanousd,
            margin_why=candidate.margin_why,
        )
        return entry if tracker is None else replace(entry, flags=_other_version(tracker), version=tracker.version)

    def _closing_entry(
        self, reserve: Entry, kind: EntryKind, money: Money, lasted_s: float, *, status: int, served: bool
    ) -> Entry:
        """Return the entry that closes the reserve: the same, with the fields that are known only now."""
        usage, baselines, tracker, routed = money.usage, money.baselines, self.load_tracker, self.routed
        meters = money.costs_nanousd or ZERO_METERS
        given_at = self.given_at if self.unused is None and "hedge_lost" not in usage.flags else None
        entry = replace(
            reserve,
            entry=kind,
            at_us=self._now_us(),
            status=status,
            served=served,
            ttft_us=None if self.first_token_at is None else _us(self.first_token_at - self.started_at),
            duration_us=_us(lasted_s),
            considered=written(routed.plan) if self.number == 1 and _was_chosen(routed) else "",
            baseline_nanousd=baselines.reference_nanousd,
            baseline_price=baselines.reference_price,
            cheapest_nanousd=baselines.cheapest_nanousd,
            cheapest_price=baselines.cheapest_price,
            hosted_nanousd=baselines.hosted_nanousd,
            hosted_price=baselines.hosted_price,
        )
        entry = replace(
            entry,
            usage_source=usage.source,
            flags=usage.flags,
            began_us=self._since_arrival_us(self.started_at),
            queued_us=_us(self.queued_s),
            given_us=self._since_arrival_us(given_at),
            cost_nanousd=money.cost_nanousd,
            **dict(zip(_METERED, (*_counts(usage), *meters), strict=True)),
        )
        if usage.unit or money.batch_saved_nanousd or money.disputed_nanousd:
            # A reserve has none of these, and few answers do.
            entry = replace(
                entry,
                unit=usage.unit,
                quantity_milli=usage.quantity_milli,
                batch_saved_nanousd=money.batch_saved_nanousd,
                disputed_nanousd=money.disputed_nanousd,
            )
        if tracker is None:
            return entry
        return replace(entry, flags=usage.flags + _other_version(tracker), version=tracker.version)


_counts: Final = attrgetter(*TOKEN_COLUMNS)
_METERED: Final = (*TOKEN_COLUMNS, *METER_COLUMNS)
UNSAID: Final = Entry(
    request_id="",
    attempt=1,
    entry="reserve",
    at_us=0,
    boot_id="",
    organisation_id="",
    team_id="",
    key_id="",
    tier="",
    alias="",
    target_id="",
    deployment_id="",
    provider="",
    price_version="",
    input_tokens=0,
    cached_input_tokens=0,
    cache_write_tokens=0,
    output_tokens=0,
    reasoning_tokens=0,
    cost_nanousd=None,
    baseline_nanousd=None,
    usage_source="estimated",
    flags=(),
    status=0,
    stream=False,
    complexity=None,
    reason="",
    ttft_us=None,
    duration_us=None,
)
"""A reserve without values. Entries are changed in steps: Python builds a call of more than 14 of these names from a
dict, which takes longer than three such calls.
"""


def holds_less_later(candidate: Candidate, routed: RoutedRequest) -> bool:
    """Return True when a later target of `auto` holds less money: targets come in the order of their margins, and
    budgets hold the price.
    """
    bound, planned = candidate.bound_nanousd, [each.target.target_id for each in routed.plan.candidates]
    if routed.facts.alias != AUTO or bound is None or candidate.target.target_id not in planned:
        return False
    later = routed.plan.candidates[planned.index(candidate.target.target_id) + 1 :]
    return any(each.bound_nanousd is not None and each.bound_nanousd < bound for each in later)


def _what_fits(tokens: int, target_id: str) -> str:
    if not tokens:
        return f"What is left does not pay for the prompt at `{target_id}`: a shorter one or a cheaper model may still fit."
    return f"An answer of at most {tokens} tokens at `{target_id}` would fit: send `max_tokens` of that or less."


def _other_version(tracker: LoadTracker) -> tuple[str, ...]:
    """Return the flag of an attempt that was answered by another version of the model than the conversation was to
    have.
    """
    return ("other_version",) if tracker.other_version else ()


def _was_chosen(routed: RoutedRequest) -> bool:
    """Return True where the gateway chose for a caller, so that the choice must be explainable."""
    return routed.prediction is not None and routed.origin == "caller"


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)


_UPSTREAM_ERROR: Final = "upstream_error"
_OF_ERROR: Final[Mapping[type[BaseException], tuple[AttemptResult, str]]] = {
    FirstTokenTimeout: ("timeout", "first_token_timeout"),
    UpstreamTimeout: ("timeout", "upstream_timeout"),
    DeadlineExceeded: ("timeout", "deadline_exceeded"),
    StreamCut: ("cut", "stream_cut"),
    UpstreamRateLimited: ("rate_limited", _UPSTREAM_ERROR),
    RequestRejected: ("rejected", _UPSTREAM_ERROR),
    UpstreamError: ("error", _UPSTREAM_ERROR),
}
"""The result in metrics and logs, and the ledger's flag, of an attempt that such an error ended; that of the nearest class counts. Of
any other error only the ending is told.
"""
_OF_ENDING: Final[Mapping[Ending, AttemptResult]] = {
    "ok": "ok",
    "hedge_lost": "hedge_lost",
    "caller_gone": "cancelled",
    "slow_reader": "cancelled",
    "shutdown": "cancelled",
    "failed": "cancelled",
}


def _of_error(error: BaseException | None) -> tuple[AttemptResult, str] | None:
    return None if error is None else next((_OF_ERROR[kind] for kind in type(error).__mro__ if kind in _OF_ERROR), None)


def flags_of(ending: Ending, error: BaseException | None) -> tuple[str, ...]:
    """Return the ledger's flags: the error's where there is one, else the ending's; empty for a success."""
    told = _of_error(error)
    if told is None:
        return () if ending == "ok" else (ending,)
    flag = told[1]
    if flag == _UPSTREAM_ERROR and isinstance(error, UpstreamError) and error.status is not None:
        # Callers got another status: whose fault it was is for operators to mend, and for the books to know.
        return (flag, f"{UPSTREAM_STATUS}{error.status}")
    return (flag,)


def result_of(ending: Ending, error: BaseException | None) -> AttemptResult:
    """Return the attempt's result for metrics and logs."""
    told = _of_error(error)
    return _OF_ENDING[ending] if told is None else told[0]
