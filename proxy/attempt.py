"""One attempt at one deployment, from its reservation to its single settlement."""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from cost.claim.comparators import NO_BASELINES
from cost.ledger.entries import Entry, EntryKind
from cost.ledger.ledger import Books
from cost.usage import Usage
from providers.breaker import Permit
from providers.errors import (
    CannotCarry,
    ConnectFailed,
    FirstTokenTimeout,
    RequestRejected,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from providers.target import Deployment
from providers.wire import Event, WireUsage
from proxy.attempt_money import NO_METERS, NOTHING, Money, flagged, money_of, usage_of
from proxy.ending import Ending, Unused, flags_of, result_of
from proxy.errors import DeadlineExceeded
from proxy.outcome import AttemptOutcome
from proxy.policy import Candidate, most_nanousd
from proxy.queues.work import Slot
from proxy.routed_request import RoutedRequest

# When one of these comes before any token, the upstream did no work, so nothing can have been charged.
_NEVER_STARTED = (ConnectFailed, UpstreamUnavailable, UpstreamRateLimited, UpstreamRefusedUs, RequestRejected)

_SILENT = (FirstTokenTimeout, UpstreamTimeout, DeadlineExceeded)

_HAIR_S: Final = 0.001
"""A timer may fire that much before its time."""


class Lease(Protocol):
    """An attempt's load at a replica of ours, counted until it ends."""

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
    """An attempt's outcome, usage and money, once it is closed. Costs are None without a price."""

    outcome: AttemptOutcome
    usage: Usage
    cost_nanousd: int | None
    baseline_nanousd: int | None


_VOID: Final[tuple[EntryKind, Money]] = ("void", NOTHING)


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
        "kept",
        "last_token_at",
        "lease",
        "number",
        "reached",
        "routed",
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
        self._counted: Money | None = None
        self.finished = False
        self._reserved = False
        self._stale = False
        self.sent = False
        """It was given away; before that nothing can have been charged."""
        self.reached = True
        """The upstream may have seen it. Not while it waits for a connection, although it was given away."""
        self.settled: Settled | None = None
        self.kept: list[bytes] | None = [] if routed.keep_bytes else None
        """References to the payloads so far; None when they are not wanted, or became too many."""
        self._to_keep = routed.keep_bytes
        self.unused: Unused | None = None
        self.slot: Slot | None = None
        """Its place among the work in flight at the target, given back when it is settled."""
        self.lease: Lease | None = None

    async def reserve(self) -> None:
        """Books the most this attempt may cost; durable when it returns. Raises LedgerUnavailable."""
        held = Usage(input_tokens=self.routed.facts.input_tokens, source="estimated")
        # The entry has what is likely the most, which is booked when the process dies; budgets hold what must be.
        most = self.candidate.bound_nanousd
        entry = self._entry("reserve", Money(held, NO_METERS, NO_BASELINES), most, status=0)
        await self._books.reserve(entry, most_nanousd(self.candidate.target, self.routed.facts))
        self._reserved = True

    def observe(self, events: list[Event]) -> None:
        """Takes note of what flowed by: tokens, usage and the end."""
        self._counted = None
        one_choice = self.routed.request.n == 1
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
                self._stale = not (one_choice or event.choices == 0 or not self.routed.request.stream)
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

    def reaches(self, reached: bool) -> None:
        """Whether there is a connection by now, from those who know."""
        self.reached = reached

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
        kind, money = self._charged(ending, error)
        usage = money.usage
        if self._reserved:
            served = kind == "settle" and ending == "ok" and unused is None and self.routed.origin == "caller"
            self._books.settle(self._entry(kind, money, money.cost_nanousd, status=status, served=served))
        if self.slot is not None:
            self.slot.release(usage.input_tokens + usage.output_tokens)
        if self.lease is not None:
            # An estimate of ours says nothing of the engine's cache.
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
            result=result_of(ending, error),
            duration_s=self._clock() - self.started_at,
        )
        self.settled = Settled(
            outcome=outcome,
            usage=usage,
            cost_nanousd=money.cost_nanousd,
            baseline_nanousd=money.baselines.reference_nanousd,
        )
        return self.settled

    def _charged(self, ending: Ending, error: BaseException | None) -> tuple[EntryKind, Money]:
        """The closing entry's kind and its money, the usage flagged with how it ended."""
        if not self.sent or not self.reached or (not self.token_events and isinstance(error, _NEVER_STARTED)):
            kind, money = _VOID
        else:
            kind, money = "settle", self._money()
        baselines = money.baselines
        if ending != "ok" or self.unused is not None:
            # It saved nothing: nobody got it.
            baselines = NO_BASELINES
        flags = flags_of(ending, error) if self.unused is None else (self.unused,)
        return kind, Money(flagged(money.usage, flags), money.costs_nanousd, baselines)

    def preview(self) -> tuple[Usage, int | None, int | None]:
        """Usage, cost and baseline as they would be settled now; for the reply's last words."""
        money = self._money()
        return money.usage, money.cost_nanousd, money.baselines.reference_nanousd

    @property
    def was_patient(self) -> bool:
        """It was waited for as long as a first token may take, or for a good part of its tier's time."""
        waited_s = self._clock() - self.started_at + _HAIR_S
        routed = self.routed
        return waited_s >= routed.timeouts.first_token_s(routed.facts.tier) or routed.deadline.is_good_part(waited_s)

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

    def _money(self) -> Money:
        """As counted so far; asked for again and again between two batches of events, and counted once."""
        if self._counted is None:
            target = self.candidate.target
            usage = usage_of(
                self.routed,
                target,
                self.wire_usage,
                token_events=self.token_events,
                chars=self.chars,
                stale=self._stale,
            )
            self._counted = money_of(self.routed, target, usage)
        return self._counted

    def _entry(
        self, kind: EntryKind, money: Money, cost_nanousd: int | None, *, status: int, served: bool = False
    ) -> Entry:
        routed, target = self.routed, self.candidate.target
        closing = kind != "reserve"
        usage, baselines = money.usage, money.baselines
        meters = money.costs_nanousd or NO_METERS
        return Entry(
            request_id=routed.request_id,
            attempt=self.number,
            entry=kind,
            at_us=self._now_us(),
            boot_id=self._books.boot_id,
            organisation_id=routed.caller.organisation_id,
            team_id=routed.caller.team_id,
            key_id=routed.caller.key_id,
            tier=routed.facts.tier,
            alias=routed.alias,
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
            stream=routed.request.stream,
            complexity=routed.prediction.complexity if routed.prediction is not None else None,
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
            tag=routed.request.tag,
            pool=routed.pools.get(target.target_id, ""),
            origin=routed.origin,
            served=served,
            arm=routed.arm,
            baseline_price=baselines.reference_price,
            cheapest_nanousd=baselines.cheapest_nanousd,
            cheapest_price=baselines.cheapest_price,
            hosted_nanousd=baselines.hosted_nanousd,
            hosted_price=baselines.hosted_price,
        )


def _us(end: float | None, start: float) -> int | None:
    return None if end is None else round((end - start) * 1_000_000)
