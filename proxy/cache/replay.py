"""A kept answer in the place of an upstream's: the same relay writes it, event by event, as if a model gave it now."""

from collections.abc import Callable
from typing import Final, cast

from msgspec.structs import replace

from accounts.caller import Caller
from cost.ledger.entries import Entry
from cost.ledger.ledger import Books
from cost.usage import Usage
from providers.breaker import Permit
from providers.target import Deployment
from providers.upstream import UpstreamStream
from providers.wire import Event
from proxy.cache.kept_answer import KeptAnswer, renewed
from proxy.dispatch.attempt import UNSAID, Attempt, Settled, result_of
from proxy.dispatch.dispatcher import Committed
from proxy.dispatch.outcome import AttemptOutcome, Ending, Unused
from proxy.parse.parsed_request import ParsedRequest
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.route_plan import Candidate, Facts, RoutePlan, may_use
from proxy.plan.routed_request import RoutedRequest
from proxy.plan.router import with_names

NAME: Final = "cache"
"""The deployment and the reason of an answer that is given again, in its headers and in the ledger."""
_AT_ONCE: Final = 64
"""Events that are written before other requests have their turn."""
_SECOND_US: Final = 1_000_000


def committed_again(
    kept: KeptAnswer,
    request_id: str,
    caller: Caller,
    parsed: ParsedRequest,
    config: PipelineConfig,
    *,
    books: Books,
    clock: Callable[[], float],
    now_us: Callable[[], int],
) -> Committed | None:
    """Return the answer as dispatch returns one; None where its target is gone, or this caller may not use it."""
    target = with_names(config, kept.target_id).catalog.targets.get(kept.target_id)
    if target is None or not may_use(caller.allowed_models, target):
        return None
    request = parsed.request
    candidate = Candidate(target=target, reason="cache", expected_nanousd=0, bound_nanousd=0)
    routed = RoutedRequest(
        request_id=request_id,
        caller=caller,
        request=request,
        facts=Facts(
            alias=request.model,
            tier=request.tier,
            needs=frozenset(),
            input_tokens=parsed.input_tokens,
            max_output_tokens=request.max_output_tokens,
        ),
        plan=RoutePlan(candidates=(candidate,), rejected=()),
        prediction=None,
        comparators=None,
        timeouts=config.timeouts,
        retry=config.retry,
        upstream_headers={},
        alias=request.alias or request.model,
        deadline=parsed.deadline,
    )
    attempt = Replayed(routed, candidate, kept, books=books, clock=clock, now_us=now_us)
    number, created = request_id.removeprefix("req_"), attempt.began_us // _SECOND_US
    events = [renewed(event, number, created) for event in kept.events]
    stream = ReplayedStream(events[_AT_ONCE:])
    return Committed(attempt, cast("UpstreamStream", stream), events[:_AT_ONCE])


class ReplayedStream:
    """The rest of a kept answer's events, as an upstream's."""

    def __init__(self, events: list[Event]) -> None:
        self._left = events

    @property
    def ended(self) -> bool:
        return not self._left

    async def read(self) -> list[Event] | None:
        some, self._left = self._left[:_AT_ONCE], self._left[_AT_ONCE:]
        return some or None

    def unread(self) -> list[Event]:
        """Return nothing, always: nobody makes more of it."""
        return []

    async def aclose(self) -> None:
        self._left = []


class Replayed(Attempt):
    """An attempt at nothing: it asks no deployment, holds no money, and books one entry, at no cost, once its caller has it all."""

    __slots__ = ("_kept",)

    def __init__(
        self,
        routed: RoutedRequest,
        candidate: Candidate,
        kept: KeptAnswer,
        *,
        books: Books,
        clock: Callable[[], float],
        now_us: Callable[[], int],
    ) -> None:
        target_id = candidate.target.target_id
        deployment = Deployment(deployment_id=NAME, target_id=target_id, kind="scripted", upstream_model=target_id)
        # It asks no deployment, so there is none to report to.
        super().__init__(routed, 1, candidate, deployment, cast("Permit", None), books, clock, now_us)
        self._kept = kept
        self.dropped = list(kept.dropped)

    @property
    def outgrew(self) -> bool:
        """False, always: it is as long as it was."""
        return False

    def observe(self, events: list[Event]) -> None:
        """Count nothing: what it used was told when it was kept."""

    def preview(self) -> tuple[Usage, int | None, int | None]:
        """Return its usage as it was, and no cost."""
        return self._kept.usage, 0, None

    def close(
        self, ending: Ending, error: BaseException | None = None, *, status: int, unused: Unused | None = None
    ) -> Settled:
        """Book it, where its caller has it whole. Only the first call has an effect."""
        del unused
        if self.settled is None:
            lasted_s = self._clock() - self.started_at
            if ending == "ok":
                self._books.settle(self._entry(status, lasted_s))
            target = self.candidate.target
            outcome = AttemptOutcome(
                target_id=target.target_id,
                deployment_id=NAME,
                provider=target.provider,
                result=result_of(ending, error),
                duration_s=lasted_s,
            )
            self.settled = Settled(outcome=outcome, usage=self._kept.usage, cost_nanousd=0, baseline_nanousd=None)
        return self.settled

    def _entry(self, status: int, lasted_s: float) -> Entry:
        routed, caller, target, kept = self.routed, self.routed.caller, self.candidate.target, self._kept
        entry = replace(
            UNSAID,
            entry="cache",
            request_id=routed.request_id,
            at_us=self._now_us(),
            boot_id=self._books.boot_id,
            organisation_id=caller.organisation_id,
            team_id=caller.team_id,
            key_id=caller.key_id,
            tier=routed.facts.tier,
            alias=routed.alias,
            target_id=target.target_id,
            deployment_id=NAME,
            provider=target.provider,
        )
        return replace(
            entry,
            cost_nanousd=0,
            usage_source="none",
            status=status,
            stream=routed.request.stream,
            reason=NAME,
            duration_us=round(lasted_s * 1_000_000),
            tag=routed.request.tag,
            end_user=routed.request.end_user,
            replayed_input_tokens=kept.usage.input_tokens,
            replayed_output_tokens=kept.usage.output_tokens,
            cache_saved_nanousd=kept.cost_nanousd,
        )
