"""What engines of our own are told beside the caller's body."""

from typing import Any

import msgspec
import pytest

from accounts.caller import Caller
from providers.config import RetryConfig, TimeoutsConfig
from providers.target import Deployment, Tier
from proxy.engine_fields import cache_salt, engine_fields
from proxy.policy import Facts, RoutePlan
from proxy.routed_request import RoutedRequest
from tests.providers.calls import chat_request, deployment

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
