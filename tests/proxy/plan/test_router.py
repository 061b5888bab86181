"""What this process knows of our own pools reaches the plan, and what overflows reaches their autoscalers."""

from typing import Any

import msgspec
import pytest

from accounts.caller import TeamSettings
from classifier.prediction import Prompt
from providers.breaker import Breakers
from providers.catalog import Catalog
from providers.config import BreakerConfig
from proxy.dispatch.load_balancer import TargetRoom
from proxy.errors import TargetsUnavailable
from proxy.parse.parsed_request import ParsedRequest
from proxy.plan.overruns import Overruns
from proxy.plan.route_plan import OwnPool, Policy
from proxy.plan.routed_request import RoutedRequest
from proxy.plan.router import Router
from proxy.plan.session_affinity import Affinity
from proxy.shared.deadline import Deadline
from selfhosted.replica import PoolRoom
from tests.providers.calls import chat_request
from tests.proxy.contexts import ALICE, a_context
from tests.proxy.plan.test_route_plan import MINI, OWN, hard

_OWN = msgspec.structs.replace(OWN, pool="h100")
_POOL = OwnPool(name="h100", targets=("own",))
_PARSED = ParsedRequest(
    request=chat_request(),
    body=b"{}",
    prompt=Prompt(text="hi"),
    input_tokens=10,
    deadline=Deadline(arrived_at=0.0, first_token_at=1.0, answer_at=10.0, own=False),
    parse_escalation=None,
    idempotency_key=None,
)


class _Capacity(TargetRoom):
    """A pool whose room is given, and what it was told of."""

    def __init__(self, found: PoolRoom | None) -> None:
        self.found = found
        self.asked = 0
        self.missed: list[tuple[str, int]] = []
        replicas: Any = self
        super().__init__(queues=None, replicas=replicas)

    def free(self, target: Any, tokens: int) -> PoolRoom | None:
        del target, tokens
        self.asked += 1
        return self.found

    def starts_in_s(self, target: Any) -> float | None:
        return 240.0 if target.pool else None

    def record_overflow(self, target: Any, tokens: int) -> None:
        self.missed.append((target.target_id, tokens))


async def routed(
    found: PoolRoom | None, *, pool: OwnPool = _POOL, downgraded: bool = False, spill_over: bool = True
) -> tuple[RoutedRequest, _Capacity]:
    dispatcher = _Capacity(found)
    given: Any = dispatcher
    router = Router(Affinity(lambda: 0.0), Breakers(BreakerConfig(), lambda: 0.0), given, Overruns(lambda: 0.0))
    policy = Policy(pooled=frozenset({"own"}), pools=(pool,))
    context = a_context(catalog=Catalog(targets={each.target_id: each for each in (_OWN, MINI)}), policy=policy)
    caller = msgspec.structs.replace(ALICE, settings=TeamSettings(spill_over=spill_over))
    return (
        router.route("req_1", caller, _PARSED, hard(0.2), context.config, now=0.0, in_flight=1, downgraded=downgraded),
        dispatcher,
    )


async def test_a_pool_with_room_comes_first() -> None:
    """Its average is above the other's; nobody was turned away."""
    found, dispatcher = await routed(PoolRoom(0.0, 0.1))
    assert [each.target.target_id for each in found.plan.candidates] == ["own", "mini"]
    assert (dispatcher.asked, dispatcher.missed) == (1, [])


async def test_what_overflows_is_demand_of_the_pool() -> None:
    """Its autoscaler hears of the tokens, as of those that dispatch passes over."""
    found, dispatcher = await routed(PoolRoom(2.0, 0.1))
    assert (found.plan.candidates[0].target.target_id, found.plan.candidates[0].reason) == ("mini", "spill-over")
    assert dispatcher.missed == [("own", 10 + 100)]
    _, stays = await routed(PoolRoom(2.0, 0.1), spill_over=False)
    assert stays.missed == []


@pytest.mark.parametrize(
    ("room", "changes"),
    [
        (None, {}),
        (PoolRoom(0.0, 0.1), {"downgraded": True}),
        (PoolRoom(0.0, 0.1), {"pool": msgspec.structs.replace(_POOL, by_margin=False)}),
    ],
)
async def test_otherwise_the_average_price_decides(room: PoolRoom | None, changes: dict[str, Any]) -> None:
    """Unknown room, a spent budget that counts what is booked, and a configuration that says so."""
    found, dispatcher = await routed(room, **changes)
    assert [(each.target.target_id, each.margin_why) for each in found.plan.candidates] == [
        ("mini", "bought"),
        ("own", "average"),
    ]
    assert dispatcher.missed == []


async def test_who_finds_a_pool_empty_is_told_when_it_may_be_there() -> None:
    """Not to come again in a moment while engines take minutes to start."""
    given: Any = _Capacity(None)
    empty = msgspec.structs.replace(_OWN, deployments=())
    router = Router(Affinity(lambda: 0.0), Breakers(BreakerConfig(), lambda: 0.0), given, Overruns(lambda: 0.0))
    context = a_context(
        catalog=Catalog(targets={"own": empty}), policy=Policy(pooled=frozenset({"own"}), pools=(_POOL,))
    )
    with pytest.raises(TargetsUnavailable) as refused:
        router.route("req_1", ALICE, _PARSED, hard(0.2), context.config, now=0.0, in_flight=1)
    assert refused.value.retry_after_s == 240.0
    assert given.missed
