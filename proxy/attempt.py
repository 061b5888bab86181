"""One attempt at one deployment, from its reservation to its single settlement."""

import math
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from cost.claim.comparators import NO_BASELINES, Baselines, Work
from cost.ledger.entries import Entry, EntryKind
from cost.ledger.ledger import Books
from cost.prices import Meters
from cost.usage import MISSING, Usage, estimated, from_openai
from providers.breaker import Permit
from providers.errors import (
    CannotCarry,
    ConnectFailed,
    FirstTokenTimeout,
    RequestRejected,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from providers.target import Deployment
from providers.wire import Event, WireUsage
from proxy.comparisons import comparator_of
from proxy.errors import DeadlineExceeded
from proxy.job import Job
from proxy.outcome import AttemptOutcome, AttemptResult
from proxy.policy import Candidate, is_own, most_nanousd
from proxy.queues.work import Slot

CALLER_GONE = 499
"""The status of a request whose caller hung up before its end (nginx's convention)."""

# Characters a token in English text, the rule of thumb of OpenAI's tokenizer guide. It serves only where an
# upstream merged tokens into larger events; otherwise an event is a token.
_CHARS_PER_TOKEN = 4

# When one of these comes before any token, the upstream did no work, so nothing can have been charged.
_NEVER_STARTED = (ConnectFailed, UpstreamUnavailable, UpstreamRateLimited, UpstreamRefusedUs, RequestRejected)

_SILENT = (FirstTokenTimeout, UpstreamTimeout, DeadlineExceeded)

_HAIR_S = 0.001
"""A timer may fire that much before its time."""

_PLAUSIBLE = 2
"""Times the configured context: a report above it is absurd."""

_NO_METERS: Meters = (0, 0, 0, 0, 0, 0, 0)

Ending = Literal["ok", "caller_gone", "slow_reader", "shutdown", "failed"]
Unused = Literal["escalated", "discarded"]
"""Why a whole answer was not given: a better target's stood in for it, or it was itself the worse one of the two."""


class Lease(Protocol):
    """What an attempt counts for at a replica of ours, until it ends."""

    when_lost: Callable[[], None] | None
    """Called when the replica is found dead before it said a word."""

    @property
    def lost(self) -> bool: ...

    def first_token(self) -> None:
        """Its prompt is computed, and cached there."""
        ...

    def end(
        self,
        *,
        failed: bool | None,
        silent: bool = False,
        cached_tokens: int | None = None,
        output_tokens: int | None = None,
    ) -> None:
        """Once. `failed` says whether the replica did; None says nothing about it. `silent`: all that it did was not to
        answer in time. The tokens are the engine's own count.
        """
        ...


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt came to."""

    outcome: AttemptOutcome
    usage: Usage
    cost_nanousd: int | None
    baseline_nanousd: int | None


class _Money(msgspec.Struct, frozen=True):
    """What an attempt used and what that comes to, here and elsewhere. Costs are None without a price."""

    usage: Usage
    costs_nanousd: Meters | None
    baselines: Baselines

    @property
    def cost_nanousd(self) -> int | None:
        return None if self.costs_nanousd is None else sum(self.costs_nanousd)


_VOID: tuple[EntryKind, _Money] = ("void", _Money(Usage(), _NO_METERS, NO_BASELINES))


class Attempt:
    """Mutable while its stream flows; `close` turns it into entries exactly once."""

    __slots__ = (
        "_books",
        "_clock",
        "_counted",
        "_now_us",
        "_permit",
        "_reserved",
        "_stale",
        "_to_keep",
        "candidate",
        "chars",
        "deployment",
        "finished",
        "first_token_at",
        "job",
        "kept",
        "last_token_at",
        "lease",
        "number",
        "sent",
        "settled",
        "slot",
        "started_at",
        "token_events",
        "unused",
        "wire_usage",
    )

    def __init__(
        self,
        job: Job,
        number: int,
        candidate: Candidate,
        deployment: Deployment,
        permit: Permit,
        books: Books,
        clock: Callable[[], float],
        now_us: Callable[[], int],
    ) -> None:
        self.job = job
        self.number = number
        self.candidate = candidate
        self.deployment = deployment
        self._permit = permit
        self._books = books
        self._clock = clock
        self._now_us = now_us
        self.started_at = clock()
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.token_events = 0
        self.chars = 0
        self.wire_usage: WireUsage | None = None
        self._counted: _Money | None = None
        self.finished = False
        self._reserved = False
        self._stale = False
        self.sent = False
        """The upstream may have seen it; before that nothing can have been charged."""
        self.settled: Settled | None = None
        self.kept: list[bytes] | None = [] if job.keep_bytes else None
        """References to the payloads so far; None when they are not wanted, or became too many."""
        self._to_keep = job.keep_bytes
        self.unused: Unused | None = None
        self.slot: Slot | None = None
        """Its place among the work in flight at the target, given back when it is settled."""
        self.lease: Lease | None = None

    async def reserve(self) -> None:
        """Books the most this attempt may cost; durable when it returns. Raises LedgerUnavailable."""
        held = Usage(input_tokens=self.job.facts.input_tokens, source="estimated")
        # The entry has what is likely the most, which is booked when the process dies; budgets hold what must be.
        most = self.candidate.bound_nanousd
        entry = self._entry("reserve", _Money(held, _NO_METERS, NO_BASELINES), most, status=0)
        await self._books.reserve(entry, most_nanousd(self.candidate.target, self.job.facts))
        self._reserved = True

    def observe(self, events: list[Event]) -> None:
        """Takes note of what flowed by: tokens, usage and the end."""
        self._counted = None
        one_choice = self.job.request.n == 1
        if self.kept is not None:
            self._keep(events)
        for event in events:
            if event.token:
                self.token_events += 1
                self.chars += event.text_chars
                # What was reported before no longer tells the whole.
                self._stale = True
            if event.usage is not None:
                self.wire_usage = event.usage
                # Beside content it counts that event's choice alone, so it is the whole only where there is one.
                self._stale = not (one_choice or event.choices == 0 or not self.job.request.stream)
            if event.finished:
                self.finished = True
        if self.token_events:
            self.last_token_at = self._clock()
            if self.first_token_at is None:
                self.first_token_at = self.last_token_at

    def _keep(self, events: list[Event]) -> None:
        assert self.kept is not None  # noqa: S101  # The one caller looked.
        for event in events:
            self._to_keep -= len(event.payload)
            self.kept.append(event.payload)
        if self._to_keep < 0:
            self.kept = None

    def healthy(self) -> None:
        """The first token came: the deployment answers. A cut later is counted as a failure of its own."""
        self._permit.success()
        if self.lease is not None:
            self.lease.first_token()

    def close(
        self, ending: Ending, error: BaseException | None = None, *, status: int, unused: Unused | None = None
    ) -> Settled:
        """Settles the attempt. Only the first call does anything; every call returns the same.

        `unused` says why a whole answer was not given: it cost, but it saved nothing, so it has no baseline.
        """
        if self.settled is not None:
            return self.settled
        self.unused = unused
        failed = self._report_health(ending, error)
        if not self.sent or (not self.token_events and isinstance(error, _NEVER_STARTED)):
            kind, money = _VOID
        else:
            kind, money = "settle", self._money()
            if ending != "ok" or unused is not None:
                # It saved nothing: nobody got it.
                money = msgspec.structs.replace(money, baselines=NO_BASELINES)
        usage = self._flagged(money.usage, _flags(ending, error) if unused is None else (unused,))
        served = kind == "settle" and ending == "ok" and unused is None and self.job.origin == "caller"
        if self._reserved:
            told = msgspec.structs.replace(money, usage=usage)
            entry = self._entry(kind, told, told.cost_nanousd, status=status, served=served)
            self._books.settle(entry)
        if self.slot is not None:
            self.slot.release(usage.input_tokens + usage.output_tokens)
        if self.lease is not None:
            counted = self.wire_usage is not None and usage.source == "upstream"
            self.lease.end(
                failed=failed,
                silent=isinstance(error, _SILENT),
                cached_tokens=usage.cached_input_tokens if counted else None,
                output_tokens=usage.output_tokens if counted else None,
            )
        outcome = AttemptOutcome(
            target_id=self.deployment.target_id,
            deployment_id=self.deployment.deployment_id,
            provider=self.candidate.target.provider,
            result=_result(ending, error),
            duration_s=self._clock() - self.started_at,
        )
        self.settled = Settled(
            outcome=outcome,
            usage=usage,
            cost_nanousd=money.cost_nanousd,
            baseline_nanousd=money.baselines.reference_nanousd,
        )
        return self.settled

    def preview(self) -> tuple[Usage, int | None, int | None]:
        """Usage, cost and baseline as they would be settled now; for the reply's last words."""
        money = self._money()
        return money.usage, money.cost_nanousd, money.baselines.reference_nanousd

    @property
    def was_patient(self) -> bool:
        """It was waited for as long as a first token may take, or for a good part of its tier's time."""
        waited_s = self._clock() - self.started_at + _HAIR_S
        job = self.job
        return waited_s >= job.timeouts.first_token_s(job.facts.tier) or job.deadline.is_good_part(waited_s)

    def _report_health(self, ending: Ending, error: BaseException | None) -> bool | None:
        """Whether the deployment failed; None when nothing was learnt of it."""
        if isinstance(error, UpstreamError) and not isinstance(error, RequestRejected):
            self._permit.went_wrong(type(error).__name__, error.status, counted=error.gateway_failure)
        if isinstance(error, UpstreamError) and error.gateway_failure:
            self._permit.failure()
            return True
        if isinstance(error, DeadlineExceeded) and self.sent and not self.token_events and self.was_patient:
            self._permit.went_wrong(type(error).__name__, None, counted=True)
            self._permit.silent()
            return True
        if isinstance(error, CannotCarry) or (ending != "ok" and not isinstance(error, RequestRejected)):
            self._permit.abandon()
            return None
        self._permit.success()
        return False

    @staticmethod
    def _flagged(usage: Usage, flags: tuple[str, ...]) -> Usage:
        return msgspec.structs.replace(usage, flags=(*flags, *usage.flags)) if flags else usage

    def _money(self) -> "_Money":
        if self._counted is None:
            usage = self._count()
            price = self.candidate.target.price
            costs = None if price is None else price.costs_nanousd(usage)
            self._counted = _Money(usage, costs, self._baselines(usage, None if costs is None else sum(costs)))
        return self._counted

    def _count(self) -> Usage:
        facts, target = self.job.facts, self.candidate.target
        by_chars = math.ceil(self.chars / _CHARS_PER_TOKEN)
        if facts.max_output_tokens is not None:
            # Tokens of code or blanks are long: the guess must not lie above what was asked for, and held.
            by_chars = min(by_chars, facts.max_output_tokens * facts.choices)
        guess = estimated(input_tokens=facts.input_tokens, output_tokens=max(self.token_events, by_chars))
        if self.wire_usage is None:
            return msgspec.structs.replace(guess, flags=(MISSING,))
        # Our own estimate let the request pass, so a report may lie above the configured limit and still be true.
        most = _PLAUSIBLE * max(
            target.max_context_tokens, facts.input_tokens if facts.longest_tokens is not None else 0
        )
        told = from_openai(
            self.wire_usage, estimate=guess, max_input_tokens=most, max_output_tokens=most * self.job.request.n
        )
        if self._stale and told.source == "upstream" and guess.output_tokens > told.output_tokens:
            return msgspec.structs.replace(told, output_tokens=guess.output_tokens, source="estimated")
        return told

    def _baselines(self, usage: Usage, cost_nanousd: int | None) -> Baselines:
        job, target = self.job, self.candidate.target
        # What has no price has no saving: its baseline beside no cost would be one whole.
        if job.comparators is None or cost_nanousd is None:
            return NO_BASELINES
        work = Work(
            usage=usage,
            target_id=target.target_id,
            own=is_own(target, job.pools),
            cost_nanousd=cost_nanousd,
            price_version=target.price.version if target.price is not None else "",
            tokenizer_ppm=target.tokenizer_ppm,
            batch=job.facts.tier == "batch",
        )
        return job.comparators.baselines(work, comparator_of(job.plan.cheapest_commercial))

    def _entry(
        self, kind: EntryKind, money: "_Money", cost_nanousd: int | None, *, status: int, served: bool = False
    ) -> Entry:
        job, target = self.job, self.candidate.target
        closing = kind != "reserve"
        usage, baselines = money.usage, money.baselines
        meters = money.costs_nanousd or _NO_METERS
        return Entry(
            request_id=job.request_id,
            attempt=self.number,
            entry=kind,
            at_us=self._now_us(),
            boot_id=self._books.boot_id,
            organisation_id=job.caller.organisation_id,
            team_id=job.caller.team_id,
            key_id=job.caller.key_id,
            tier=job.facts.tier,
            alias=job.alias,
            target_id=target.target_id,
            deployment_id=self.deployment.deployment_id,
            provider=target.provider,
            price_version=target.price.version if target.price is not None else "",
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost_nanousd=cost_nanousd,
            baseline_nanousd=baselines.reference_nanousd,
            usage_source=usage.source,
            flags=usage.flags,
            status=status,
            stream=job.request.stream,
            complexity=job.prediction.complexity if job.prediction is not None else None,
            reason=self.candidate.reason,
            ttft_us=_us(self.first_token_at, self.started_at) if closing else None,
            duration_us=_us(self._clock(), self.started_at) if closing else None,
            cache_write_1h_tokens=usage.cache_write_1h_tokens,
            input_nanousd=meters[0],
            cached_input_nanousd=meters[1],
            cache_write_nanousd=meters[2],
            cache_write_1h_nanousd=meters[3],
            output_nanousd=meters[4],
            reasoning_nanousd=meters[5],
            request_nanousd=meters[6],
            tag=job.request.tag,
            pool=job.pools.get(target.target_id, ""),
            origin=job.origin,
            served=served,
            arm=job.arm,
            baseline_price=baselines.reference_price,
            cheapest_nanousd=baselines.cheapest_nanousd,
            cheapest_price=baselines.cheapest_price,
            hosted_nanousd=baselines.hosted_nanousd,
            hosted_price=baselines.hosted_price,
        )


def _us(end: float | None, start: float) -> int | None:
    return None if end is None else round((end - start) * 1_000_000)


def _flags(ending: Ending, error: BaseException | None) -> tuple[str, ...]:
    match error:
        case FirstTokenTimeout():
            return ("first_token_timeout",)
        case UpstreamTimeout():
            return ("upstream_timeout",)
        case StreamCut():
            return ("stream_cut",)
        case DeadlineExceeded():
            return ("deadline_exceeded",)
        case UpstreamError():
            return ("upstream_error",)
    return () if ending == "ok" else (ending,)


def _result(ending: Ending, error: BaseException | None) -> AttemptResult:
    match error:
        case FirstTokenTimeout() | UpstreamTimeout() | DeadlineExceeded():
            return "timeout"
        case UpstreamRateLimited():
            return "rate_limited"
        case RequestRejected():
            return "rejected"
        case StreamCut():
            return "cut"
        case UpstreamError():
            return "error"
    return "ok" if ending == "ok" else "cancelled"
