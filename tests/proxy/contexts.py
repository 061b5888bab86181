"""Contexts, routed requests and attempts for the tests of what works on them alone."""

import asyncio
from typing import Any

from accounts.caller import Caller
from cost.ledger.ledger import MemoryLedger
from cost.savings.comparators import Comparators
from providers.breaker import Breakers
from providers.catalog import Catalog
from providers.config import BreakerConfig, RetryConfig, TimeoutsConfig
from providers.wire import Event
from proxy.context import RequestContext, new_context
from proxy.dispatch.attempt import Attempt
from proxy.parse.wires.chat.dialect import CHAT
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.route_plan import Candidate, Facts, Policy, RoutePlan
from proxy.plan.routed_request import RoutedRequest
from tests.providers.calls import chat_request
from tests.proxy.exchanges import HeardExchange
from tests.proxy.plan.test_route_plan import target

ALICE = Caller(key_id="k", key_name="k", team_id="payments", organisation_id="acme")


def a_config(**changes: Any) -> PipelineConfig:
    fields: dict[str, Any] = {
        "catalog": Catalog(targets={}),
        "policy": Policy(),
        "comparators": Comparators(reference=None),
        "timeouts": TimeoutsConfig(),
        "retry": RetryConfig(),
        "max_in_flight": 10,
        "max_body_bytes": 1_000,
        "max_upload_bytes": 10_000,
        "body_timeout_s": 1.0,
    }
    return PipelineConfig(**fields | changes)


def a_context(exchange: HeardExchange | None = None, **config: Any) -> RequestContext:
    """The context of a request that the running task serves, at the loop's time."""
    return new_context("req_1", CHAT, exchange or HeardExchange(), asyncio.get_running_loop().time, a_config(**config))


def a_routed_request(**changes: Any) -> RoutedRequest:
    facts = Facts(alias="auto", tier="interactive", needs=frozenset(), input_tokens=10, max_output_tokens=None)
    fields: dict[str, Any] = {
        "request_id": "req_1",
        "caller": ALICE,
        "request": chat_request(),
        "facts": facts,
        "plan": RoutePlan(candidates=(a_candidate(),), rejected=()),
        "prediction": None,
        "comparators": None,
        "timeouts": TimeoutsConfig(),
        "retry": RetryConfig(),
        "upstream_headers": {},
        "alias": "auto",
    }
    return RoutedRequest(**fields | changes)


def a_candidate(name: str = "small", **changes: Any) -> Candidate:
    fields: dict[str, Any] = {"reason": "cheapest-capable", "expected_nanousd": 1, "bound_nanousd": 1}
    return Candidate(target=target(name), **fields | changes)


def an_attempt(routed: RoutedRequest, candidate: Candidate | None = None, number: int = 1) -> Attempt:
    """Open, sent, and with one token of its answer there; nothing is reserved for it."""
    chosen = candidate or a_candidate()
    (deployment,) = chosen.target.deployments
    permit = Breakers(BreakerConfig(), lambda: 0.0).try_acquire(deployment.deployment_id)
    assert permit is not None
    attempt = Attempt(routed, number, chosen, deployment, permit, MemoryLedger(), lambda: 0.0, lambda: 1)
    attempt.sent = True
    attempt.observe([Event(payload=b"{}", token=True, choices=1, text_chars=4, usage=None, finished=False)])
    return attempt
