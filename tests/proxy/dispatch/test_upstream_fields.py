"""What engines of our own are told beside the caller's body."""

from typing import Any

import msgspec
import pytest

from accounts.caller import Caller
from providers.config import RetryConfig, TimeoutsConfig
from providers.target import NO_OWN_TIMEOUTS, Deployment, OwnTimeouts, Tier
from proxy.dispatch.upstream_fields import cache_salt, call_headers, engine_fields, upstream_call
from proxy.plan.route_plan import Facts, RoutePlan
from proxy.plan.routed_request import RoutedRequest
from proxy.shared.deadline import NO_DEADLINE, Deadline
from tests.providers.calls import chat_request, deployment, target

_ALICE = Caller(key_id="k", key_name="k", team_id="payments", organisation_id="acme")


def _routed(
    *, tier: Tier = "interactive", priority: int = 0, origin: str = "caller", caller: Caller = _ALICE
) -> RoutedRequest:
    fields: dict[str, Any] = {"prediction": None, "comparators": None, "upstream_headers": {}, "alias": "x"}
    request = chat_request()
    facts = Facts(alias="x", tier=tier, needs=frozenset(), input_tokens=1, max_output_tokens=None)
    plan = RoutePlan(candidates=(), rejected=())
    return RoutedRequest(
        request_id="r",
        caller=caller,
        request=msgspec.structs.replace(request, tier=tier, priority=priority),
        facts=facts,
        plan=plan,
        timeouts=TimeoutsConfig(),
        retry=RetryConfig(),
        origin=origin,  # type: ignore[arg-type]
        **fields,
    )


def _engine(**changes: Any) -> Deployment:
    return deployment("vllm", **changes)


def test_urgent_work_has_the_lower_number() -> None:
    """Interactive before batch before what nobody waits for, and in each a team's own order."""
    engine = _engine(priority_scheduling=True)
    urgent_first = [
        *(_routed(priority=priority) for priority in (1, 0, -1)),
        *(_routed(tier="batch", priority=priority) for priority in (1, 0, -1)),
        _routed(origin="shadow"),
    ]
    numbers = [int(engine_fields(engine, each)["priority"]) for each in urgent_first]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == len(numbers)


def test_engines_of_our_own_are_told_whose_it_is_and_how_long_there_is() -> None:
    """A bought target is told nothing; of a stream only a caller's own limit bounds the whole."""
    routed = msgspec.structs.replace(
        _routed(),
        upstream_headers={"traceparent": "t"},
        deadline=Deadline(arrived_at=0.0, first_token_at=11.5, answer_at=40.0, own=False),
    )
    own, stream = msgspec.structs.replace(target("a"), pool="p"), chat_request(stream=True)
    assert call_headers(target("a"), routed, 10.0) == {"traceparent": "t"}
    usual = {"traceparent": "t", "x-llm-d-inference-fairness-id": "payments"}
    assert call_headers(own, routed, 10.0) == {**usual, "x-request-timeout-ms": "30000"}
    streamed = msgspec.structs.replace(routed, request=stream)
    assert call_headers(own, streamed, 10.0) == {**usual, "x-llm-d-slo-ttft-ms": "1500"}
    assert call_headers(own, streamed, 12.0)["x-llm-d-slo-ttft-ms"] == "1"
    bound = msgspec.structs.replace(streamed, deadline=msgspec.structs.replace(routed.deadline, own=True))
    assert call_headers(own, bound, 10.0)["x-request-timeout-ms"] == "30000"
    assert call_headers(own, msgspec.structs.replace(routed, deadline=NO_DEADLINE), 10.0) == usual


def test_an_engine_that_would_not_understand_is_told_nothing() -> None:
    """Neither is any bought upstream."""
    assert engine_fields(_engine(), _routed()) == {}
    assert engine_fields(deployment("openai"), _routed()) == {}


@pytest.mark.parametrize(
    ("isolation", "shared"), [("none", "payments ads"), ("organisation", "payments ads"), ("team", "payments")]
)
def test_cached_prefixes_are_shared_within_their_bounds(isolation: str, shared: str) -> None:
    """Teams of one organisation may share or not; another organisation never does unless everybody does."""
    engine = _engine(cache_isolation=isolation)

    def salt(team: str, organisation: str) -> str:
        return cache_salt(engine, Caller(key_id="k", key_name="k", team_id=team, organisation_id=organisation))

    mine = salt("payments", "acme")
    assert {team for team in ("payments", "ads") if salt(team, "acme") == mine} == set(shared.split())
    assert (salt("payments-2", "rival") == mine) is (isolation == "none")
    assert "acme" not in mine
    assert "payments" not in mine


def test_a_deployments_own_time_outs_come_first() -> None:
    """Each by itself; a whole answer's counts from now."""
    own = OwnTimeouts(connect_s=1.5, total_s=30.0)
    for timeouts, told in ((own, (1.5, 60.0, 30.0)), (NO_OWN_TIMEOUTS, (5.0, 60.0, 600.0))):
        engine = _engine(timeouts=timeouts)
        call = upstream_call(target(), engine, _routed(), 0.0, reaches=lambda _sent: None, drops=lambda _name: None)
        assert (call.connect_timeout_s, call.idle_timeout_s, call.total_timeout_s) == told
